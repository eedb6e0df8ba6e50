"""Summarise a backtest: each policy by itself, paired differences, series and stretches of time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.backtest.paired import Clusters, Mean, difference, equal_stretches, mean_of
from bco_core.backtest.realised_costs import RealisedCosts
from bco_core.backtest.verdict import ACTUAL_DECISION, broken_share, relative_difference, write_verdict
from bco_core.problems.base import DecisionProblem, UncertainConstraints

MOST_SERIES = 200
_STRETCHES = 24


@dataclass(frozen=True)
class BacktestRows:
    """Judged rows: their split (n,), and their period and series (n,) where the data set has a time column.

    ``text`` writes a period; ``names`` are those of the series.
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
    rows: BacktestRows,
    costs: Mapping[str, RealisedCosts],
    ours: Sequence[str],
    words: Mapping[str, str],
    outcomes: Sequence[str],
) -> dict[str, Any]:
    """Return the summary of a backtest as JSON.

    ``costs`` has every policy on all rows; ``words`` names policies in sentences. ``ours`` are the policies whose use
    is in question; the verdict is about the first.
    """
    clusters = Clusters.of(rows.periods, rows.series, rows.lead, rows.season)
    candidate = ours[0]
    confidence = problem.confidence if isinstance(problem, UncertainConstraints) else None
    against = _reference(costs, ours, confidence)
    differences = {
        name: difference(costs[candidate].cost, judged.cost, clusters)
        for name, judged in costs.items()
        if name != candidate
    }
    return {
        "rows": len(rows.split),
        "policies": [_policy(name, judged, clusters, words, outcomes) for name, judged in costs.items()],
        "candidate": candidate,
        "against": against,
        "differences": [
            {"policy": candidate, "against": name, "relative": relative_difference(one, costs[name].cost)}
            | _interval(one)
            for name, one in differences.items()
        ],
        "intervals": clusters.sentence,
        "splits": _by(rows, rows.split, costs),
        "over_time": [] if rows.periods is None else _by(rows, equal_stretches(rows.periods, _STRETCHES), costs),
        "series": _by_series(rows, costs, candidate, against, clusters),
        "verdict": write_verdict(candidate, against, costs, differences, words, confidence),
    }


def _reference(costs: Mapping[str, RealisedCosts], ours: Sequence[str], confidence: float | None) -> str | None:
    """Choose the policy to compare the first of ours with: the actual decisions, else the cheapest other policy, of
    those that keep their constraints if any do; None without others."""
    if ACTUAL_DECISION in costs and not costs[ACTUAL_DECISION].cost.isnan().all():
        return ACTUAL_DECISION
    others = [name for name in costs if name not in ours and name != ACTUAL_DECISION] or list(ours[1:])
    others = [name for name in others if broken_share(costs[name], confidence) is None] or others
    return min(others, key=lambda name: costs[name].cost.nanmean().nan_to_num(math.inf).item(), default=None)


def _policy(
    name: str, judged: RealisedCosts, clusters: Clusters, words: Mapping[str, str], outcomes: Sequence[str]
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
        "cost": _interval(mean_of(judged.cost, clusters)),
        "regret": _number(judged.regret.nanmean().item()),
        "service_level": service,
        "feasibility": judged.feasible[there].double().mean().item() if there.any() else None,
    }


def _by(rows: BacktestRows, group: Tensor, costs: Mapping[str, RealisedCosts]) -> list[dict[str, Any]]:
    """Return mean costs in each group (n,) of rows."""
    lines = []
    for number in group.unique().tolist():
        inside = group == number
        line: dict[str, Any] = {"number": number, "rows": int(inside.sum())}
        if rows.periods is not None:
            periods = rows.periods[inside]
            line |= {"from": rows.text(int(periods.min())), "to": rows.text(int(periods.max()))}
        lines.append(line | {"cost": _mean_costs(costs, inside)})
    return lines


def _by_series(
    rows: BacktestRows, costs: Mapping[str, RealisedCosts], candidate: str, against: str | None, clusters: Clusters
) -> list[dict[str, Any]]:
    """Return mean costs in each series and the candidate's difference there, for the series with the most rows."""
    if rows.series is None or len(rows.names) < 2:
        return []
    numbers, counts = rows.series.unique(return_counts=True)
    largest = numbers[counts.argsort(descending=True, stable=True)[:MOST_SERIES]].sort().values
    lines = []
    for number in largest.tolist():
        inside = rows.series == number
        line: dict[str, Any] = {
            "series": rows.names[number],
            "rows": int(inside.sum()),
            "cost": _mean_costs(costs, inside),
        }
        if against is not None:
            index = inside.nonzero().flatten()
            alone = Clusters(None if clusters.block is None else clusters.block[index], None, clusters.block_periods)
            line["difference"] = _interval(difference(costs[candidate].cost[index], costs[against].cost[index], alone))
        lines.append(line)
    return lines


def _mean_costs(costs: Mapping[str, RealisedCosts], inside: Tensor) -> dict[str, float | None]:
    return {name: _number(judged.cost[inside].nanmean().item()) for name, judged in costs.items()}


def _interval(one: Mean) -> dict[str, float | int | None]:
    return {name: value if isinstance(value, int) else _number(value) for name, value in asdict(one).items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def align(count: int, pieces: Sequence[tuple[Tensor, RealisedCosts]]) -> RealisedCosts:
    """Join the costs of pieces of ``count`` rows, each with the places (m,) of its rows; NaN where there are none."""
    cost = torch.full((count,), torch.nan, dtype=torch.float64)
    regret, feasible = cost.clone(), torch.zeros(count, dtype=torch.bool)
    served = None
    for places, judged in pieces:
        cost[places], regret[places], feasible[places] = judged.cost, judged.regret, judged.feasible
        if judged.served is not None:
            if served is None:
                served = torch.zeros((count, judged.served.shape[1]), dtype=torch.bool)
            served[places] = judged.served
    return RealisedCosts(cost, regret, feasible, served)
