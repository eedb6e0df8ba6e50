"""Judge decisions by what happened: cost, regret against perfect foresight, feasibility and service."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.problems.base import DecisionProblem

_NUMBERS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class RealisedCosts:
    """Cost and regret (n,) of decisions, NaN where there is none; whether constraints were kept (n,); and which
    outcomes were served (n, d_y), None where the problem has no such notion.

    Regret is against perfect foresight. Where constraints depend on outcomes, it may be negative for a decision that
    breaks them.
    """

    cost: Tensor
    regret: Tensor
    feasible: Tensor
    served: Tensor | None


def judge(problem: DecisionProblem, decisions: Tensor, outcomes: Tensor) -> RealisedCosts:
    """Judge decisions (n, d_z), NaN where there is none, by outcomes (n, d_y)."""
    there = decisions.isfinite().all(dim=1).nonzero().flatten()
    cost = torch.full((len(decisions),), torch.nan, dtype=torch.float64)
    regret, feasible = cost.clone(), torch.zeros(len(decisions), dtype=torch.bool)
    served = problem.covered(decisions[:1].nan_to_num(), outcomes[:1])
    all_served = None if served is None else torch.zeros(outcomes.shape, dtype=torch.bool)
    for rows in there.split(max(1, _NUMBERS_AT_ONCE // (problem.outcome_dim + problem.decision_dim))):
        made, happened = decisions[rows], outcomes[rows]
        cost[rows] = problem.cost(made, happened)
        regret[rows] = cost[rows] - foresight_cost(problem, happened)
        feasible[rows] = problem.feasible(made, happened)
        some = problem.covered(made, happened)
        if all_served is not None and some is not None:
            all_served[rows] = some
    return RealisedCosts(cost, regret, feasible, all_served)


def foresight_cost(problem: DecisionProblem, outcomes: Tensor) -> Tensor:
    """Return the cost (n,) with perfect foresight of outcomes (n, d_y)."""
    best = problem.prescribe(outcomes[:, None], torch.ones(1, dtype=torch.float64)).decisions
    return problem.cost(best, outcomes)
