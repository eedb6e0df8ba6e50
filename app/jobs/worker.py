"""A worker: takes jobs from the queue and supervises the process that computes each. Run by ``bco worker``.

Imports are inside functions: every computing process imports this module anew, and a light one starts in milliseconds.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
PRUNE_SECONDS = 3600.0

_stop = threading.Event()
# What this worker is busy with: the process, if there is one, and how to give the work back.
_running: dict[str, tuple[Any, Callable[[], None]]] = {}


class Killed(Exception):
    """The computing process was ended from outside; the system may have needed its memory."""


def run(job_id: str) -> str:
    """Run a job in a child process; stop it when it is cancelled, has gone to another worker or takes too long."""
    from app import logs
    from app.jobs import compute, service

    logs.job_id.set(job_id)
    while (attempt := _insist(partial(service.start, job_id))) is not None:
        log.info("job %s starts, attempt %d", job_id, attempt)
        began = time.monotonic()
        wanted = partial(service.is_wanted, job_id, attempt)
        give_back = partial(service.hand_back, job_id, attempt)
        limit = _insist(partial(service.time_limit, job_id))
        try:
            reason = _compute(job_id, compute.main, (job_id, attempt), wanted, limit, give_back)
        except Killed:
            log.warning("the computation of job %s was killed", job_id)
            continue
        if reason is not None:
            # A cancelled job keeps its state: failing is refused once a job has ended.
            _insist(partial(service.fail, job_id, attempt, reason))
        log.info("job %s %s after %.1f s", job_id, _state(job_id), time.monotonic() - began)
        break
    return _state(job_id)


def wait(job_id: str) -> str:
    """Run a job that only waits for its parts, which compute wherever there is a place."""
    from app import logs
    from app.jobs import compute, service

    logs.job_id.set(job_id)
    attempt = _insist(partial(service.start, job_id))
    if attempt is None:
        return _state(job_id)
    log.info("job %s starts, attempt %d", job_id, attempt)
    _running[job_id] = None, partial(service.hand_back, job_id, attempt)
    limit = _insist(partial(service.time_limit, job_id))
    end = time.monotonic() + limit

    def pause() -> None:
        if _stop.wait(CHECK_SECONDS):
            _done(job_id)
        if time.monotonic() > end:
            _insist(partial(service.fail, job_id, attempt, _too_long(limit)))

    compute.run(job_id, attempt, pause)
    _done(job_id)
    log.info("job %s %s", job_id, _state(job_id))
    return _state(job_id)


def part(job_id: str, seq: int) -> str:
    """Compute one part of a job in a child process."""
    from app import logs
    from app.jobs import compute, parts

    logs.job_id.set(job_id)
    name = f"{job_id}, part {seq}"
    while _insist(partial(parts.start, job_id, seq)):
        wanted, give_back = partial(parts.is_wanted, job_id, seq), partial(parts.hand_back, job_id, seq)
        try:
            reason = _compute(name, compute.part_main, (job_id, seq), wanted, math.inf, give_back)
        except Killed:
            log.warning("the computation of %s was killed", name)
            continue
        if reason is not None:
            _insist(partial(parts.fail, job_id, f"part {seq}: {reason}"))
        break
    return "done"


def _state(job_id: str) -> str:
    from app.jobs import service

    return str(_insist(partial(service.state, job_id)))


def _compute(
    name: str,
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    wanted: Callable[[], bool],
    seconds: float,
    give_back: Callable[[], None],
) -> str | None:
    """Run a function in a child process while its result is wanted: None, or the reason why it has failed."""
    process = multiprocessing.get_context("forkserver").Process(target=target, args=arguments)
    process.start()
    _running[name] = process, give_back
    end = time.monotonic() + seconds
    ended, reason = False, None
    while process.is_alive():
        process.join(CHECK_SECONDS)
        if not process.is_alive():
            break
        if time.monotonic() > end:
            ended, reason = True, _too_long(seconds)
        if ended or not _holds(wanted):
            ended = True
            process.kill()
            process.join()
    _done(name)
    if ended or process.exitcode == 0:
        return reason
    if process.exitcode is None or process.exitcode < 0:
        raise Killed
    return f"the computation stopped unexpectedly (exit code {process.exitcode}); the worker's log says more"


def _too_long(seconds: float) -> str:
    return f"it took longer than its time limit of {seconds:g} s"


def _holds(wanted: Callable[[], bool]) -> bool:
    """Ask the database; while it is out, go on as before."""
    from app.db.outage import is_outage

    try:
        return wanted()
    except Exception as error:
        if not is_outage(error):
            raise
        return True


def _insist(act: Callable[[], Any]) -> Any:
    """Do it however long the database is out, unless the worker is to stop: then it only waits for its end."""
    from app.db.outage import insist, is_outage

    try:
        return insist(act, _stop)
    except Exception as error:
        if _stop.is_set() and is_outage(error):
            threading.Event().wait()
        raise


def _done(name: str) -> None:
    """This work is over, unless the worker is to stop: it gives everything back and exits."""
    if _stop.is_set():
        # Returning would tell the engine that the job is done.
        threading.Event().wait()
    del _running[name]


def main() -> None:
    """Work until told to stop (SIGTERM or Ctrl-C)."""
    from app import logs
    from app.ids import new_id
    from app.jobs import heartbeat
    from app.settings import get_settings

    settings = get_settings()
    logs.configure(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop.set())
    _warm_up()

    executor_id = new_id("worker")
    if _launch(executor_id):
        log.info("the worker is ready (%s)", executor_id)
        _watch_over(executor_id, settings.worker_deadline_seconds)
        _hand_back_all()
        _last_word(partial(heartbeat.retire, executor_id))
    log.info("stopped")
    logging.shutdown()
    # Threads of the engine still wait for jobs that others will finish.
    os._exit(0)


def _launch(executor_id: str) -> bool:
    """Join the others as soon as the database can be used; False if the worker is told to stop before."""
    from app.db.engine import transaction
    from app.db.outage import insist, is_outage
    from app.jobs import heartbeat, queue
    from app.settings import get_settings
    from app.webhooks import delivery

    settings = get_settings()

    def first_beat() -> None:
        with transaction() as session:
            heartbeat.beat(session, executor_id)

    try:
        insist(first_beat, _stop)
    except Exception as error:
        if not (_stop.is_set() and is_outage(error)):
            raise
        return False
    work: dict[str, Callable[..., str]] = {queue.COMPUTING: run, queue.WAITING: wait, queue.PARTS: part}
    beating = executor_id, settings.worker_deadline_seconds / 4, _stop
    threading.Thread(target=heartbeat.keep_beating, args=beating, name="heartbeat", daemon=True).start()
    if settings.webhook_hosts:
        threading.Thread(target=delivery.keep_delivering, args=(_stop,), name="webhooks", daemon=True).start()
    queue.launch(executor_id, settings.worker_concurrency, work, _stop)
    return True


def _watch_over(executor_id: str, deadline: float) -> None:
    """See to it that nobody's jobs are lost."""
    from app.db.outage import in_words, is_outage
    from app.jobs import heartbeat, queue, retention, service

    since, dropped, silent = time.monotonic(), set[str](), False
    pruned = time.monotonic()
    while not _stop.wait(deadline / 4):
        try:
            alive = heartbeat.living(deadline, judge=time.monotonic() - since > deadline)
            queue.take_over(queue.running_executors() - alive - {executor_id})
            # What was just taken from the queue is not running yet; what is not running the next time is dropped.
            before, dropped = dropped, queue.dropped(executor_id)
            queue.put_back(executor_id, before & dropped)
            service.requeue_lost()
            if time.monotonic() - pruned > PRUNE_SECONDS:
                pruned = time.monotonic()
                log.info("removed what is no longer kept: %s", retention.prune())
            if silent:
                log.warning("the database can be used again")
            silent = False
        except Exception as error:
            since, dropped = time.monotonic(), set()
            if not is_outage(error):
                log.exception("looking after jobs failed; trying again")
            elif not silent:
                silent = True
                log.warning("%s; waiting for it", in_words(error))


def _hand_back_all() -> None:
    for name, (process, give_back) in list(_running.items()):
        if process is not None:
            process.kill()
            process.join()
        _last_word(give_back)
        log.info("%s handed back", name)


def _last_word(act: Callable[[], None]) -> None:
    """Tell the database if it can be told; if not, this worker's silence will."""
    try:
        act()
    except Exception:
        log.exception("could not say goodbye; others will notice")


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
