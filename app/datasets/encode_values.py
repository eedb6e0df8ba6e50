"""Values of contexts as numbers, codes of categories and periods; what cannot be read is refused row by row.

Values come as a list, from a request, or as an Arrow column, from a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.parsing import as_numbers, category_text, is_number, to_float
from bco_core.data import LARGEST

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Whole = np.ndarray[Any, np.dtype[np.int64]]
# What is wrong with rows, by their numbers.
Refusals = dict[int, str]

_SHOWN = 20


@dataclass(frozen=True)
class ContextColumn:
    """A context column: its categories if it has any, what fills in missing numbers, and where unseen values go.

    ``fill`` is None where numbers must not be missing. ``indicator`` says that a column of its own tells which were.
    ``other`` says that the last category stands for all that are not among the others.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float | None = None
    indicator: bool = False
    other: bool = False

    @staticmethod
    def of(profile: dict[str, Any]) -> ContextColumn:
        """From a column of a data set's stored profile."""
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

    @property
    def names(self) -> tuple[str, ...]:
        if self.categories is not None:
            return tuple(f"{self.name} {category}" for category in self.categories)
        return (self.name, f"{self.name} missing") if self.indicator else (self.name,)

    def encode(self, values: Matrix | Whole) -> Matrix:
        """Numbers (n,), NaN where missing, or codes (n,) of categories as columns (n, width)."""
        if self.categories is not None:
            hot: Matrix = (values[:, None] == np.arange(len(self.categories))).astype(np.float64)
            return hot
        if self.fill is None:
            return values.astype(np.float64)[:, None]
        missing = np.isnan(values)
        filled = np.where(missing, self.fill, values)
        return np.stack([filled, missing.astype(np.float64)], axis=1) if self.indicator else filled[:, None]

    @cached_property
    def codes(self) -> dict[str, int]:
        return {category: code for code, category in enumerate(self.categories or ())}

    @property
    def wanted(self) -> str:
        """What a category can be, as part of a sentence."""
        known = self.categories or ()
        return f"it can be {', '.join(known[:_SHOWN])}{', …' if len(known) > _SHOWN else ''}"


# numbers


def numbers_of(column: ContextColumn, values: Any) -> tuple[Matrix, Refusals]:
    """Numbers (n,), NaN where there is none."""
    if isinstance(values, Sequence):
        return _listed_numbers(column, values)
    found, other = as_numbers(values)
    numbers: Matrix = np.array(found.to_numpy(zero_copy_only=False), dtype=np.float64)
    refused = dict.fromkeys(other, f"'{column.name}' must be a number, and this is text")
    missing = np.isnan(numbers)
    if column.fill is None:
        for row in np.flatnonzero(missing).tolist():
            refused.setdefault(row, f"'{column.name}' is missing; it must be a number")
    for row in np.flatnonzero(np.abs(numbers) > LARGEST).tolist():
        refused[row] = f"'{column.name}' must be a finite number"
    return numbers, refused


def _listed_numbers(column: ContextColumn, values: Sequence[Any]) -> tuple[Matrix, Refusals]:
    numbers, refused = np.full(len(values), np.nan), {}
    for row, value in enumerate(values):
        if is_number(value):
            number = to_float(value)
            if abs(number) <= LARGEST:
                numbers[row] = number
            else:
                refused[row] = f"'{column.name}' must be a finite number"
        elif value is not None or column.fill is None:
            what = "missing" if value is None else "not a number"
            refused[row] = f"'{column.name}' is {what}; it must be a number"
    return numbers, refused


# categories


def codes_of(column: ContextColumn, values: Any) -> tuple[Whole, Refusals]:
    """Codes (n,) of categories, −1 where a value is none of them."""
    known = column.codes
    otherwise = len(known) - 1 if column.other else -1

    def code(value: Any) -> int:
        if value is None or isinstance(value, list | dict):
            return otherwise if value is None else -1
        return known.get(category_text(value), otherwise)

    codes, distinct = by_value(values, code)
    refused = {}
    for row in np.flatnonzero(codes < 0).tolist():
        what = "is missing" if distinct(row) is None else "was never seen in the history with this value"
        refused[row] = f"'{column.name}' {what}; {column.wanted}"
    return codes, refused


def by_value(values: Any, of: Callable[[Any], int]) -> tuple[Whole, Callable[[int], Any]]:
    """``of`` every value (n,), and a function that gives a row's value; a table's different values are looked at once.

    Values that are temporal in a file arrive as Python's dates and datetimes.
    """
    if isinstance(values, Sequence):
        return np.array([of(value) for value in values], dtype=np.int64), values.__getitem__
    column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    encoded = column.dictionary_encode().combine_chunks()
    distinct = [*encoded.dictionary.to_pylist(), None]
    places = np.asarray(pc.fill_null(encoded.indices, len(distinct) - 1), dtype=np.int64)
    found = np.array([of(value) for value in distinct], dtype=np.int64)
    return found[places], lambda row: distinct[places[row]]
