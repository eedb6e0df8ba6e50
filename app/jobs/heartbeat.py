"""Which workers live. Each says so again and again; whose silence counts as death depends on what is known besides.

A worker of the same machine is dead when its process is. Of a worker elsewhere, PostgreSQL knows whether its heartbeat
is still connected, since a connection ends with its process. While either lives, the worker is only slow, and keeps
its jobs for much longer; one that never comes back to itself loses them in the end. Where there is no such sign, only
silence is known, and has to be long, too.
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

# Silence that counts as death, in multiples of the deadline: of a worker without a sign of life, and of one with one.
ELSEWHERE, STUCK = 4, 40


def beat(session: Session, worker_id: str) -> None:
    """Say that this process is a worker that lives."""
    clock = sa.select(database_clock(session)).scalar_subquery()
    me = {"machine": machine(), "pid": os.getpid(), "born": _born(os.getpid())}
    if (
        not session.connection()
        .execute(sa.update(WorkerRow).where(WorkerRow.id == worker_id).values(beat_at=clock))
        .rowcount
    ):
        session.execute(sa.insert(WorkerRow).values(id=worker_id, beat_at=clock, **me))


def keep_beating(worker_id: str, seconds: float, stop: threading.Event) -> None:
    """Beat until the worker stops, over a connection of its own: whatever else the worker does or waits for."""
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
    """An engine whose one connection bears the worker's name, where the database shows names."""
    url = sa.make_url(get_settings().sqlalchemy_url)
    if url.get_backend_name() == "sqlite":
        return create_engine(url)
    engine = create_engine(url.update_query_dict({"application_name": worker_id}))

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        # The server, too, notices in seconds that a machine has vanished without a word.
        for setting in ("tcp_keepalives_idle = 10", "tcp_keepalives_interval = 5", "tcp_keepalives_count = 3"):
            connection.execute(f"SET {setting}")
        connection.commit()

    return engine


def living(deadline: float, judge: bool = True) -> set[str]:
    """All workers that live; the dead are dropped, those that are dead by silence by a judge alone.

    A worker that was cut off itself is no judge of others' silence: the same outage may have cut them off.
    """
    with transaction() as session:
        alive, dead = _told_apart(session, deadline, judge)
        if dead:
            session.execute(sa.delete(WorkerRow).where(WorkerRow.id.in_(dead)))
    return alive


def count(session: Session, deadline: float) -> int:
    """How many workers live, for who only wants to know: the dead are left to other workers."""
    return len(_told_apart(session, deadline, judge=True)[0])


def _told_apart(session: Session, deadline: float, judge: bool) -> tuple[set[str], set[str]]:
    """The workers that live, and those that are dead."""
    clock = float(session.scalars(sa.select(database_clock(session))).one())
    workers = session.scalars(sa.select(WorkerRow)).all()
    silence = {worker.id: clock - worker.beat_at if judge else 0.0 for worker in workers}
    connected = _connected(session)
    dead = {w.id for w in workers if is_dead(w, silence[w.id], deadline, w.id in connected)}
    return {worker.id for worker in workers} - dead, dead


def is_dead(worker: WorkerRow, silence: float, deadline: float, connected: bool) -> bool:
    """Whether a worker that has been silent for so long will not come back."""
    here = worker.machine == machine()
    if here and _born(worker.pid) != worker.born:
        return True
    return silence > (STUCK if here or connected else ELSEWHERE) * deadline


def _connected(session: Session) -> set[str]:
    """The names of all that is connected to the database; none on SQLite, which has no connections to see."""
    if session.get_bind().dialect.name == "sqlite":
        return set()
    return set(session.scalars(sa.text("SELECT application_name FROM pg_stat_activity")))


def retire(worker_id: str) -> None:
    """Leave at once instead of by silence, so that others take over without waiting."""
    with transaction() as session:
        session.execute(sa.delete(WorkerRow).where(WorkerRow.id == worker_id))


@lru_cache
def machine() -> str:
    """What tells machines apart, and containers, whose processes do not see each other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        # Where nothing can be known of other processes, every worker is elsewhere.
        return f"{socket.gethostname()} {os.getpid()}"


def _born(pid: int) -> str:
    """When a process of this machine began, in the system's ticks; empty if there is none, or only its remains."""
    try:
        # The name before may hold anything, brackets and spaces too.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]
