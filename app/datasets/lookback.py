"""Rows of a data set by series and period, to which :mod:`bco_core.features.lags` looks back, with remarks on rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from app.datasets.parsing import Refusals
from app.datasets.times import SeriesKey, TimeColumn, series_keys, series_of
from bco_core.arrays import Booleans, Floats, Integers
from bco_core.features.grid import Grid
from bco_core.features.lags import TimeRecipe, levels, make_features

# Remarks on rows, by row.
Notes = dict[int, list[str]]

_MOST_OVERALL = 1_000


@dataclass(frozen=True)
class HistoryGrid:
    """Rows of one revision of a data set: outcomes on a grid, and the number of each series by its key.

    ``last`` is the newest period of all series. ``overall`` caches the mean level of all series by period.
    """

    grid: Grid
    numbers: dict[SeriesKey, int]
    revision: int
    last: int
    overall: dict[int, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Lookback:
    """Time and key columns by which contexts look back, and the recipe of the features made of the past.

    ``learned_until`` is the newest period that was learned from. Series that are not in the history are refused unless
    ``unseen`` is ``other``.
    """

    time: TimeColumn
    keys: tuple[str, ...]
    recipe: TimeRecipe
    unseen: str = "reject"
    learned_until: int | None = None

    def past(self, table: pa.Table, revision: int) -> HistoryGrid:
        """Put the rows of a data set on a grid."""
        periods, _ = self.time.periods(self.recipe.clock, table.column(self.time.name))
        keys, series = series_of(table, self.keys)
        outcomes = np.stack([table.column(name).to_numpy() for name in self.recipe.outcomes], axis=1)
        numbers = {key: number for number, key in enumerate(keys)}
        return HistoryGrid(Grid.of(periods, series, outcomes, len(keys)), numbers, revision, int(periods.max()))

    def places(self, past: HistoryGrid, table: pa.Table) -> tuple[Integers, Integers]:
        """Return the period and the series (n,) of each row of a data set."""
        periods, _ = self.time.periods(self.recipe.clock, table.column(self.time.name))
        return periods, self.series(past, [table.column(name) for name in self.keys], table.num_rows)[0]

    def recent(self, table: pa.Table) -> pa.Table:
        """Return the newest rows of each series: those that decisions after the end of the data set look back on."""
        past = self.past(table, 0)
        periods, series = self.places(past, table)
        return table.filter(pa.array(periods > past.grid.last[series] - self.recipe.depth))

    def series(self, past: HistoryGrid, columns: Sequence[Any], count: int) -> tuple[Integers, Refusals]:
        """Return the numbers (n,) of series by the values of their key columns, −1 for those not in the history."""
        keys, rows = series_keys(columns, count)
        numbers = np.array([past.numbers.get(key, -1) for key in keys], dtype=np.int64)[rows]
        refused = {}
        for row in np.flatnonzero(numbers < 0).tolist():
            key = keys[rows[row]]
            if None in key:
                refused[row] = f"'{self.keys[key.index(None)]}' is missing; it says which series the context is of"
            elif self.unseen != "other":
                names = " and ".join(f"'{name}'" for name in self.keys)
                refused[row] = f"the history has no series with this {names}; append rows of it first"
        return numbers, refused

    def features(
        self, past: HistoryGrid, periods: Integers, series: Integers, usable: Booleans
    ) -> tuple[Floats, Refusals]:
        """Return the recipe's features (n, k) of usable rows, and refuse those that have too little past."""
        recipe, clock, refused = self.recipe, self.recipe.clock, Refusals()
        beyond = usable & (periods > past.last + recipe.lead)
        for row in np.flatnonzero(beyond).tolist():
            refused[row] = (
                f"'{self.time.name}' is after {clock.text(past.last + recipe.lead)}: the data set ends with "
                f"{clock.text(past.last)}, and decisions are made {recipe.lead} period(s) ahead; append newer rows"
            )
        usable = usable & ~beyond
        # Periods of other rows may be too large to calculate with.
        at, of = np.where(usable, periods, past.last), np.where(usable, series, -1)
        unseen = usable & (series < 0)
        fallback = self._overall(past, at, unseen) if unseen.any() else None
        matrix, _ = make_features(recipe, past.grid, at, of, fallback)
        short = usable & np.isnan(matrix[:, list(recipe.levels)]).any(axis=1)
        for row in np.flatnonzero(short).tolist():
            refused[row] = (
                f"the series has no row that is {recipe.lead} period(s) or more before {clock.text(int(at[row]))}, so "
                "nothing of it is known at the decision"
            )
        return matrix, refused

    def _overall(self, past: HistoryGrid, periods: Integers, wanted: Booleans) -> Floats:
        """Return the mean level (n, d_y) of all series that have one, as known for periods (n,); 0 if not wanted."""
        table = np.zeros((len(periods), len(self.recipe.outcomes)))
        everyone = np.arange(past.grid.count)
        for period in np.unique(periods[wanted]).tolist():
            if period not in past.overall:
                if len(past.overall) >= _MOST_OVERALL:
                    past.overall.clear()
                each = levels(self.recipe, past.grid, np.full(len(everyone), period), everyone)
                known = each[~np.isnan(each).any(axis=1)]
                past.overall[period] = known.mean(axis=0) if len(known) else np.full(each.shape[1], np.nan)
            table[wanted & (periods == period)] = past.overall[period]
        return table

    def notes(self, past: HistoryGrid, periods: Integers, series: Integers, usable: Booleans) -> Notes:
        """Return remarks on usable rows."""
        recipe, name = self.recipe, self.time.name
        there = series >= 0
        number = np.where(there, series, 0)
        needed = max(recipe.season, recipe.level)
        until = past.last if self.learned_until is None else self.learned_until
        known = periods - recipe.lead
        newest = past.grid.newest_before(periods, number, recipe.lead)
        remarks = {
            f"'{name}' is not after the data set's last row; only rows {recipe.lead} period(s) or more before it were "
            "used": periods <= past.last,
            f"what was learned ends at {recipe.clock.text(until)}, long before '{name}'; learn again from newer "
            "rows": periods > until + max(recipe.lead, 4 * recipe.season, 28),
            "the series is not in the history; the mean level of all series stands for its own": ~there,
            f"the series is short: fewer than {needed} periods are known at the decision": there
            & (known - past.grid.first[number] < needed - 1),
            f"the series has no row within {recipe.level} periods before what may be known; its last level is "
            "used": there & (known - newest >= recipe.level),
        }
        notes: Notes = {}
        for sentence, rows in remarks.items():
            for row in np.flatnonzero(usable & rows).tolist():
                notes.setdefault(row, []).append(sentence)
        return notes
