"""From JSON rows, CSV, Parquet or Excel to raw columns: name → values, with where each value came from."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.child_processes import InvalidFile
from app.datasets.bounds import Limits, check_size
from app.datasets.numbers import spelled
from app.datasets.reader import read_file
from app.db.text import NOT_PLAIN, is_plain
from app.http.errors import InvalidRequest
from app.settings import Settings

_WHOLE_WITH_POINT = re.compile(r"^(-?\d+)\.0+$")


@dataclass(frozen=True)
class RawTable:
    """Columns of equal length, each numbers, text or a mix, None where missing, and where each value stands.

    ``place(row, column)`` gives a path for the JSON pointer and words for the message; ``whole`` is the path of it all.
    Of a file, ``format`` is csv, parquet or xlsx, and ``sheets`` are those of a workbook.
    """

    columns: dict[str, pa.ChunkedArray | list[Any]]
    rows: int
    whole: str
    place: Callable[[int, str], tuple[Sequence[str | int], str]]
    format: str = ""
    sheets: tuple[str, ...] = ()


def parse_rows(rows: list[dict[str, Any]], settings: Settings) -> RawTable:
    names = dict.fromkeys(name for row in rows for name in row)
    _check_names(list(names), "rows")
    # Before columns are made: every row has a place in each, also where it has no value.
    try:
        check_size(len(rows), len(names), Limits(settings.max_rows, settings.max_cells))
    except InvalidFile as refusal:
        raise InvalidRequest.at(("rows",), str(refusal)) from None
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    return RawTable(columns, len(rows), "rows", lambda row, name: (("rows", row, name), f"row {row}, column '{name}'"))


def parse_file(content: bytes, settings: Settings, sheet: str = "") -> RawTable:
    """A CSV, Parquet or Excel file, read by another process."""
    written_as, table = read_file(content, settings, sheet)
    _check_names(table.column_names, "file")
    word, first = ("line", 2) if written_as == "csv" else ("row", 0)
    sheets: list[str] = []
    if written_as == "xlsx":
        first = int(table.schema.metadata[b"header row"]) + 1
        sheets = json.loads(table.schema.metadata[b"sheets"])
    columns = {name.strip(): table.column(index) for index, name in enumerate(table.column_names)}
    return RawTable(
        columns,
        table.num_rows,
        "file",
        lambda row, name: (("file",), f"{word} {row + first}, column '{name}'"),
        written_as,
        tuple(sheets),
    )


def _check_names(names: list[str], whole: str) -> None:
    stripped = [name.strip() for name in names]
    if not all(stripped):
        raise InvalidRequest.at((whole,), "a column has no name")
    if not all(map(is_plain, stripped)):
        raise InvalidRequest.at((whole,), f"a column's name holds {NOT_PLAIN}")
    repeated = next((name for name, count in Counter(stripped).items() if count > 1), None)
    if repeated is not None:
        raise InvalidRequest.at((whole,), f"two columns are called '{repeated}'; rename one")


def as_numbers(column: pa.ChunkedArray | list[Any]) -> tuple[pa.Array, list[int]]:
    """The column as float64 with nulls where missing, and the rows (at most a few) that hold something else."""
    if isinstance(column, list):
        other = [row for row, value in enumerate(column) if value is not None and not is_number(value)]
        return pa.array([to_float(value) if is_number(value) else None for value in column], pa.float64()), other
    if is_temporal(column):
        return pa.nulls(len(column), pa.float64()), np.flatnonzero(np.asarray(column.is_valid())).tolist()
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8()).cast(pa.float64())
    if pa.types.is_floating(column.type):
        return column.combine_chunks(), []
    text = pc.utf8_trim_whitespace(column)
    try:
        return text.cast(pa.float64()).combine_chunks(), []
    except pa.ArrowInvalid:
        # Each different text is looked at once.
        encoded = text.dictionary_encode().combine_chunks()
        numbers = spelled(encoded.dictionary.to_pylist())
        read = [None] * len(numbers.numbers) if numbers.ambiguous else numbers.numbers
        values = pa.array(read, pa.float64()).take(encoded.indices)
        other = pc.and_(pc.is_null(values), pc.is_valid(encoded))
        return values, np.flatnonzero(np.asarray(other)).tolist()


def ambiguous_number(column: pa.ChunkedArray | list[Any]) -> str | None:
    """A text of the column that may mean two numbers, such as 1,234, where nothing in the column tells which."""
    if isinstance(column, list) or not pa.types.is_string(column.type):
        return None
    return spelled(pc.unique(pc.utf8_trim_whitespace(column)).drop_null().to_pylist()).ambiguous


def is_temporal(column: pa.ChunkedArray | list[Any]) -> bool:
    """Whether a file keeps this column as dates or timestamps."""
    return not isinstance(column, list) and bool(pa.types.is_temporal(column.type))


def is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def to_float(value: float) -> float:
    """A JSON number as a float; a whole number beyond any float is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def as_text(column: pa.ChunkedArray | list[Any]) -> pa.Array:
    """The column as text with nulls where missing; whole numbers lose their '.0' so that 1 and 1.0 are one category."""
    if not isinstance(column, list) and is_temporal(column):
        return column.cast(pa.string()).combine_chunks()
    values = column if isinstance(column, list) else column.to_pylist()
    return pa.array([None if value is None else category_text(value) for value in values], pa.string())


def category_text(value: Any) -> str:
    """The one spelling of a category, whether it arrives as text, number or boolean: 'true', '2', 'SAT'."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    return _WHOLE_WITH_POINT.sub(r"\1", text)
