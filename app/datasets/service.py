"""Creating data sets from any source, reading them back whole, listing and deleting them."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.datasets.parsing import RawTable
from app.datasets.profile import Roles, profile
from app.datasets.schemas import DatasetSummary
from app.db.blobs import checksum, verified
from app.db.engine import transaction
from app.db.tables import DatasetChunkRow, DatasetRow
from app.http.idempotency import made
from app.http.rows import delete_row, matching, page, read
from app.ids import new_id
from app.settings import get_settings

CHUNK_ROWS = 50_000
MISSING = "no data set has this id; GET /v1/datasets lists them"


def create(workspace: str, name: str, raw: RawTable, roles: Roles) -> DatasetRow:
    """Check, profile and store, in one transaction: a refused data set leaves nothing behind."""
    profiled = profile(raw, roles, get_settings())
    row = DatasetRow(
        id=new_id("data"),
        workspace=workspace,
        name=name,
        rows=profiled.table.num_rows,
        columns=profiled.columns,
        warnings=profiled.warnings,
    )
    with transaction() as session:
        session.add(row)
        session.flush()
        made(session, f"/v1/datasets/{row.id}")
        for seq, first in enumerate(range(0, profiled.table.num_rows, CHUNK_ROWS)):
            buffer = io.BytesIO()
            pq.write_table(profiled.table.slice(first, CHUNK_ROWS), buffer)
            data = buffer.getvalue()
            session.add(DatasetChunkRow(dataset_id=row.id, seq=seq, sha256=checksum(data), data=data))
    return row


def read_table(session: Session, dataset_id: str) -> pa.Table:
    """All rows of a data set, in order."""
    chunks = session.scalars(
        sa.select(DatasetChunkRow).where(DatasetChunkRow.dataset_id == dataset_id).order_by(DatasetChunkRow.seq)
    )
    return pa.concat_tables([pq.read_table(io.BytesIO(verified(chunk.data, chunk.sha256))) for chunk in chunks])


def listing(
    workspace: str, limit: int, cursor: str | None, name: str | None = None
) -> tuple[list[sa.Row[Any]], str | None]:
    columns = [getattr(DatasetRow, field) for field in DatasetSummary.model_fields]
    with transaction() as session:
        return page(session, DatasetRow, workspace, limit, cursor, *matching(DatasetRow, name=name), columns=columns)


def get(workspace: str, dataset_id: str) -> DatasetRow:
    return read(DatasetRow, workspace, dataset_id, MISSING)


def delete(workspace: str, dataset_id: str) -> None:
    with transaction() as session:
        delete_row(session, DatasetRow, workspace, dataset_id, MISSING, "jobs use this data set; delete them first")
