"""Where a long computation has got to, kept so that another worker can go on from there.

A state is plain arrays, stored in blocks like a posterior. Blocks that have not changed since the last time, such as
the draws a chain has left behind, are not written again. A job that ends leaves none.
"""

from __future__ import annotations

import logging

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.blobs import Array, CorruptBlob, checksum, from_blocks, to_blocks, verified
from app.db.engine import transaction
from app.db.tables import CheckpointBlockRow, JobRow

log = logging.getLogger(__name__)


def save(job_id: str, attempt: int, arrays: dict[str, Array]) -> None:
    """Replace the job's state, unless the job no longer wants what this attempt does."""
    block = CheckpointBlockRow
    with transaction() as session:
        wanted = sa.select(JobRow.id).where(JobRow.id == job_id, JobRow.state == "running", JobRow.attempts == attempt)
        if session.scalars(wanted).one_or_none() is None:
            return
        known = {
            (array, first_row): sha256
            for array, first_row, sha256 in session.execute(
                sa.select(block.array, block.first_row, block.sha256).where(block.job_id == job_id)
            )
        }
        for name, array in arrays.items():
            for first_row, data in to_blocks(array):
                sha256 = checksum(data)
                if known.pop((name, first_row), None) != sha256:
                    session.merge(block(job_id=job_id, array=name, first_row=first_row, sha256=sha256, data=data))
        for name, first_row in known:
            session.execute(
                sa.delete(block).where(block.job_id == job_id, block.array == name, block.first_row == first_row)
            )


def load(job_id: str) -> dict[str, Array] | None:
    """The state that was saved last; None if there is none, or if it is damaged, so that the job begins anew."""
    block = CheckpointBlockRow
    with transaction() as session:
        query = sa.select(block).where(block.job_id == job_id).order_by(block.array, block.first_row)
        blocks: dict[str, list[bytes]] = {}
        try:
            for row in session.scalars(query):
                blocks.setdefault(row.array, []).append(verified(row.data, row.sha256))
        except CorruptBlob:
            log.warning("the checkpoint of job %s is damaged; it begins anew", job_id)
            return None
    return {name: from_blocks(parts) for name, parts in blocks.items()} or None


def forget(session: Session, job_id: str) -> None:
    session.execute(sa.delete(CheckpointBlockRow).where(CheckpointBlockRow.job_id == job_id))
