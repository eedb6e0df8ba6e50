"""Storing, loading, listing and deleting posteriors."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.blobs import Array, checksum, from_blocks, to_blocks, verified
from app.db.engine import transaction
from app.db.tables import JobRow, PosteriorBlockRow, PosteriorRow
from app.http.errors import Conflict, NotFound
from app.http.rows import delete_row, find, matching, page
from app.ids import sibling_id
from app.posteriors import shared
from app.posteriors.schemas import PosteriorSummary
from bco_core.data import Arrays
from bco_core.posterior import Posterior

MISSING = "no posterior has this id; GET /v1/posteriors lists them"


def add(session: Session, row: PosteriorRow, arrays: Arrays) -> None:
    """Write a posterior's row and its arrays, block by block."""
    session.add(row)
    session.flush()
    for name, array in arrays.items():
        for first_row, data in to_blocks(array):
            session.add(
                PosteriorBlockRow(
                    posterior_id=row.id, array=name, first_row=first_row, sha256=checksum(data), data=data
                )
            )


def load(session: Session, row: PosteriorRow) -> Posterior:
    """The whole posterior, every block checked; processes of one service share its arrays."""

    def read() -> Arrays:
        block = PosteriorBlockRow
        names = session.scalars(sa.select(block.array).where(block.posterior_id == row.id).distinct())
        return {name: load_array(session, row.id, name) for name in names.all()}

    return Posterior.from_arrays(row.description, shared.mapped(row.id, read), copy=False)


def load_array(session: Session, posterior_id: str, name: str, first: int = 0, count: int | None = None) -> Array:
    """Rows ``first`` to ``first + count`` of one array, reading only the blocks that hold them."""
    block = PosteriorBlockRow
    query = sa.select(block.first_row, block.sha256, block.data)
    query = query.where(block.posterior_id == posterior_id, block.array == name).order_by(block.first_row)
    starting = sa.select(sa.func.max(block.first_row)).where(
        block.posterior_id == posterior_id, block.array == name, block.first_row <= first
    )
    query = query.where(block.first_row >= starting.scalar_subquery())
    if count is not None:
        query = query.where(block.first_row < first + count)
    begins: list[int] = []

    def checked() -> Iterator[bytes]:
        """One block at a time, so that no more than one is in memory beside the array."""
        with session.execute(query, execution_options={"yield_per": 1}) as found:
            for begin, sha256, data in found:
                begins.append(begin)
                yield verified(data, sha256)

    array = from_blocks(checked())
    start = first - begins[0]
    return array[start:] if count is None else array[start : start + count]


def particles_file(workspace: str, posterior_id: str, first: int, count: int | None) -> bytes:
    """An .npz file with the particles and what is needed to use them elsewhere."""
    row = get(workspace, posterior_id)
    with transaction() as session:
        arrays = {
            name: load_array(session, row.id, name)
            for name in ("context_mean", "context_scale", "outcome_mean", "outcome_scale")
        }
        first = min(first, row.particles)
        wanted = row.particles if count is None else count
        arrays["particles"] = load_array(session, row.id, "particles", first, min(wanted, row.particles - first))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def listing(
    workspace: str, limit: int, cursor: str | None, quality: str | None = None, **wanted: str | None
) -> tuple[list[sa.Row[Any]], str | None]:
    """Posteriors of a quality and with the wanted values of columns, all of them by default, a page at a time."""
    conditions = matching(PosteriorRow, **wanted)
    verdict = {name: PosteriorRow.diagnostics[name].as_string().label(name) for name in ("quality", "reason")}
    if quality is not None:
        conditions.append(verdict["quality"] == quality)
    columns = [verdict.get(name, getattr(PosteriorRow, name, None)) for name in PosteriorSummary.model_fields]
    with transaction() as session:
        return page(session, PosteriorRow, workspace, limit, cursor, *conditions, columns=columns)


def get(workspace: str, posterior_id: str) -> PosteriorRow:
    """The posterior's row; if its job has not made it yet, the answer says how the job stands."""
    with transaction() as session:
        row = find(session, PosteriorRow, workspace, posterior_id)
        if row is None:
            raise _absent(find(session, JobRow, workspace, sibling_id(posterior_id, "job")))
    return row


def exists(posterior_id: str) -> bool:
    """Whether a posterior that was there is there still."""
    with transaction() as session:
        return session.scalar(sa.select(sa.exists().where(PosteriorRow.id == posterior_id))) is True


def _absent(job: JobRow | None) -> Exception:
    if job is None or job.state == "succeeded":
        return NotFound(MISSING)
    if job.is_unfinished:
        return Conflict(
            f"job {job.id} is {job.state} ({job.progress:.0%}); the posterior is there once it has succeeded"
        )
    return Conflict(
        f"job {job.id} {'was' if job.state == 'cancelled' else 'has'} {job.state}, so there is no posterior"
    )


def delete(workspace: str, posterior_id: str) -> None:
    in_use = "batch prescriptions use this posterior; delete their jobs first"
    with transaction() as session:
        delete_row(session, PosteriorRow, workspace, posterior_id, MISSING, in_use)
