"""A job's log, state and progress as server-sent events.

Each poll is one short read of the database, so any API process can follow any job, and a waiting client holds neither a
database connection nor a thread. Of progress between two polls only the last is sent; log lines are sent one by one,
with their figures. Event ids increase: 2 s for the log line of revision s, 2 r + 1 for the job at revision r, so a
client that reconnects with its last id misses nothing and gets nothing twice.
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

POLL_SECONDS = 0.5
HEARTBEAT_SECONDS = 15.0
# Polls of all clients at the same time; requests keep the other threads.
MOST_POLLS = 4


@dataclass(frozen=True)
class Snapshot:
    """A job and its new log lines, at one moment."""

    job: JobRow
    lines: list[JobLogRow]

    @property
    def last_id(self) -> int:
        return 2 * self.job.revision + 1

    @property
    def is_last(self) -> bool:
        return not self.job.is_unfinished


def snapshot(workspace: str, job_id: str, after: int) -> Snapshot | None:
    """Return a job and its log lines after an event id; None if the job is gone."""
    with transaction() as session:
        # The job first: a line written in between has a later revision and is sent after the next poll.
        job = find(session, JobRow, workspace, job_id)
        if job is None:
            return None
        lines = service.log_lines(session, job_id, after // 2)
    return Snapshot(job, [line for line in lines if line.seq <= job.revision])


async def stream(
    workspace: str, job_id: str, after: int, poll_limiter: anyio.CapacityLimiter, stopping: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield events after an id until the job has ended, the client leaves or the service stops."""
    state: str | None = None
    last_sent = time.monotonic()
    yield b"retry: 2000\n\n"
    while not stopping():
        try:
            current = await anyio.to_thread.run_sync(snapshot, workspace, job_id, after, limiter=poll_limiter)
        except sa.exc.SQLAlchemyError as error:
            if not is_outage(error):
                raise
            yield b": the database does not answer; waiting\n\n"
            last_sent = time.monotonic()
            await anyio.sleep(HEARTBEAT_SECONDS / 5)
            continue
        if current is None:
            return
        for line in current.lines:
            figures = {"figures": line.figures} if line.figures else {}
            yield event(2 * line.seq, "log", {"at": line.at, "text": line.text} | figures)
        if current.last_id > after:
            job = current.job
            kind = "progress" if job.state == state else "state"
            fields = ("state", "progress", "message", "error", "attempts")
            yield event(current.last_id, kind, {name: getattr(job, name) for name in fields})
            after, state, last_sent = current.last_id, job.state, time.monotonic()
        if current.is_last:
            return
        if time.monotonic() - last_sent > HEARTBEAT_SECONDS:
            yield b": still here\n\n"
            last_sent = time.monotonic()
        await anyio.sleep(POLL_SECONDS)


def event(identifier: int, kind: str, data: dict[str, object]) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (identifier, kind.encode(), orjson.dumps(data))
