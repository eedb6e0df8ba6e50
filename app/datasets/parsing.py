"""From JSON rows, CSV or Parquet to raw columns: name → values, with where each value came from."""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from app.db.text import is_storable
from app.http.errors import InvalidRequest
from app.settings import Settings

_WHOLE_WITH_POINT = re.compile(r"^(-?\d+)\.0+$")
_NOT_A_TABLE = "the file is neither Parquet nor a CSV file in UTF-8 with one header line"
# Far more than can be used; a file may still have more columns than its data set takes.
MOST_COLUMNS = 10_000
_BYTES_A_CELL = 16
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


def parse_rows(rows: list[dict[str, Any]], settings: Settings) -> RawTable:
    names = dict.fromkeys(name for row in rows for name in row)
    _check_names(list(names), "rows")
    # Before columns are made: every row has a place in each, also where it has no value.
    _check_size(len(rows), len(names), "rows", settings)
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    return RawTable(columns, len(rows), "rows", lambda row, name: (("rows", row, name), f"row {row}, column '{name}'"))


def parse_file(content: bytes, settings: Settings) -> RawTable:
    """A CSV or Parquet file, told apart by Parquet's own signature."""
    if content[:4] == b"PAR1":
        return _parse_parquet(content, settings)
    return _parse_csv(content, settings)


def _check_size(rows: int, columns: int, whole: str, settings: Settings) -> None:
    for what, number, limit in (
        ("rows", rows, settings.max_rows),
        ("cells", rows * columns, settings.max_cells),
    ):
        if number > limit:
            raise InvalidRequest.at((whole,), f"at most {limit} {what} (BCO_MAX_{what.upper()})")


def _parse_parquet(content: bytes, settings: Settings) -> RawTable:
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        # Compressed columns may unfold to any size: look before reading, and while reading.
        schema = file.schema_arrow
        _check_names(schema.names, "file")
        _check_size(file.metadata.num_rows, len(schema.names), "file", settings)
        text = [field.name for field in schema if _usable(field) and _is_text(field.type)]
        table = _read_within(pq.ParquetFile(io.BytesIO(content), read_dictionary=text), settings)
    except (pa.ArrowException, OSError):
        raise InvalidRequest.at(("file",), "the file starts like Parquet but cannot be read; write it again") from None
    columns = {name: _plain(table.column(name)) for name in table.column_names}
    return RawTable(columns, table.num_rows, "file", lambda row, name: (("file",), f"row {row}, column '{name}'"))


def _read_within(file: pq.ParquetFile, settings: Settings) -> pa.Table:
    """The whole table, text still as dictionaries, unless it would take too much memory once it is unfolded."""
    batches, size, most = [], 0, _BYTES_A_CELL * settings.max_cells
    for batch in file.iter_batches():
        size += sum(_unfolded_bytes(column) for column in batch.columns)
        if size > most:
            detail = f"the file unfolds to more than {most // 1_000_000} MB, {_BYTES_A_CELL} for each of BCO_MAX_CELLS"
            raise InvalidRequest.at(("file",), detail)
        batches.append(batch)
    return pa.Table.from_batches(batches, file.schema_arrow)


def _unfolded_bytes(column: pa.Array) -> int:
    """Of a column whose dictionary is written out for every row: one long text, shared by a million, is a million."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    if not _is_text(column.type.value_type):
        return 8 * len(column)
    lengths = pc.binary_length(column.dictionary).take(column.indices)
    return int(pc.sum(lengths).as_py() or 0) + 8 * len(column)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _usable(field: pa.Field) -> bool:
    """True, or a refusal of a column that holds what cannot be a value."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if _is_text(kind) or _is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return True
    detail = (
        f"column '{field.name}' holds {kind}; only numbers, booleans and text can be used: convert it or leave it out"
    )
    raise InvalidRequest.at(("file",), detail)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_boolean(kind):
        return column
    if _is_text(kind):
        return column.cast(pa.string())
    return column.cast(pa.float64(), safe=False)


def _parse_csv(content: bytes, settings: Settings) -> RawTable:
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
        _check_names(names, "file")
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
    _check_size(table.num_rows, len(table.column_names), "file", settings)
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
    repeated = next((name for name, count in Counter(stripped).items() if count > 1), None)
    if repeated is not None:
        raise InvalidRequest.at((whole,), f"two columns are called '{repeated}'; rename one")
    if len(names) > MOST_COLUMNS:
        raise InvalidRequest.at((whole,), f"more than {MOST_COLUMNS} columns; leave out those that do not matter")


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
