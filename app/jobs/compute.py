"""What runs a job of any kind: split it, offer its parts to all workers, compute or wait, join, store.

A job of the computing queue runs in a process of its own, as does a part that a worker takes; such a process ends with
its worker. A job of the waiting queue runs in its worker. A result counts only if the job still wants it. Outages of
the database are waited for.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import torch

from app import logs
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

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.3
WAIT_SECONDS = 0.5
# Lines in a job's log: at most one in so many seconds, and about this many each time its age grows by a factor of e.
LOG_SECONDS = 1.0
LOG_LINES = 50
# Figures that a line has at most.
LINE_FIGURES = 32
# What splitting and joining take of a job's progress. Storing is part of the work, so joining ends below 100 %.
SPLIT_SHARE = 0.1
JOIN_SHARE = 0.03
STORED = 0.99


def main(job_id: str, attempt: int) -> None:
    """Entry point of the process that computes a job."""
    _settle_in(job_id)
    run(job_id, attempt)


def part_main(job_id: str, seq: int) -> None:
    """Entry point of the process that computes a part of a job."""
    _settle_in(job_id)
    run_part(job_id, seq)


def _settle_in(job_id: str) -> None:
    _end_with_parent()
    logs.configure(get_settings())
    logs.job_id.set(job_id)
    torch.set_num_threads(get_settings().threads)


def run(job_id: str, attempt: int, pause: Callable[[], None] | None = None) -> None:
    """Bring a job to its end; a failure that the user can act on becomes the job's error.

    Between looks at the parts, ``pause`` is called; without one, a part that nobody has begun is computed here.
    """
    try:
        _drive(job_id, attempt, pause)
    except Cancelled:
        log.info("job %s is no longer wanted", job_id)
    except (BcoError, HttpError, CorruptBlob) as error:
        insist(partial(service.fail, job_id, attempt, _reason(error)))


def run_part(job_id: str, seq: int) -> None:
    """Compute a part and store its result; a failure that the user can act on becomes the job's error."""
    try:
        job = _unfinished(job_id)
        kind = KINDS[job.kind]
        given = insist(partial(kind.read, job))
        _compute_part(kind, given, job_id, seq, _now_and_then(partial(_note, job_id, seq)))
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


def _drive(job_id: str, attempt: int, pause: Callable[[], None] | None) -> None:
    job = _unfinished(job_id)
    kind, report = KINDS[job.kind], _reporter(job_id, attempt)
    given = None if kind.waits else insist(partial(kind.read, job))
    first, last = (0.0, 1.0) if kind.waits else (SPLIT_SHARE, 1 - JOIN_SHARE)

    insist(partial(parts.release, job_id))
    made: list[JobPart] = []
    if kind.split is not None and not insist(partial(parts.amounts, job_id)).parts:
        made = kind.split(given, part_of(report, 0.0, first))
    if not insist(partial(parts.offer, job_id, attempt, made)):
        raise Cancelled

    results = insist(partial(parts.Results, job_id, patient=True))
    if results:
        progress = part_of(report, first, last)
        _await_parts(kind, job_id, progress, pause or partial(_compute_free_part, kind, given, job_id, progress))
    store = None
    if kind.join is not None:
        # Without parts, joining is all the work there is.
        store = kind.join(given, results, part_of(report, last if results else 0.0, STORED))
    insist(partial(service.succeed, job_id, attempt, store))


def _await_parts(kind: JobKind, job_id: str, progress: Progress, pause: Callable[[], None]) -> None:
    """Report how far the parts have come, again and again, until all have a result."""
    while (found := _standing(job_id)).finished < found.parts:
        counted = f"{found.finished} of {found.parts} parts finished"
        words = f"{found.done} of {found.work} {kind.unit}" if kind.unit else counted
        progress(found.share, _with_figures(words, kind, job_id))
        pause()


def _with_figures(words: str, kind: JobKind, job_id: str) -> str:
    """Words about parts, and what the parts met last."""
    return Message(words, *insist(partial(parts.figures, job_id))) if kind.makes_posterior else words


def _standing(job_id: str) -> parts.Amounts:
    found = insist(partial(parts.amounts, job_id))
    if not found.parts:
        # A job that has ended may have no parts any more.
        raise Cancelled
    return found


def _compute_free_part(kind: JobKind, given: Any, job_id: str, progress: Progress) -> None:
    """Compute a part that nobody has begun; if there is none, sleep."""
    seq = insist(partial(parts.take, job_id))
    if seq is None:
        time.sleep(WAIT_SECONDS)
        return

    def note(fraction: float, message: str) -> None:
        _note(job_id, seq, fraction, message)
        found = _standing(job_id)
        progress(found.share, _with_figures(f"part {seq + 1} of {found.parts}: {message}", kind, job_id))

    _compute_part(kind, given, job_id, seq, _now_and_then(note))


def _compute_part(kind: JobKind, given: Any, job_id: str, seq: int, progress: Progress) -> None:
    """Compute a part, from wherever it is, and store its result."""
    data = insist(partial(parts.read, job_id, seq))
    if data is None:
        raise Cancelled

    def checkpoint(left: bytes) -> None:
        with unless_outage():
            parts.save(job_id, seq, left)

    result = kind.work(given, data, progress, checkpoint)
    insist(partial(parts.store, job_id, seq, result))


def _note(job_id: str, seq: int, fraction: float, message: str) -> None:
    with unless_outage():
        parts.report(job_id, seq, fraction, next(iter(figures_of(message)), None))


def _now_and_then(act: Progress) -> Progress:
    """Progress that is noted at most every so many seconds."""
    last = -math.inf

    def progress(fraction: float, message: str) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_SECONDS:
            act(fraction, message)
            last = time.monotonic()

    return progress


def _reporter(job_id: str, attempt: int) -> Progress:
    """Notes progress now and then; the longer a job runs, the further apart its log lines."""
    began = time.monotonic()
    last_line = -math.inf
    told: tuple[float, str] | None = None
    # since the last line, by part
    met: dict[float, list[Figures]] = {}

    def report(fraction: float, message: str) -> None:
        nonlocal last_line, told
        moment, line = time.monotonic(), None
        for figures in figures_of(message):
            own = met.setdefault(figures.get("part", 0), [])
            if own[-1:] != [figures]:
                own.append(figures)
        # Nobody can want it less while the database is out; the next report will tell.
        wanted = True
        with unless_outage():
            if told == (fraction, message):
                wanted = service.is_wanted(job_id, attempt)
            else:
                if moment - last_line >= max(LOG_SECONDS, (moment - began) / LOG_LINES):
                    last_line, line = moment, f"{fraction:.0%}, {message}"
                drawn = _some(met) if line else []
                wanted = service.report(job_id, attempt, fraction, str(message), line, drawn)
                told = fraction, message
                if line:
                    met.clear()
        if not wanted:
            raise Cancelled

    return _now_and_then(report)


def _some(met: dict[float, list[Figures]]) -> list[Figures]:
    """A few of what each part met, evenly, the last among them."""
    most = max(1, LINE_FIGURES // max(1, len(met)))
    return [figures for own in met.values() for figures in own[:: -math.ceil(len(own) / most)][::-1]]


def _end_with_parent() -> None:
    """Exit when the worker that started this process is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
