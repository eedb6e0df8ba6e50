"""GET /v1/status: version, living workers, running and queued jobs."""

from __future__ import annotations

from importlib.metadata import version

import sqlalchemy as sa
from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.db.engine import transaction
from app.db.tables import UNFINISHED, JobRow
from app.http.security import Reader
from app.jobs import heartbeat
from app.settings import get_settings

router = APIRouter(prefix="/v1/status", tags=["health"])


class StatusAnswer(BaseModel):
    version: str = Field(description="version of the service")
    workers: int = Field(description="workers that are alive; without any, jobs wait")
    jobs_queued: int = Field(description="jobs of this workspace that wait for a worker")
    jobs_running: int = Field(description="jobs of this workspace that are running")
    queue_depth: int = Field(description="jobs of all workspaces that wait for a worker")
    log_prescriptions: bool = Field(description="whether prescriptions and evaluations are logged")


@router.get("")
def read_status(caller: Reader) -> StatusAnswer:
    """Return the version, the number of living workers, running and queued jobs, and whether the log is on."""
    settings = get_settings()
    by_state = sa.select(JobRow.workspace, JobRow.state, sa.func.count()).where(JobRow.state.in_(UNFINISHED))
    with transaction() as session:
        counts = session.execute(by_state.group_by(JobRow.workspace, JobRow.state)).all()
        workers = heartbeat.count(session, settings.worker_deadline_seconds)
    own = {state: number for workspace, state, number in counts if workspace == caller.workspace}
    return StatusAnswer(
        version=version("bco-service"),
        workers=workers,
        jobs_queued=own.get("queued", 0),
        jobs_running=own.get("running", 0),
        queue_depth=sum(number for _, state, number in counts if state == "queued"),
        log_prescriptions=settings.log_prescriptions,
    )
