"""Policies: from scenarios to one decision for each context (Definitions 2 and 3 of the paper, and the averaged one).

``bcp``       π_ρ: minimises expected cost over the posterior predictive distribution.
``averaged``  Σ_k w_k π_θk(x): the mean of the draws' own decisions. For a convex cost and feasible set it costs, by
              Jensen, no more than the average draw.
``blended``   between the two: BCP over y_k(α) = f̄ + α (f_θk − f̄), with f̄ the mean prediction. α = 0 optimises at the
              mean prediction, α = 1 is BCP.
``map``       the decision of the posterior's mode.
``thompson``  the decision of one posterior draw, chosen afresh for each context from ``generator``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bco_core.problems.base import DecisionProblem, Prescription, Status
from bco_core.scenarios import Scenarios, expected_cost

Policy = Callable[[DecisionProblem, Scenarios, torch.Generator], Prescription]


def bcp(problem: DecisionProblem, scenarios: Scenarios, generator: torch.Generator) -> Prescription:
    return problem.prescribe(scenarios.outcomes, scenarios.weights)


def averaged(problem: DecisionProblem, scenarios: Scenarios, generator: torch.Generator) -> Prescription:
    each = problem.decide(scenarios.outcomes)
    mean = torch.einsum("bkz,k->bz", each, scenarios.weights)
    # Rounding must not carry the mean past a bound that every draw's decision keeps.
    return _evaluated(problem, mean.clamp(each.amin(dim=1), each.amax(dim=1)), scenarios)


def blended(
    problem: DecisionProblem, scenarios: Scenarios, generator: torch.Generator, alpha: float = 0.5
) -> Prescription:
    mean = torch.einsum("bky,k->by", scenarios.outcomes, scenarios.weights)[:, None]
    decisions = problem.prescribe(torch.lerp(mean, scenarios.outcomes, alpha), scenarios.weights).decisions
    return _evaluated(problem, decisions, scenarios)


def map_policy(problem: DecisionProblem, scenarios: Scenarios, generator: torch.Generator) -> Prescription:
    return _evaluated(problem, problem.decide(scenarios.mode), scenarios)


def thompson(problem: DecisionProblem, scenarios: Scenarios, generator: torch.Generator) -> Prescription:
    contexts = len(scenarios.outcomes)
    uniform = torch.rand(contexts, generator=generator, dtype=scenarios.weights.dtype)
    draw = torch.searchsorted(scenarios.weights.cumsum(0), uniform).clamp_max(len(scenarios.weights) - 1)
    chosen = scenarios.outcomes[torch.arange(contexts), draw]
    return _evaluated(problem, problem.decide(chosen), scenarios)


def _evaluated(problem: DecisionProblem, decisions: Tensor, scenarios: Scenarios) -> Prescription:
    objective = expected_cost(problem, decisions, scenarios)
    return Prescription(decisions, objective, [Status.OPTIMAL] * len(decisions))


POLICIES: dict[str, Policy] = {
    "bcp": bcp,
    "averaged": averaged,
    "blended": blended,
    "map": map_policy,
    "thompson": thompson,
}
