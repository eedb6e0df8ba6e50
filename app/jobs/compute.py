"""Run a job of any kind: split it, offer its parts to all workers, compute or wait, join, store.

A job of the computing queue runs in a process of its own, as does a part that a worker takes. Such a process is forked
from this module as a template and ends with its worker. A job of the waiting queue runs in its worker. A result counts
only while the job still wants it. Computations wait for the end of a database outage.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import torch

from app import logs
from app.child_processes import Header, serve_forks
from app.db.blobs import CorruptBlob
from app.db.outage import insist, unless_outage
from app.db.tables import JobRow
from app.http.errors import HttpError
from app.jobs import parts, service
from app.jobs.kinds import KINDS
from app.jobs.kinds.base import JobKind, JobPart
from app.settings import get_settings
from bco_core.errors import BcoError, Cancelled
from bco_core.progress import Figures, Message, Progress, figures_of, part_of

# by name: computing processes run this module as __main__
log = logging.getLogger("app.jobs.compute")

REPORT_SECONDS = 0.3
WAIT_SECONDS = 0.5
# A job's log has at most one line in LOG_SECONDS, and about LOG_LINES each time the job's age grows by a factor of e.
LOG_SECONDS = 1.0
LOG_LINES = 50
# Most figures in a line.
LINE_FIGURES = 32
# Shares of splitting and joining in a job's progress. Storing is part of the work, so joining ends below 100 %.
SPLIT_SHARE = 0.1
JOIN_SHARE = 0.03
STORED = 0.99


def run(job_id: str, attempt: int, pause: Callable[[], None] | None = None) -> None:
    """Run a job to its end; a failure that the user can act on becomes the job's error.

    ``pause`` is called between polls of the parts; without it, parts that no worker has started are computed here.
    """
    try:
        _run_stages(job_id, attempt, pause)
    except Cancelled:
        log.info("job %s is no longer wanted", job_id)
    except (BcoError, HttpError, CorruptBlob) as error:
        insist(partial(service.fail, job_id, attempt, _reason(error)))


def run_part(job_id: str, seq: int) -> None:
    """Compute a part and store its result; a failure that the user can act on becomes the job's error."""
    try:
        job = _unfinished(job_id)
        kind = KINDS[job.kind]
        inputs = insist(partial(kind.read, job))
        _compute_part(kind, inputs, job_id, seq, _throttle(partial(_note, job_id, seq)))
    except Cancelled:
        log.info("part %d of %s is no longer wanted", seq, job_id)
    except (BcoError, HttpError, CorruptBlob) as error:
        insist(partial(parts.fail, job_id, f"part {seq}: {_reason(error)}"))


def _reason(error: Exception) -> str:
    return error.detail if isinstance(error, HttpError) else str(error)


def _unfinished(job_id: str) -> JobRow:
    job = insist(partial(service.unfinished, job_id))
    if job is None:
        raise Cancelled
    return job


def _run_stages(job_id: str, attempt: int, pause: Callable[[], None] | None) -> None:
    job = _unfinished(job_id)
    kind, report = KINDS[job.kind], _reporter(job_id, attempt)
    inputs = None if kind.waits else insist(partial(kind.read, job))
    first, last = (0.0, 1.0) if kind.waits else (SPLIT_SHARE, 1 - JOIN_SHARE)

    insist(partial(parts.release, job_id))
    new_parts: list[JobPart] = []
    if kind.split is not None and not insist(partial(parts.amounts, job_id)).parts:
        new_parts = kind.split(inputs, part_of(report, 0.0, first))
    if not insist(partial(parts.offer, job_id, attempt, new_parts)):
        raise Cancelled

    results = insist(partial(parts.Results, job_id, patient=True))
    if results:
        progress = part_of(report, first, last)
        _await_parts(kind, job_id, progress, pause or partial(_compute_free_part, kind, inputs, job_id, progress))
    store = None
    if kind.join is not None:
        # Without parts, joining is all the work there is.
        store = kind.join(inputs, results, part_of(report, last if results else 0.0, STORED))
    insist(partial(service.succeed, job_id, attempt, store))


def _await_parts(kind: JobKind, job_id: str, progress: Progress, pause: Callable[[], None]) -> None:
    """Report the progress of the parts until all have a result."""
    while (amounts := _amounts(job_id)).finished < amounts.parts:
        by_parts = f"{amounts.finished} of {amounts.parts} parts finished"
        message = f"{amounts.done} of {amounts.work} {kind.unit}" if kind.unit else by_parts
        progress(amounts.share, _with_figures(message, kind, job_id))
        pause()


def _with_figures(message: str, kind: JobKind, job_id: str) -> str:
    """Return a message about parts with the latest figures of the parts."""
    return Message(message, *insist(partial(parts.figures, job_id))) if kind.makes_posterior else message


def _amounts(job_id: str) -> parts.Amounts:
    amounts = insist(partial(parts.amounts, job_id))
    if not amounts.parts:
        # A job that has ended may have no parts any more.
        raise Cancelled
    return amounts


def _compute_free_part(kind: JobKind, inputs: Any, job_id: str, progress: Progress) -> None:
    """Compute a part that no worker has started; if there is none, sleep."""
    seq = insist(partial(parts.take, job_id))
    if seq is None:
        time.sleep(WAIT_SECONDS)
        return

    def note(fraction: float, message: str) -> None:
        _note(job_id, seq, fraction, message)
        amounts = _amounts(job_id)
        progress(amounts.share, _with_figures(f"part {seq + 1} of {amounts.parts}: {message}", kind, job_id))

    _compute_part(kind, inputs, job_id, seq, _throttle(note))


def _compute_part(kind: JobKind, inputs: Any, job_id: str, seq: int, progress: Progress) -> None:
    """Compute a part from its last checkpoint, and store its result."""
    data = insist(partial(parts.read, job_id, seq))
    if data is None:
        raise Cancelled

    def checkpoint(left: bytes) -> None:
        with unless_outage():
            parts.save(job_id, seq, left)

    result = kind.work(inputs, data, progress, checkpoint)
    insist(partial(parts.store, job_id, seq, result))


def _note(job_id: str, seq: int, fraction: float, message: str) -> None:
    with unless_outage():
        parts.report(job_id, seq, fraction, next(iter(figures_of(message)), None))


def _throttle(act: Progress) -> Progress:
    """Return a progress function that calls ``act`` at most once in REPORT_SECONDS."""
    last = -math.inf

    def progress(fraction: float, message: str) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_SECONDS:
            act(fraction, message)
            last = time.monotonic()

    return progress


def _reporter(job_id: str, attempt: int) -> Progress:
    """Return a function that stores progress; the longer a job runs, the fewer log lines it writes."""
    began = time.monotonic()
    last_line = -math.inf
    last_report: tuple[float, str] | None = None
    # since the last line, by part
    seen: dict[float, list[Figures]] = {}

    def report(fraction: float, message: str) -> None:
        nonlocal last_line, last_report
        moment, line = time.monotonic(), None
        for figures in figures_of(message):
            own = seen.setdefault(figures.get("part", 0), [])
            if own[-1:] != [figures]:
                own.append(figures)
        # During an outage of the database the job counts as wanted; the next report will tell.
        wanted = True
        with unless_outage():
            if last_report == (fraction, message):
                wanted = service.is_wanted(job_id, attempt)
            else:
                if moment - last_line >= max(LOG_SECONDS, (moment - began) / LOG_LINES):
                    last_line, line = moment, f"{fraction:.0%}, {message}"
                figures_drawn = _thin_figures(seen) if line else []
                wanted = service.report(job_id, attempt, fraction, str(message), line, figures_drawn)
                last_report = fraction, message
                if line:
                    seen.clear()
        if not wanted:
            raise Cancelled

    return _throttle(report)


def _thin_figures(seen: dict[float, list[Figures]]) -> list[Figures]:
    """Return at most LINE_FIGURES figures, evenly spaced within each part, its last one among them."""
    most = max(1, LINE_FIGURES // max(1, len(seen)))
    return [figures for own in seen.values() for figures in own[:: -math.ceil(len(own) / most)][::-1]]


# computing processes


def _run_job(body: bytes) -> tuple[Header, bytes]:
    job_id, attempt = orjson.loads(body)
    _prepare(job_id)
    run(job_id, attempt)
    return {}, b""


def _run_part(body: bytes) -> tuple[Header, bytes]:
    job_id, seq = orjson.loads(body)
    _prepare(job_id)
    run_part(job_id, seq)
    return {}, b""


def _prepare(job_id: str) -> None:
    logs.configure(get_settings())
    logs.job_id.set(job_id)
    torch.set_num_threads(get_settings().threads)


def _describe_error(error: Exception) -> Header:
    log.error("unexpected error in a computation", exc_info=error)
    return {"error": type(error).__name__}


if __name__ == "__main__":
    serve_forks({"job": _run_job, "part": _run_part}, _describe_error)
