"""Policies: from scenarios to one decision for each context (Definitions 2 and 3 of the paper, and the averaged one).

``bcp``       π_ρ: minimises expected cost, or another risk, over the posterior predictive distribution.
``averaged``  Σ_k w_k π_θk(x): the mean of the draws' own decisions. For a convex cost and feasible set it costs, by
              Jensen, no more than the average draw.
``blended``   between the two: BCP over y_k(α) = f̄ + α (f_θk − f̄), with f̄ the mean prediction. α = 0 optimises at the
              mean prediction, α = 1 is BCP.
``map``       the decision of the posterior's mode.
``thompson``  the decision of one posterior draw, chosen afresh for each context from ``generator``.

Where decisions must be whole numbers a mean of decisions need not be one, and ``averaged`` decides for f̄ instead.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bco_core.problems.base import EXPECTATION, DecisionProblem, Prescription, Risk, Status
from bco_core.scenarios import Scenarios, expected_cost

Policy = Callable[..., Prescription]
# The policies that minimise a risk over scenarios, rather than average or pick decisions for single outcomes.
HEDGING = ("bcp", "blended")


def bcp(
    problem: DecisionProblem,
    scenarios: Scenarios,
    generator: torch.Generator,
    risk: Risk = EXPECTATION,
    time_limit: float | None = None,
) -> Prescription:
    return problem.prescribe(scenarios.outcomes, scenarios.weights, risk, time_limit)


def averaged(problem: DecisionProblem, scenarios: Scenarios, generator: torch.Generator) -> Prescription:
    if problem.relaxation is not problem:
        return _for_outcomes(problem, scenarios.mean(), scenarios)
    each = problem.decide(scenarios.outcomes)
    mean = torch.einsum("bkz,k->bz", each, scenarios.weights)
    # Rounding must not carry the mean past a bound that every draw's decision keeps.
    return _evaluated(problem, mean.clamp(each.amin(dim=1), each.amax(dim=1)), scenarios)


def blended(
    problem: DecisionProblem,
    scenarios: Scenarios,
    generator: torch.Generator,
    alpha: float = 0.5,
    risk: Risk = EXPECTATION,
    time_limit: float | None = None,
) -> Prescription:
    drawn_in = torch.lerp(scenarios.mean()[:, None], scenarios.outcomes, alpha)
    return _judged(problem, problem.prescribe(drawn_in, scenarios.weights, risk, time_limit), scenarios)


def map_policy(problem: DecisionProblem, scenarios: Scenarios, generator: torch.Generator) -> Prescription:
    return _for_outcomes(problem, scenarios.mode, scenarios)


def thompson(problem: DecisionProblem, scenarios: Scenarios, generator: torch.Generator) -> Prescription:
    contexts = len(scenarios.outcomes)
    uniform = torch.rand(contexts, generator=generator, dtype=scenarios.weights.dtype)
    draw = torch.searchsorted(scenarios.weights.cumsum(0), uniform).clamp_max(len(scenarios.weights) - 1)
    return _for_outcomes(problem, scenarios.outcomes[torch.arange(contexts), draw], scenarios)


def decide_for(problem: DecisionProblem, outcomes: Tensor) -> Tensor:
    """The admissible decisions (B, d_z) that are best if outcomes (B, d_y) were certain."""
    return problem.decide(outcomes) if problem.relaxation is problem else _for_certain(problem, outcomes).decisions


def _for_certain(problem: DecisionProblem, outcomes: Tensor) -> Prescription:
    return problem.prescribe(outcomes[:, None], torch.ones(1, dtype=torch.float64))


def _for_outcomes(problem: DecisionProblem, outcomes: Tensor, scenarios: Scenarios) -> Prescription:
    if problem.relaxation is problem:
        return _evaluated(problem, problem.decide(outcomes), scenarios)
    return _judged(problem, _for_certain(problem, outcomes), scenarios)


def _judged(problem: DecisionProblem, prescription: Prescription, scenarios: Scenarios) -> Prescription:
    """The same decisions, their objective the expected cost over the scenarios."""
    objective = expected_cost(problem, prescription.decisions, scenarios)
    return Prescription(
        prescription.decisions, objective, prescription.status, prescription.reasons, prescription.solvers
    )


def _evaluated(problem: DecisionProblem, decisions: Tensor, scenarios: Scenarios) -> Prescription:
    known = decisions.isfinite().all(dim=1).tolist()
    status = [Status.OPTIMAL if one else Status.INFEASIBLE for one in known]
    reasons = () if all(known) else tuple("" if one else "no decision keeps all constraints" for one in known)
    return Prescription(decisions, expected_cost(problem, decisions, scenarios), status, reasons)


POLICIES: dict[str, Policy] = {
    "bcp": bcp,
    "averaged": averaged,
    "blended": blended,
    "map": map_policy,
    "thompson": thompson,
}
