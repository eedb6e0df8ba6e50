"""The life of a job: queued → running → succeeded | failed | cancelled.

Every change of state is one guarded UPDATE: whoever comes second, a cancel or a worker believed dead, changes nothing.
"""

from __future__ import annotations

from itertools import pairwise

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.datasets.encoding import ContextEncoding
from app.datasets.service import MISSING as NO_DATASET
from app.db.engine import transaction
from app.db.rows import affected, delete_row, find, page, read
from app.db.tables import DatasetRow, JobRow, ProblemRow, now
from app.errors import Conflict, InvalidRequest
from app.idempotency import made
from app.ids import new_id
from app.jobs import checkpoints, engine
from app.jobs.schemas import NewJob
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
        row = JobRow(
            id=new_id("job"),
            workspace=workspace,
            problem_id=problem.id,
            dataset_id=dataset.id,
            name=request.name or problem.name,
            spec=request.model_dump(exclude={"name", "problem_id", "dataset_id"}),
            state="queued",
            attempts=0,
            progress=0.0,
            message="waiting for a worker",
        )
        session.add(row)
        try:
            session.flush()
        except sa.exc.IntegrityError:
            raise Conflict("the problem or the data set was deleted while the job was being made") from None
        engine.enqueue(session, row.id)
        made(session, f"/v1/jobs/{row.id}")
    return row


def _check(request: NewJob, problem: ProblemRow, dataset: DatasetRow) -> None:
    settings = get_settings()
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


def listing(workspace: str, limit: int, cursor: str | None) -> tuple[list[JobRow], str | None]:
    with transaction() as session:
        return page(session, JobRow, workspace, limit, cursor)


def get(workspace: str, job_id: str) -> JobRow:
    return read(JobRow, workspace, job_id, MISSING)


def cancel(workspace: str, job_id: str) -> JobRow:
    """Stop a queued or running job; a job that is cancelled already stays so."""
    waiting = get(workspace, job_id).state == "queued"
    with transaction() as session:
        _finish(session, job_id, "cancelled", message="cancelled")
    row = get(workspace, job_id)
    if waiting and row.state == "cancelled":
        # A running one is stopped by its worker, which sees that it is no longer wanted.
        engine.withdraw(job_id)
    if row.state != "cancelled":
        raise Conflict(f"the job has {row.state} already, so there is nothing to cancel")
    return row


def delete(workspace: str, job_id: str) -> None:
    """Delete a finished job whose posterior is gone."""
    with transaction() as session:
        row = find(session, JobRow, workspace, job_id)
        if row is not None and row.state in UNFINISHED:
            raise Conflict(f"the job is {row.state}; cancel it first")
        delete_row(session, JobRow, workspace, job_id, MISSING, "the job's posterior still exists; delete that first")
    engine.forget(job_id)


def state(job_id: str) -> str:
    """How a job stands, for the worker that runs it."""
    with transaction() as session:
        return session.scalars(sa.select(JobRow.state).where(JobRow.id == job_id)).one()


def start(job_id: str) -> int | None:
    """A worker takes the job: its attempt number, or None if there is nothing (more) to do."""
    with transaction() as session:
        query = sa.update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(UNFINISHED))
        started = sa.func.coalesce(JobRow.started_at, now())
        query = query.values(state="running", attempts=JobRow.attempts + 1, started_at=started, message="starting")
        if not affected(session, query):
            return None
        attempts = session.scalars(sa.select(JobRow.attempts).where(JobRow.id == job_id)).one()
        if attempts > MAX_ATTEMPTS:
            reason = f"its worker died {MAX_ATTEMPTS} times while running it; it may need more memory than there is"
            _finish(session, job_id, "failed", error=reason, message="failed")
            return None
    return attempts


def report(job_id: str, attempt: int, progress: float, message: str) -> bool:
    """Note progress; False tells the computation that it is no longer wanted."""
    with transaction() as session:
        query = sa.update(JobRow).where(JobRow.id == job_id, JobRow.state == "running", JobRow.attempts == attempt)
        return bool(affected(session, query.values(progress=progress, message=message)))


def is_wanted(job_id: str, attempt: int) -> bool:
    """Whether this attempt should go on: neither cancelled nor taken over by another worker."""
    with transaction() as session:
        found = session.execute(sa.select(JobRow.state, JobRow.attempts).where(JobRow.id == job_id)).one_or_none()
    return found is not None and tuple(found) == ("running", attempt)


def succeed(session: Session, job_id: str, attempt: int) -> bool:
    """Mark success inside the transaction that stores the result; False if this attempt is no longer wanted."""
    return _finish(session, job_id, "succeeded", attempt, progress=1.0, message="done")


def hand_back(job_id: str, attempt: int) -> None:
    """A worker that is told to stop returns its job to the queue; this attempt does not count."""
    with transaction() as session:
        query = sa.update(JobRow).where(JobRow.id == job_id, JobRow.state == "running", JobRow.attempts == attempt)
        affected(session, query.values(state="queued", attempts=attempt - 1, message="waiting for another worker"))


def fail(job_id: str, attempt: int, reason: str) -> None:
    with transaction() as session:
        _finish(session, job_id, "failed", attempt, error=reason, message="failed")


def _finish(session: Session, job_id: str, state: str, attempt: int | None = None, **values: object) -> bool:
    query = sa.update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(UNFINISHED))
    if attempt is not None:
        query = query.where(JobRow.attempts == attempt)
    finished = bool(affected(session, query.values(state=state, finished_at=now(), **values)))
    if finished:
        checkpoints.forget(session, job_id)
    return finished
