"""Create, read, list and delete data sets."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.datasets.parsing import RawTable
from app.datasets.profile import profile
from app.datasets.roles import ColumnRoles
from app.datasets.schemas import DatasetSummary, RowsPage
from app.datasets.times import PERIOD, write_time
from app.db.blobs import checksum, verify
from app.db.engine import transaction
from app.db.tables import DatasetChunkRow, DatasetRow
from app.http.errors import InvalidRequest, NotFoundError
from app.http.idempotency import record_location
from app.http.rows import delete_row, find, matching, page, read
from app.ids import new_id
from app.settings import get_settings

CHUNK_ROWS = 50_000
_CURSOR = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
MISSING = "no data set has this id; GET /v1/datasets lists them"


def create(workspace: str, name: str, raw: RawTable, roles: ColumnRoles) -> DatasetRow:
    """Check, profile and store, in one transaction: a refused data set leaves nothing behind."""
    with transaction() as session:
        return add(session, workspace, name, raw, roles)


def add(session: Session, workspace: str, name: str, raw: RawTable, roles: ColumnRoles) -> DatasetRow:
    """Check, profile and store in the caller's transaction."""
    profiled = profile(raw, roles, get_settings())
    chunks = cut_into_chunks(profiled.table)
    row = DatasetRow(
        id=new_id("data"),
        workspace=workspace,
        name=name,
        rows=profiled.table.num_rows,
        columns=profiled.columns,
        warnings=profiled.warnings,
        lead=roles.lead,
        revision=1,
        digest=digest(sha256 for sha256, _ in chunks),
        handling=roles.handling,
    )
    session.add(row)
    session.flush()
    record_location(session, f"/v1/datasets/{row.id}")
    for seq, (sha256, data) in enumerate(chunks):
        session.add(DatasetChunkRow(dataset_id=row.id, seq=seq, revision=1, sha256=sha256, data=data))
    return row


def cut_into_chunks(table: pa.Table) -> list[tuple[str, bytes]]:
    """Cut the table into Parquet chunks with their checksums."""
    chunks = []
    for first in range(0, table.num_rows, CHUNK_ROWS):
        buffer = io.BytesIO()
        pq.write_table(table.slice(first, CHUNK_ROWS), buffer)
        chunks.append((checksum(buffer.getvalue()), buffer.getvalue()))
    return chunks


def digest(checksums: Iterable[str]) -> str:
    """Return the sha256 of a revision: of the checksums of its chunks, in order."""
    return checksum("".join(checksums).encode())


def read_table(session: Session, dataset_id: str, revision: int | None = None) -> pa.Table:
    """Read all rows of a revision, by default the newest, in order."""
    query = sa.select(DatasetChunkRow).where(DatasetChunkRow.dataset_id == dataset_id)
    if revision is not None:
        query = query.where(DatasetChunkRow.revision <= revision)
    chunks = session.scalars(query.order_by(DatasetChunkRow.seq))
    return pa.concat_tables([read_chunk(chunk) for chunk in chunks])


def digest_of(session: Session, dataset_id: str, revision: int) -> str:
    """Return the digest of a revision."""
    chunk = DatasetChunkRow
    query = sa.select(chunk.sha256).where(chunk.dataset_id == dataset_id, chunk.revision <= revision)
    return digest(session.scalars(query.order_by(chunk.seq)))


def count_rows(session: Session, dataset_id: str, revision: int) -> int:
    """Count the rows of a revision without unpacking them."""
    chunk = DatasetChunkRow
    query = sa.select(chunk.data).where(chunk.dataset_id == dataset_id, chunk.revision <= revision)
    with session.scalars(query, execution_options={"yield_per": 1}) as pieces:
        return sum(pq.read_metadata(io.BytesIO(data)).num_rows for data in pieces)


def read_chunk(chunk: DatasetChunkRow) -> pa.Table:
    """Return the rows of a chunk, if it is undamaged."""
    return stored_units(pq.read_table(io.BytesIO(verify(chunk.data, chunk.sha256))))


def stored_units(table: pa.Table) -> pa.Table:
    """Cast times to the second, as they were before Parquet stored them finer."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.timestamp("s")))
    return table


def rows(workspace: str, dataset_id: str, limit: int, cursor: str | None, revision: int | None) -> RowsPage:
    """Return up to ``limit`` rows after a cursor, which stays with the revision that it began with."""
    with transaction() as session:
        row = find(session, DatasetRow, workspace, dataset_id)
        if row is None:
            raise NotFoundError(MISSING)
        wanted, seq, offset = _position(cursor, revision, row.revision)
        chunk = DatasetChunkRow
        query = sa.select(chunk.seq).where(chunk.dataset_id == row.id, chunk.revision <= wanted, chunk.seq >= seq)
        left = list(session.scalars(query.order_by(chunk.seq)))
        items: list[dict[str, Any]] = []
        while left and len(items) < limit:
            table = read_chunk(session.get_one(chunk, (row.id, left[0])))
            part = table.slice(offset, limit - len(items))
            items += as_json(part, row.columns)
            offset += part.num_rows
            if offset >= table.num_rows:
                del left[0]
                offset = 0
    return RowsPage(items=items, next_cursor=f"{wanted}.{left[0]}.{offset}" if left else None, revision=wanted)


def last_rows(workspace: str, dataset_id: str, limit: int, revision: int | None) -> RowsPage:
    """Return the last rows of a revision, in the order of storage."""
    with transaction() as session:
        row = find(session, DatasetRow, workspace, dataset_id)
        if row is None:
            raise NotFoundError(MISSING)
        wanted, _, _ = _position(None, revision, row.revision)
        chunk = DatasetChunkRow
        query = sa.select(chunk.seq).where(chunk.dataset_id == row.id, chunk.revision <= wanted)
        items: list[dict[str, Any]] = []
        for seq in list(session.scalars(query.order_by(chunk.seq.desc()))):
            table = read_chunk(session.get_one(chunk, (row.id, seq)))
            part = table.slice(max(0, table.num_rows - (limit - len(items))))
            items = as_json(part, row.columns) + items
            if len(items) >= limit:
                break
    return RowsPage(items=items, next_cursor=None, revision=wanted)


def _position(cursor: str | None, revision: int | None, newest: int) -> tuple[int, int, int]:
    """Return revision, chunk and row of the chunk at which a page begins."""
    if cursor is not None:
        match = _CURSOR.fullmatch(cursor)
        if match is None or int(match[1]) > newest or revision not in (None, int(match[1])):
            detail = "this is not a cursor of these rows; take next_cursor from the last answer"
            raise InvalidRequest.at(("query", "cursor"), detail)
        return int(match[1]), int(match[2]), int(match[3])
    if revision is not None and revision > newest:
        raise InvalidRequest.at(("query", "revision"), f"the newest revision is {newest}")
    return revision or newest, 0, 0


def as_json(table: pa.Table, columns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that could be sent again: times in ISO text, null where a value is missing."""
    formats = {column["name"]: column["format"] for column in columns if column["role"] == "time"}
    for name, written_as in formats.items():
        numbers = table.column(name).cast(pa.int64()).to_pylist()
        texts = numbers if written_as == PERIOD else [write_time(number, written_as) for number in numbers]
        table = table.set_column(table.column_names.index(name), name, pa.array(texts))
    items: list[dict[str, Any]] = table.to_pylist()
    return items


def listing(
    workspace: str, limit: int, cursor: str | None, name: str | None = None
) -> tuple[list[sa.Row[Any]], str | None]:
    columns = [getattr(DatasetRow, field) for field in (*DatasetSummary.model_fields, "revision")]
    columns.append(sa.func.json_array_length(DatasetRow.warnings).label("warning_count"))
    with transaction() as session:
        return page(session, DatasetRow, workspace, limit, cursor, *matching(DatasetRow, name=name), columns=columns)


def get(workspace: str, dataset_id: str) -> DatasetRow:
    return read(DatasetRow, workspace, dataset_id, MISSING)


def newest_revision(dataset_id: str) -> int:
    with transaction() as session:
        return session.scalars(sa.select(DatasetRow.revision).where(DatasetRow.id == dataset_id)).one()


def delete(workspace: str, dataset_id: str) -> None:
    with transaction() as session:
        delete_row(session, DatasetRow, workspace, dataset_id, MISSING, "jobs use this data set; delete them first")
