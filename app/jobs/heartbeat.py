"""Heartbeats: which workers are alive.

Every worker writes a heartbeat regularly. A worker on the same machine is dead when its process is. For a worker on
another machine, PostgreSQL knows whether its heartbeat is still connected, since a connection ends with its process.
While process or connection lives, a silent worker counts as slow and keeps its jobs for much longer. Where neither can
be seen, a worker counts as dead after a moderate silence.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.engine import create_engine, database_clock, transaction
from app.db.outage import is_outage
from app.db.tables import WorkerRow
from app.settings import get_settings

log = logging.getLogger(__name__)

# Silence that counts as death, in multiples of the deadline: of a worker without and with another sign of life.
ELSEWHERE, STUCK = 4, 40


def beat(session: Session, worker_id: str) -> None:
    """Write a heartbeat of this process."""
    clock = sa.select(database_clock(session)).scalar_subquery()
    me = {"machine": machine(), "pid": os.getpid(), "born": _born(os.getpid())}
    if (
        not session.connection()
        .execute(sa.update(WorkerRow).where(WorkerRow.id == worker_id).values(beat_at=clock))
        .rowcount
    ):
        session.execute(sa.insert(WorkerRow).values(id=worker_id, beat_at=clock, **me))


def keep_beating(worker_id: str, seconds: float, stop: threading.Event) -> None:
    """Write heartbeats until the worker stops, over a connection of its own, so that nothing else delays them."""
    engine = _own_engine(worker_id)
    while not stop.wait(seconds):
        try:
            with Session(engine) as session, session.begin():
                beat(session, worker_id)
        except sa.exc.SQLAlchemyError as error:
            if not is_outage(error):
                log.exception("a heartbeat failed; trying again")
    engine.dispose()


def _own_engine(worker_id: str) -> sa.Engine:
    """Return an engine whose connection has the worker's name where the database shows names."""
    url = sa.make_url(get_settings().sqlalchemy_url)
    if url.get_backend_name() == "sqlite":
        return create_engine(url)
    engine = create_engine(url.update_query_dict({"application_name": worker_id}))

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        # The server, too, notices in seconds that a machine has vanished.
        for setting in ("tcp_keepalives_idle = 10", "tcp_keepalives_interval = 5", "tcp_keepalives_count = 3"):
            connection.execute(f"SET {setting}")
        connection.commit()

    return engine


def live_workers(deadline_seconds: float, judge: bool = True) -> set[str]:
    """Return all living workers and remove the dead ones; count silence as death only if ``judge`` is set.

    A worker that was cut off itself cannot judge others' silence: the same outage may have cut them off.
    """
    with transaction() as session:
        alive, dead = _live_and_dead_workers(session, deadline_seconds, judge)
        if dead:
            session.execute(sa.delete(WorkerRow).where(WorkerRow.id.in_(dead)))
    return alive


def count(session: Session, deadline_seconds: float) -> int:
    """Return the number of living workers; leave the dead ones for workers to remove."""
    return len(_live_and_dead_workers(session, deadline_seconds, judge=True)[0])


def _live_and_dead_workers(session: Session, deadline_seconds: float, judge: bool) -> tuple[set[str], set[str]]:
    """Return the ids of living and of dead workers."""
    clock = float(session.scalars(sa.select(database_clock(session))).one())
    workers = session.scalars(sa.select(WorkerRow)).all()
    silence = {worker.id: clock - worker.beat_at if judge else 0.0 for worker in workers}
    connected = _connected(session)
    dead = {w.id for w in workers if is_dead(w, silence[w.id], deadline_seconds, w.id in connected)}
    return {worker.id for worker in workers} - dead, dead


def is_dead(worker: WorkerRow, silence: float, deadline_seconds: float, connected: bool) -> bool:
    """Return whether a worker that has been silent for ``silence`` seconds counts as dead."""
    here = worker.machine == machine()
    if here and _born(worker.pid) != worker.born:
        return True
    return silence > (STUCK if here or connected else ELSEWHERE) * deadline_seconds


def _connected(session: Session) -> set[str]:
    """Return the names of all connections to the database; none on SQLite, which shows none."""
    if session.get_bind().dialect.name == "sqlite":
        return set()
    return set(session.scalars(sa.text("SELECT application_name FROM pg_stat_activity")))


def retire(worker_id: str) -> None:
    """Remove a worker that stops, so that others take over at once."""
    with transaction() as session:
        session.execute(sa.delete(WorkerRow).where(WorkerRow.id == worker_id))


@lru_cache
def machine() -> str:
    """Return an id of this machine or container, within which processes see each other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        # Without /proc, treat every worker as one on another machine.
        return f"{socket.gethostname()} {os.getpid()}"


def _born(pid: int) -> str:
    """Return when a process of this machine started, in clock ticks; empty if there is none, or only a zombie."""
    try:
        # The name in front may hold brackets and spaces.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]
