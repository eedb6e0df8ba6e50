"""Contexts with names and categories as the numeric matrix that predictors take: one-hot for each category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.parsing import RawTable, as_numbers, category_text, is_number, to_float
from app.http.errors import InvalidRequest
from bco_core.data import LARGEST

Matrix = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class ContextEncoding:
    """The context columns of a data set in order: name and, if categorical, its categories."""

    columns: tuple[tuple[str, tuple[str, ...] | None], ...]

    @staticmethod
    def of(columns: list[dict[str, Any]]) -> ContextEncoding:
        """From a data set's stored profile."""
        contexts = [column for column in columns if column["role"] == "context"]
        return ContextEncoding(
            tuple((c["name"], tuple(c["categories"]) if "categories" in c else None) for c in contexts)
        )

    @property
    def width(self) -> int:
        return sum(1 if categories is None else len(categories) for _, categories in self.columns)

    def encode_table(self, table: pa.Table) -> Matrix:
        """A clean table of a data set, (n, width)."""
        parts = []
        for name, categories in self.columns:
            column = table.column(name)
            if categories is None:
                parts.append(column.to_numpy()[:, None])
            else:
                codes = pc.index_in(column, pa.array(categories)).to_numpy()
                parts.append(np.eye(len(categories))[codes])
        return np.concatenate(parts, axis=1)

    def clean_table(self, raw: RawTable) -> pa.Table:
        """A table as it was sent, its context columns checked so that :meth:`encode_table` takes them."""
        columns: dict[str, Any] = {name: _storable(column) for name, column in raw.columns.items()}
        for name, categories in self.columns:
            if name not in raw.columns:
                needed = ", ".join(name for name, _ in self.columns)
                raise InvalidRequest.at((raw.whole,), f"the column '{name}' is missing; the posterior needs {needed}")
            columns[name] = _clean_numbers(raw, name) if categories is None else _clean_text(raw, name, categories)
        return pa.table(columns)

    def encode_requests(self, contexts: Sequence[Any]) -> Matrix:
        """Contexts as they arrive in a request, by name or in column order, (B, width)."""
        rows = [self._in_order(index, context) for index, context in enumerate(contexts)]
        parts = []
        for (name, categories), values in zip(self.columns, zip(*rows, strict=True), strict=True):
            if categories is None:
                parts.append(_numbers(name, values)[:, None])
            else:
                codes = _codes(name, values, categories)
                parts.append(np.eye(len(categories))[codes])
        return np.concatenate(parts, axis=1)

    def _in_order(self, index: int, context: Any) -> list[Any]:
        names = [name for name, _ in self.columns]
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
            detail = f"the context names a column the posterior does not know; its columns are {', '.join(names)}"
            raise InvalidRequest.at(("contexts", index), detail)
        return [context[name] for name in names]


def _storable(column: pa.ChunkedArray | list[Any]) -> Any:
    return pa.array(column) if isinstance(column, list) else column


def _clean_numbers(raw: RawTable, name: str) -> pa.Array:
    numbers, other = as_numbers(raw.columns[name])
    if other:
        where, words = raw.place(other[0], name)
        raise InvalidRequest.at(where, f"{words}: '{name}' must be a number, and this is text")
    usable = pc.fill_null(pc.less_equal(pc.abs(numbers), LARGEST), False)
    if not pc.all(usable).as_py():
        where, words = raw.place(pc.index(usable, False).as_py(), name)
        raise InvalidRequest.at(where, f"{words}: '{name}' is missing or not a finite number")
    return numbers


def _clean_text(raw: RawTable, name: str, categories: tuple[str, ...]) -> pa.Array:
    """Every value as the category it stands for; each different value is looked at once."""
    column = _storable(raw.columns[name])
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    encoded = chunked.dictionary_encode().combine_chunks()
    spelled = [category_text(value) for value in encoded.dictionary.to_pylist()]
    texts = pa.array(spelled, pa.string()).take(encoded.indices)
    known = pc.fill_null(pc.is_in(texts, pa.array(categories)), False)
    if not pc.all(known).as_py():
        where, words = raw.place(pc.index(known, False).as_py(), name)
        shown = ", ".join(categories[:20]) + (", …" if len(categories) > 20 else "")
        raise InvalidRequest.at(where, f"{words}: missing, or never seen in the history; '{name}' can be {shown}")
    return texts


def _numbers(name: str, values: Sequence[Any]) -> Matrix:
    for index, value in enumerate(values):
        if not is_number(value):
            what = "missing" if value is None else "not a number"
            raise InvalidRequest.at(("contexts", index, name), f"'{name}' is {what}; it must be a number")
    numbers = np.array([to_float(value) for value in values])
    usable = np.abs(numbers) <= LARGEST
    if not usable.all():
        index = int(usable.argmin())
        raise InvalidRequest.at(("contexts", index, name), f"'{name}' must be a finite number")
    return numbers


def _codes(name: str, values: Sequence[Any], categories: tuple[str, ...]) -> list[int]:
    known = {category: code for code, category in enumerate(categories)}
    codes = []
    for index, value in enumerate(values):
        code = None if value is None or isinstance(value, list | dict) else known.get(category_text(value))
        if code is None:
            shown = ", ".join(categories[:20]) + (", …" if len(categories) > 20 else "")
            what = "is missing" if value is None else "was never seen in the history with this value"
            raise InvalidRequest.at(("contexts", index, name), f"'{name}' {what}; it can be {shown}")
        codes.append(code)
    return codes
