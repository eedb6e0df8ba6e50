"""The life of a job: queued → running → succeeded | failed | cancelled.

Every change of state is one guarded UPDATE: a second one, by a cancel or a worker believed dead, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.blobs import checksum
from app.db.engine import affected, transaction
from app.db.tables import UNFINISHED, JobLogRow, JobPartRow, JobRow, Timestamp, now
from app.http.errors import Conflict, InvalidRequest, Unavailable
from app.http.idempotency import made
from app.http.rows import delete_row, find, page, read
from app.ids import is_id, new_id
from app.jobs import queue
from app.jobs.kinds import KINDS
from app.jobs.kinds.base import Draft, JobKind, Part, Store
from app.jobs.schemas import JobFilter
from app.settings import get_settings

MISSING = "no job has this id; GET /v1/jobs lists them"
MAX_ATTEMPTS = 3
WAITING = "waiting for a worker"
# Jobs of less effort go before others: about that of learning from 1,500 rows with no options.
SMALL_EFFORT = 2e12
_QUEUE_RETRY_SECONDS = 30


def create(workspace: str, kind: JobKind, draft: Draft) -> JobRow:
    """Make a job of what was checked and queue it, with its parts and warnings, all or nothing."""
    _check_time_limit(draft.spec.get("time_limit_seconds"))
    job_id = new_id("job")
    row = JobRow(
        id=job_id,
        workspace=workspace,
        kind=kind.name,
        name=draft.name,
        problem_id=draft.problem_id,
        dataset_id=draft.dataset_id,
        posterior_id=draft.posterior_id,
        spec=draft.spec,
        priority=1 if draft.effort < SMALL_EFFORT else 2,
        state="queued",
        message=WAITING,
        run_id=job_id,
        attempts=0,
        attempts_allowed=MAX_ATTEMPTS,
        progress=0.0,
        revision=0,
    )
    with transaction() as session:
        _check_queue(session)
        session.add(row)
        try:
            session.flush()
        except sa.exc.IntegrityError:
            raise Conflict("what the job needs was deleted while the job was being made") from None
        session.add(JobLogRow(job_id=job_id, seq=0, at=now(), text="accepted"))
        add_parts(session, job_id, draft.parts)
        for warning in draft.warnings:
            _change(session, job_id, (), f"warning: {warning}")
        queue.enqueue(session, kind.queue, row)
        made(session, f"/v1/jobs/{job_id}")
    return row


def add_parts(session: Session, job_id: str, parts: Iterable[Part]) -> None:
    """Store the parts of a job, one at a time: together they may not fit into memory."""
    for seq, (work, data) in enumerate(parts):
        row = JobPartRow(job_id=job_id, seq=seq, work=work, sha256=checksum(data), data=data)
        session.add(row)
        session.flush()
        session.expunge(row)


def _check_queue(session: Session) -> None:
    limit = get_settings().max_queued_jobs
    if (session.scalar(sa.select(sa.func.count()).where(JobRow.state == "queued")) or 0) >= limit:
        detail = f"{limit} jobs are waiting for a worker already (BCO_MAX_QUEUED_JOBS); try again later"
        raise Unavailable(detail, _QUEUE_RETRY_SECONDS)


def _check_time_limit(seconds: float | None) -> None:
    limit = get_settings().max_job_seconds
    if seconds is not None and seconds > limit:
        raise InvalidRequest.at(("time_limit_seconds",), f"at most {limit:g} seconds (BCO_MAX_JOB_SECONDS)")


def listing(workspace: str, limit: int, cursor: str | None, only: JobFilter) -> tuple[list[JobRow], str | None]:
    conditions: list[Any] = []
    for column, wanted in only.model_dump(include={"state", "kind", "problem_id", "dataset_id"}).items():
        if wanted is not None:
            # What cannot be an id belongs to no job; databases differ in what text they take.
            known = not column.endswith("_id") or is_id(wanted)
            conditions.append(getattr(JobRow, column) == wanted if known else sa.false())
    if only.created_after is not None:
        conditions.append(JobRow.created_at >= _utc(only.created_after))
    if only.created_before is not None:
        conditions.append(JobRow.created_at < _utc(only.created_before))
    with transaction() as session:
        return page(session, JobRow, workspace, limit, cursor, *conditions)


def _utc(moment: datetime) -> datetime:
    """Times without a zone are taken as UTC; SQLite compares them as text, so they must be in one zone."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def get(workspace: str, job_id: str) -> JobRow:
    return read(JobRow, workspace, job_id, MISSING)


def log_lines(session: Session, job_id: str, after: int = -1) -> list[JobLogRow]:
    """What happened to a job after a revision, in order."""
    query = sa.select(JobLogRow).where(JobLogRow.job_id == job_id, JobLogRow.seq > after).order_by(JobLogRow.seq)
    return list(session.scalars(query))


def read_log(workspace: str, job_id: str) -> list[JobLogRow]:
    get(workspace, job_id)
    with transaction() as session:
        return log_lines(session, job_id)


def cancel(workspace: str, job_id: str) -> JobRow:
    """Stop a queued or running job; a job that is cancelled already stays so."""
    waiting = get(workspace, job_id).state == "queued"
    with transaction() as session:
        finish(session, job_id, "cancelled", message="cancelled")
    row = get(workspace, job_id)
    if waiting and row.state == "cancelled":
        # A running one is stopped by its worker, which sees that it is no longer wanted.
        queue.withdraw(row.run_id)
    if row.state != "cancelled":
        raise Conflict(f"the job has {row.state} already, so there is nothing to cancel")
    return row


def retry(workspace: str, job_id: str) -> JobRow:
    """Run a failed or cancelled job again, as a new run with as many attempts as a new job has."""
    row = get(workspace, job_id)
    if row.state not in ("failed", "cancelled"):
        words = "has succeeded; make a new job instead" if row.state == "succeeded" else f"is {row.state} already"
        raise Conflict(f"only a job that has failed or was cancelled can be run again; this one {words}")
    with transaction() as session:
        _check_queue(session)
        # Parts that are kept and done stay done; the others get all their attempts again.
        open_parts = sa.update(JobPartRow).where(JobPartRow.job_id == row.id)
        affected(session, open_parts.where(JobPartRow.result_sha256.is_(None)).values(attempts=0))
    if not _requeue(row.id, row.run_id, ("failed", "cancelled"), "asked to run again", JobRow.attempts + MAX_ATTEMPTS):
        raise Conflict("someone else has run this job again at the same moment")
    return get(workspace, job_id)


def requeue_lost() -> None:
    """Queue again what is unfinished but that the engine holds for finished: whatever went wrong, no job is lost."""
    with transaction() as session:
        lost = queue.without_workflow(session, UNFINISHED)
    for job_id, run_id in lost:
        _requeue(job_id, run_id, UNFINISHED, "lost by its worker; queued again", JobRow.attempts_allowed)


def _requeue(job_id: str, run_id: str, states: tuple[str, ...], line: str, allowed: Any) -> bool:
    """Start a new run of a job, in the queue by the same transaction; False if its run or state is another by now."""
    with transaction() as session:
        row = session.get_one(JobRow, job_id)
        number = int(run_id.partition(".")[2] or 1) + 1
        changed = _change(
            session,
            job_id,
            (JobRow.state.in_(states), JobRow.run_id == run_id),
            line,
            state="queued",
            run_id=f"{job_id}.{number}",
            attempts_allowed=allowed,
            progress=0.0,
            message=WAITING,
            error=None,
            started_at=None,
            finished_at=None,
        )
        if changed:
            session.refresh(row)
            queue.enqueue(session, KINDS[row.kind].queue, row)
    return changed


def delete(workspace: str, job_id: str) -> None:
    """Delete a finished job whose posterior is gone."""
    with transaction() as session:
        row = find(session, JobRow, workspace, job_id)
        if row is not None and row.is_unfinished:
            raise Conflict(f"the job is {row.state}; cancel it first")
        delete_row(session, JobRow, workspace, job_id, MISSING, "the job's posterior still exists; delete that first")
    queue.forget(job_id)


def state(job_id: str) -> str:
    """How a job stands, for the worker that runs it."""
    with transaction() as session:
        return session.scalars(sa.select(JobRow.state).where(JobRow.id == job_id)).one()


def unfinished(job_id: str) -> JobRow | None:
    """The job, if there is one that has not ended."""
    with transaction() as session:
        row = session.get(JobRow, job_id)
    return row if row is not None and row.is_unfinished else None


def start(job_id: str) -> int | None:
    """A worker takes the job: its attempt number, or None if there is nothing (more) to do."""
    with transaction() as session:
        started = sa.func.coalesce(JobRow.started_at, now())
        values = {"state": "running", "attempts": JobRow.attempts + 1, "started_at": started, "message": "starting"}
        if not _change(session, job_id, (JobRow.state.in_(UNFINISHED),), "started", **values):
            return None
        row = session.get_one(JobRow, job_id, populate_existing=True)
        # A job that only waits for its parts kills no worker, and the parts count for themselves.
        if not KINDS[row.kind].waits and row.attempts > row.attempts_allowed:
            reason = f"its worker died {MAX_ATTEMPTS} times while running it; it may need more memory than there is"
            finish(session, job_id, "failed", error=reason, message="failed")
            return None
    return row.attempts


def time_limit(job_id: str) -> float:
    """How many seconds an attempt may take."""
    with transaction() as session:
        asked: float | None = session.get_one(JobRow, job_id).spec.get("time_limit_seconds")
    longest = get_settings().max_job_seconds
    return longest if asked is None else min(asked, longest)


def report(job_id: str, attempt: int, progress: float, message: str, line: str | None = None) -> bool:
    """Note progress and perhaps a log line; False tells the computation that it is no longer wanted."""
    with transaction() as session:
        return _change(session, job_id, _held(attempt), line, progress=progress, message=message)


def is_wanted(job_id: str, attempt: int) -> bool:
    """Whether this attempt should go on: neither cancelled nor taken over by another worker."""
    with transaction() as session:
        found = session.execute(sa.select(JobRow.state, JobRow.attempts).where(JobRow.id == job_id)).one_or_none()
    return found is not None and tuple(found) == ("running", attempt)


def succeed(job_id: str, attempt: int, store: Store | None = None) -> None:
    """Mark success and store the result in one transaction; nothing if this attempt is no longer wanted."""
    with transaction() as session:
        if finish(session, job_id, "succeeded", attempt, progress=1.0, message="done") and store is not None:
            store(session)


def hand_back(job_id: str, attempt: int) -> None:
    """A worker that is told to stop returns its job to the queue; this attempt does not count."""
    with transaction() as session:
        values = {"state": "queued", "attempts": attempt - 1, "message": "waiting for another worker"}
        _change(session, job_id, _held(attempt), "handed back by its worker, which stops", **values)


def fail(job_id: str, attempt: int, reason: str) -> None:
    with transaction() as session:
        finish(session, job_id, "failed", attempt, error=reason, message="failed")


def _held(attempt: int) -> tuple[Any, ...]:
    """Only while this attempt holds the job."""
    return JobRow.state == "running", JobRow.attempts == attempt


def finish(session: Session, job_id: str, state: str, attempt: int | None = None, **values: Any) -> bool:
    """End an unfinished job, if this attempt still holds it; without an attempt, whichever holds it."""
    guards: list[Any] = [JobRow.state.in_(UNFINISHED)]
    if attempt is not None:
        guards.append(JobRow.attempts == attempt)
    line = f"{state}: {values['error']}" if values.get("error") else state
    finished = _change(session, job_id, guards, line, state=state, finished_at=now(), **values)
    if finished:
        done_with = [kind.name for kind in KINDS.values() if not kind.keeps_parts]
        needless = sa.exists().where(JobRow.id == job_id, JobRow.kind.in_(done_with))
        session.execute(sa.delete(JobPartRow).where(JobPartRow.job_id == job_id, needless))
    return finished


def _change(session: Session, job_id: str, guards: Sequence[Any], line: str | None, **values: Any) -> bool:
    """One guarded UPDATE, a new revision of the job and, with it, a line in its log; False if a guard does not hold."""
    query = sa.update(JobRow).where(JobRow.id == job_id, *guards)
    if not affected(session, query.values(revision=JobRow.revision + 1, **values)):
        return False
    if line is not None:
        # The updated row is locked until the transaction ends, so its revision is ours alone.
        moment = sa.literal(now(), Timestamp())
        noted = sa.select(JobRow.id, JobRow.revision, moment, sa.literal(line)).where(JobRow.id == job_id)
        session.execute(sa.insert(JobLogRow).from_select(["job_id", "seq", "at", "text"], noted))
    return True
