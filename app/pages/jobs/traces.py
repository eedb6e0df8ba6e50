"""How learning went, as charts: from the figures in a job's log, or from what its posterior knows of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from app.pages.charts import Chart, Mark, Number, Series

Json = Mapping[str, Any]
# So many points of a log tell more than the trace of the last fit alone.
_ENOUGH_POINTS = 6
_CHAINS_SHOWN = 7


def log_figures(lines: Sequence[Json]) -> list[dict[str, float]]:
    """The figures of a log, in order, since the job was last asked to run again."""
    found: list[dict[str, float]] = []
    for line in lines:
        if line["text"] == "asked to run again":
            found = []
        found += line.get("figures") or []
    return found


def training_charts(figures: Sequence[Json], diagnostics: Json | None, method: str) -> list[Chart]:
    """Charts of a job that learns; empty ones while nothing is known yet."""
    diagnostics = diagnostics or {}
    chains = (diagnostics.get("chains") or {}).get("trace") or []
    if chains:
        return [_chains({place + 1: _loss(chains, place) for place in range(len(chains[0]["loss"]))})]
    if any("step" in one for one in figures) or (method == "mh" and not figures):
        return [_chains(_by_part(figures, "step", "loss"))]
    told = [one for one in figures if "epoch" in one]
    if any("part" in one for one in told):
        return _members(told)
    trace = diagnostics.get("trace") or []
    return _epochs(told if len(told) >= _ENOUGH_POINTS or not trace else trace)


def _loss(trace: Sequence[Json], chain: int) -> list[tuple[float, float]]:
    return [(point["step"], point["loss"][chain]) for point in trace]


def _by_part(figures: Sequence[Json], along: str, what: str) -> dict[int, list[tuple[float, float]]]:
    """What each part told, in order and once."""
    found: dict[int, dict[float, float]] = {}
    for one in figures:
        if along in one and what in one:
            found.setdefault(int(one.get("part", 1)), {})[one[along]] = one[what]
    return {part: sorted(points.items()) for part, points in sorted(found.items())}


def _chains(by_chain: Mapping[int, Sequence[tuple[float, float]]]) -> Chart:
    shown = dict(list(by_chain.items())[:_CHAINS_SHOWN])
    x, series = _align(shown, "chain")
    return Chart(
        "Cost that each chain has met",
        x,
        series,
        x_label="step",
        y_label="mean cost of the history",
        note="Chains that have met each other move about one level.",
        key="trace-chains",
    )


def _members(figures: Sequence[Json]) -> list[Chart]:
    """Members that learn apart, each from its own rows."""
    x, costs = _align(_by_part(figures, "epoch", "validation_cost"), "member")
    at, divergences = _align(_by_part(figures, "epoch", "kl"), "member")
    return [_cost_chart(x, costs), _divergence_chart(at, divergences)]


def _align(lines: Mapping[int, Sequence[tuple[float, float]]], word: str) -> tuple[list[float], list[Series]]:
    """Lines with points of their own over one axis; in between two of its points a line is straight."""
    x = sorted({at for points in lines.values() for at, _ in points})
    series = [
        Series(f"{word} {part}", [_interpolate(points, at) for at in x], colour=place % 7)
        for place, (part, points) in enumerate(lines.items())
    ]
    return x, series


def _interpolate(points: Sequence[tuple[float, float]], at: float) -> Number:
    for (left, low), (right, high) in pairwise(points):
        if left <= at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[0][1] if len(points) == 1 and points[0][0] == at else None


def _epochs(points: Sequence[Json]) -> list[Chart]:
    """Fits one after the other: where epochs begin again, another model is fitted."""
    x: list[float] = []
    held_out: list[Number] = []
    learned: list[Number] = []
    begins: list[int] = []
    done, last = 0.0, 0.0
    for one in points:
        if one["epoch"] <= last:
            # A gap, so that fits are not joined.
            done += last
            x.append(done + 0.5)
            held_out.append(None)
            learned.append(None)
            begins.append(len(x))
        last = one["epoch"]
        x.append(done + last)
        held_out.append(one.get("validation_cost"))
        learned.append(one.get("risk"))
    series = [Series("on rows held out", held_out), Series("on rows learned from", learned, colour=1, dashed=True)]
    marks = [Mark(x[begin - 1], f"fit {number}") for number, begin in enumerate(begins, 2) if begin < len(x)]
    # Models of other sizes have divergences of other sizes, so there is one fit at a time to look at.
    latest = points[_last_fit(points) :]
    divergences = [Series("KL", [one.get("kl") for one in latest], colour=2)] if latest else []
    return [
        _cost_chart(x, series if x else [], marks),
        _divergence_chart([float(one["epoch"]) for one in latest], divergences),
    ]


def _last_fit(points: Sequence[Json]) -> int:
    return max([at for at in range(1, len(points)) if points[at]["epoch"] <= points[at - 1]["epoch"]], default=0)


def _in_view(series: Sequence[Series]) -> list[float] | None:
    """From where to where to look: the first epochs may be far above all that matters later."""
    values = sorted(value for one in series for value in one.values if value is not None)
    if len(values) < _ENOUGH_POINTS:
        return None
    low, usual = values[0], values[int(0.8 * (len(values) - 1))]
    high = low + 1.5 * (usual - low)
    return [low, high] if low < high < values[-1] else None


def _cost_chart(x: Sequence[float], series: Sequence[Series], marks: Sequence[Mark] = ()) -> Chart:
    view = _in_view(series)
    note = (
        "Where it begins again, another model is fitted."
        if marks
        else "Learning ends where held-out rows gain no more."
    )
    return Chart(
        "Cost of decisions",
        x,
        series,
        x_label="epoch",
        y_label="mean cost",
        marks=marks,
        note=f"{note} The first epochs are above the picture." if view else note,
        height=200,
        key="trace-cost",
        extra={"yRange": view} if view else {},
    )


def _divergence_chart(x: Sequence[float], series: Sequence[Series]) -> Chart:
    return Chart(
        "Distance from what was assumed before (KL)",
        x,
        series,
        x_label="epoch",
        y_label="KL divergence",
        note="Of the latest fit, on average over the members that still learn.",
        height=200,
        key="trace-kl",
    )
