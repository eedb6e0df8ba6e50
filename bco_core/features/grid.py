"""Outcomes of many series on a regular grid of periods, each series from its first period to its last.

The grid is ragged: the cells of a series lie one after another, so the outcome ``age`` periods before a cell is ``age``
cells before it, as long as that is within the series. Periods without a row are gaps and hold NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bco_core.arrays import Floats, Integers
from bco_core.errors import InvalidInput

MOST_CELLS = 200_000_000


@dataclass(frozen=True)
class Grid:
    """Cells (c, d_y) of S series: ``starts`` (S + 1,) are their first cells, ``first`` (S,) their first periods.

    ``newest`` (c,) is, for each cell, the newest one up to it that holds a row.
    """

    first: Integers
    starts: Integers
    values: Floats
    newest: Integers

    @staticmethod
    def of(periods: Integers, series: Integers, outcomes: Floats, count: int | None = None) -> Grid:
        """Build from rows in any order: periods (n,), series (n,) from 0 to ``count`` − 1, outcomes (n, d_y)."""
        count = int(series.max(initial=-1)) + 1 if count is None else count
        first = np.full(count, np.iinfo(np.int64).max)
        last = np.full(count, np.iinfo(np.int64).min)
        np.minimum.at(first, series, periods)
        np.maximum.at(last, series, periods)
        empty = first > last
        first[empty], last[empty] = 0, -1
        cells_needed = (last.astype(np.float64) - first + 1).sum() * outcomes.shape[1]
        if cells_needed > MOST_CELLS:
            raise InvalidInput(
                f"all series together span {cells_needed:,.0f} periods, gaps included, and at most {MOST_CELLS:,} fit; "
                "send fewer series, a shorter history, or times with a wider spacing"
            )
        starts = np.concatenate([[0], np.cumsum(last - first + 1)])
        cells = starts[series] + periods - first[series]
        values = np.full((int(starts[-1]), outcomes.shape[1]), np.nan)
        values[cells] = outcomes
        filled = np.zeros(len(values), dtype=bool)
        filled[cells] = True
        if int(filled.sum()) < len(cells):
            raise InvalidInput("two rows of a series have the same time")
        # The first cell of a series always holds a row, so nothing is carried from one series into the next.
        newest = np.maximum.accumulate(np.where(filled, np.arange(len(values)), 0))
        return Grid(first, starts, values, newest)

    @property
    def count(self) -> int:
        return len(self.first)

    @property
    def last(self) -> Integers:
        """Last period (S,) of each series; the one before its first if it has no rows."""
        return self.first + np.diff(self.starts) - 1

    def before(self, periods: Integers, series: Integers, ages: Integers) -> Floats:
        """Return outcomes (n, d_y, m) m ages before periods (n,) of series (n,); NaN where there is no row.

        A series below 0 has no rows.
        """
        known = series >= 0
        number = np.where(known, series, 0)
        position = np.where(known, periods - self.first[number], -1)[:, None] - ages
        length = (self.starts[number + 1] - self.starts[number])[:, None]
        inside = (position >= 0) & (position < length)
        cells = np.where(inside, self.starts[number][:, None] + position, 0)
        outcomes = np.where(inside[:, None, :], self.values[cells].transpose(0, 2, 1), np.nan)
        return np.ascontiguousarray(outcomes)

    def newest_before(self, periods: Integers, series: Integers, age: int) -> Integers:
        """Return the period (n,) of the newest row at least ``age`` old at periods (n,); first − 1 if there is none."""
        number = np.where(series >= 0, series, 0)
        first, start = self.first[number], self.starts[number]
        position = np.minimum(periods - age - first, self.starts[number + 1] - start - 1)
        there = (position >= 0) & (series >= 0)
        newest = self.newest[np.where(there, start + position, 0)] - start + first
        return np.where(there, newest, first - 1)
