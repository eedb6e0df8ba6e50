"""The outcomes of a data set by series and period, ready to be looked back on, and the features made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from app.datasets.encode_values import Matrix, Refusals, Whole
from app.datasets.parse_time import periods_of
from app.datasets.parsing import category_text
from bco_core.features.grid import Grid
from bco_core.features.recipe import Recipe, levels, make_features

# What is to be said of rows, by their numbers.
Notes = dict[int, list[str]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Keys = tuple[str | None, ...]

_MOST_OVERALL = 1_000


@dataclass(frozen=True)
class Past:
    """Rows of one revision of a data set: outcomes on a grid, and the number of each series by its keys.

    ``last`` is the newest period of all series, ``overall`` the mean level of all series by period, as far as it was
    asked for.
    """

    grid: Grid
    numbers: dict[Keys, int]
    revision: int
    last: int
    overall: dict[int, Matrix] = field(default_factory=dict)


@dataclass(frozen=True)
class Looking:
    """How contexts look back: by which time and key columns, and what is made of what is found there.

    ``time`` is the profile of the time column. ``learned_until`` is the newest period that was learned from. Keys that
    are not in the history are refused unless ``unseen`` is ``other``.
    """

    time: dict[str, Any]
    keys: tuple[str, ...]
    recipe: Recipe
    unseen: str = "reject"
    learned_until: int | None = None

    def past(self, table: pa.Table, revision: int) -> Past:
        """What there is to look back on in the rows of a data set."""
        periods, _ = periods_of(self.time, self.recipe.clock, table.column(self.time["name"]))
        keys, series = series_keys([table.column(name) for name in self.keys], table.num_rows)
        outcomes = np.stack([table.column(name).to_numpy() for name in self.recipe.outcomes], axis=1)
        numbers = {key: number for number, key in enumerate(keys)}
        return Past(Grid.of(periods, series, outcomes, len(keys)), numbers, revision, int(periods.max()))

    def places(self, past: Past, table: pa.Table) -> tuple[Whole, Whole]:
        """The period and the series (n,) of each row of a data set."""
        periods, _ = periods_of(self.time, self.recipe.clock, table.column(self.time["name"]))
        return periods, self.series(past, [table.column(name) for name in self.keys], table.num_rows)[0]

    def recent(self, table: pa.Table) -> pa.Table:
        """The rows of a data set that decisions after its end look at: the newest of each series."""
        past = self.past(table, 0)
        periods, series = self.places(past, table)
        return table.filter(pa.array(periods > past.grid.last[series] - self.recipe.depth))

    def series(self, past: Past, columns: Sequence[Any], count: int) -> tuple[Whole, Refusals]:
        """Numbers (n,) of series by the values of their key columns, −1 for those that are not in the history."""
        keys, places = series_keys(columns, count)
        found = np.array([past.numbers.get(key, -1) for key in keys], dtype=np.int64)[places]
        refused = {}
        for row in np.flatnonzero(found < 0).tolist():
            key = keys[places[row]]
            if None in key:
                refused[row] = f"'{self.keys[key.index(None)]}' is missing; it says which series the context is of"
            elif self.unseen != "other":
                names = " and ".join(f"'{name}'" for name in self.keys)
                refused[row] = f"the history has no series with this {names}; append rows of it first"
        return found, refused

    def features(self, past: Past, periods: Whole, series: Whole, usable: Mask) -> tuple[Matrix, Refusals]:
        """The recipe's features (n, k) of usable rows, and which of these are refused."""
        recipe, clock, refused = self.recipe, self.recipe.clock, Refusals()
        beyond = usable & (periods > past.last + recipe.lead)
        for row in np.flatnonzero(beyond).tolist():
            refused[row] = (
                f"'{self.time['name']}' is after {clock.text(past.last + recipe.lead)}: the data set ends with "
                f"{clock.text(past.last)}, and decisions are made {recipe.lead} period(s) ahead; append newer rows"
            )
        usable = usable & ~beyond
        # Others may be too far away to be counted with.
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

    def _overall(self, past: Past, periods: Whole, wanted: Mask) -> Matrix:
        """The mean level (n, d_y) of all series that have one, as known for periods (n,); 0 for rows not wanted."""
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

    def notes(self, past: Past, periods: Whole, series: Whole, usable: Mask) -> Notes:
        """What is to be said of usable rows."""
        recipe, name = self.recipe, self.time["name"]
        there = series >= 0
        number = np.where(there, series, 0)
        needed = max(recipe.season, recipe.level)
        until = past.last if self.learned_until is None else self.learned_until
        known = periods - recipe.lead
        newest = past.grid.newest_before(periods, number, recipe.lead)
        said = {
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
        for sentence, rows in said.items():
            for row in np.flatnonzero(usable & rows).tolist():
                notes.setdefault(row, []).append(sentence)
        return notes


def series_keys(columns: Sequence[Any], count: int) -> tuple[list[Keys], Whole]:
    """The different keys of rows, and which of them each row (n,) has. Without key columns all rows are one series."""
    if not columns:
        return [()], np.zeros(count, dtype=np.int64)
    if isinstance(columns[0], Sequence):
        return [tuple(map(_text, row)) for row in zip(*columns, strict=True)], np.arange(count)
    texts, places = [], np.zeros(count, dtype=np.int64)
    combined = np.zeros((1, 0), dtype=np.int64)
    for column in columns:
        chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
        encoded = chunked.dictionary_encode().combine_chunks()
        texts.append([*map(_text, encoded.dictionary.to_pylist()), None])
        codes = np.asarray(encoded.indices.fill_null(len(texts[-1]) - 1), dtype=np.int64)
        found, places = np.unique(places * len(texts[-1]) + codes, return_inverse=True)
        combined = np.column_stack([combined[found // len(texts[-1])], found % len(texts[-1])])
    return [tuple(text[code] for text, code in zip(texts, key, strict=True)) for key in combined.tolist()], places


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, list | dict) else category_text(value)
