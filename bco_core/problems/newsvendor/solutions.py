"""From what a search or a program found to a prescription that claims no more than is proven."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bco_core.problems.base import Prescription, Risk, Status
from bco_core.problems.newsvendor.program import Found, Instance, solve
from bco_core.status import GAP, HIGHS, ROUNDING
from bco_core.weighted_stats import sort_atoms, sorted_cvar

UNKEPT = "no orders keep the service levels that are asked for; these miss them by as little as can be"
CUT_OFF = "the time limit came before the best orders were proven; these are the best found, if any"
_OPEN = "the gap that optimal allows was not closed"


def risk_of(costs: Tensor, weights: Tensor, risk: Risk) -> Tensor:
    """(1 − w)·E + w·CVaR (B,) of costs (B, K) with weights (K,) or (B, K)."""
    mean = (costs * weights).sum(-1)
    if not risk.cvar_weight:
        return mean
    tail = sorted_cvar(*sort_atoms(costs, weights), risk.cvar_level)
    return (1 - risk.cvar_weight) * mean + risk.cvar_weight * tail


def judged(orders: Tensor, objective: Tensor, bound: Tensor, size: Tensor) -> Prescription:
    """Orders (B, d) with what they cost and what none costs less than, each (B,): optimal where that closes the gap.

    ``size`` (B,) is how large the terms are that costs are sums of, for rounding to be told from a gap.
    """
    above = (objective - bound).clamp_min(0)
    above = torch.where(above <= 10 * ROUNDING * size, 0.0, above)
    gaps = torch.where(above > 0, above / objective.abs(), above)
    closed = above <= GAP.relative * objective.abs()
    proven = closed.tolist()
    status = [Status.OPTIMAL if one else Status.BEST_EFFORT for one in proven]
    reasons = tuple("" if one else _OPEN for one in proven)
    return Prescription(orders, objective, status, reasons, gaps=gaps, bounds=torch.minimum(bound, objective))


def solve_all(instances: Iterable[Instance], count: int, until: float | None) -> list[Found]:
    """One after the other, each with its share of the time that is left."""
    found: list[Found] = []
    for instance in instances:
        left = count - len(found)
        ends = None if until is None else time.monotonic() + max(until - time.monotonic(), 0.0) / left
        found.append(solve(instance, ends))
    return found


def prescription(found: list[Found], orders: Tensor, objective: Tensor, size: Tensor) -> Prescription:
    """What programs found, judged by what the orders cost."""
    answer = judged(orders, objective, torch.tensor([one.bound for one in found], dtype=torch.float64), size)
    said = {Status.TIME_LIMIT: CUT_OFF, Status.BEST_EFFORT: UNKEPT}
    status = [
        mine if one.status is Status.OPTIMAL else one.status for one, mine in zip(found, answer.status, strict=True)
    ]
    reasons = tuple(said.get(one.status, mine) for one, mine in zip(found, answer.reasons, strict=True))
    return replace(answer, status=status, reasons=reasons, solvers=(HIGHS,) * len(found))


def put(answer: Prescription, where: Tensor, other: Prescription) -> Prescription:
    """The answer with other ones at the contexts (B,) that are marked."""
    places = where.nonzero().flatten().tolist()
    status, reasons = list(answer.status), list(answer.reasons)
    solvers = list(answer.solvers or ("",) * len(status))
    for i, place in enumerate(places):
        status[place], reasons[place], solvers[place] = other.status[i], other.reasons[i], other.solvers[i]

    def mixed(mine: Tensor, its: Tensor) -> Tensor:
        return mine.index_put((where,), its)

    return Prescription(
        mixed(answer.decisions, other.decisions),
        mixed(answer.objective, other.objective),
        status,
        tuple(reasons),
        tuple(solvers),
        None if answer.gaps is None or other.gaps is None else mixed(answer.gaps, other.gaps),
        None if answer.bounds is None or other.bounds is None else mixed(answer.bounds, other.bounds),
    )


def demoted(answer: Prescription, missed: list[str]) -> Prescription:
    """Nothing is optimal that misses what was asked for: a sentence for each context, "" where all is kept."""
    if not any(missed):
        return answer
    status = [
        Status.BEST_EFFORT if one is Status.OPTIMAL and sentence else one
        for one, sentence in zip(answer.status, missed, strict=True)
    ]
    reasons = tuple(
        sentence or reason for sentence, reason in zip(missed, answer.reasons or ("",) * len(missed), strict=True)
    )
    gaps = None if answer.gaps is None else answer.gaps.masked_fill(torch.tensor([bool(m) for m in missed]), np.nan)
    return replace(answer, status=status, reasons=reasons, gaps=gaps)
