"""Excel workbooks as tables: one sheet, a header row, columns of one kind each. It imports little: see unpack."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from python_calamine import CalamineWorkbook

from app.child_processes import InvalidFile
from app.datasets.bounds import MISSING_TEXT, Limits, check_size, is_moment

NOT_A_WORKBOOK = "the file starts like an Excel workbook (.xlsx) but cannot be read; save it again"
# What a cell takes as XML.
XML_BYTES_A_CELL = 64
BLOCK_ROWS = 10_000
# Sheets that are told of.
MOST_SHEETS = 100


def read(content: bytes, limits: Limits, name: str) -> pa.Table:
    """The table of the sheet with this name, or of the first one."""
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
        # What the reader did not foresee is none of Python's own errors.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise InvalidFile(NOT_A_WORKBOOK) from None


def _check_archive(content: bytes, limits: Limits) -> None:
    """Refuse what unfolds too far: by what the archive declares, and by what comes out of it."""
    most = XML_BYTES_A_CELL * limits.max_cells
    too_large = InvalidFile(
        f"the workbook unfolds to more than {most / 1e6:g} MB, {XML_BYTES_A_CELL} bytes for each cell"
    )
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if "xl/workbook.xml" not in archive.namelist():
                raise InvalidFile("the file is an archive, but no Excel workbook (.xlsx)")
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
    """Columns under the first row that holds anything; the number of that row goes with them."""
    numbered = enumerate(rows, start=1)
    first, header = next(((number, row) for number, row in numbered if any(map(_given, row))), (0, []))
    if not first:
        raise InvalidFile("the sheet is empty; its first row must name the columns")
    parts: list[list[pa.Array]] = [[] for _ in header]
    while block := [row for _, row in islice(numbered, BLOCK_ROWS)]:
        for column, values in zip(parts, zip(*block, strict=True), strict=True):
            column.append(_column_of([value if _given(value) else None for value in values]))
    columns = [_joined(arrays) for arrays in parts]
    table = pa.table(columns, names=[str(name).strip() for name in header])
    held = [len(column) - column.null_count for column in columns]
    used = [index for index, count in enumerate(held) if count or _given(header[index])]
    ends = [_end(columns[index]) for index in used if held[index]]
    return table.select(used).slice(0, max(ends, default=0)).replace_schema_metadata({"header row": str(first)})


def _end(column: pa.ChunkedArray) -> int:
    """One behind the last value."""
    return int(pc.indices_nonzero(column.is_valid())[-1].as_py()) + 1


def _given(value: Any) -> bool:
    return not isinstance(value, str) or value.strip() not in MISSING_TEXT


def _column_of(values: list[Any]) -> pa.Array:
    """Values of one kind as that kind; of several kinds, as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {bool}:
        return pa.array(values, pa.bool_() if kinds else pa.null())
    if kinds <= {bool, int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if kinds == {date}:
        return pa.array(values, pa.date32())
    if kinds <= {date, datetime}:
        return pa.array([None if value is None else _whole_second(value) for value in values], pa.timestamp("s"))
    return pa.array([None if value is None else _written(value) for value in values], pa.string())


def _whole_second(value: date) -> datetime:
    """Workbooks count in parts of days, so that seconds are off by a little."""
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return (moment + timedelta(milliseconds=500)).replace(microsecond=0)


def _written(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def _joined(arrays: list[pa.Array]) -> pa.ChunkedArray:
    """Blocks of one column: dates among timestamps are timestamps, other kinds that differ are text."""
    kinds = {array.type for array in arrays} - {pa.null()}
    if len(kinds) > 1:
        kind = pa.timestamp("s") if all(map(is_moment, kinds)) else pa.string()
    else:
        kind = next(iter(kinds), pa.string())
    return pa.chunked_array([array.cast(kind) for array in arrays], kind)
