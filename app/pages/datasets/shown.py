"""A data set in words and charts: what it is, what its columns hold, and how its outcomes went."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Any

from app.pages.charts import Chart, Mark, Series
from app.pages.render import day, number, percent

ROLES = {
    "time": "time",
    "series": "key of a series",
    "context": "known when deciding",
    "outcome": "outcome",
    "decision": "what was done",
}
# Columns with a histogram, and gaps that are told in words; more would make the page slow to read.
MOST_COLUMNS, MOST_GAPS = 40, 6
# So many charts stand below each other; of more outcomes one is chosen.
MOST_CHARTS = 3


def count_of(count: int, word: str) -> str:
    return f"{number(count, 9)} {word}{'' if count == 1 else 's'}"


def spacing(column: dict[str, Any]) -> str:
    """How far times are apart: ``each day``, ``every 15 minutes``."""
    unit, step = column["unit"], column["step"]
    if unit == "period":
        return "by period" if step == 1 else f"every {step} periods"
    return f"each {unit}" if step == 1 else f"every {step} {unit}s"


def summary(dataset: dict[str, Any], series_count: int | None) -> str:
    """The data set in a sentence or two."""
    columns = dataset["columns"]
    time = next((column for column in columns if column["role"] == "time"), None)
    said = count_of(dataset["rows"], "row")
    keys = [column for column in columns if column["role"] == "series"]
    if keys:
        named = " and ".join(column["name"] for column in keys)
        count = series_count or (keys[0]["distinct"] if len(keys) == 1 else None)
        said += f" of {number(count, 9)} series (by {named})" if count else f" of series by {named}"
    if time is None:
        return f"{said} without a time column: their order means nothing. Revision {dataset['revision']}."
    ahead = count_of(dataset["lead"] * (time["step"] or 1), time["unit"])
    said += f", {spacing(time)} from {time['first']} to {time['last']}."
    return f"{said} A decision is made {ahead} ahead. Revision {dataset['revision']}."


# columns


@dataclass(frozen=True)
class HistogramBarView:
    """One bar of a small histogram: what it counts, and how many."""

    words: str
    count: int


@dataclass(frozen=True)
class ColumnView:
    """A column as the page shows it: what it is in words, and its bars with the words at both ends of their axis."""

    name: str
    role: str
    holds: str
    missing: int
    bars: Sequence[HistogramBarView] = ()
    ends: tuple[str, str] = ("", "")
    # rows with none of the values that have a bar
    others: int = 0

    @property
    def words(self) -> str:
        """The histogram for who does not see it."""
        if not self.bars:
            return ""
        top = max(self.bars, key=lambda bar: bar.count)
        return f"How often {self.name} has which values; most often {top.words}, in {count_of(top.count, 'row')}"


def column_views(dataset: dict[str, Any], counted: Sequence[dict[str, Any]]) -> list[ColumnView]:
    """All columns; those that were counted have bars."""
    found = {column["name"]: column for column in counted[:MOST_COLUMNS]}
    return [_column_view(profile, found.get(profile["name"])) for profile in dataset["columns"]]


def _column_view(profile: dict[str, Any], counted: dict[str, Any] | None) -> ColumnView:
    bars: list[HistogramBarView] = []
    ends = ("", "")
    if counted is not None and counted["edges"] is not None:
        bars, ends = _bins(profile, counted["edges"], counted["counts"])
    elif counted is not None:
        bars = [HistogramBarView(name, count) for name, count in zip(counted["categories"], counted["counts"], strict=True)]
        ends = (_short(bars[0].words), _short(bars[-1].words) if len(bars) > 1 else "")
    others = counted["others"] if counted else 0
    return ColumnView(profile["name"], ROLES[profile["role"]], _holds(profile), profile["missing"], bars, ends, others)


def _short(text: str, most: int = 18) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _bins(profile: dict[str, Any], edges: Sequence[float], counts: Sequence[int]) -> tuple[list[HistogramBarView], tuple[str, str]]:
    """Bars of numbers or times; a bin around one whole number is called by it."""
    dated = profile["role"] == "time" and profile["unit"] != "period"
    write = day if dated else number
    if not dated and all((edge + 0.5).is_integer() for edge in edges):
        spans = [(low + 0.5, high - 0.5) for low, high in pairwise(edges)]
    else:
        spans = list(pairwise(edges))
    named = [write(low) if low == high else f"{write(low)} to {write(high)}" for low, high in spans]
    bars = [HistogramBarView(name, count) for name, count in zip(named, counts, strict=True)]
    return bars, (write(spans[0][0]), write(spans[-1][1]) if spans[0][0] != spans[-1][1] else "")


def _holds(profile: dict[str, Any]) -> str:
    kind = profile["kind"]
    if kind == "time":
        return f"{profile['first']} to {profile['last']}, {spacing(profile)}"
    if kind == "key":
        return count_of(profile["distinct"], "different value")
    if kind == "categorical":
        most = 6 if len(profile["categories"]) > 8 else 8
        named, rest = profile["categories"][:most], len(profile["categories"]) - most
        listed = ", ".join(_short(name, 30) for name in named) + (f" and {rest} more" if rest > 0 else "")
        return f"{count_of(len(profile['categories']), 'category').replace('categorys', 'categories')}: {listed}"
    if profile["minimum"] == profile["maximum"]:
        return f"always {number(profile['minimum'])}"
    return f"{number(profile['minimum'])} to {number(profile['maximum'])}, mean {number(profile['mean'])}"


# over time


@dataclass(frozen=True)
class OutcomeChartView:
    """An outcome over time: its chart, and what is marked in it, in words."""

    chart: Chart
    told: list[str]


def outcome_charts(over: dict[str, Any], time: dict[str, Any], series_count: int) -> list[OutcomeChartView]:
    return [_outcome_chart(outcome, over, time, series_count) for outcome in over["outcomes"]]


def _outcome_chart(outcome: dict[str, Any], over: dict[str, Any], time: dict[str, Any], series_count: int) -> OutcomeChartView:
    dated = time["unit"] != "period"
    place = _seconds if dated else float
    x = [place(text) for text in over["times"]]
    breaks = _breaks(x, [(place(gap["after"]), place(gap["before"])) for gap in over["gaps"]])
    x, (mean, low, high) = _insert_breaks(x, [outcome["mean"], outcome["minimum"], outcome["maximum"]], breaks)
    ranged = any(count > 1 for count in over["rows"])
    series = [Series("lowest to highest", low, "band", 0, upper=high)] if ranged else []
    series.append(Series("mean" if ranged else outcome["name"], mean, colour=0))
    marks = [Mark(place(gap["after"]), _gap_word(gap, time), place(gap["before"]), 1) for gap in over["gaps"]]
    marks += [Mark(place(shift["since"]), _shift_word(shift), colour=3) for shift in outcome["shifts"]]
    chart = Chart(
        f"{outcome['name']} over time",
        x,
        series,
        x_label="time" if dated else time["name"],
        y_label=outcome["name"],
        time=dated,
        marks=marks,
        note=_note(over, time, series_count),
        extra={"hours": time["unit"] in ("minute", "hour") and over["periods"] < 24},
    )
    return OutcomeChartView(chart, _mark_texts(outcome, over, time, series_count))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _breaks(x: Sequence[float], gaps: Sequence[tuple[float, float]]) -> list[tuple[int, float]]:
    """Where lines are to break: behind which point, and at which x. Gaps within a point are too short to be seen."""
    if len(x) < 3:
        return []
    usual = median(high - low for low, high in pairwise(x))
    found = []
    for after, before in gaps:
        behind = bisect_right(x, after) - 1
        if 0 <= behind < len(x) - 1 and x[behind + 1] - x[behind] > 1.5 * usual:
            found.append((behind, min(max((after + before) / 2, x[behind] + usual / 2), x[behind + 1] - usual / 2)))
    return found


def _insert_breaks(
    x: Sequence[float], columns: Sequence[Sequence[float]], breaks: Sequence[tuple[int, float]]
) -> tuple[list[float], list[list[float | None]]]:
    """The points with one that is nothing in each break."""
    at = dict(breaks)
    points: list[float] = []
    values: list[list[float | None]] = [[] for _ in columns]
    for index, place in enumerate(x):
        points += [place, at[index]] if index in at else [place]
        for column, kept in zip(columns, values, strict=True):
            kept += [column[index], None] if index in at else [column[index]]
    return points, values


def _note(over: dict[str, Any], time: dict[str, Any], series_count: int) -> str:
    spans = over["periods"] * (time["step"] or 1)
    each = f"a point for {'each ' + time['unit'] if spans == 1 else count_of(spans, time['unit'])}"
    if over["series"] is not None:
        return f"{each}, {over['series']} alone"
    return f"{each}, all {number(series_count, 9)} series together" if series_count > 1 else each


def _gap_word(gap: dict[str, Any], time: dict[str, Any]) -> str:
    return f"no rows, {_periods(gap, time)}"


def _periods(gap: dict[str, Any], time: dict[str, Any]) -> str:
    return count_of(gap["periods"] * (time["step"] or 1), time["unit"])


def _shift_word(shift: dict[str, Any]) -> str:
    moved = shift["after"] - shift["before"]
    higher = "higher" if moved > 0 else "lower"
    if shift["before"] > 0:
        return f"{percent(abs(moved) / shift['before'])} {higher}"
    return f"{number(abs(moved), 3)} {higher}"


def _mark_texts(outcome: dict[str, Any], over: dict[str, Any], time: dict[str, Any], series_count: int) -> list[str]:
    """What is marked, in words."""
    told = [
        f"Since about {shift['since']} it is {_shift_word(shift)} than before: {number(shift['before'])} became "
        f"{number(shift['after'])} on average."
        for shift in outcome["shifts"]
    ]
    gaps = over["gaps"]
    for gap in sorted(gaps, key=lambda gap: -gap["periods"])[:MOST_GAPS]:
        whose = f" of {number(gap['series'], 9)} series" if series_count > 1 and over["series"] is None else ""
        told.append(f"No rows{whose} after {gap['after']} and before {gap['before']}: {_periods(gap, time)}.")
    if len(gaps) > MOST_GAPS:
        told.append(f"{len(gaps) - MOST_GAPS} more gaps are shorter.")
    return told
