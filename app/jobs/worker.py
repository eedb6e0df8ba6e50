"""A worker: takes jobs from the queue and supervises the process that computes each. Run by ``bco worker``."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from app import logs
from app.child_processes import ConnectionClosed, ForkedProcess, Template
from app.db.engine import transaction
from app.db.outage import in_words, insist, is_outage
from app.ids import new_id
from app.jobs import compute, heartbeat, parts, queue, retention, service
from app.settings import get_settings
from app.webhooks import delivery

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
PRUNE_SECONDS = 3600.0

_stop = threading.Event()
# Work in progress by name: its process, if it has one, and how to hand the work back.
_running: dict[str, tuple[ForkedProcess | None, Callable[[], None]]] = {}
_templates: list[Template] = []
_template_lock = threading.Lock()


class ComputationKilled(Exception):
    """The computing process was killed from outside; the system may have needed its memory."""


def run(job_id: str) -> str:
    """Run a job in a child process; stop it when it is cancelled, has gone to another worker or takes too long."""
    logs.job_id.set(job_id)
    while (attempt := _insist(partial(service.start, job_id))) is not None:
        log.info("job %s starts, attempt %d", job_id, attempt)
        began = time.monotonic()
        is_wanted = partial(service.is_wanted, job_id, attempt)
        hand_back = partial(service.hand_back, job_id, attempt)
        limit = _insist(partial(service.time_limit_seconds, job_id))
        try:
            reason = _compute(job_id, "job", (job_id, attempt), is_wanted, limit, hand_back)
        except ComputationKilled:
            log.warning("the computation of job %s was killed", job_id)
            continue
        if reason is not None:
            # A cancelled job keeps its state: failing is refused once a job has ended.
            _insist(partial(service.fail, job_id, attempt, reason))
        log.info("job %s %s after %.1f s", job_id, _state(job_id), time.monotonic() - began)
        break
    return _state(job_id)


def wait(job_id: str) -> str:
    """Run a job that only waits for its parts, which any worker computes."""
    logs.job_id.set(job_id)
    attempt = _insist(partial(service.start, job_id))
    if attempt is None:
        return _state(job_id)
    log.info("job %s starts, attempt %d", job_id, attempt)
    _running[job_id] = None, partial(service.hand_back, job_id, attempt)
    limit = _insist(partial(service.time_limit_seconds, job_id))
    deadline = time.monotonic() + limit

    def pause() -> None:
        if _stop.wait(CHECK_SECONDS):
            _end_work(job_id)
        if time.monotonic() > deadline:
            _insist(partial(service.fail, job_id, attempt, _too_long(limit)))

    compute.run(job_id, attempt, pause)
    _end_work(job_id)
    log.info("job %s %s", job_id, _state(job_id))
    return _state(job_id)


def part(job_id: str, seq: int) -> str:
    """Compute one part of a job in a child process."""
    logs.job_id.set(job_id)
    name = f"{job_id}, part {seq}"
    while _insist(partial(parts.start, job_id, seq)):
        is_wanted, hand_back = partial(parts.is_wanted, job_id, seq), partial(parts.hand_back, job_id, seq)
        try:
            reason = _compute(name, "part", (job_id, seq), is_wanted, math.inf, hand_back)
        except ComputationKilled:
            log.warning("the computation of %s was killed", name)
            continue
        if reason is not None:
            _insist(partial(parts.fail, job_id, f"part {seq}: {reason}"))
        break
    return "done"


def _state(job_id: str) -> str:
    return str(_insist(partial(service.state, job_id)))


def _compute(
    name: str,
    task: str,
    arguments: tuple[str, int],
    is_wanted: Callable[[], bool],
    time_limit_seconds: float,
    hand_back: Callable[[], None],
) -> str | None:
    """Run a task of :mod:`app.jobs.compute` in a child process while its result is wanted.

    Return None, or the reason why it has failed.
    """
    _running[name] = None, hand_back
    deadline = time.monotonic() + time_limit_seconds
    process, killed, reason = None, False, None
    try:
        process = _fork()
        _running[name] = process, hand_back
        process.request({"task": task}, orjson.dumps(arguments))
        while not process.wait(CHECK_SECONDS):
            if time.monotonic() > deadline:
                reason = _too_long(time_limit_seconds)
                break
            if not _holds(is_wanted):
                break
        else:
            error = process.answer()[0].get("error")
            if error is not None:
                reason = f"the computation stopped unexpectedly ({error}); see the worker's log"
    except ConnectionClosed:
        killed = True
    if process is not None:
        process.kill(wait=True)
    _end_work(name)
    if process is not None:
        process.close()
    if killed:
        raise ComputationKilled
    return reason


def _fork() -> ForkedProcess:
    """Return a new computing process; start another template if the last one is gone, unless the worker stops."""
    while True:
        with _template_lock:
            if _templates and not _templates[0].alive:
                log.warning("the template of the computing processes died; starting another")
                _templates.pop().close()
            if not _templates:
                _templates.append(Template("app.jobs.compute"))
            template = _templates[0]
        template.wait_until_ready()
        try:
            return template.fork()
        except ConnectionClosed:
            if _stop.wait(CHECK_SECONDS):
                raise


def _too_long(time_limit_seconds: float) -> str:
    return f"it took longer than its time limit of {time_limit_seconds:g} s"


def _holds(condition: Callable[[], bool]) -> bool:
    """Ask the database; during an outage, go on as before."""
    try:
        return condition()
    except Exception as error:
        if not is_outage(error):
            raise
        return True


def _insist(act: Callable[[], Any]) -> Any:
    """Repeat an action while the database is out; once the worker stops, only wait for its end."""
    try:
        return insist(act, _stop)
    except Exception as error:
        if _stop.is_set() and is_outage(error):
            threading.Event().wait()
        raise


def _end_work(name: str) -> None:
    """Note that this work is over; if the worker is stopping, wait: it hands everything back and exits."""
    if _stop.is_set():
        # Returning would tell the engine that the job is done.
        threading.Event().wait()
    del _running[name]


def main() -> None:
    """Work until SIGTERM or Ctrl-C."""
    settings = get_settings()
    logs.configure(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _stop.set())
    # The numerics are imported once, so that the first job starts as fast as any.
    with contextlib.suppress(ConnectionClosed):
        _fork().close()

    executor_id = new_id("worker")
    if _launch(executor_id):
        log.info("the worker is ready (%s)", executor_id)
        _watch_over(executor_id, settings.worker_deadline_seconds)
        _hand_back_all()
        _try_once(partial(heartbeat.retire, executor_id))
    log.info("stopped")
    logging.shutdown()
    # Threads of the engine still wait for jobs that others will finish.
    os._exit(0)


def _launch(executor_id: str) -> bool:
    """Join the other workers as soon as the database can be used; return False if the worker is stopped before."""
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


def _watch_over(executor_id: str, deadline_seconds: float) -> None:
    """Recover the jobs of dead workers, and prune now and then, until the worker stops."""
    since, dropped, is_out = time.monotonic(), set[str](), False
    pruned = time.monotonic()
    while not _stop.wait(deadline_seconds / 4):
        try:
            alive = heartbeat.live_workers(deadline_seconds, judge=time.monotonic() - since > deadline_seconds)
            queue.take_over(queue.running_executors() - alive - {executor_id})
            # A job just taken from the queue is not running yet; one that is not running the next time is dropped.
            before, dropped = dropped, queue.lost_after_outage(executor_id)
            queue.put_back(executor_id, before & dropped)
            service.requeue_lost()
            if time.monotonic() - pruned > PRUNE_SECONDS:
                pruned = time.monotonic()
                log.info("pruned: %s", retention.prune())
            if is_out:
                log.warning("the database can be used again")
            is_out = False
        except Exception as error:
            since, dropped = time.monotonic(), set()
            if not is_outage(error):
                log.exception("looking after jobs failed; trying again")
            elif not is_out:
                is_out = True
                log.warning("%s; waiting for it", in_words(error))


def _hand_back_all() -> None:
    for name, (process, hand_back) in list(_running.items()):
        if process is not None:
            process.kill(wait=True)
        _try_once(hand_back)
        log.info("%s handed back", name)


def _try_once(act: Callable[[], None]) -> None:
    """Tell the database if it can be reached; if not, other workers notice this worker's silence."""
    try:
        act()
    except Exception:
        log.exception("the database could not be told that this worker stops; others will notice")


if __name__ == "__main__":
    main()
