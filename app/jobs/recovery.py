"""Recovery: jobs whose worker died, or that the engine dropped in an outage or lost, return to the queue."""

from __future__ import annotations

import logging
import threading
import time

from app.db.engine import transaction
from app.db.outage import in_words, is_outage
from app.db.tables import UNFINISHED, JobRow
from app.jobs import heartbeat, queue, service

log = logging.getLogger(__name__)


def keep_recovering(worker_id: str, deadline_seconds: float, stop: threading.Event) -> None:
    """Recover jobs several times a deadline, until the worker stops."""
    since, dropped, is_out = time.monotonic(), set[str](), False
    while not stop.wait(deadline_seconds / 4):
        try:
            alive = heartbeat.live_workers(deadline_seconds, judge=time.monotonic() - since > deadline_seconds)
            queue.take_over(queue.running_executors() - alive - {worker_id})
            # A job just taken from the queue is not running yet; one that is not running the next time is dropped.
            before, dropped = dropped, queue.lost_after_outage(worker_id)
            queue.put_back(worker_id, before & dropped)
            requeue_lost()
            if is_out:
                log.warning("the database can be used again")
            is_out = False
        except Exception as error:
            since, dropped = time.monotonic(), set()
            if not is_outage(error):
                log.exception("recovery of jobs failed; trying again")
            elif not is_out:
                is_out = True
                log.warning("%s; waiting for it", in_words(error))


def requeue_lost() -> None:
    """Queue unfinished jobs again that the engine has finished or forgotten, so that no job is lost."""
    with transaction() as session:
        service.admit_waiting(session)
        lost = queue.without_workflow(session, UNFINISHED)
    for job_id, run_id in lost:
        service.requeue(job_id, run_id, UNFINISHED, "lost by its worker; queued again", JobRow.attempts_allowed)
