"""A job's story as it happens, as server-sent events.

Each look is one short read of the database, so any API process can tell the story of any job, and a client that waits
holds neither a connection to the database nor a thread. Progress in between two looks is told once, as it is then;
log lines are told one by one, with their figures. Event ids grow along the story: 2 s for the log line of revision s,
2 r + 1 for the job as it is at revision r, so a client that comes back with the last id it has seen misses nothing and
hears nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import anyio
import orjson
import sqlalchemy as sa

from app.db.engine import transaction
from app.db.outage import is_outage
from app.db.tables import JobLogRow, JobRow
from app.http.rows import find
from app.jobs import service

LOOK_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0
# Looks that all clients take at the same time; requests keep the other threads.
LOOKERS = 4


@dataclass(frozen=True)
class Look:
    """A job and its new log lines, at one moment."""

    job: JobRow
    lines: list[JobLogRow]

    @property
    def last_id(self) -> int:
        return 2 * self.job.revision + 1

    @property
    def is_last(self) -> bool:
        return not self.job.is_unfinished


def look(workspace: str, job_id: str, after: int) -> Look | None:
    """What is new of a job after an event id; None if the job is gone."""
    with transaction() as session:
        # The job first: a line that is written in between is of a later revision and is told at the next look.
        job = find(session, JobRow, workspace, job_id)
        if job is None:
            return None
        lines = service.log_lines(session, job_id, after // 2)
    return Look(job, [line for line in lines if line.seq <= job.revision])


async def stream(
    workspace: str, job_id: str, after: int, lookers: anyio.CapacityLimiter, stopping: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Events after an id until the job has ended, the client leaves or the service stops."""
    state: str | None = None
    told = time.monotonic()
    yield b"retry: 2000\n\n"
    while not stopping():
        try:
            seen = await anyio.to_thread.run_sync(look, workspace, job_id, after, limiter=lookers)
        except sa.exc.SQLAlchemyError as error:
            if not is_outage(error):
                raise
            yield b": the database does not answer; waiting\n\n"
            told = time.monotonic()
            await anyio.sleep(HEARTBEAT_SECONDS / 5)
            continue
        if seen is None:
            return
        for line in seen.lines:
            figures = {"figures": line.figures} if line.figures else {}
            yield event(2 * line.seq, "log", {"at": line.at, "text": line.text} | figures)
        if seen.last_id > after:
            job = seen.job
            kind = "progress" if job.state == state else "state"
            fields = ("state", "progress", "message", "error", "attempts")
            yield event(seen.last_id, kind, {name: getattr(job, name) for name in fields})
            after, state, told = seen.last_id, job.state, time.monotonic()
        if seen.is_last:
            return
        if time.monotonic() - told > HEARTBEAT_SECONDS:
            yield b": still here\n\n"
            told = time.monotonic()
        await anyio.sleep(LOOK_SECONDS)


def event(identifier: int, kind: str, data: dict[str, object]) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (identifier, kind.encode(), orjson.dumps(data))
