"""Outcomes along time: buckets of periods, spans without rows, and times at which a level has changed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from app.datasets.distribution_schemas import (
    MOST_BUCKETS,
    MOST_GAPS,
    MOST_SHIFTS,
    HistoryGap,
    HistoryOverTime,
    LevelShift,
    OutcomeOverTime,
)
from app.datasets.series_order import BLOCKS, Floats, Timeline, Truths, Whole, has_moved, levels
from app.datasets.times import written
from bco_core.features.calendar import Clock

# Stretches beside a time that are compared with all on its longer side.
_BESIDE = BLOCKS // 5


def over_time(along: Timeline, values: Mapping[str, Floats], series: str | None) -> HistoryOverTime:
    """Outcomes (n,) by name, in the order of the table, as they went."""
    unit, step = along.profile["unit"], along.profile["step"]
    first = int(along.moments.min())
    clock = Clock.starting(unit, step, first if unit == "period" else np.datetime64(first, "s"))
    periods = clock.periods(along.moments if unit == "period" else along.moments.astype("datetime64[s]"))
    begin = int(periods.min())
    width = -(-(int(periods.max()) - begin + 1) // MOST_BUCKETS)
    # Numbers as small as these are sorted without comparing them.
    buckets = ((periods - begin) // width).astype(np.int16)
    order = np.argsort(buckets, kind="stable")
    used, starts = np.unique(buckets[order], return_index=True)
    rows = np.diff(np.append(starts, len(order)))
    return HistoryOverTime(
        series=series,
        times=[clock.text(begin + int(bucket) * width) for bucket in used],
        rows=rows.tolist(),
        periods=width,
        outcomes=[_outcome(name, column[along.order], along, order, starts) for name, column in values.items()],
        gaps=gaps(along),
    )


def _outcome(name: str, values: Floats, along: Timeline, order: Whole, starts: Whole) -> OutcomeOverTime:
    bucketed = values[order]
    counts = np.diff(np.append(starts, len(values)))
    return OutcomeOverTime(
        name=name,
        mean=(np.add.reduceat(bucketed / np.repeat(counts, counts), starts)).tolist(),
        minimum=np.minimum.reduceat(bucketed, starts).tolist(),
        maximum=np.maximum.reduceat(bucketed, starts).tolist(),
        shifts=shifts(values, along),
    )


# gaps


def gaps(along: Timeline) -> list[HistoryGap]:
    """Spans in which more than half of the series lack rows, of those that have rows before and after.

    Time is a row of cells: one for each moment at which anything happened, and one for what lies between two of them.
    """
    ahead = np.diff(along.periods)
    broken = np.flatnonzero(along.goes_on & (ahead > 1))
    if not len(broken):
        return []
    moments, places = np.unique(along.moments, return_inverse=True)
    numbers = np.zeros(len(moments), dtype=np.int64)
    numbers[places] = along.periods
    ends = np.flatnonzero(np.append(~along.goes_on, True))
    begins = np.append(0, ends[:-1] + 1)
    lacking = _covered(2 * places[broken] + 1, 2 * places[broken + 1], 2 * len(moments))
    expected = _covered(2 * places[begins], 2 * places[ends] + 1, 2 * len(moments))
    found = [
        ((int(start) - 1) // 2, (int(end) + 1) // 2, int(lacking[start:end].max()))
        for start, end in _runs((lacking > 0) & (2 * lacking > expected))
    ]
    spans = [(int(numbers[last] - numbers[first]) - 1, first, last, series) for first, last, series in found]
    longest = sorted(spans, reverse=True)[:MOST_GAPS]
    as_text = along.profile["format"]
    return [
        HistoryGap(
            after=written(int(moments[first]), as_text),
            before=written(int(moments[last]), as_text),
            periods=count,
            series=series,
        )
        for count, first, last, series in sorted(longest, key=lambda span: span[1])
        if count > 0
    ]


def _covered(starts: Whole, ends: Whole, size: int) -> Whole:
    """How many of the spans [start, end) hold each of ``size`` cells."""
    changes = np.bincount(starts, minlength=size + 1) - np.bincount(ends, minlength=size + 1)
    covered: Whole = np.cumsum(changes)[:size]
    return covered


def _runs(chosen: Truths) -> Whole:
    """Start and end (k, 2) of each run of cells that are chosen."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.view(np.int8), [0]])))
    return edges.reshape(-1, 2)


# shifts


def shifts(values: Floats, along: Timeline) -> list[LevelShift]:
    """Times at which the level of an outcome (n,) in the order of the timeline has changed, clearest first."""
    periods, level = levels(values, along)
    if len(periods) < 2 * BLOCKS:
        return []
    parts = np.array_split(np.arange(len(level)), BLOCKS)
    blocks = np.array([level[part].mean() for part in parts])
    spread, usual = float(level.std()), float(values.mean())
    found = []
    for cut in range(_BESIDE, BLOCKS - _BESIDE + 1):
        if cut < BLOCKS // 2:
            early, late = blocks[cut - _BESIDE : cut], blocks[cut:]
            longer, beside = late, early
        else:
            early, late = blocks[:cut], blocks[cut : cut + _BESIDE]
            longer, beside = early, late
        if has_moved(longer, beside, spread):
            moved = float(late.mean() - early.mean())
            clear = abs(moved) / (float(longer.std(ddof=1)) or 1e-300)
            found.append((clear, cut, float(early.mean()), float(late.mean())))
    kept: list[tuple[float, int, float, float]] = []
    for one in sorted(found, reverse=True):
        if all(abs(one[1] - other[1]) >= _BESIDE for other in kept) and len(kept) < MOST_SHIFTS:
            kept.append(one)
    return [
        LevelShift(since=_first_of(along, int(periods[parts[cut][0]])), before=usual + before, after=usual + after)
        for _, cut, before, after in kept
    ]


def _first_of(along: Timeline, period: int) -> str:
    moments = along.moments[along.periods == period]
    return written(int(moments.min()), along.profile["format"])
