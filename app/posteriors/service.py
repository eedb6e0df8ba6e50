"""Store, load, list and delete posteriors."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.aliases import service as aliases
from app.db.blobs import Array, checksum, from_blocks, to_blocks, verify
from app.db.engine import transaction
from app.db.tables import JobRow, PosteriorBlockRow, PosteriorRow
from app.http.errors import ConflictError, NotFoundError
from app.http.rows import delete_row, find, matching, page
from app.ids import sibling_id
from app.posteriors import shared
from app.posteriors.schemas import PosteriorSummary
from bco_core.data import Arrays
from bco_core.posterior import Posterior, digest, draw_particles

log = logging.getLogger(__name__)


def add(session: Session, row: PosteriorRow, arrays: Arrays) -> None:
    """Write a posterior's row and its arrays, block by block; particles that can be drawn again may be left out."""
    session.add(row)
    session.flush()
    for name, array in arrays.items():
        for first_row, data in to_blocks(array):
            session.add(
                PosteriorBlockRow(
                    posterior_id=row.id, array=name, first_row=first_row, sha256=checksum(data), data=data
                )
            )


def digest_of(description: dict[str, Any], recipe: dict[str, Any] | None, arrays: Arrays) -> str:
    """Return the sha256 of everything that determines a prescription, except the rows behind lags and levels."""
    return digest(description if recipe is None else description | {"recipe": recipe}, arrays)


def learned_revision(session: Session, row: PosteriorRow) -> int:
    """Return the revision of its data set that a posterior was learned from; the first if none was recorded."""
    if row.recipe is not None:
        return int(row.recipe["revision"])
    job = session.get(JobRow, row.job_id) if row.job_id else None
    return 1 if job is None else int(job.spec.get("revision", 1))


def load(session: Session, row: PosteriorRow) -> Posterior:
    """Load a posterior with every block checked; processes of one service share its arrays."""
    return Posterior.from_arrays(
        row.description, shared.read_shared(row.id, lambda: load_arrays(session, row)), copy=False
    )


def load_arrays(session: Session, row: PosteriorRow) -> Arrays:
    """Load all arrays of a posterior; particles that are not stored are drawn exactly as when it was learned."""
    block = PosteriorBlockRow
    names = session.scalars(sa.select(block.array).where(block.posterior_id == row.id).distinct())
    arrays = {name: load_array(session, row.id, name) for name in sorted(names.all())}
    if "particles" not in arrays:
        arrays["particles"] = draw_particles(row.description, arrays, row.particles)
        if digest_of(row.description, row.recipe, arrays) != row.digest:
            # Both are draws from the same posterior, so either is valid.
            log.warning("%s: this processor or library draws its particles with other digits than before", row.id)
    return arrays


def load_array(session: Session, posterior_id: str, name: str, first: int = 0, count: int | None = None) -> Array:
    """Load rows ``first`` to ``first + count`` of one array, reading only their blocks."""
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

    def verified_blocks() -> Iterator[bytes]:
        """Yield one block at a time, so that memory holds at most one besides the array."""
        with session.execute(query, execution_options={"yield_per": 1}) as blocks:
            for begin, sha256, data in blocks:
                begins.append(begin)
                yield verify(data, sha256)

    array = from_blocks(verified_blocks())
    start = first - begins[0]
    return array[start:] if count is None else array[start : start + count]


def particles_file(row: PosteriorRow, first: int, count: int | None) -> bytes:
    """Return an .npz file with particles and the statistics needed to use them elsewhere."""
    with transaction() as session:
        arrays = {
            name: load_array(session, row.id, name)
            for name in ("context_mean", "context_scale", "outcome_mean", "outcome_scale")
        }
        arrays["particles"] = _load_particles(session, row, first, row.particles if count is None else count)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _load_particles(session: Session, row: PosteriorRow, first: int, count: int) -> Array:
    """Load particles ``first`` to ``first + count``, as far as there are any."""
    first = min(first, row.particles)
    count = min(count, row.particles - first)
    block = PosteriorBlockRow
    stored = sa.exists().where(block.posterior_id == row.id, block.array == "particles")
    if session.scalar(sa.select(stored)):
        return load_array(session, row.id, "particles", first, count)
    return load_arrays(session, row)["particles"][first : first + count]


def listing(
    workspace: str, limit: int, cursor: str | None, quality: str | None = None, **wanted: str | None
) -> tuple[list[PosteriorSummary], str | None]:
    """Return a page of posteriors, those of a quality and with the wanted values of columns."""
    conditions = matching(PosteriorRow, **wanted)
    verdict = {name: PosteriorRow.diagnostics[name].as_string().label(name) for name in ("quality", "reason")}
    if quality is not None:
        conditions.append(verdict["quality"] == quality)
    fields = [name for name in PosteriorSummary.model_fields if name != "aliases"]
    columns = [verdict.get(name, getattr(PosteriorRow, name, None)) for name in fields]
    with transaction() as session:
        rows, following = page(session, PosteriorRow, workspace, limit, cursor, *conditions, columns=columns)
        names = aliases.aliases_by_posterior(session, [row.id for row in rows])
    return [PosteriorSummary(**row._mapping, aliases=names.get(row.id, [])) for row in rows], following


def names_of(posterior_id: str) -> list[str]:
    """Return the aliases of a posterior."""
    with transaction() as session:
        return aliases.aliases_of_posterior(session, posterior_id)


def get(workspace: str, named: str) -> PosteriorRow:
    """Return the posterior with this id or alias; if its job has not finished, the error has the job's state."""
    with transaction() as session:
        posterior_id = aliases.real_id(session, workspace, named)
        row = find(session, PosteriorRow, workspace, posterior_id)
        if row is None:
            raise _absent(find(session, JobRow, workspace, sibling_id(posterior_id, "job")))
    return row


def exists(posterior_id: str) -> bool:
    """Tell whether a posterior still exists."""
    with transaction() as session:
        return session.scalar(sa.select(sa.exists().where(PosteriorRow.id == posterior_id))) is True


def _absent(job: JobRow | None) -> Exception:
    if job is None or job.state == "succeeded":
        return NotFoundError(aliases.NO_POSTERIOR)
    if job.is_unfinished:
        return ConflictError(
            f"job {job.id} is {job.state} ({job.progress:.0%}); the posterior exists once the job has succeeded"
        )
    return ConflictError(
        f"job {job.id} {'was' if job.state == 'cancelled' else 'has'} {job.state}, so there is no posterior"
    )


def delete(workspace: str, named: str) -> str:
    """Delete a posterior that no batch and no alias uses; return its id."""
    in_use = "batch prescriptions, or an alias, use this posterior; delete their jobs, or move the alias, first"
    with transaction() as session:
        posterior_id = aliases.real_id(session, workspace, named)
        if find(session, PosteriorRow, workspace, posterior_id) is not None:
            names = aliases.aliases_of_posterior(session, posterior_id)
            if names:
                raise ConflictError(
                    f"the alias {' and '.join(names)} names this posterior; move or delete the alias first"
                )
        delete_row(session, PosteriorRow, workspace, posterior_id, aliases.NO_POSTERIOR, in_use)
    return posterior_id
