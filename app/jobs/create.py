"""Create a job: its row, its parts a few at a time, and then its entry in the queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.base import now
from app.db.blobs import checksum
from app.db.engine import affected_rows, transaction
from app.db.tables import JobLogRow, JobPartRow, JobRow
from app.http.errors import ConflictError, InvalidRequest
from app.http.idempotency import record_location
from app.ids import new_id
from app.jobs import fair_queue, service
from app.jobs.kinds.base import JobDraft, JobKind, JobPart
from app.settings import get_settings

Item = TypeVar("Item")

# Parts that are stored in one transaction: other writers wait for the end of each.
STORED_AT_ONCE = 8


def create(workspace: str, kind: JobKind, draft: JobDraft) -> JobRow:
    """Create a job from a checked request and queue it, with its parts and warnings.

    Workers and the caller see the job only after the last transaction; a failure before it leaves nothing behind. If
    the process dies in between, retention removes the incomplete job later.
    """
    _check_time_limit(draft.spec.get("time_limit_seconds"))
    row = _row(workspace, kind, draft)
    with transaction() as session:
        fair_queue.check(session, workspace)
        fair_queue.give_turn(session, row)
        session.add(row)
        try:
            session.flush()
        except sa.exc.IntegrityError:
            raise ConflictError(
                "the problem, data set or posterior was deleted while the job was being created; create the job again"
            ) from None
        session.add(JobLogRow(job_id=row.id, seq=0, at=now(), text="accepted"))
        if not draft.parts:
            _finish_creation(session, row, draft)
    if draft.parts:
        try:
            for number, group in enumerate(batched(draft.parts, STORED_AT_ONCE)):
                with transaction() as session:
                    add_parts(session, row.id, group, STORED_AT_ONCE * number)
            with transaction() as session:
                _finish_creation(session, row, draft)
        except BaseException:
            forget(row.id)
            raise
    return service.get(workspace, row.id)


def _row(workspace: str, kind: JobKind, draft: JobDraft) -> JobRow:
    job_id = new_id("job")
    return JobRow(
        id=job_id,
        workspace=workspace,
        kind=kind.name,
        name=draft.name,
        problem_id=draft.problem_id,
        dataset_id=draft.dataset_id,
        posterior_id=draft.posterior_id,
        spec=draft.spec,
        estimate_seconds=draft.estimate_seconds,
        parts_turn=0,
        admission="making",
        state="queued",
        message=service.WAITING,
        run_id=job_id,
        attempts=0,
        attempts_allowed=service.MAX_ATTEMPTS,
        progress=0.0,
        revision=0,
    )


def _finish_creation(session: Session, row: JobRow, draft: JobDraft) -> None:
    for warning in draft.warnings:
        service.note(session, row.id, f"warning: {warning}")
    if not service.admit(session, row.id, "making"):
        raise ConflictError("the job was cancelled while it was being created")
    record_location(session, f"/v1/jobs/{row.id}")


def forget(job_id: str) -> None:
    """Remove a job whose creation failed."""
    with transaction() as session:
        affected_rows(session, sa.delete(JobRow).where(JobRow.id == job_id, JobRow.admission == "making"))


def add_parts(session: Session, job_id: str, parts: Iterable[JobPart], first: int = 0) -> None:
    """Store parts of a job, one at a time: together they may not fit into memory."""
    for seq, (work, data) in enumerate(parts, start=first):
        row = JobPartRow(job_id=job_id, seq=seq, work=work, sha256=checksum(data), data=data)
        session.add(row)
        session.flush()
        session.expunge(row)


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield items in lists of ``size``; the last may be shorter."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group


def _check_time_limit(time_limit_seconds: float | None) -> None:
    limit = get_settings().max_job_seconds
    if time_limit_seconds is not None and time_limit_seconds > limit:
        raise InvalidRequest.at(("time_limit_seconds",), f"at most {limit:g} seconds (BCO_MAX_JOB_SECONDS)")
