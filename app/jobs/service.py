"""States of a job: queued → running → succeeded | failed | cancelled.

Every change of state is one guarded UPDATE: a second one, by a cancel or a worker believed dead, changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.base import Timestamp, now
from app.db.engine import affected_rows, transaction
from app.db.tables import UNFINISHED, JobLogRow, JobPartRow, JobRow
from app.http.errors import ConflictError
from app.http.rows import delete_row, find, page, read
from app.ids import is_id
from app.jobs import fair_queue, queue
from app.jobs.kinds import KINDS
from app.jobs.kinds.base import Store
from app.jobs.schemas import JobFilter, JobSummary
from app.settings import get_settings
from app.webhooks import service as webhooks
from bco_core.progress import Figures

MISSING = "no job has this id; GET /v1/jobs lists them"
MAX_ATTEMPTS = 3
WAITING = "waiting for a worker"
# Default time limit: a multiple of the estimate, and at least some seconds.
TIME_LIMIT_FACTOR = 20
LEAST_SECONDS = 3600.0


def listing(workspace: str, limit: int, cursor: str | None, only: JobFilter) -> tuple[list[sa.Row[Any]], str | None]:
    conditions: list[Any] = []
    for column, wanted in only.model_dump(include={"state", "kind", "problem_id", "dataset_id"}).items():
        if wanted is not None:
            # Text that is not an id matches no job and is not sent: databases differ in what text they take.
            is_possible = not column.endswith("_id") or is_id(wanted)
            conditions.append(getattr(JobRow, column) == wanted if is_possible else sa.false())
    if only.created_after is not None:
        conditions.append(JobRow.created_at >= _utc(only.created_after))
    if only.created_before is not None:
        conditions.append(JobRow.created_at < _utc(only.created_before))
    with transaction() as session:
        # Summaries may be large: a list shows only the verdict.
        columns = [getattr(JobRow, field) for field in JobSummary.model_fields if field != "verdict"]
        columns.append(JobRow.summary["verdict"].label("verdict"))
        return page(session, JobRow, workspace, limit, cursor, *conditions, columns=columns)


def _utc(moment: datetime) -> datetime:
    """Return a time in UTC, which times without a zone are taken for; SQLite compares times as text."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def get(workspace: str, job_id: str) -> JobRow:
    return read(JobRow, workspace, job_id, MISSING)


def log_lines(session: Session, job_id: str, after: int = -1) -> list[JobLogRow]:
    """Return the lines of a job's log after a revision, in order."""
    query = sa.select(JobLogRow).where(JobLogRow.job_id == job_id, JobLogRow.seq > after).order_by(JobLogRow.seq)
    return list(session.scalars(query))


def read_log(workspace: str, job_id: str) -> list[JobLogRow]:
    get(workspace, job_id)
    with transaction() as session:
        return log_lines(session, job_id)


def cancel(workspace: str, job_id: str) -> JobRow:
    """Stop a queued or running job; a cancelled job stays cancelled."""
    get(workspace, job_id)
    # Its worker stops the computation once it sees that the job is no longer wanted.
    with transaction() as session:
        finish(session, job_id, "cancelled", message="cancelled")
    row = get(workspace, job_id)
    if row.state != "cancelled":
        raise ConflictError(f"the job has already {row.state}, so there is nothing to cancel")
    return row


def retry(workspace: str, job_id: str) -> JobRow:
    """Run a failed or cancelled job again, as a new run with as many attempts as a new job has."""
    row = get(workspace, job_id)
    if row.state not in ("failed", "cancelled"):
        words = "has succeeded; create a new job instead" if row.state == "succeeded" else f"is already {row.state}"
        raise ConflictError(f"only a failed or cancelled job can be run again; this one {words}")
    with transaction() as session:
        fair_queue.check(session, workspace)
        # Finished parts stay finished; the others get all their attempts again.
        open_parts = sa.update(JobPartRow).where(JobPartRow.job_id == row.id)
        affected_rows(session, open_parts.where(JobPartRow.result_sha256.is_(None)).values(attempts=0))
    if not requeue(row.id, row.run_id, ("failed", "cancelled"), "asked to run again", JobRow.attempts + MAX_ATTEMPTS):
        raise ConflictError("the job was run again by another request at the same moment")
    return get(workspace, job_id)


def requeue(job_id: str, run_id: str, states: tuple[str, ...], line: str, allowed: Any) -> bool:
    """Start and queue a new run of a job; return False if its run or state has changed."""
    with transaction() as session:
        number = int(run_id.partition(".")[2] or 1) + 1
        changed = _change(
            session,
            job_id,
            (JobRow.state.in_(states), JobRow.run_id == run_id),
            line,
            state="queued",
            admission="held",
            run_id=f"{job_id}.{number}",
            attempts_allowed=allowed,
            progress=0.0,
            message=WAITING,
            error=None,
            started_at=None,
            finished_at=None,
        )
        if changed:
            row = session.get_one(JobRow, job_id, populate_existing=True)
            if "queued" not in states:
                fair_queue.give_turn(session, row)
                session.flush()
            admit(session, job_id, "held")
    return changed


def admit(session: Session, job_id: str, admission: str) -> bool:
    """Queue a job if its workspace may have another one running; hold it otherwise.

    Return False if the job is gone, or its admission is no longer ``admission``.
    """
    row = session.get(JobRow, job_id, populate_existing=True)
    if row is None:
        return False
    following = "held" if fair_queue.is_at_its_limit(session, row.workspace) else "admitted"
    here = sa.update(JobRow).where(JobRow.id == job_id, JobRow.state == "queued", JobRow.admission == admission)
    if not affected_rows(session, here.values(admission=following)):
        return False
    if following == "admitted":
        queue.enqueue(session, KINDS[row.kind].queue, row)
    return True


def admit_waiting(session: Session, *conditions: Any) -> None:
    """Queue held jobs by turn, as far as the limits of their workspaces allow."""
    held = sa.select(JobRow.id, JobRow.workspace).where(JobRow.state == "queued", JobRow.admission == "held")
    full: set[str] = set()
    for job_id, workspace in session.execute(held.where(*conditions).order_by(JobRow.turn, JobRow.id)).all():
        if workspace not in full and fair_queue.is_at_its_limit(session, workspace):
            full.add(workspace)
        if workspace not in full:
            admit(session, job_id, "held")


def delete(workspace: str, job_id: str) -> None:
    """Delete a finished job whose posterior is gone."""
    with transaction() as session:
        row = find(session, JobRow, workspace, job_id)
        if row is not None and row.is_unfinished:
            raise ConflictError(f"the job is {row.state}; cancel it first")
        delete_row(session, JobRow, workspace, job_id, MISSING, "the job's posterior still exists; delete that first")
    queue.forget(job_id)


def state(job_id: str) -> str:
    """Return a job's state, for the worker that runs it."""
    with transaction() as session:
        return session.scalars(sa.select(JobRow.state).where(JobRow.id == job_id)).one()


def unfinished(job_id: str) -> JobRow | None:
    """Return the job if it has not ended."""
    with transaction() as session:
        row = session.get(JobRow, job_id)
    return row if row is not None and row.is_unfinished else None


def start(job_id: str) -> int | None:
    """Start the job in a worker; return the attempt number, or None if there is nothing to do."""
    with transaction() as session:
        started = sa.func.coalesce(JobRow.started_at, now())
        begun: dict[str, Any] = {"state": "running", "attempts": JobRow.attempts + 1, "message": "starting"}
        if not _change(session, job_id, (JobRow.state.in_(UNFINISHED),), "started", started_at=started, **begun):
            return None
        row = session.get_one(JobRow, job_id, populate_existing=True)
        # A job that only waits for its parts kills no worker, and parts count their own attempts.
        if not KINDS[row.kind].waits and row.attempts > row.attempts_allowed:
            reason = f"its worker died {MAX_ATTEMPTS} times while running it; it may need more memory than is available"
            finish(session, job_id, "failed", error=reason, message="failed")
            return None
    return row.attempts


def time_limit_seconds(job_id: str) -> float:
    """Return the time limit of an attempt, in seconds."""
    with transaction() as session:
        job = session.get_one(JobRow, job_id)
    limit: float | None = job.spec.get("time_limit_seconds")
    if limit is None:
        limit = max(LEAST_SECONDS, TIME_LIMIT_FACTOR * (job.estimate_seconds or math.inf))
    return min(limit, get_settings().max_job_seconds)


def report(
    job_id: str,
    attempt: int,
    progress: float,
    message: str,
    line: str | None = None,
    figures: Sequence[Figures] = (),
) -> bool:
    """Store progress and optionally a log line with figures; return False if the attempt is no longer wanted."""
    with transaction() as session:
        return _change(session, job_id, _is_running_attempt(attempt), line, figures, progress=progress, message=message)


def is_wanted(job_id: str, attempt: int) -> bool:
    """Return whether this attempt should go on: neither cancelled nor taken over by another worker."""
    with transaction() as session:
        row = session.execute(sa.select(JobRow.state, JobRow.attempts).where(JobRow.id == job_id)).one_or_none()
    return row is not None and tuple(row) == ("running", attempt)


def succeed(job_id: str, attempt: int, store: Store | None = None) -> None:
    """Mark success and store the result in one transaction, if this attempt is still wanted."""
    with transaction() as session:
        if finish(session, job_id, "succeeded", attempt, progress=1.0, message="done") and store is not None:
            line = store(session)
            if line is not None:
                note(session, job_id, line)


def hand_back(job_id: str, attempt: int) -> None:
    """Return a job to the queue because its worker stops; the attempt does not count."""
    with transaction() as session:
        back: dict[str, Any] = {"state": "queued", "attempts": attempt - 1, "message": "waiting for another worker"}
        _change(session, job_id, _is_running_attempt(attempt), "handed back by its worker, which stops", **back)


def fail(job_id: str, attempt: int, reason: str) -> None:
    with transaction() as session:
        finish(session, job_id, "failed", attempt, error=reason, message="failed")


def _is_running_attempt(attempt: int) -> tuple[Any, ...]:
    """Return conditions: this attempt holds the job."""
    return JobRow.state == "running", JobRow.attempts == attempt


def finish(session: Session, job_id: str, state: str, attempt: int | None = None, **values: Any) -> bool:
    """End an unfinished job if ``attempt`` still holds it; None for any attempt. Return whether it did."""
    guards: list[Any] = [JobRow.state.in_(UNFINISHED)]
    if attempt is not None:
        guards.append(JobRow.attempts == attempt)
    line = f"{state}: {values['error']}" if values.get("error") else state
    finished = _change(session, job_id, guards, line, state=state, finished_at=now(), **values)
    if finished:
        row = session.get_one(JobRow, job_id, populate_existing=True)
        queue.withdraw(session, row.run_id)
        admit_waiting(session, JobRow.workspace == row.workspace)
        webhooks.announce(session, row, KINDS[row.kind].makes_posterior)
        if not KINDS[row.kind].keeps_parts:
            session.execute(sa.delete(JobPartRow).where(JobPartRow.job_id == job_id))
    return finished


def note(session: Session, job_id: str, line: str) -> None:
    """Write a line in a job's log."""
    _change(session, job_id, (), line)


def _change(
    session: Session,
    job_id: str,
    guards: Sequence[Any],
    line: str | None,
    figures: Sequence[Figures] = (),
    **values: Any,
) -> bool:
    """Update a job if all guards hold, with a new revision and optionally a log line; return whether they did."""
    query = sa.update(JobRow).where(JobRow.id == job_id, *guards)
    if not affected_rows(session, query.values(revision=JobRow.revision + 1, **values)):
        return False
    if line is not None:
        # The updated row is locked until the transaction ends, so its revision is ours alone.
        moment = sa.literal(now(), Timestamp())
        drawn = sa.literal([*figures] or None, JobLogRow.figures.type)
        noted = sa.select(JobRow.id, JobRow.revision, moment, sa.literal(line), drawn).where(JobRow.id == job_id)
        session.execute(sa.insert(JobLogRow).from_select(["job_id", "seq", "at", "text", "figures"], noted))
    return True
