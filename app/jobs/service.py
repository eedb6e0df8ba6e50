"""The life of a job: queued → running → succeeded | failed | cancelled.

Every change of state is one guarded UPDATE: whoever comes second, a cancel or a worker believed dead, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.datasets.encoding import ContextEncoding
from app.datasets.service import MISSING as NO_DATASET
from app.db.engine import affected, transaction
from app.db.tables import DatasetRow, JobLogRow, JobPartRow, JobRow, ProblemRow, Timestamp, now
from app.http.errors import Conflict, InvalidRequest, Unavailable
from app.http.idempotency import made
from app.http.rows import delete_row, find, page, read
from app.ids import is_id, new_id
from app.jobs import queue
from app.jobs.schemas import JobFilter, NewJob
from app.problems.schemas import outcome_names
from app.problems.service import MISSING as NO_PROBLEM
from app.settings import get_settings
from bco_core.inference.chains import DRAWS
from bco_core.inference.learn import MINIMUM_ROWS
from bco_core.inference.mixture import members_for
from bco_core.problems.registry import build_problem

MISSING = "no job has this id; GET /v1/jobs lists them"
UNFINISHED = ("queued", "running")
MAX_ATTEMPTS = 3
WAITING = "waiting for a worker"
# Jobs of less work than this, in cells of data times epochs, go before others.
SMALL_WORK = 5_000_000
_QUEUE_RETRY_SECONDS = 30


def create(workspace: str, request: NewJob) -> JobRow:
    """Accept a job if it can be run at all; it is queued in the same transaction."""
    with transaction() as session:
        problem = find(session, ProblemRow, workspace, request.problem_id)
        if problem is None:
            raise InvalidRequest.at(("problem_id",), NO_PROBLEM)
        dataset = find(session, DatasetRow, workspace, request.dataset_id)
        if dataset is None:
            raise InvalidRequest.at(("dataset_id",), NO_DATASET)
        _check(request, problem, dataset)
        row = queued_row(
            session,
            workspace,
            problem_id=problem.id,
            dataset_id=dataset.id,
            name=request.name or problem.name,
            spec=request.model_dump(exclude={"name", "problem_id", "dataset_id"}),
        )
        work = dataset.rows * len(dataset.columns) * request.posterior.epochs
        queue.enqueue(session, row, priority=1 if work < SMALL_WORK else 2)
        made(session, f"/v1/jobs/{row.id}")
    return row


def _check_queue(session: Session) -> None:
    limit = get_settings().max_queued_jobs
    if (session.scalar(sa.select(sa.func.count()).where(JobRow.state == "queued")) or 0) >= limit:
        detail = f"{limit} jobs are waiting for a worker already (BCO_MAX_QUEUED_JOBS); try again later"
        raise Unavailable(detail, _QUEUE_RETRY_SECONDS)


def queued_row(session: Session, workspace: str, kind: str = "learn", **values: Any) -> JobRow:
    """A new job that waits for a worker; who makes it also puts it in the queue, in the same transaction."""
    _check_queue(session)
    job_id = new_id("job")
    row = JobRow(id=job_id, workspace=workspace, run_id=job_id, kind=kind, state="queued", message=WAITING, **values)
    row.attempts, row.attempts_allowed, row.progress, row.revision = 0, MAX_ATTEMPTS, 0.0, 0
    session.add(row)
    try:
        session.flush()
    except sa.exc.IntegrityError:
        raise Conflict("what the job needs was deleted while the job was being made") from None
    session.add(JobLogRow(job_id=job_id, seq=0, at=now(), text="accepted"))
    return row


def check_time_limit(seconds: float | None) -> None:
    limit = get_settings().max_job_seconds
    if seconds is not None and seconds > limit:
        raise InvalidRequest.at(("time_limit_seconds",), f"at most {limit:g} seconds (BCO_MAX_JOB_SECONDS)")


def _check(request: NewJob, problem: ProblemRow, dataset: DatasetRow) -> None:
    settings = get_settings()
    check_time_limit(request.time_limit_seconds)
    outcomes = [column["name"] for column in dataset.columns if column["role"] == "outcome"]
    needed = outcome_names(problem.spec)
    lacking = [name for name in needed if name not in outcomes]
    if lacking:
        detail = (
            f"the problem needs the outcome column(s) {', '.join(needed)}, and the data set's outcomes are "
            f"{', '.join(outcomes)}; rename the problem's items or upload the data with these outcomes"
        )
        raise InvalidRequest.at(("dataset_id",), detail)
    if dataset.rows < MINIMUM_ROWS:
        detail = f"learning needs at least {MINIMUM_ROWS} rows, and the data set has {dataset.rows}"
        raise InvalidRequest.at(("dataset_id",), detail)
    contexts = ContextEncoding.of(dataset.columns).width
    parameters = (contexts + 1) * len(needed)
    if request.predictor.is_network:
        parameters += sum((a + 1) * b for a, b in pairwise([contexts, *request.predictor.layers, len(needed)]))
    members = request.posterior.members or members_for(dataset.rows)
    # Components of a mixture have a location and a scale; chains leave their draws.
    vectors = 2 * members if build_problem(problem.spec).differentiable else max(DRAWS, request.posterior.particles)
    megabytes = 4e-6 * parameters * (request.posterior.particles + vectors)
    for field, what, value, limit in (
        (("predictor", "hidden"), "parameters", parameters, settings.max_parameters),
        (("posterior", "members"), "members", members, settings.max_members),
        (("posterior", "particles"), "particles", request.posterior.particles, settings.max_particles),
        (("posterior", "particles"), "posterior_mb", megabytes, settings.max_posterior_mb),
    ):
        if value > limit:
            words = what.replace("posterior_mb", "MB a posterior")
            raise InvalidRequest.at(field, f"at most {limit} {words} (BCO_MAX_{what.upper()})")


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
        # The parts of a batch that are done stay done; the others get all their attempts again.
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
            queue.enqueue(session, row)
    return changed


def delete(workspace: str, job_id: str) -> None:
    """Delete a finished job whose posterior is gone."""
    with transaction() as session:
        row = find(session, JobRow, workspace, job_id)
        if row is not None and row.state in UNFINISHED:
            raise Conflict(f"the job is {row.state}; cancel it first")
        delete_row(session, JobRow, workspace, job_id, MISSING, "the job's posterior still exists; delete that first")
    queue.forget(job_id)


def state(job_id: str) -> str:
    """How a job stands, for the worker that runs it."""
    with transaction() as session:
        return session.scalars(sa.select(JobRow.state).where(JobRow.id == job_id)).one()


def kind(job_id: str) -> str | None:
    """What a job does; None if there is no such job (any more)."""
    with transaction() as session:
        return session.scalars(sa.select(JobRow.kind).where(JobRow.id == job_id)).one_or_none()


def start(job_id: str) -> int | None:
    """A worker takes the job: its attempt number, or None if there is nothing (more) to do."""
    with transaction() as session:
        started = sa.func.coalesce(JobRow.started_at, now())
        values = {"state": "running", "attempts": JobRow.attempts + 1, "started_at": started, "message": "starting"}
        if not _change(session, job_id, (JobRow.state.in_(UNFINISHED),), "started", **values):
            return None
        row = session.get_one(JobRow, job_id, populate_existing=True)
        # A batch only waits for its parts: it kills nobody, and the parts count for themselves.
        if row.kind == "learn" and row.attempts > row.attempts_allowed:
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


def succeed(session: Session, job_id: str, attempt: int) -> bool:
    """Mark success inside the transaction that stores the result; False if this attempt is no longer wanted."""
    return finish(session, job_id, "succeeded", attempt, progress=1.0, message="done")


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


def note(session: Session, job_id: str, line: str) -> None:
    """Add a line to a job's log."""
    _change(session, job_id, (), line)


def finish(session: Session, job_id: str, state: str, attempt: int | None = None, **values: Any) -> bool:
    """End an unfinished job, if this attempt still holds it; without an attempt, whoever holds it."""
    guards: list[Any] = [JobRow.state.in_(UNFINISHED)]
    if attempt is not None:
        guards.append(JobRow.attempts == attempt)
    line = f"{state}: {values['error']}" if values.get("error") else state
    finished = _change(session, job_id, guards, line, state=state, finished_at=now(), **values)
    if finished:
        # The result of a batch is its parts'; that of learning is a posterior, which has no use for them.
        learns = sa.exists().where(JobRow.id == job_id, JobRow.kind == "learn")
        session.execute(sa.delete(JobPartRow).where(JobPartRow.job_id == job_id, learns))
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
