"""Summarise a backtest: each policy by itself, paired differences, series, stretches of time, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.backtest.judge import RealisedCosts
from bco_core.backtest.paired import Clusters, Mean, difference, equal_stretches, mean_of
from bco_core.problems.base import DecisionProblem, UncertainConstraints

ACTUAL_DECISION = "actual_decision"
YES, NO, UNCLEAR = "yes", "no", "unclear"
# Standard errors by which the share of rows that keep their constraints may fall below the required one.
_ROOM = 2.0
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
            {"policy": candidate, "against": name} | _interval(one) | {"relative": _relative(one, costs[name].cost)}
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


def _relative(one: Mean, reference: Tensor) -> float | None:
    """Return the difference as a share of the other policy's cost, where that is positive."""
    cost = reference.nanmean().item()
    return _number(one.mean / cost) if cost > 0 else None


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


# verdict


def write_verdict(
    candidate: str,
    against: str | None,
    costs: Mapping[str, RealisedCosts],
    differences: Mapping[str, Mean],
    words: Mapping[str, str],
    confidence: float | None,
) -> dict[str, str]:
    """Return whether the candidate is worth using, yes, no or unclear, and two sentences that say why.

    ``differences`` are the candidate's cost less each other policy's. ``confidence`` is the share of rows whose
    constraints must be kept, None where constraints are certain.
    """
    ours = words[candidate]
    if against is None:
        text = f"{_upper(ours)} was judged alone. Name a baseline, or the decisions actually taken, to compare with."
        return {"worth_using": UNCLEAR, "text": text}
    broken, theirs = (broken_share(costs[name], confidence) for name in (candidate, against))
    one = differences[against]
    worth, first = _first(ours, words[against], one, _relative(one, costs[against].cost))
    if theirs is not None:
        worth = YES
        first = (
            f"On {one.rows} rows that it had not seen, {ours} kept its constraints and {words[against]} only in "
            f"{theirs:.1%} of them, where {confidence:.0%} is required, at a difference of {one.mean:.4g} a row in "
            "cost: it is worth using here."
        )
    if broken is not None:
        worth = NO
        first = (
            f"{_upper(ours)} kept its constraints in {broken:.1%} of the rows, and {confidence:.0%} is required: it is "
            "not worth using here."
        )
    fair = {name: judged for name, judged in costs.items() if broken_share(judged, confidence) is None}
    second = _second(ours, against, costs, fair, differences, words, worth)
    return {"worth_using": worth, "text": f"{first} {second}"}


def _first(ours: str, theirs: str, one: Mean, relative: float | None) -> tuple[str, str]:
    rows = f"On {one.rows} rows that it had not seen, {ours}"
    if not math.isfinite(one.high):
        return UNCLEAR, f"{rows} was compared with {theirs}, and these rows are too few to tell them apart."
    amount = _share(one.mean, relative)
    interval = f"a difference of {one.mean:.4g} a row, 95 % interval {one.low:.4g} to {one.high:.4g}"
    if one.high < 0:
        return YES, f"{rows} would have cost {amount} less than {theirs} ({interval}): it is worth using here."
    if one.low > 0:
        return NO, f"{rows} would have cost {amount} more than {theirs} ({interval}): it is not worth using here."
    apart = "costs the same as" if one.low == one.high == 0 else "does not clearly differ from"
    return NO if apart.startswith("costs") else UNCLEAR, (
        f"{rows} {apart} {theirs} ({interval}): these rows give no reason to change."
    )


def _second(
    ours: str,
    against: str,
    costs: Mapping[str, RealisedCosts],
    fair: Mapping[str, RealisedCosts],
    differences: Mapping[str, Mean],
    words: Mapping[str, str],
    worth: str,
) -> str:
    """Compare with the cheapest of the other policies that keep their constraints."""
    if ACTUAL_DECISION not in costs:
        return (
            "The actual decisions were not given, so it is compared with the cheapest rule, which was chosen on these "
            "same rows and is favoured by that."
        )
    rest = [name for name in differences if name not in (against, ACTUAL_DECISION) and name in fair]
    if not rest:
        return "No other policy that keeps its constraints was compared."
    best = min(rest, key=lambda name: costs[name].cost.nanmean().nan_to_num(math.inf).item())
    one = differences[best]
    relative = _relative(one, costs[best].cost)
    cheapest = f"The cheapest other policy, {words[best]},"
    if one.low > 0:
        return f"{cheapest} would have cost {_share(-one.mean, relative)} less than {ours}: look at that first."
    if one.high < 0:
        more = f"{cheapest} would have cost {_share(one.mean, relative)} more than {ours}"
        return f"{more}: no simpler rule does as well." if worth == YES else f"{more}."
    return f"{cheapest} does not clearly differ from {ours} on these rows, and may be simpler to run."


def _share(mean: float, relative: float | None) -> str:
    return f"{abs(mean):.4g} a row" if relative is None else f"{abs(relative):.1%}"


def broken_share(judged: RealisedCosts, confidence: float | None) -> float | None:
    """Return the share of rows whose constraints were kept, if it is clearly below the required one."""
    there = ~judged.cost.isnan()
    if confidence is None or not there.any():
        return None
    share = judged.feasible[there].double().mean().item()
    room = _ROOM * math.sqrt(confidence * (1 - confidence) / int(there.sum()))
    return share if share < confidence - room else None


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
