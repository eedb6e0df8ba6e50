"""How large an uploaded table may be, and what is said of one that cannot be read. It imports little: see unpack."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from app.child_processes import InvalidFile

# Far more than can be used; a file may still have more columns than its data set takes.
MOST_COLUMNS = 10_000
MISSING_TEXT = ["", "NA", "N/A", "null", "NULL", "None"]


class Limits(NamedTuple):
    """Bounds of a table, as the settings of the same names say."""

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
