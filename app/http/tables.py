"""Tables as files, written in pieces, so that neither memory nor a connection is held for all of them."""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import xlsxwriter

from app.http.errors import ConflictError

CSV, PARQUET = "text/csv; charset=utf-8", "application/vnd.apache.parquet"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
# Most rows and letters of a sheet, and the cells that are written within some seconds.
_SHEET_ROWS, _SHEET_CELLS, _CELL_LETTERS = 1_048_575, 1_000_000, 32_767
# Spreadsheets take such text for a formula, unless it is a number.
_FORMULA, _NUMBER = r"^[=+\-@\t\r\n]", r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def to_parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def from_parquet(data: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(data))


def csv_pieces(tables: Iterable[pa.Table]) -> Iterator[bytes]:
    """Yield tables as CSV; text that a spreadsheet would take for a formula gets a leading apostrophe."""
    for number, table in enumerate(tables):
        buffer = io.BytesIO()
        pyarrow.csv.write_csv(harmless(table), buffer, pyarrow.csv.WriteOptions(include_header=number == 0))
        yield buffer.getvalue()


def harmless(table: pa.Table) -> pa.Table:
    """Return the table without text or names that a spreadsheet would take for formulas."""
    names = [_harmless(pa.chunked_array([[name]]))[0].as_py() for name in table.column_names]
    return pa.table([_harmless(column) for column in table.columns], names=names)


def _harmless(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    looks, is_number = pc.match_substring_regex(column, _FORMULA), pc.match_substring_regex(column, _NUMBER)
    marked = pc.binary_join_element_wise(pa.scalar("'", column.type), column, pa.scalar("", column.type))
    return pc.if_else(pc.and_not(looks, is_number), marked, column)


def xlsx_pieces(tables: Iterable[pa.Table], schema: pa.Schema, rows: int) -> Iterator[bytes]:
    """Yield a workbook with one sheet, in which text stays text; refuse a table that a sheet cannot hold."""
    if rows > _SHEET_ROWS or rows * len(schema) > _SHEET_CELLS:
        detail = f"a workbook may have at most {_SHEET_ROWS} rows and {_SHEET_CELLS} values; choose csv or parquet"
        raise ConflictError(f"{detail}: the result has {rows} rows of {len(schema)} columns")
    return _sheet(tables, schema)


def _sheet(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[bytes]:
    with tempfile.TemporaryFile() as file:
        with xlsxwriter.Workbook(file, {"constant_memory": True, "default_date_format": "yyyy-mm-dd hh:mm:ss"}) as book:
            # The same table is the same file, whenever it is written.
            book.set_properties({"created": datetime(2000, 1, 1)})
            sheet, bold = book.add_worksheet(), book.add_format({"bold": True})
            sheet.freeze_panes(1, 0)
            for number, name in enumerate(schema.names):
                sheet.write_string(0, number, name, bold)
            row = 0
            for table in tables:
                for values in zip(*(column.to_pylist() for column in table.cast(schema).columns), strict=True):
                    row += 1
                    for number, value in enumerate(values):
                        _write(sheet, row, number, value)
                yield b""
        file.seek(0)
        while block := file.read(1_000_000):
            yield block


def _write(sheet: Any, row: int, column: int, value: Any) -> None:
    if isinstance(value, bool):
        sheet.write_boolean(row, column, value)
    elif isinstance(value, int | float):
        if math.isfinite(value):
            sheet.write_number(row, column, value)
    elif isinstance(value, datetime):
        sheet.write_datetime(row, column, value.replace(tzinfo=None))
    elif value is not None:
        sheet.write_string(row, column, str(value)[:_CELL_LETTERS])


def parquet_pieces(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[bytes]:
    pieces = _Pieces()
    with pq.ParquetWriter(pieces, schema) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))
            yield pieces.take()
    yield pieces.take()


class _Pieces(io.RawIOBase):
    """A file whose content is taken away while it is written."""

    def __init__(self) -> None:
        self._unread, self._position = [b""], 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._unread.append(bytes(data))
        self._position += len(self._unread[-1])
        return len(self._unread[-1])

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        data, self._unread = b"".join(self._unread), []
        return data
