"""Unpack uploaded CSV, Parquet and Excel files into tables, within limits.

:mod:`app.datasets.reader` runs this module as a process, which ends if a file takes too much memory or time. It imports
little besides pyarrow and the reader of workbooks, so that it starts in tenths of a second and has no secrets.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from python_calamine import CalamineWorkbook

from app.child_processes import InvalidFile, serve_files

# A file may have more columns than its data set takes, but not far more.
MOST_COLUMNS = 10_000
MISSING_TEXT = ["", "NA", "N/A", "null", "NULL", "None"]


class Limits(NamedTuple):
    """Limits of a table, from the settings of the same names."""

    max_rows: int
    max_cells: int


def check_size(rows: int, columns: int, limits: Limits) -> None:
    """Refuse a table of too many rows, columns or cells."""
    if columns > MOST_COLUMNS:
        raise InvalidFile(f"more than {MOST_COLUMNS} columns; leave out those that do not matter")
    for what, number, limit in (("rows", rows, limits.max_rows), ("cells", rows * columns, limits.max_cells)):
        if number > limit:
            raise InvalidFile(f"at most {limit} {what} (BCO_MAX_{what.upper()})")


def is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


NOT_A_TABLE = "the file is neither Parquet nor an Excel workbook nor a CSV file in UTF-8 with one header line"
OLD_WORKBOOK = "the file is an old Excel workbook, or one with a password; save it as .xlsx without a password"
UNREADABLE = "the file starts like Parquet but cannot be read; write it again"
NOT_UTF8 = "a text in the file is not UTF-8; write the file again in UTF-8"
BYTES_A_CELL = 16
# 1 January of year 1 and 31 December 9999, in days since 1970.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896


def unpack(content: bytes, limits: Limits, sheet: str = "") -> tuple[str, pa.Table]:
    """Return the format and the table of a CSV, Parquet or Excel file; the last two are known by their signatures.

    Columns of a CSV file are text; others are text, boolean, float64, dates or timestamps. ``sheet`` is that of a
    workbook, by default the first.
    """
    if content[:4] == b"PK\x03\x04":
        return "xlsx", _read_workbook(content, limits, sheet)
    if sheet:
        raise InvalidFile("the file is not an Excel workbook (.xlsx), so it has no sheets; leave out sheet")
    if content[:4] == b"PAR1":
        return "parquet", _parquet(content, limits)
    if content[:4] == b"\xd0\xcf\x11\xe0":
        raise InvalidFile(OLD_WORKBOOK)
    return "csv", _csv(content, limits)


# Parquet


def _parquet(content: bytes, limits: Limits) -> pa.Table:
    try:
        file = pq.ParquetFile(io.BytesIO(content))
        # Compressed columns may unfold to any size: look before reading, and while reading.
        schema = file.schema_arrow
        check_size(file.metadata.num_rows, len(schema.names), limits)
        _check_unfolded(_declared_bytes(file.metadata), limits)
        text = [field.name for field in schema if _usable(field) and _is_text(field.type)]
        table = _read_within(pq.ParquetFile(io.BytesIO(content), read_dictionary=text), limits)
        columns = [_plain(table.column(index)) for index in range(table.num_columns)]
        for column in columns:
            if _is_text(column.type):
                column.validate(full=True)
        return pa.table(columns, names=table.column_names)
    except pa.ArrowMemoryError:
        raise
    except UnicodeDecodeError:
        raise InvalidFile(NOT_UTF8) from None
    except (pa.ArrowException, OSError) as error:
        raise InvalidFile(NOT_UTF8 if "UTF8" in str(error) else UNREADABLE) from None


def _declared_bytes(metadata: pq.FileMetaData) -> int:
    """Return the declared size of the decompressed columns, with dictionaries not yet expanded."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(group.column(index).total_uncompressed_size for group in groups for index in range(group.num_columns))


def _check_unfolded(size: int, limits: Limits) -> None:
    most = BYTES_A_CELL * limits.max_cells
    if size > most:
        detail = f"the file unfolds to more than {most / 1e6:g} MB, {BYTES_A_CELL} bytes for each of BCO_MAX_CELLS"
        raise InvalidFile(detail)


def _read_within(file: pq.ParquetFile, limits: Limits) -> pa.Table:
    """Read the table, text still as dictionaries; refuse it if it would expand to too much memory."""
    batches, size = [], 0
    for batch in file.iter_batches(use_threads=False):
        size += sum(_unfolded_bytes(column) for column in batch.columns)
        _check_unfolded(size, limits)
        batches.append(batch)
    return pa.Table.from_batches(batches, file.schema_arrow)


def _unfolded_bytes(column: pa.Array) -> int:
    """Return the size of a column with its dictionary expanded: a long text counts once for every row that has it."""
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
    """Return True, or refuse a column of a type that cannot be used."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if _is_text(kind) or _is_number(kind) or is_moment(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return True
    raise InvalidFile(
        f"column '{field.name}' holds {kind}; only numbers, booleans, text, dates and timestamps can be used: "
        "convert it or leave it out"
    )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_boolean(kind):
        return column
    if _is_text(kind):
        return column.cast(pa.string())
    if is_moment(kind):
        return _moments(column)
    return column.cast(pa.float64(), safe=False)


def _moments(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return dates, or timestamps in UTC to the microsecond at most; refuse years beyond 1 to 9999."""
    kind = column.type
    if pa.types.is_date(kind):
        column = column.cast(pa.date32())
    elif kind.unit == "ns":
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)
    a_day = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}.get(getattr(column.type, "unit", ""), 1)
    numbers = column.cast(pa.int32() if a_day == 1 else pa.int64())
    if len(numbers) > numbers.null_count:
        extremes = pc.min_max(numbers).as_py()
        if extremes["min"] < FIRST_DAY * a_day or extremes["max"] >= (LAST_DAY + 1) * a_day:
            raise InvalidFile("a column of dates goes beyond the years 1 to 9999")
    return column


# CSV


def _csv(content: bytes, limits: Limits) -> pa.Table:
    content = content.removeprefix(b"\xef\xbb\xbf")
    if b"\n" not in content:
        content += b"\n"
    header = content.split(b"\n", 1)[0]
    if not header.strip():
        raise InvalidFile("the file is empty; its first line must name the columns")
    delimiter = max(",;\t", key=lambda mark: header.count(mark.encode()))
    bad_lines: list[str] = []

    def on_bad_line(line: Any) -> str:
        expected, actual = line.expected_columns, line.actual_columns
        bad_lines.append(f"line {line.number} has {actual} values where the header names {expected} columns")
        # There may be millions; the first is enough to refuse the file.
        return "error"

    reading = pyarrow.csv.ReadOptions(use_threads=False)
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=on_bad_line, newlines_in_values=True)
    try:
        content.decode()
        # pyarrow finds the columns: a header may hold line breaks, or end unlike other lines.
        with pyarrow.csv.open_csv(io.BytesIO(content), read_options=reading, parse_options=parsing) as opened:
            names = opened.schema.names
        check_size(0, len(names), limits)
        table = pyarrow.csv.read_csv(
            io.BytesIO(content),
            read_options=reading,
            parse_options=parsing,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=MISSING_TEXT,
            ),
        )
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, UnicodeDecodeError):
        raise InvalidFile(bad_lines[0] if bad_lines else NOT_A_TABLE) from None
    check_size(table.num_rows, table.num_columns, limits)
    return table


# Excel

NOT_A_WORKBOOK = "the file starts like an Excel workbook (.xlsx) but cannot be read; save it again"
# Largest size of a cell as XML.
XML_BYTES_A_CELL = 64
BLOCK_ROWS = 10_000
# Most sheets that are listed.
MOST_SHEETS = 100


def _read_workbook(content: bytes, limits: Limits, name: str) -> pa.Table:
    """Read the sheet with this name, or the first one."""
    _check_archive(content, limits)
    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(content))
        names = book.sheet_names
        if name and name not in names:
            raise InvalidFile(f"the workbook has no such sheet; its sheets are {', '.join(names[:20])}")
        sheet = book.get_sheet_by_name(name or names[0])
        check_size(max(0, sheet.height - 1), sheet.width, limits)
        table = _cells(sheet.iter_rows())
        return table.replace_schema_metadata(table.schema.metadata | {b"sheets": json.dumps(names[:MOST_SHEETS])})
    except (InvalidFile, MemoryError, pa.ArrowException):
        raise
    except BaseException as error:
        # Panics of the Rust reader are no subclasses of Exception.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise InvalidFile(NOT_A_WORKBOOK) from None


def _check_archive(content: bytes, limits: Limits) -> None:
    """Refuse an archive that expands too far, by its declared and by its actual size."""
    most = XML_BYTES_A_CELL * limits.max_cells
    too_large = InvalidFile(
        f"the workbook unfolds to more than {most / 1e6:g} MB, {XML_BYTES_A_CELL} bytes for each cell"
    )
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if "xl/workbook.xml" not in archive.namelist():
                raise InvalidFile("the file is an archive, but not an Excel workbook (.xlsx)")
            if sum(entry.file_size for entry in archive.infolist()) > most:
                raise too_large
            size = 0
            for entry in archive.infolist():
                with archive.open(entry) as part:
                    while block := part.read(1_000_000):
                        size += len(block)
                        if size > most:
                            raise too_large
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError):
        raise InvalidFile(NOT_A_WORKBOOK) from None


def _cells(rows: Iterable[list[Any]]) -> pa.Table:
    """Read the columns below the first row that is not empty; the metadata has the number of that row."""
    numbered = enumerate(rows, start=1)
    first, header = next(((number, row) for number, row in numbered if any(map(_is_filled, row))), (0, []))
    if not first:
        raise InvalidFile("the sheet is empty; its first row must name the columns")
    parts: list[list[pa.Array]] = [[] for _ in header]
    while block := [row for _, row in islice(numbered, BLOCK_ROWS)]:
        for column, values in zip(parts, zip(*block, strict=True), strict=True):
            column.append(_column_of([value if _is_filled(value) else None for value in values]))
    columns = [_join_blocks(arrays) for arrays in parts]
    table = pa.table(columns, names=[str(name).strip() for name in header])
    held = [len(column) - column.null_count for column in columns]
    used = [index for index, count in enumerate(held) if count or _is_filled(header[index])]
    ends = [_end(columns[index]) for index in used if held[index]]
    return table.select(used).slice(0, max(ends, default=0)).replace_schema_metadata({"header row": str(first)})


def _end(column: pa.ChunkedArray) -> int:
    """Return the index after the last value."""
    return int(pc.indices_nonzero(column.is_valid())[-1].as_py()) + 1


def _is_filled(value: Any) -> bool:
    return not isinstance(value, str) or value.strip() not in MISSING_TEXT


def _column_of(values: list[Any]) -> pa.Array:
    """Store values of one kind as that kind, and mixed values as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool}:
        return pa.array(values, pa.bool_() if kinds else pa.null())
    if kinds <= {bool, int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if kinds == {date}:
        return pa.array(values, pa.date32())
    if kinds <= {date, datetime}:
        return pa.array([None if value is None else _whole_second(value) for value in values], pa.timestamp("s"))
    return pa.array([None if value is None else _to_text(value) for value in values], pa.string())


def _whole_second(value: date) -> datetime:
    """Round to the second: workbooks count in fractions of days."""
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return (moment + timedelta(milliseconds=500)).replace(microsecond=0)


def _to_text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def _join_blocks(arrays: list[pa.Array]) -> pa.ChunkedArray:
    """Join blocks of one column: dates and timestamps become timestamps, other mixed kinds text."""
    kinds = {array.type for array in arrays} - {pa.null()}
    if len(kinds) > 1:
        kind = pa.timestamp("s") if all(map(is_moment, kinds)) else pa.string()
    else:
        kind = next(iter(kinds), pa.string())
    return pa.chunked_array([array.cast(kind) for array in arrays], kind)


# the process


def main() -> None:
    serve_files(_answer)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    with open(question["source"], "rb") as source:
        content = source.read()
    written_as, table = unpack(content, Limits(question["max_rows"], question["max_cells"]), question["sheet"])
    with pa.OSFile(question["target"], "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return {"format": written_as}


if __name__ == "__main__":
    main()
