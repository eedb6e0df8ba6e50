"""Read JSON rows, CSV, Parquet or Excel into raw columns, and raw values as numbers and text."""

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
from app.datasets.reader import read_file
from app.datasets.unpack import Limits, check_size
from app.db.text import NOT_PLAIN, is_plain
from app.http.errors import InvalidRequest
from app.settings import Settings
from bco_core.arrays import Integers

# Sentences about unusable rows, by row.
Refusals = dict[int, str]

_WHOLE_WITH_POINT = re.compile(r"^(-?\d+)\.0+$")


@dataclass(frozen=True)
class RawTable:
    """Columns of equal length, each numbers, text or a mix, None where missing.

    ``place(row, column)`` returns the path of a value for the JSON pointer, and words for the message; ``whole`` is the
    path of the table. For a file, ``format`` is csv, parquet or xlsx, and ``sheets`` are those of a workbook.
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
    # Before the columns are built: every row takes a cell in each, even without a value.
    try:
        check_size(len(rows), len(names), Limits(settings.max_rows, settings.max_cells))
    except InvalidFile as refusal:
        raise InvalidRequest.at(("rows",), str(refusal)) from None
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    return RawTable(columns, len(rows), "rows", lambda row, name: (("rows", row, name), f"row {row}, column '{name}'"))


def parse_file(content: bytes, settings: Settings, sheet: str = "") -> RawTable:
    """Read a CSV, Parquet or Excel file in another process."""
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


# numbers in texts: decimal points or commas, thousands set apart; one way holds for a whole column

# Blanks of several widths and apostrophes can only set thousands apart.
_BLANK = " \u00a0\u2009\u202f'’"


def _number_spelling(decimal: str, thousands: str) -> re.Pattern[str]:
    blanks = f"[{re.escape(thousands)}{_BLANK}]"
    whole = rf"(?:\d+|[1-9]\d{{0,2}}(?P<mark>{blanks})\d{{3}}(?:(?P=mark)\d{{3}})*)"
    return re.compile(rf"[+-]?{whole}(?:{re.escape(decimal)}\d+)?")


_POINT, _COMMA = _number_spelling(".", ","), _number_spelling(",", ".")
NUMBER_LIKE = re.compile(rf"[+-]?\d[\d.,{_BLANK}]*[.,{_BLANK}][\d.,{_BLANK}]*")
_MARKS = re.compile(f"[,{_BLANK}]")


@dataclass(frozen=True)
class TextNumbers:
    """Numbers of texts, None where a text is not a number. ``ambiguous`` is a text that may mean two numbers."""

    numbers: list[float | None]
    ambiguous: str | None = None


def read_numbers(texts: Sequence[str]) -> TextNumbers:
    """Read the distinct texts of a column as numbers, all with the same decimal mark.

    Where some texts have commas or set thousands apart, the decimal mark is the one that makes all of them numbers. If
    both marks do and the numbers differ, the column is ambiguous; if neither does, the mark that reads more texts wins.
    """
    plain = [_plain(text) for text in texts]
    if None not in plain or not any(_MARKS.search(text) for text in texts):
        return TextNumbers(plain)
    with_point = [
        number if number is not None else _marked(text, _POINT) for text, number in zip(texts, plain, strict=True)
    ]
    with_comma = [_marked(text, _COMMA) for text in texts]
    if None not in with_point and None not in with_comma:
        differs = (text for text, one, two in zip(texts, with_point, with_comma, strict=True) if one != two)
        return TextNumbers(with_point, next(differs, None))
    return TextNumbers(max(with_point, with_comma, key=lambda numbers: len(numbers) - numbers.count(None)))


def _plain(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _marked(text: str, spelling: re.Pattern[str]) -> float | None:
    match = spelling.fullmatch(text)
    if match is None:
        return None
    if match["mark"]:
        text = text.replace(match["mark"], "")
    return float(text.replace(",", "."))


def as_numbers(column: pa.ChunkedArray | list[Any]) -> tuple[pa.Array, list[int]]:
    """Return the column as float64, null where missing, and the rows that hold something else."""
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
        # Each distinct text is read once.
        encoded = text.dictionary_encode().combine_chunks()
        numbers = read_numbers(encoded.dictionary.to_pylist())
        read = [None] * len(numbers.numbers) if numbers.ambiguous else numbers.numbers
        values = pa.array(read, pa.float64()).take(encoded.indices)
        other = pc.and_(pc.is_null(values), pc.is_valid(encoded))
        return values, np.flatnonzero(np.asarray(other)).tolist()


def ambiguous_number(column: pa.ChunkedArray | list[Any]) -> str | None:
    """Return a text that stays ambiguous within its column, such as 1,234; None without one."""
    if isinstance(column, list) or not pa.types.is_string(column.type):
        return None
    return read_numbers(pc.unique(pc.utf8_trim_whitespace(column)).drop_null().to_pylist()).ambiguous


def is_temporal(column: pa.ChunkedArray | list[Any]) -> bool:
    """Check whether a file stores this column as dates or timestamps."""
    return not isinstance(column, list) and bool(pa.types.is_temporal(column.type))


def is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float)


def to_float(value: float) -> float:
    """Convert a JSON number; an integer beyond any float becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def as_text(column: pa.ChunkedArray | list[Any]) -> pa.Array:
    """Return the column as text, null where missing; integers lose their '.0' so that 1 and 1.0 are one category."""
    if not isinstance(column, list) and is_temporal(column):
        return column.cast(pa.string()).combine_chunks()
    values = column if isinstance(column, list) else column.to_pylist()
    return pa.array([None if value is None else category_text(value) for value in values], pa.string())


def category_text(value: Any) -> str:
    """Return the one spelling of a category, whether it arrives as text, number or boolean: 'true', '2', 'SAT'."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    if text.lower() in ("true", "false"):
        return text.lower()
    return _WHOLE_WITH_POINT.sub(r"\1", text)


def by_value(values: Any, of: Callable[[Any], int]) -> tuple[Integers, Callable[[int], Any]]:
    """Return ``of`` every value (n,), and a function that returns a row's value; each distinct value is read once.

    Values are a list, from a request, or an Arrow column, from a table, whose dates and timestamps arrive as Python's.
    """
    if isinstance(values, Sequence):
        return np.array([of(value) for value in values], dtype=np.int64), values.__getitem__
    column = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    encoded = column.dictionary_encode().combine_chunks()
    distinct = [*encoded.dictionary.to_pylist(), None]
    places = np.asarray(pc.fill_null(encoded.indices, len(distinct) - 1), dtype=np.int64)
    codes = np.array([of(value) for value in distinct], dtype=np.int64)
    return codes[places], lambda row: distinct[places[row]]
