"""Exact derivatives of a decision and its expected cost with respect to each column of a context, where they exist.

The computation from context to decision is repeated with gradients in torch: features, the draws' predictions,
scenarios, the policy's decision, the cost. For the draws' own decisions derivatives pass through the problem; for a
quantile they are those of its atom. There are none where a step has no derivative (trees, integers, scenarios chosen by
a kernel, decisions that a solver found over scenarios) or where the repeated computation does not reproduce the
decision; callers then compare decisions of perturbed contexts instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.features.standardized import StandardizedFeatures
from bco_core.policies import POLICIES
from bco_core.posterior import Posterior
from bco_core.predictive import History, carry_outcomes, sample_rows
from bco_core.prescribe import POSTERIOR, PrescribeOptions
from bco_core.problems.base import DecisionProblem
from bco_core.problems.surrogate import Surrogate
from bco_core.weighted_stats import weighted_quantile

# Tolerance for reproducing the decision; draws may be stored in float32.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Slopes:
    """∂z/∂x (d_z, d_x) and ∂E[c]/∂x (d_x,), with respect to the entries of an encoded context."""

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
    """Return the exact derivatives at a context (d_x,) with this decision (d_z,); None where there are none."""
    # With a surrogate, the loss has a gradient and decisions have none.
    if not problem.differentiable or isinstance(problem, Surrogate):
        return None
    if problem.relaxation is not problem or not decision.isfinite().all():
        return None
    if not isinstance(posterior.predictor.features, StandardizedFeatures) or POLICIES[options.chosen_policy].random:
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
        if decided is None or not torch.allclose(
            decided[0], decision, rtol=_TOLERANCE, atol=_TOLERANCE * _size(decision)
        ):
            return None
        cost = problem.cost(decided[:, None], outcomes if over_draws else atoms).mean()
        each = [_gradient(value, at) for value in (*decided[0], cost)]
    return Slopes(torch.stack(each[:-1]), each[-1])


def _decided(
    posterior: Posterior, problem: DecisionProblem, options: PrescribeOptions, encoded: Tensor, hedged: Tensor
) -> Tensor | None:
    """Return the policy's decision (1, d_z) over scenarios (1, K, d_y), with gradient; None where a solver decides."""
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
    """Return predictive atoms (1, K, d_y) with gradient: the draws' without a history, None where a kernel chooses."""
    history, mean = posterior.history, outcomes.mean(dim=1)
    if history is None:
        return outcomes
    if history.carrier.bandwidth is not None:
        return None
    chosen = sample_rows(history, mean.detach(), options.scenarios, None)
    return carry_outcomes(history, chosen, mean, _scales(history, encoded))


def _scales(history: History, encoded: Tensor) -> Tensor | None:
    """Return s(x) (1, d_y), whose gradient is zero where it is clamped to the history's range."""
    held = history.scales_at(encoded.detach())
    if held is None or history.carrier.slopes is None or history.scales is None:
        return None
    exponent = encoded @ history.carrier.slopes[:-1]
    moves = (held > history.scales.amin(dim=0)) & (held < history.scales.amax(dim=0))
    return torch.where(moves, held * (exponent - exponent.detach()).exp(), held)


def _size(decision: Tensor) -> float:
    return float(decision.abs().max())


def _gradient(value: Tensor, at: Tensor) -> Tensor:
    """Return ∂value/∂x (d_x,)."""
    if not value.requires_grad:
        return torch.zeros_like(at[0])
    (gradient,) = torch.autograd.grad(value, at, retain_graph=True, allow_unused=True)
    return torch.zeros_like(at[0]) if gradient is None else gradient[0]
