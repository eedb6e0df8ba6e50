"""Reads uploaded files in a process of its own, which ends if a file takes too much memory or time.

Run by :mod:`app.datasets.reader`. It imports pyarrow and the reader of workbooks alone, so it starts in tenths of a
second and has nothing else to lose.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from app.child_processes import InvalidFile, serve_files
from app.datasets import workbook
from app.datasets.bounds import MISSING_TEXT, Limits, check_size, is_moment

NOT_A_TABLE = "the file is neither Parquet nor an Excel workbook nor a CSV file in UTF-8 with one header line"
OLD_WORKBOOK = "the file is an old Excel workbook, or one with a password; save it as .xlsx without a password"
UNREADABLE = "the file starts like Parquet but cannot be read; write it again"
NOT_UTF8 = "a text in the file is not UTF-8; write the file again in UTF-8"
BYTES_A_CELL = 16
# 1 January of year 1 and 31 December 9999, in days since 1970.
FIRST_DAY, LAST_DAY = -719_162, 2_932_896


def unpack(content: bytes, limits: Limits, sheet: str = "") -> tuple[str, pa.Table]:
    """The format and the table of a CSV, Parquet or Excel file, told apart by the signatures of the latter.

    Columns of a CSV are text; others are text, boolean, float64, dates or timestamps. Names are as they were written.
    ``sheet`` is that of a workbook; by default the first.
    """
    if content[:4] == b"PK\x03\x04":
        return "xlsx", workbook.read(content, limits, sheet)
    if sheet:
        raise InvalidFile("the file is no Excel workbook (.xlsx), so it has no sheets; leave out sheet")
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
    """What the file says that its columns take once they are decompressed, dictionaries not yet written out."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(group.column(index).total_uncompressed_size for group in groups for index in range(group.num_columns))


def _check_unfolded(size: int, limits: Limits) -> None:
    most = BYTES_A_CELL * limits.max_cells
    if size > most:
        detail = f"the file unfolds to more than {most / 1e6:g} MB, {BYTES_A_CELL} bytes for each of BCO_MAX_CELLS"
        raise InvalidFile(detail)


def _read_within(file: pq.ParquetFile, limits: Limits) -> pa.Table:
    """The whole table, text still as dictionaries, unless it would take too much memory once it is unfolded."""
    batches, size = [], 0
    for batch in file.iter_batches(use_threads=False):
        size += sum(_unfolded_bytes(column) for column in batch.columns)
        _check_unfolded(size, limits)
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
    """Dates, or timestamps in UTC to the microsecond at most: all within years that calendars write in four digits."""
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
        # The first is enough to refuse the file: there may be millions.
        return "error"

    reading = pyarrow.csv.ReadOptions(use_threads=False)
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=on_bad_line, newlines_in_values=True)
    try:
        content.decode()
        # pyarrow itself says what the columns are: a header may end otherwise than lines do, or hold line breaks.
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


# the process


def main() -> None:
    serve_files(_answer)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    with open(asked["source"], "rb") as source:
        content = source.read()
    written_as, table = unpack(content, Limits(asked["max_rows"], asked["max_cells"]), asked["sheet"])
    with pa.OSFile(asked["target"], "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return {"format": written_as}


if __name__ == "__main__":
    main()
