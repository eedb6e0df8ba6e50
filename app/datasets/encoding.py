"""Encode contexts as the numeric matrix that predictors take: columns known ahead, then features of time.

Learning, prescribing and batches share this code. A row that cannot be read is refused on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from app.datasets.lookback import HistoryGrid, Lookback, Notes
from app.datasets.parsing import RawTable, Refusals, as_numbers, by_value, category_text, is_number, to_float
from app.datasets.times import TimeColumn
from app.http.errors import InvalidRequest
from bco_core.arrays import Floats, Integers
from bco_core.data import LARGEST
from bco_core.features.lags import TimeRecipe

# Column of a checked table with the reasons of refused rows; no column of a file can have a name that begins with a
# space.
REFUSED = " refused"
_MOST_LISTED = 20


# single columns


@dataclass(frozen=True)
class ContextColumn:
    """Numeric or categorical context column.

    ``fill`` replaces missing numbers; with None they are refused. With ``indicator``, a column of its own marks the
    missing ones. With ``other``, the last category stands for all values that are not among the others.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float | None = None
    indicator: bool = False
    other: bool = False

    @staticmethod
    def of(profile: dict[str, Any]) -> ContextColumn:
        """Build from a column of a data set's stored profile."""
        categories = profile.get("categories")
        return ContextColumn(
            profile["name"],
            None if categories is None else tuple(categories),
            profile.get("median"),
            indicator=profile.get("median") is not None and profile["missing"] > 0,
            other=bool(profile.get("other")),
        )

    @property
    def width(self) -> int:
        return 1 + self.indicator if self.categories is None else len(self.categories)

    def read(self, values: Any) -> tuple[Floats | Integers, Refusals]:
        """Return numbers (n,), NaN where missing, or codes of categories (n,), −1 where a value is none of them."""
        return self._numbers(values) if self.categories is None else self._codes(values)

    def encode(self, values: Floats | Integers) -> Floats:
        """Turn what :meth:`read` returns, (n,), into columns (n, width)."""
        if self.categories is not None:
            one_hot: Floats = (values[:, None] == np.arange(len(self.categories))).astype(np.float64)
            return one_hot
        if self.fill is None:
            return values.astype(np.float64)[:, None]
        missing = np.isnan(values)
        filled = np.where(missing, self.fill, values)
        return np.stack([filled, missing.astype(np.float64)], axis=1) if self.indicator else filled[:, None]

    def _numbers(self, values: Any) -> tuple[Floats, Refusals]:
        if isinstance(values, Sequence):
            return self._listed_numbers(values)
        array, other = as_numbers(values)
        numbers: Floats = np.array(array.to_numpy(zero_copy_only=False), dtype=np.float64)
        refused = dict.fromkeys(other, f"'{self.name}' must be a number, and this is text")
        if self.fill is None:
            for row in np.flatnonzero(np.isnan(numbers)).tolist():
                refused.setdefault(row, f"'{self.name}' is missing; it must be a number")
        for row in np.flatnonzero(np.abs(numbers) > LARGEST).tolist():
            refused[row] = f"'{self.name}' must be a finite number"
        return numbers, refused

    def _listed_numbers(self, values: Sequence[Any]) -> tuple[Floats, Refusals]:
        numbers, refused = np.full(len(values), np.nan), {}
        for row, value in enumerate(values):
            if is_number(value):
                number = to_float(value)
                if abs(number) <= LARGEST:
                    numbers[row] = number
                else:
                    refused[row] = f"'{self.name}' must be a finite number"
            elif value is not None or self.fill is None:
                what = "missing" if value is None else "not a number"
                refused[row] = f"'{self.name}' is {what}; it must be a number"
        return numbers, refused

    @cached_property
    def _code_of(self) -> dict[str, int]:
        return {category: code for code, category in enumerate(self.categories or ())}

    def _codes(self, values: Any) -> tuple[Integers, Refusals]:
        known = self._code_of
        otherwise = len(known) - 1 if self.other else -1

        def code(value: Any) -> int:
            if value is None or isinstance(value, list | dict):
                return otherwise if value is None else -1
            return known.get(category_text(value), otherwise)

        codes, value_of = by_value(values, code)
        can_be = f"it can be {', '.join(list(known)[:_MOST_LISTED])}{', …' if len(known) > _MOST_LISTED else ''}"
        refused = {}
        for row in np.flatnonzero(codes < 0).tolist():
            what = "is missing" if value_of(row) is None else "was never seen in the history with this value"
            refused[row] = f"'{self.name}' {what}; {can_be}"
        return codes, refused


# contexts


class Refusal(NamedTuple):
    """Reason why a row cannot be decided for, and the column that causes it."""

    column: str
    sentence: str


@dataclass(frozen=True)
class EncodedContexts:
    """Rows (n, width), meaningless where refused, and notes on the others."""

    matrix: Floats
    refused: dict[int, Refusal]
    notes: Notes

    @property
    def usable(self) -> Integers:
        """Rows that are not refused."""
        usable = np.ones(len(self.matrix), dtype=bool)
        usable[list(self.refused)] = False
        return np.flatnonzero(usable)


@dataclass(frozen=True)
class ContextEncoding:
    """Context columns of a posterior in order, and its lookback if it has features of time.

    ``names`` are the columns of a context, in the order of a list of values; it may also have ``ignored`` ones.
    """

    columns: tuple[ContextColumn, ...]
    names: tuple[str, ...]
    lookback: Lookback | None = None
    ignored: frozenset[str] = frozenset()

    @staticmethod
    def of(columns: list[dict[str, Any]], state: dict[str, Any] | None = None) -> ContextEncoding:
        """Load from a data set's stored profile and the state that learning has stored with the posterior."""
        state = state or {}
        lookback = None
        time = TimeColumn.of(columns)
        if time is not None and state.get("recipe"):
            recipe = TimeRecipe.from_json(state["recipe"])
            lookback = Lookback(time, key_columns(columns), recipe, state["unseen"], state.get("learned_until"))
        return ContextEncoding.build(columns, state.get("keys", {}), lookback)

    @staticmethod
    def build(
        columns: list[dict[str, Any]], key_values: Mapping[str, Sequence[str]], lookback: Lookback | None
    ) -> ContextEncoding:
        """Build from a data set's profile; key columns with ``key_values`` are encoded as categories too."""
        keys = key_columns(columns)
        contexts = [ContextColumn.of(column) for column in columns if column["role"] == "context"]
        contexts += [ContextColumn(name, tuple(key_values[name])) for name in keys if name in key_values]
        used = {column.name for column in contexts} | ({lookback.time.name, *keys} if lookback else set())
        listed = [column["name"] for column in columns if column["role"] in ("time", "series", "context")]
        return ContextEncoding(
            tuple(contexts),
            tuple(name for name in listed if name in used),
            lookback,
            frozenset(name for name in listed if name not in used),
        )

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns) + (self.lookback.recipe.width if self.lookback else 0)

    @property
    def levels(self) -> tuple[int, ...]:
        """Matrix column of each outcome's level; empty without a lookback."""
        if self.lookback is None:
            return ()
        before = sum(column.width for column in self.columns)
        return tuple(before + level for level in self.lookback.recipe.levels)

    def encode_table(self, table: pa.Table, past: HistoryGrid | None = None, *, notes: bool = True) -> EncodedContexts:
        """Encode rows of a data set, or of a table that :meth:`checked` has returned; with notes only if asked to."""
        refused = {}
        if REFUSED in table.column_names:
            reasons = table.column(REFUSED).to_pylist()
            refused = {row: Refusal("", reason) for row, reason in enumerate(reasons) if reason is not None}
        return self._encode({name: table.column(name) for name in self.names}, table.num_rows, past, refused, notes)

    def in_order(self, contexts: Sequence[Any]) -> list[list[Any]]:
        """Return the values of contexts in the order of ``names``."""
        return [self._in_order(index, context) for index, context in enumerate(contexts)]

    def encode_rows(self, rows: Sequence[Sequence[Any]], past: HistoryGrid | None = None) -> EncodedContexts:
        """Encode contexts whose values are in the order of ``names``."""
        values = dict(zip(self.names, zip(*rows, strict=True), strict=True))
        return self._encode(values, len(rows), past, {})

    def check_upload(self, raw: RawTable) -> tuple[pa.Table, dict[int, Refusal]]:
        """Turn an uploaded table into one for :meth:`encode_table`, and return the rows that cannot be used."""
        for name in self.names:
            if name not in raw.columns:
                needed = ", ".join(self.names)
                raise InvalidRequest.at((raw.whole,), f"the column '{name}' is missing; the posterior needs {needed}")
        refused: dict[int, Refusal] = {}
        read = self._read(raw.columns, refused)
        columns: dict[str, Any] = {name: _storable(column) for name, column in raw.columns.items()}
        for column in self.columns:
            # A text is read as a number by its whole column, so the numbers are kept instead.
            if column.categories is None:
                columns[column.name] = pa.array(read[column.name], from_pandas=True)
        if self.lookback is not None:
            time = self.lookback.time
            _, wrong = time.periods(self.lookback.recipe.clock, raw.columns[time.name])
            _refuse(refused, time.name, wrong)
        if refused:
            reasons = [refused[row].sentence if row in refused else None for row in range(raw.rows)]
            columns[REFUSED] = pa.array(reasons, pa.string())
        return pa.table(columns), refused

    def _read(self, values: Mapping[str, Any], refused: dict[int, Refusal]) -> dict[str, Floats | Integers]:
        """Read numbers or codes of every context column."""
        keys = self.lookback.keys if self.lookback else ()
        read: dict[str, Floats | Integers] = {}
        for column in self.columns:
            read[column.name], wrong = column.read(values[column.name])
            # A new series has no category; the lookback decides whether it is served.
            if column.name not in keys:
                _refuse(refused, column.name, wrong)
        return read

    def _encode(
        self,
        values: Mapping[str, Any],
        count: int,
        past: HistoryGrid | None,
        refused: dict[int, Refusal],
        notes: bool = True,
    ) -> EncodedContexts:
        read = self._read(values, refused)
        parts = [column.encode(read[column.name]) for column in self.columns]
        if self.lookback is None:
            # A history without contexts has rows of width 0.
            return EncodedContexts(np.concatenate(parts, axis=1) if parts else np.empty((count, 0)), refused, {})
        if past is None:
            raise ValueError("an encoding with a lookback needs past rows")
        lookback, time = self.lookback, self.lookback.time.name
        periods, wrong = lookback.time.periods(lookback.recipe.clock, values[time])
        _refuse(refused, time, wrong)
        series, wrong = lookback.series(past, [values[name] for name in lookback.keys], count)
        _refuse(refused, lookback.keys[0] if lookback.keys else "", wrong)
        usable = np.ones(count, dtype=bool)
        usable[list(refused)] = False
        features, wrong = lookback.features(past, periods, series, usable)
        _refuse(refused, time, wrong)
        usable[list(wrong)] = False
        remarks = lookback.notes(past, periods, series, usable) if notes else {}
        return EncodedContexts(np.concatenate([*parts, features], axis=1), refused, remarks)

    def _in_order(self, index: int, context: Any) -> list[Any]:
        names = self.names
        if not isinstance(context, dict | list):
            detail = f"a context is an object with the columns {', '.join(names)}, or a list of their values"
            raise InvalidRequest.at(("contexts", index), detail)
        if isinstance(context, list):
            if len(context) != len(names):
                detail = f"a context given as a list needs {len(names)} values, in this order: {', '.join(names)}"
                raise InvalidRequest.at(("contexts", index), detail)
            return context
        if context.keys() != set(names):
            for name in names:
                if name not in context:
                    raise InvalidRequest.at(("contexts", index), f"the context lacks '{name}'")
            if not context.keys() <= {*names, *self.ignored}:
                detail = f"the context names a column the posterior does not know; its columns are {', '.join(names)}"
                raise InvalidRequest.at(("contexts", index), detail)
        return [context[name] for name in names]


def key_columns(columns: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the key columns of a data set's profile: those that identify series."""
    return tuple(column["name"] for column in columns if column["role"] == "series")


def _refuse(refused: dict[int, Refusal], column: str, wrong: Refusals) -> None:
    """Add refusals of a column; a row keeps its first reason."""
    for row, sentence in wrong.items():
        refused.setdefault(row, Refusal(column, sentence))


def _storable(column: pa.ChunkedArray | list[Any]) -> Any:
    return pa.array(column) if isinstance(column, list) else column
