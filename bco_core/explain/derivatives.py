"""How a decision and its expected cost move with each column of a context: exact derivatives, where there are any.

The road from a context to a decision is walked once more in torch: features, draws' predictions, scenarios, the
policy's decision, the cost. Derivatives are those of the answer itself, almost everywhere: for draws' own decisions
they come through the problem, for a quantile they are the derivative of the atom that it is. Where the road does not
lead to the decision that was given, or some step has no derivative (trees, whole numbers, scenarios that are chosen by
a kernel, decisions that a solver found over scenarios), there is none, and a caller compares decisions instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.features.standardized import Standardized
from bco_core.policies import POLICIES
from bco_core.posterior import Posterior
from bco_core.predictive import History, carried, sampled
from bco_core.prescribe import POSTERIOR, PrescribeOptions
from bco_core.problems.base import DecisionProblem
from bco_core.problems.surrogate import Surrogate
from bco_core.weighted_stats import weighted_quantile

# How nearly the road must lead to the decision that was given; draws may be stored in float32.
_SAME = 1e-4


@dataclass(frozen=True)
class Slopes:
    """∂z/∂x (d_z, d_x) and ∂E[c]/∂x (d_x,), by the columns of a context as the predictor is given them."""

    decision: Tensor
    cost: Tensor


def slopes(
    posterior: Posterior,
    problem: DecisionProblem,
    context: Tensor,
    options: PrescribeOptions,
    draws: Tensor,
    decision: Tensor,
) -> Slopes | None:
    """The exact derivatives at a context (d_x,) with this decision (d_z,); None where there are none."""
    # A surrogate has a gradient in place of decisions, which have none.
    if not problem.differentiable or isinstance(problem, Surrogate):
        return None
    if problem.relaxation is not problem or not decision.isfinite().all():
        return None
    if not isinstance(posterior.predictor.features, Standardized) or POLICIES[options.chosen_policy].random:
        return None
    at = context.double()[None].requires_grad_()
    with torch.enable_grad():
        encoded = posterior.encode(at)
        outcomes = posterior.predictor.forward(draws.double(), encoded).transpose(0, 1)
        over_draws, predictive = options.costs_over == POSTERIOR, POLICIES[options.chosen_policy].predictive
        atoms = outcomes if over_draws and not predictive else _predictive(posterior, outcomes, encoded, options)
        if atoms is None:
            return None
        decided = _decided(posterior, problem, options, encoded, atoms if predictive else outcomes)
        if decided is None or not torch.allclose(decided[0], decision, rtol=_SAME, atol=_SAME * _size(decision)):
            return None
        cost = problem.cost(decided[:, None], outcomes if over_draws else atoms).mean()
        each = [_gradient(value, at) for value in (*decided[0], cost)]
    return Slopes(torch.stack(each[:-1]), each[-1])


def _decided(
    posterior: Posterior, problem: DecisionProblem, options: PrescribeOptions, encoded: Tensor, hedged: Tensor
) -> Tensor | None:
    """The policy's decision (1, d_z) over scenarios (1, K, d_y), with a gradient; None where a solver finds it."""
    policy = options.chosen_policy
    if policy == "averaged":
        return problem.decide(hedged).mean(dim=1)
    if policy == "map":
        mode = posterior.distribution.mode()[None].double()
        return problem.decide(posterior.predictor.forward(mode, encoded)[:, 0])
    levels = problem.fractiles
    if levels is None or options.risk is not None:
        return None
    if policy == "blended":
        middle = hedged.mean(dim=1, keepdim=True)
        hedged = middle + options.blend * (hedged - middle)
    weights = torch.full(hedged.shape[1:2], 1 / hedged.shape[1], dtype=torch.float64)
    return problem.decide(weighted_quantile(hedged, weights, levels))


def _predictive(posterior: Posterior, outcomes: Tensor, encoded: Tensor, options: PrescribeOptions) -> Tensor | None:
    """Predictive atoms (1, K, d_y) with a gradient; the draws' without a history, None where a kernel chooses."""
    history, mean = posterior.history, outcomes.mean(dim=1)
    if history is None:
        return outcomes
    if history.carrier.bandwidth is not None:
        return None
    chosen = sampled(history, mean.detach(), options.scenarios, None)
    return carried(history, chosen, mean, _scales(history, encoded))


def _scales(history: History, encoded: Tensor) -> Tensor | None:
    """s(x) (1, d_y), which moves with features unless it is held at the least or the largest of the history."""
    held = history.scales_at(encoded.detach())
    if held is None or history.carrier.slopes is None or history.scales is None:
        return None
    exponent = encoded @ history.carrier.slopes[:-1]
    moves = (held > history.scales.amin(dim=0)) & (held < history.scales.amax(dim=0))
    return torch.where(moves, held * (exponent - exponent.detach()).exp(), held)


def _size(decision: Tensor) -> float:
    return float(decision.abs().max())


def _gradient(value: Tensor, at: Tensor) -> Tensor:
    """∂value/∂x (d_x,)."""
    if not value.requires_grad:
        return torch.zeros_like(at[0])
    (found,) = torch.autograd.grad(value, at, retain_graph=True, allow_unused=True)
    return torch.zeros_like(at[0]) if found is None else found[0]
