"""Contexts as the numeric matrix that predictors take: what is known ahead, then what a recipe makes of time.

One reading serves learning, prescribing and batches. A row that cannot be read is refused by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from app.datasets.encode_values import ContextColumn, Matrix, Refusals, Whole, codes_of, numbers_of
from app.datasets.lookback import Looking, Notes, Past
from app.datasets.parse_time import periods_of
from app.datasets.parsing import RawTable
from app.http.errors import InvalidRequest
from bco_core.features.recipe import Recipe

__all__ = ["REFUSED", "ContextEncoding", "Encoded", "Matrix", "Refusal"]

# Where a checked table keeps why rows are refused; no column of a file can have a name that begins with a space.
REFUSED = " refused"


class Refusal(NamedTuple):
    """Why a row cannot be decided for, and by which of its columns."""

    column: str
    sentence: str


@dataclass(frozen=True)
class Encoded:
    """Rows (n, width); those that are refused mean nothing. ``notes`` is what to say of others."""

    matrix: Matrix
    refused: dict[int, Refusal]
    notes: Notes

    @property
    def usable(self) -> Whole:
        """The rows that are not refused."""
        kept = np.ones(len(self.matrix), dtype=bool)
        kept[list(self.refused)] = False
        return np.flatnonzero(kept)


@dataclass(frozen=True)
class ContextEncoding:
    """The context columns of a posterior in order, and how it looks back if it does.

    ``names`` are the columns that a context has, in the order in which a list gives them; it may have ``ignored`` ones.
    """

    columns: tuple[ContextColumn, ...]
    names: tuple[str, ...]
    looking: Looking | None = None
    ignored: frozenset[str] = frozenset()

    @staticmethod
    def of(columns: list[dict[str, Any]], state: dict[str, Any] | None = None) -> ContextEncoding:
        """From a data set's stored profile and the state that learning has stored beside it (:meth:`state`)."""
        state = state or {}
        contexts = [ContextColumn.of(column) for column in columns if column["role"] == "context"]
        keys = tuple(column["name"] for column in columns if column["role"] == "series")
        time = next((column for column in columns if column["role"] == "time"), None)
        hot = state.get("keys", {})
        contexts += [ContextColumn(name, tuple(hot[name]), other=False) for name in keys if name in hot]
        looking = None
        if time is not None and state.get("recipe"):
            looking = Looking(
                time, keys, Recipe.from_json(state["recipe"]), state["unseen"], state.get("learned_until")
            )
        used = {column.name for column in contexts} | ({time["name"], *keys} if looking and time else set())
        listed = [column["name"] for column in columns if column["role"] in ("time", "series", "context")]
        return ContextEncoding(
            tuple(contexts),
            tuple(name for name in listed if name in used),
            looking,
            frozenset(name for name in listed if name not in used),
        )

    @property
    def width(self) -> int:
        return sum(column.width for column in self.columns) + (self.looking.recipe.width if self.looking else 0)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The columns of the matrix, in order."""
        names = tuple(name for column in self.columns for name in column.names)
        return names + (self.looking.recipe.names if self.looking else ())

    @property
    def levels(self) -> tuple[int, ...]:
        """The matrix column of each outcome's level; none if the encoding does not look back."""
        if self.looking is None:
            return ()
        before = sum(column.width for column in self.columns)
        return tuple(before + level for level in self.looking.recipe.levels)

    def encode_table(self, table: pa.Table, past: Past | None = None, *, notes: bool = True) -> Encoded:
        """The rows of a data set, or of a table that :meth:`checked` has returned; without notes if none are read."""
        refused = {}
        if REFUSED in table.column_names:
            reasons = table.column(REFUSED).to_pylist()
            refused = {row: Refusal("", reason) for row, reason in enumerate(reasons) if reason is not None}
        return self._encode({name: table.column(name) for name in self.names}, table.num_rows, past, refused, notes)

    def encode_requests(self, contexts: Sequence[Any], past: Past | None = None) -> Encoded:
        """Contexts as they arrive in a request, by name or in column order."""
        return self.encode_rows(self.in_order(contexts), past)

    def in_order(self, contexts: Sequence[Any]) -> list[list[Any]]:
        """The values of contexts in the order of ``names``."""
        return [self._in_order(index, context) for index, context in enumerate(contexts)]

    def encode_rows(self, rows: Sequence[Sequence[Any]], past: Past | None = None) -> Encoded:
        """Contexts by their values in order."""
        values = dict(zip(self.names, zip(*rows, strict=True), strict=True))
        return self._encode(values, len(rows), past, {})

    def checked(self, raw: RawTable) -> tuple[pa.Table, dict[int, Refusal]]:
        """A table as it was sent, for :meth:`encode_table`, and the rows whose values cannot be used."""
        for name in self.names:
            if name not in raw.columns:
                needed = ", ".join(self.names)
                raise InvalidRequest.at((raw.whole,), f"the column '{name}' is missing; the posterior needs {needed}")
        refused: dict[int, Refusal] = {}
        read = self._read(raw.columns, refused)
        columns: dict[str, Any] = {name: _storable(column) for name, column in raw.columns.items()}
        for column in self.columns:
            # What numbers a text means is settled by its whole column, so it is kept.
            if column.categories is None:
                columns[column.name] = pa.array(read[column.name], from_pandas=True)
        if self.looking is not None:
            name = self.looking.time["name"]
            _, wrong = periods_of(self.looking.time, self.looking.recipe.clock, raw.columns[name])
            _note(refused, name, wrong)
        if refused:
            reasons = [refused[row].sentence if row in refused else None for row in range(raw.rows)]
            columns[REFUSED] = pa.array(reasons, pa.string())
        return pa.table(columns), refused

    def _read(self, values: Mapping[str, Any], refused: dict[int, Refusal]) -> dict[str, Matrix | Whole]:
        """Numbers or codes of every context column."""
        keys = self.looking.keys if self.looking else ()
        read: dict[str, Matrix | Whole] = {}
        for column in self.columns:
            of = numbers_of if column.categories is None else codes_of
            read[column.name], wrong = of(column, values[column.name])
            # A new series has no category of its own: whether it is served is not for its category to say.
            if column.name not in keys:
                _note(refused, column.name, wrong)
        return read

    def _encode(
        self,
        values: Mapping[str, Any],
        count: int,
        past: Past | None,
        refused: dict[int, Refusal],
        notes: bool = True,
    ) -> Encoded:
        read = self._read(values, refused)
        parts = [column.encode(read[column.name]) for column in self.columns]
        if self.looking is None:
            # A history without contexts has rows of nothing.
            return Encoded(np.concatenate(parts, axis=1) if parts else np.empty((count, 0)), refused, {})
        if past is None:
            raise ValueError("there is nothing to look back on")
        looking = self.looking
        periods, wrong = periods_of(looking.time, looking.recipe.clock, values[looking.time["name"]])
        _note(refused, looking.time["name"], wrong)
        series, wrong = looking.series(past, [values[name] for name in looking.keys], count)
        _note(refused, looking.keys[0] if looking.keys else "", wrong)
        usable = np.ones(count, dtype=bool)
        usable[list(refused)] = False
        features, wrong = looking.features(past, periods, series, usable)
        _note(refused, looking.time["name"], wrong)
        usable[list(wrong)] = False
        said = looking.notes(past, periods, series, usable) if notes else {}
        return Encoded(np.concatenate([*parts, features], axis=1), refused, said)

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


def _note(refused: dict[int, Refusal], column: str, wrong: Refusals) -> None:
    """Add refusals of a column; a row keeps its first reason."""
    for row, sentence in wrong.items():
        refused.setdefault(row, Refusal(column, sentence))


def _storable(column: pa.ChunkedArray | list[Any]) -> Any:
    return pa.array(column) if isinstance(column, list) else column
