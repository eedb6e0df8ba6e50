"""From JSON rows, CSV or Parquet to raw columns: name → values, with where each value came from."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from app.errors import InvalidRequest
from app.schemas import is_storable

_WHOLE_WITH_POINT = re.compile(r"^(-?\d+)\.0+$")
_NOT_A_TABLE = "the file is neither Parquet nor a CSV file in UTF-8 with one header line"
_MISSING_TEXT = ["", "NA", "N/A", "null", "NULL", "None"]


@dataclass(frozen=True)
class RawTable:
    """Columns of equal length, each numbers, text or a mix, None where missing, and where each value stands.

    ``place(row, column)`` gives a path for the JSON pointer and words for the message; ``whole`` is the path of it all.
    """

    columns: dict[str, pa.ChunkedArray | list[Any]]
    rows: int
    whole: str
    place: Callable[[int, str], tuple[Sequence[str | int], str]]


def parse_rows(rows: list[dict[str, Any]]) -> RawTable:
    names = dict.fromkeys(name for row in rows for name in row)
    _check_names(list(names), "rows")
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    return RawTable(columns, len(rows), "rows", lambda row, name: (("rows", row, name), f"row {row}, column '{name}'"))


def parse_file(content: bytes, max_rows: int) -> RawTable:
    """A CSV or Parquet file, told apart by Parquet's own signature."""
    if content[:4] == b"PAR1":
        return _parse_parquet(content, max_rows)
    return _parse_csv(content)


def _parse_parquet(content: bytes, max_rows: int) -> RawTable:
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        # Compressed columns may unfold to any size: look before reading.
        if file.metadata.num_rows > max_rows:
            raise InvalidRequest.at(("file",), f"at most {max_rows} rows (BCO_MAX_ROWS)")
        _check_names(file.schema_arrow.names, "file")
        table = file.read()
    except (pa.ArrowException, OSError):
        raise InvalidRequest.at(("file",), "the file starts like Parquet but cannot be read; write it again") from None
    columns = {name: _plain(name, table.column(name)) for name in table.column_names}
    return RawTable(columns, table.num_rows, "file", lambda row, name: (("file",), f"row {row}, column '{name}'"))


def _plain(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_boolean(kind):
        return column
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.float64(), safe=False)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    if pa.types.is_null(kind):
        return column.cast(pa.float64())
    detail = f"column '{name}' holds {kind}; only numbers, booleans and text can be used: convert it or leave it out"
    raise InvalidRequest.at(("file",), detail)


def _parse_csv(content: bytes) -> RawTable:
    content = content.removeprefix(b"\xef\xbb\xbf")
    if not _is_utf8(content):
        raise InvalidRequest.at(("file",), _NOT_A_TABLE)
    if b"\n" not in content:
        content += b"\n"
    header = content.split(b"\n", 1)[0]
    if not header.strip():
        raise InvalidRequest.at(("file",), "the file is empty; its first line must name the columns")
    delimiter = max(",;\t", key=lambda mark: header.count(mark.encode()))
    bad_lines: list[tuple[int | None, int, int]] = []

    def on_bad_line(line: Any) -> str:
        bad_lines.append((line.number, line.expected_columns, line.actual_columns))
        return "skip"

    try:
        names = next(
            pyarrow.csv.open_csv(io.BytesIO(header + b"\n" + header), parse_options=_csv_parse(delimiter))
        ).schema.names
        table = pyarrow.csv.read_csv(
            io.BytesIO(content),
            read_options=pyarrow.csv.ReadOptions(use_threads=False),
            parse_options=_csv_parse(delimiter, on_bad_line),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=_MISSING_TEXT,
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError, StopIteration):
        raise InvalidRequest.at(("file",), _NOT_A_TABLE) from None
    if bad_lines:
        line, expected, actual = bad_lines[0]
        detail = f"line {line} has {actual} values where the header names {expected} columns"
        raise InvalidRequest.at(("file",), detail)
    _check_names(table.column_names, "file")
    columns = {name.strip(): table.column(index) for index, name in enumerate(table.column_names)}
    return RawTable(columns, table.num_rows, "file", lambda row, name: (("file",), f"line {row + 2}, column '{name}'"))


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _csv_parse(delimiter: str, handler: Any = None) -> Any:
    return pyarrow.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=handler, newlines_in_values=True)


def _check_names(names: list[str], whole: str) -> None:
    stripped = [name.strip() for name in names]
    if not all(stripped):
        raise InvalidRequest.at((whole,), "a column has no name")
    if not all(is_storable(name) for name in names):
        raise InvalidRequest.at((whole,), "a column's name holds a character that cannot be stored")
    repeated = next((name for name in stripped if stripped.count(name) > 1), None)
    if repeated is not None:
        raise InvalidRequest.at((whole,), f"two columns are called '{repeated}'; rename one")


def as_numbers(column: pa.ChunkedArray | list[Any]) -> tuple[pa.Array, list[int]]:
    """The column as float64 with nulls where missing, and the rows (at most a few) that hold something else."""
    if isinstance(column, list):
        other = [row for row, value in enumerate(column) if value is not None and not is_number(value)]
        return pa.array([to_float(value) if is_number(value) else None for value in column], pa.float64()), other
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8()).cast(pa.float64())
    if pa.types.is_floating(column.type):
        return column.combine_chunks(), []
    text = pc.utf8_trim_whitespace(column)
    try:
        return text.cast(pa.float64()).combine_chunks(), []
    except pa.ArrowInvalid:
        values, other = [], []
        for i, value in enumerate(text.to_pylist()):
            try:
                if value is not None and "_" in value:
                    raise ValueError
                values.append(None if value is None else float(value))
            except ValueError:
                values.append(None)
                other.append(i)
        return pa.array(values, pa.float64()), other


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
