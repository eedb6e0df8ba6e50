"""All that was judged in a few numbers: each policy by itself, differences that are paired, over series and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.backtest.judge import Judged
from bco_core.backtest.paired import Clusters, Mean, difference, mean_of
from bco_core.backtest.verdict import ACTUAL_DECISION, Verdict, broken_share, speak
from bco_core.problems.base import DecisionProblem, UncertainConstraints

MOST_SERIES = 200
_STRETCHES = 24


@dataclass(frozen=True)
class Rows:
    """The n rows that were judged: their split (n,), and period and series (n,) where there is a time.

    ``text`` writes a period, ``names`` are those of the series.
    """

    split: Tensor
    periods: Tensor | None = None
    series: Tensor | None = None
    lead: int = 1
    season: int = 0
    text: Callable[[int], str] = str
    names: Sequence[str] = ()


def summarize(
    problem: DecisionProblem,
    rows: Rows,
    found: Mapping[str, Judged],
    ours: Sequence[str],
    words: Mapping[str, str],
    outcomes: Sequence[str],
) -> dict[str, Any]:
    """What is told of a backtest, as JSON. ``found`` is of every policy on all rows, ``ours`` the names of those whose
    use is in question, the first of them above all; ``words`` is how sentences call policies."""
    clusters = Clusters.of(rows.periods, rows.series, rows.lead, rows.season)
    candidate = ours[0]
    confidence = problem.confidence if isinstance(problem, UncertainConstraints) else None
    against = _reference(found, ours, confidence)
    differences = {
        name: difference(found[candidate].cost, judged.cost, clusters)
        for name, judged in found.items()
        if name != candidate
    }
    verdict = speak(candidate, against, found, differences, words, confidence)
    return {
        "rows": len(rows.split),
        "policies": [_policy(name, judged, clusters, words, outcomes) for name, judged in found.items()],
        "candidate": candidate,
        "against": against,
        "differences": [
            {"policy": candidate, "against": name} | _told(one) | {"relative": _relative(one, found[name].cost)}
            for name, one in differences.items()
        ],
        "intervals": clusters.sentence,
        "splits": _by(rows, rows.split, found),
        "over_time": [] if rows.periods is None else _by(rows, _stretches(rows.periods), found),
        "series": _by_series(rows, found, candidate, against, clusters),
        "verdict": _spoken(verdict),
    }


def _reference(found: Mapping[str, Judged], ours: Sequence[str], confidence: float | None) -> str | None:
    """What the first of ours is compared with: what was done, else the cheapest of the others, of those that keep their
    constraints if any do; None if it is alone."""
    if ACTUAL_DECISION in found and not found[ACTUAL_DECISION].cost.isnan().all():
        return ACTUAL_DECISION
    others = [name for name in found if name not in ours and name != ACTUAL_DECISION] or list(ours[1:])
    others = [name for name in others if broken_share(found[name], confidence) is None] or others
    return min(others, key=lambda name: found[name].cost.nanmean().nan_to_num(math.inf).item(), default=None)


def _policy(
    name: str, judged: Judged, clusters: Clusters, words: Mapping[str, str], outcomes: Sequence[str]
) -> dict[str, Any]:
    there = ~judged.cost.isnan()
    service = None
    if judged.served is not None and there.any():
        each = judged.served[there].double().mean(dim=0).tolist()
        service = {"mean": sum(each) / len(each), "outcomes": dict(zip(outcomes, each, strict=True))}
    return {
        "name": name,
        "words": words[name],
        "rows": int(there.sum()),
        "cost": _told(mean_of(judged.cost, clusters)),
        "regret": _number(judged.regret.nanmean().item()),
        "service_level": service,
        "feasibility": judged.feasible[there].double().mean().item() if there.any() else None,
    }


def _by(rows: Rows, group: Tensor, found: Mapping[str, Judged]) -> list[dict[str, Any]]:
    """Mean costs in each group (n,) of rows."""
    lines = []
    for number in group.unique().tolist():
        inside = group == number
        line: dict[str, Any] = {"number": number, "rows": int(inside.sum())}
        if rows.periods is not None:
            periods = rows.periods[inside]
            line |= {"from": rows.text(int(periods.min())), "to": rows.text(int(periods.max()))}
        lines.append(line | {"cost": _costs(found, inside)})
    return lines


def _stretches(periods: Tensor) -> Tensor:
    """Up to so many stretches of time (n,) of equal length."""
    first, span = periods.min(), int(periods.max() - periods.min()) + 1
    return (periods - first) * min(_STRETCHES, span) // span


def _by_series(
    rows: Rows, found: Mapping[str, Judged], candidate: str, against: str | None, clusters: Clusters
) -> list[dict[str, Any]]:
    """Mean costs in each series and how much cheaper the candidate was there; those with the most rows, if there are
    very many."""
    if rows.series is None or len(rows.names) < 2:
        return []
    numbers, counts = rows.series.unique(return_counts=True)
    kept = numbers[counts.argsort(descending=True, stable=True)[:MOST_SERIES]].sort().values
    lines = []
    for number in kept.tolist():
        inside = rows.series == number
        line: dict[str, Any] = {"series": rows.names[number], "rows": int(inside.sum()), "cost": _costs(found, inside)}
        if against is not None:
            index = inside.nonzero().flatten()
            alone = Clusters(None if clusters.block is None else clusters.block[index], None, clusters.block_periods)
            line["difference"] = _told(difference(found[candidate].cost[index], found[against].cost[index], alone))
        lines.append(line)
    return lines


def _costs(found: Mapping[str, Judged], inside: Tensor) -> dict[str, float | None]:
    return {name: _number(judged.cost[inside].nanmean().item()) for name, judged in found.items()}


def _relative(one: Mean, reference: Tensor) -> float | None:
    """The difference as a share of what the other costs, where that is positive."""
    cost = reference.nanmean().item()
    return _number(one.mean / cost) if cost > 0 else None


def _told(one: Mean) -> dict[str, float | int | None]:
    return {name: value if isinstance(value, int) else _number(value) for name, value in asdict(one).items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _spoken(verdict: Verdict) -> dict[str, Any]:
    return {"worth_using": verdict.worth_using, "text": f"{verdict.first} {verdict.second}"}


def aligned(count: int, pieces: Sequence[tuple[Tensor, Judged]]) -> Judged:
    """Judgements of pieces of ``count`` rows, each with the places (m,) of its rows, as one; NaN where none is."""
    cost = torch.full((count,), torch.nan, dtype=torch.float64)
    regret, feasible = cost.clone(), torch.zeros(count, dtype=torch.bool)
    served = None
    for places, judged in pieces:
        cost[places], regret[places], feasible[places] = judged.cost, judged.regret, judged.feasible
        if judged.served is not None:
            if served is None:
                served = torch.zeros((count, judged.served.shape[1]), dtype=torch.bool)
            served[places] = judged.served
    return Judged(cost, regret, feasible, served)
