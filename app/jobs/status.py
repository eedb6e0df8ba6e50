"""How the service stands: its version, who works, and what waits."""

from __future__ import annotations

from importlib.metadata import version

import sqlalchemy as sa
from pydantic import BaseModel, Field

from app.db.engine import transaction
from app.db.tables import UNFINISHED, JobRow
from app.jobs import heartbeat
from app.settings import get_settings


class StatusAnswer(BaseModel):
    version: str = Field(description="of the service")
    workers: int = Field(description="workers that are alive; without any, jobs wait")
    jobs_queued: int = Field(description="jobs of this workspace that wait for a worker")
    jobs_running: int = Field(description="jobs of this workspace that are being worked on")
    queue_depth: int = Field(description="jobs of all workspaces that wait for a worker")
    log_prescriptions: bool = Field(description="whether prescriptions and evaluations are kept")


def status(workspace: str) -> StatusAnswer:
    settings = get_settings()
    state = JobRow.state
    everywhere = sa.select(JobRow.workspace, state, sa.func.count()).where(state.in_(UNFINISHED))
    with transaction() as session:
        found = session.execute(everywhere.group_by(JobRow.workspace, state)).all()
        workers = heartbeat.count(session, settings.worker_deadline_seconds)
    own = {how: number for where, how, number in found if where == workspace}
    return StatusAnswer(
        version=version("bco-service"),
        workers=workers,
        jobs_queued=own.get("queued", 0),
        jobs_running=own.get("running", 0),
        queue_depth=sum(number for _, how, number in found if how == "queued"),
        log_prescriptions=settings.log_prescriptions,
    )
