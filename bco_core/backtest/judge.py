"""How decisions did: what they cost, how much of that foresight would have spared, and what they served and kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.problems.base import DecisionProblem

_NUMBERS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Judged:
    """Of n rows: cost and regret (n,), NaN where there is no decision; whether constraints were kept (n,); and which
    outcomes were served, (n, d_y), None where that means nothing.

    Regret is against the best decision for what happened. Where outcomes decide what keeps the constraints, a decision
    that breaks them may cost less than that one.
    """

    cost: Tensor
    regret: Tensor
    feasible: Tensor
    served: Tensor | None


def judge(problem: DecisionProblem, decisions: Tensor, outcomes: Tensor) -> Judged:
    """Judge decisions (n, d_z), NaN where there is none, by outcomes (n, d_y)."""
    there = decisions.isfinite().all(dim=1).nonzero().flatten()
    cost = torch.full((len(decisions),), torch.nan, dtype=torch.float64)
    regret, feasible = cost.clone(), torch.zeros(len(decisions), dtype=torch.bool)
    served = problem.covered(decisions[:1].nan_to_num(), outcomes[:1])
    kept = None if served is None else torch.zeros(outcomes.shape, dtype=torch.bool)
    for rows in there.split(max(1, _NUMBERS_AT_ONCE // (problem.outcome_dim + problem.decision_dim))):
        made, happened = decisions[rows], outcomes[rows]
        cost[rows] = problem.cost(made, happened)
        regret[rows] = cost[rows] - foreseen(problem, happened)
        feasible[rows] = problem.feasible(made, happened)
        some = problem.covered(made, happened)
        if kept is not None and some is not None:
            kept[rows] = some
    return Judged(cost, regret, feasible, kept)


def foreseen(problem: DecisionProblem, outcomes: Tensor) -> Tensor:
    """What the best decision for each of outcomes (n, d_y) costs, (n,)."""
    best = problem.prescribe(outcomes[:, None], torch.ones(1, dtype=torch.float64)).decisions
    return problem.cost(best, outcomes)
