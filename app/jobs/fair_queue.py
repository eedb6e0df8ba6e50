"""Weighted fair queueing: workspaces share the workers by their weights, and have limits.

Virtual time is counted in seconds of work. A job begins at the virtual time of the last job that was started, or at the
end of its workspace's previous job, whichever is later; its turn is its end. Queues are served by turn, so workspaces
share workers by their weights, however many jobs each has queued. Small and large jobs of a workspace are counted
separately, so small ones go first. Parts of jobs have turns in the same way.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.base import now
from app.db.tables import UNFINISHED, JobRow
from app.http.errors import TooManyError, UnavailableError
from app.jobs import queue
from app.settings import get_settings

# Jobs that take less count as small: about as long as learning from 1,500 rows with default options.
SMALL_SECONDS = 120.0
_RETRY_SECONDS = 30
_DAY = timedelta(days=1)
# The largest integer of a database column; later turns are all equal.
_LAST_TURN = 2**31 - 2


def cost(workspace: str, seconds: float) -> int:
    """Return the virtual time that ``seconds`` of work cost a workspace."""
    return max(1, round(min(_LAST_TURN, seconds / get_settings().weight(workspace))))


def give_turn(session: Session, job: JobRow) -> None:
    """Set a job's turn among all jobs."""
    seconds = job.estimate_seconds or 0.0
    is_small = sa.func.coalesce(JobRow.estimate_seconds, 0.0) < SMALL_SECONDS
    was_run = sa.or_(JobRow.started_at.is_not(None), JobRow.state.in_(UNFINISHED))
    of_its_size = is_small if seconds < SMALL_SECONDS else ~is_small
    ends = _largest(session, JobRow.turn, JobRow.workspace == job.workspace, JobRow.id != job.id, was_run, of_its_size)
    begins = max(ends, _largest(session, JobRow.turn_begins, JobRow.id != job.id, JobRow.started_at.is_not(None)))
    job.turn_begins = min(begins, _LAST_TURN)
    job.turn = min(begins + cost(job.workspace, seconds), _LAST_TURN)


def part_turns(session: Session, job: JobRow, count: int) -> list[int]:
    """Return the turns of ``count`` parts of a job; its later parts come after them."""
    unfinished = JobRow.state.in_(UNFINISHED)
    ends = _largest(session, JobRow.parts_turn, JobRow.workspace == job.workspace, unfinished)
    begins = max(ends, queue.next_part(session))
    each = cost(job.workspace, (job.estimate_seconds or 0.0) / max(1, count))
    turns = [min(begins + each * number, _LAST_TURN) for number in range(1, count + 1)]
    job.parts_turn = turns[-1] if turns else begins
    return turns


def _largest(session: Session, column: Any, *conditions: Any) -> int:
    return int(session.scalar(sa.select(sa.func.max(column)).where(*conditions)) or 0)


def check(session: Session, workspace: str) -> None:
    """Refuse another job if the queue is full or the workspace has used up its limits."""
    settings = get_settings()
    queued = JobRow.state == "queued"
    if _count(session, queued) >= settings.max_queued_jobs:
        detail = (
            f"{settings.max_queued_jobs} jobs are already waiting for a worker (BCO_MAX_QUEUED_JOBS); try again later"
        )
        raise UnavailableError(detail, _RETRY_SECONDS)
    if _count(session, queued, JobRow.workspace == workspace) >= settings.max_workspace_queued_jobs:
        raise _too_many(
            f"{settings.max_workspace_queued_jobs} jobs of this workspace are already waiting for a worker "
            "(BCO_MAX_WORKSPACE_QUEUED_JOBS); wait until some have run, or cancel some"
        )
    most = settings.max_workspace_seconds_a_day
    if most and _seconds_lately(session, workspace) >= most:
        raise _too_many(
            f"the jobs of this workspace have already run for {most} s within a day "
            "(BCO_MAX_WORKSPACE_SECONDS_A_DAY); try again later"
        )


def is_at_its_limit(session: Session, workspace: str) -> bool:
    """Return whether the workspace has as many running or admitted jobs as it may have at once."""
    most = get_settings().max_workspace_running_jobs
    theirs = JobRow.workspace == workspace, JobRow.state.in_(UNFINISHED), JobRow.admission == "admitted"
    return most > 0 and _count(session, *theirs) >= most


def _seconds_lately(session: Session, workspace: str) -> float:
    """Return the seconds that jobs of a workspace have run within the last day, running ones included."""
    moment = now()
    query = sa.select(JobRow.started_at, JobRow.finished_at).where(
        JobRow.workspace == workspace,
        JobRow.started_at.is_not(None),
        sa.or_(JobRow.finished_at.is_(None), JobRow.finished_at > moment - _DAY),
    )
    spans = session.execute(query).all()
    return sum(((ended or moment) - max(began, moment - _DAY)).total_seconds() for began, ended in spans if began)


def _count(session: Session, *conditions: Any) -> int:
    return int(session.scalar(sa.select(sa.func.count()).select_from(JobRow).where(*conditions)) or 0)


def _too_many(detail: str) -> TooManyError:
    return TooManyError(detail, headers={"Retry-After": str(_RETRY_SECONDS)})
