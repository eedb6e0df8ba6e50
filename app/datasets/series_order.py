"""The rows of a clean table along time: in the order of their series and moments, with periods that can be counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from app.datasets.series import series_codes
from app.datasets.times import DAY

Floats = np.ndarray[Any, np.dtype[np.float64]]
Whole = np.ndarray[Any, np.dtype[np.int64]]
Truths = np.ndarray[Any, np.dtype[np.bool_]]

# A history is cut into so many stretches to see whether its level moves.
BLOCKS = 20


@dataclass(frozen=True)
class Timeline:
    """Rows in the order of series and time: which row each is, its series, its time and the number of its period."""

    order: Whole
    series: Whole
    moments: Whole
    periods: Whole
    profile: dict[str, Any]

    @property
    def goes_on(self) -> Truths:
        """Whether each row but the first is of the same series as the one before."""
        same: Truths = np.diff(self.series) == 0
        return same


def timeline(table: pa.Table, columns: list[dict[str, Any]]) -> Timeline | None:
    """The timeline of a table with this profile; None without a time column."""
    if not columns or columns[0]["role"] != "time":
        return None
    profile = columns[0]
    numbers = np.asarray(table.column(profile["name"]).cast(pa.int64()))
    series = series_codes(table, [column["name"] for column in columns if column["role"] == "series"])[0]
    return ordered(numbers, series, profile)


def ordered(numbers: Whole, series: Whole, profile: dict[str, Any]) -> Timeline:
    """The timeline of rows at these moments (n,) of these series (n,)."""
    order = np.lexsort((numbers, series))
    periods = _periods(numbers, profile["unit"], profile["step"])
    return Timeline(order, series[order], numbers[order], periods[order], profile)


def _periods(numbers: Whole, unit: str, step: int) -> Whole:
    """Consecutive numbers of periods, without weekdays and times of day at which nothing ever happens."""
    if unit == "period":
        return numbers // step
    days = numbers // DAY
    if unit == "month":
        return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) // step
    if unit == "week":
        return days // (7 * step)
    if unit == "day" and step > 1:
        return days // step
    # 1970 began on a Thursday.
    open_days = np.bincount((days + 3) % 7, minlength=7) > 0
    opened = np.busday_count(np.datetime64(0, "D"), days.astype("datetime64[D]"), weekmask=open_days)
    if unit == "day":
        return np.asarray(opened, dtype=np.int64)
    moments, ranks = np.unique(numbers % DAY, return_inverse=True)
    return np.asarray(opened, dtype=np.int64) * len(moments) + ranks


def levels(values: Floats, along: Timeline) -> tuple[Whole, Floats]:
    """The periods that have rows, and how far the rows (n,) of each lie above the means of their own series."""
    counts = np.bincount(along.series)
    means = np.bincount(along.series, values) / np.maximum(counts, 1)
    periods, codes = np.unique(along.periods, return_inverse=True)
    return periods, np.bincount(codes, values - means[along.series]) / np.bincount(codes)


def has_moved(before: Floats, after: Floats, spread: float) -> bool:
    """Whether the mean of some stretches is clearly another than before.

    It is where it differs by more than 3.3 standard errors, by the scatter of the stretches before, and by more than a
    fifth of the spread of all periods.
    """
    moved = abs(float(after.mean() - before.mean()))
    scatter = float(before.std(ddof=1)) * np.sqrt(1 / len(before) + 1 / len(after))
    return moved != 0 and moved >= max(3.3 * scatter, 0.2 * spread)
