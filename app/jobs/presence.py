"""Which workers live. Each says so again and again; whose silence counts as death depends on what is known besides.

A worker of the same machine is dead when its process is. While its process lives, it is only slow, and keeps its jobs
for much longer; a process that never comes back to itself loses them in the end. Of a worker elsewhere only silence is
known, so that has to be long, too.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from functools import lru_cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.engine import create_engine, database_clock, transaction
from app.db.outage import is_outage
from app.db.tables import WorkerRow
from app.settings import get_settings

log = logging.getLogger(__name__)

# Silence that counts as death, in multiples of the deadline: of a worker elsewhere, and of one whose process lives.
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
    engine = create_engine(get_settings().sqlalchemy_url)
    while not stop.wait(seconds):
        try:
            with Session(engine) as session, session.begin():
                beat(session, worker_id)
        except sa.exc.SQLAlchemyError as error:
            if not is_outage(error):
                log.exception("a heartbeat failed; trying again")
    engine.dispose()


def living(deadline: float, judge: bool = True) -> set[str]:
    """All workers that live; the dead are dropped, those that are dead by silence by a judge alone.

    A worker that was cut off itself is no judge of others' silence: the same outage may have cut them off.
    """
    with transaction() as session:
        clock = float(session.scalars(sa.select(database_clock(session))).one())
        workers = session.scalars(sa.select(WorkerRow)).all()
        silence = {worker.id: clock - worker.beat_at if judge else 0.0 for worker in workers}
        dead = {worker.id for worker in workers if is_dead(worker, silence[worker.id], deadline)}
        if dead:
            session.execute(sa.delete(WorkerRow).where(WorkerRow.id.in_(dead)))
    return {worker.id for worker in workers} - dead


def is_dead(worker: WorkerRow, silence: float, deadline: float) -> bool:
    """Whether a worker that has been silent for so long will not come back."""
    if worker.machine != machine():
        return silence > ELSEWHERE * deadline
    if _born(worker.pid) != worker.born:
        return True
    return silence > STUCK * deadline


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
