"""Reads uploaded files in a process of its own, which ends if a file takes too much memory or time.

Run as a script by :mod:`app.datasets.reader`. It imports pyarrow alone, so it starts in tenths of a second and has
nothing else to lose. Each line on its input asks for one file; each line on its output says how that went.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

NOT_A_TABLE = "the file is neither Parquet nor a CSV file in UTF-8 with one header line"
UNREADABLE = "the file starts like Parquet but cannot be read; write it again"
NOT_UTF8 = "a text in the file is not UTF-8; write the file again in UTF-8"
# Far more than can be used; a file may still have more columns than its data set takes.
MOST_COLUMNS = 10_000
BYTES_A_CELL = 16
_MISSING_TEXT = ["", "NA", "N/A", "null", "NULL", "None"]


class Refused(Exception):
    """The file cannot be used; the sentence says why."""


class Limits(NamedTuple):
    """Bounds of a table, as the settings of the same names say."""

    max_rows: int
    max_cells: int


def unpack(content: bytes, limits: Limits) -> tuple[str, pa.Table]:
    """The format and the table of a CSV or Parquet file, told apart by Parquet's own signature.

    Columns of a CSV are text; those of Parquet are text, boolean or float64. Names are as they were written.
    """
    if content[:4] == b"PAR1":
        return "parquet", _parquet(content, limits)
    return "csv", _csv(content, limits)


def check_size(rows: int, columns: int, limits: Limits) -> None:
    """Refuse a table of too many rows, columns or cells."""
    if columns > MOST_COLUMNS:
        raise Refused(f"more than {MOST_COLUMNS} columns; leave out those that do not matter")
    for what, number, limit in (("rows", rows, limits.max_rows), ("cells", rows * columns, limits.max_cells)):
        if number > limit:
            raise Refused(f"at most {limit} {what} (BCO_MAX_{what.upper()})")


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
        raise Refused(NOT_UTF8) from None
    except (pa.ArrowException, OSError) as error:
        raise Refused(NOT_UTF8 if "UTF8" in str(error) else UNREADABLE) from None


def _declared_bytes(metadata: pq.FileMetaData) -> int:
    """What the file says that its columns take once they are decompressed, dictionaries not yet written out."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(group.column(index).total_uncompressed_size for group in groups for index in range(group.num_columns))


def _check_unfolded(size: int, limits: Limits) -> None:
    most = BYTES_A_CELL * limits.max_cells
    if size > most:
        detail = f"the file unfolds to more than {most / 1e6:g} MB, {BYTES_A_CELL} bytes for each of BCO_MAX_CELLS"
        raise Refused(detail)


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
    if _is_text(kind) or _is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return True
    raise Refused(
        f"column '{field.name}' holds {kind}; only numbers, booleans and text can be used: convert it or leave it out"
    )


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_boolean(kind):
        return column
    if _is_text(kind):
        return column.cast(pa.string())
    return column.cast(pa.float64(), safe=False)


# CSV


def _csv(content: bytes, limits: Limits) -> pa.Table:
    content = content.removeprefix(b"\xef\xbb\xbf")
    if b"\n" not in content:
        content += b"\n"
    header = content.split(b"\n", 1)[0]
    if not header.strip():
        raise Refused("the file is empty; its first line must name the columns")
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
                null_values=_MISSING_TEXT,
            ),
        )
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, UnicodeDecodeError):
        raise Refused(bad_lines[0] if bad_lines else NOT_A_TABLE) from None
    check_size(table.num_rows, table.num_columns, limits)
    return table


# the process


def main() -> None:
    """Read file after file until the input ends: with the process that asks, this one ends too."""
    at_rest = _address_space()
    for line in sys.stdin:
        asked = json.loads(line)
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (at_rest + asked["memory"], hard))
        # Nothing catches this signal, so it ends the process whatever that is doing.
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
        told = _answer(asked)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        with open(asked["source"], "rb") as source:
            content = source.read()
        written_as, table = unpack(content, Limits(asked["max_rows"], asked["max_cells"]))
        with pa.OSFile(asked["target"], "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    except Refused as refusal:
        return {"refused": str(refusal)}
    except MemoryError:
        return {"memory": True}
    return {"format": written_as}


def _address_space() -> int:
    """Bytes of addresses that this process uses before it has read anything."""
    with open("/proc/self/statm") as counts:
        return int(counts.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
