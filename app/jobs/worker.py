"""A worker: takes jobs from the queue and supervises the process that computes each. Run by ``bco worker``.

Imports are inside functions: every computing process imports this module anew, and a light one starts in milliseconds.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from typing import Any

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5

_stop = threading.Event()
_running: dict[str, tuple[int, Any]] = {}


def supervise(job_id: str) -> str:
    """Run one job in a child process; stop it when it is cancelled or has gone to another worker."""
    from app import logs
    from app.jobs import compute, service

    logs.job_id.set(job_id)
    attempt = service.start(job_id)
    if attempt is None:
        return service.state(job_id)
    log.info("job %s starts, attempt %d", job_id, attempt)
    began = time.monotonic()
    process = multiprocessing.get_context("forkserver").Process(target=compute.main, args=(job_id, attempt))
    process.start()
    _running[job_id] = attempt, process
    while process.is_alive():
        process.join(CHECK_SECONDS)
        if process.is_alive() and not service.is_wanted(job_id, attempt):
            process.kill()
            process.join()
    if _stop.is_set():
        # The worker hands the job back and exits; returning would tell the engine that the job is done.
        threading.Event().wait()
    del _running[job_id]
    if process.exitcode != 0:
        # A cancelled job keeps its state: failing is refused once a job has ended.
        service.fail(job_id, attempt, f"the computation stopped unexpectedly (exit code {process.exitcode})")
    state = service.state(job_id)
    log.info("job %s %s after %.1f s", job_id, state, time.monotonic() - began)
    return state


def beat(executor_id: str, deadline: float) -> set[str]:
    """Say that this worker lives, drop workers silent for longer than the deadline, and return who is left."""
    import sqlalchemy as sa

    from app.db.engine import database_clock, transaction
    from app.db.tables import WorkerRow

    with transaction() as session:
        clock = float(session.scalars(sa.select(database_clock(session))).one())
        session.merge(WorkerRow(id=executor_id, beat_at=clock))
        session.execute(sa.delete(WorkerRow).where(WorkerRow.beat_at < clock - deadline))
        return set(session.scalars(sa.select(WorkerRow.id)))


def retire(executor_id: str) -> None:
    """Leave at once instead of by silence, so that others take over without waiting."""
    import sqlalchemy as sa

    from app.db.engine import transaction
    from app.db.tables import WorkerRow

    with transaction() as session:
        session.execute(sa.delete(WorkerRow).where(WorkerRow.id == executor_id))


def main() -> None:
    """Work until told to stop (SIGTERM or Ctrl-C)."""
    from app import logs
    from app.ids import new_id
    from app.jobs import engine
    from app.settings import get_settings

    settings = get_settings()
    logs.configure(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop.set())
    _warm_up()

    executor_id = new_id("worker")
    beat(executor_id, settings.worker_deadline_seconds)
    engine.launch(executor_id, settings.worker_concurrency, supervise)
    log.info("the worker is ready (%s)", executor_id)
    while not _stop.wait(settings.worker_deadline_seconds / 4):
        try:
            alive = beat(executor_id, settings.worker_deadline_seconds)
            engine.take_over(engine.running_executors() - alive)
        except Exception:
            log.exception("heartbeat failed; trying again")
    _hand_back_all()
    retire(executor_id)
    log.info("stopped")
    logging.shutdown()
    # Threads of the engine still wait for jobs that others will finish.
    os._exit(0)


def _hand_back_all() -> None:
    from app.jobs import service

    for job_id, (attempt, process) in list(_running.items()):
        process.kill()
        process.join()
        service.hand_back(job_id, attempt)
        log.info("job %s handed back", job_id)


def _warm_up() -> None:
    """Start the fork server and have it import the numerics, so that the first job starts as fast as any."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["app.jobs.compute"])
    first = context.Process(target=_nothing)
    first.start()
    first.join()


def _nothing() -> None:
    pass


if __name__ == "__main__":
    main()
