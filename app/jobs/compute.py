"""The computation of one job, in a process of its own: read the rows, learn, store the posterior.

The process ends with its worker, and its result counts only if the job still wants it.
"""

from __future__ import annotations

import io
import logging
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait

import numpy as np
import pyarrow as pa
import torch

from app import logs
from app.datasets.encoding import ContextEncoding
from app.datasets.service import read_table
from app.db.blobs import CorruptBlob
from app.db.engine import transaction
from app.db.outage import insist, unless_outage
from app.db.tables import DatasetRow, JobRow, ProblemRow
from app.http.errors import ApiError
from app.jobs import parts, service
from app.jobs.schemas import NewJob
from app.posteriors import service as posteriors
from app.prescriptions import batches
from app.problems.schemas import outcome_names
from app.settings import get_settings
from bco_core.data import Sample
from bco_core.errors import BcoError, Cancelled
from bco_core.inference.learn import LearningOptions, continue_part, learn
from bco_core.inference.training import Progress
from bco_core.posterior import Arrays
from bco_core.problems.registry import build_problem

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.3
WAIT_SECONDS = 0.5
# Lines in a job's log: at most one in so many seconds, and about this many each time its age grows by a factor of e.
LOG_SECONDS = 1.0
LOG_LINES = 50


def main(job_id: str, attempt: int) -> None:
    """Entry point of the child process."""
    _settle_in(job_id)
    run(job_id, attempt)


def part_main(job_id: str, seq: int) -> None:
    """Entry point of the child process that computes a part of a job."""
    _settle_in(job_id)
    run_part(job_id, seq)


def _settle_in(job_id: str) -> None:
    _end_with_parent()
    logs.configure(get_settings())
    logs.job_id.set(job_id)
    torch.set_num_threads(get_settings().threads)


def run_part(job_id: str, seq: int) -> None:
    """Compute and store; what a planner can correct becomes the job's error."""
    try:
        kind = insist(lambda: service.kind(job_id))
        if kind == "prescribe":
            batches.prescribe_part(job_id, seq)
        elif kind == "learn":
            _compute_part(_Learning.read(job_id), seq, _now_and_then(partial(_note, job_id, seq)))
    except Cancelled:
        log.info("part %d of %s is no longer wanted", seq, job_id)
    except (BcoError, ApiError, CorruptBlob) as error:
        reason = error.detail if isinstance(error, ApiError) else str(error)
        insist(lambda: parts.fail(job_id, f"part {seq}: {reason}"))


def run(job_id: str, attempt: int) -> None:
    """Learn and store; a failure the user can act on becomes the job's error. Outages are waited for."""
    try:
        _learn(job_id, attempt)
    except Cancelled:
        log.info("job %s is no longer wanted", job_id)
    except (BcoError, CorruptBlob) as error:
        reason = str(error)
        insist(lambda: service.fail(job_id, attempt, reason))


@dataclass(frozen=True)
class _Learning:
    """What there is to learn: a job's rows and problem."""

    job: JobRow
    problem: ProblemRow
    dataset: DatasetRow
    sample: Sample
    options: LearningOptions

    @staticmethod
    def read(job_id: str) -> _Learning:
        job, problem, dataset, table = insist(lambda: _read(job_id))
        request = NewJob(problem_id=problem.id, dataset_id=dataset.id, **job.spec)
        contexts = torch.from_numpy(ContextEncoding.of(dataset.columns).encode_table(table))
        columns = [torch.tensor(table.column(name).to_numpy()) for name in outcome_names(problem.spec)]
        sample = Sample(contexts, torch.stack(columns, dim=1))
        return _Learning(job, problem, dataset, sample, request.learning_options())


def _read(job_id: str) -> tuple[JobRow, ProblemRow, DatasetRow, pa.Table]:
    with transaction() as session:
        job = session.get(JobRow, job_id)
        if job is None:
            raise Cancelled
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
        return job, problem, dataset, read_table(session, dataset.id)


def _learn(job_id: str, attempt: int) -> None:
    given = _Learning.read(job_id)
    progress = _reporter(job_id, attempt)
    progress(0.0, f"learning from {len(given.sample)} rows")
    problem = build_problem(given.problem.spec)
    posterior, diagnostics = learn(problem, given.sample, given.options, progress, partial(_deal, given))
    insist(lambda: posteriors.store(given.job, attempt, given.problem, given.dataset, posterior, diagnostics))


def _deal(given: _Learning, make: Callable[[], list[tuple[int, Arrays]]], progress: Progress) -> list[Arrays]:
    """Offer a job's parts to all workers, compute here those that nobody has begun, and wait for the others."""
    job_id = given.job.id
    insist(partial(parts.release, job_id))
    if not insist(partial(_amounts, job_id)).parts:
        made = [(amount, _to_bytes(part)) for amount, part in make()]
        insist(partial(_offer, job_id, made))

    def standing() -> parts.Amounts:
        found = insist(partial(_amounts, job_id))
        if not found.parts:
            # A job that has ended has no parts.
            raise Cancelled
        return found

    def note(seq: int, fraction: float, message: str) -> None:
        _note(job_id, seq, fraction, message)
        found = standing()
        progress(found.done / found.rows, f"part {seq + 1} of {found.parts}: {message}")

    while (found := standing()).finished < found.parts:
        seq = insist(partial(parts.take, job_id))
        if seq is not None:
            _compute_part(given, seq, _now_and_then(partial(note, seq)))
        else:
            time.sleep(WAIT_SECONDS)
            progress(found.done / found.rows, f"{found.finished} of {found.parts} parts finished")
    return insist(partial(_results, job_id, found.parts))


def _compute_part(given: _Learning, seq: int, progress: Progress) -> None:
    """Compute a part of a learning job, from wherever it is, and store its result."""
    job_id = given.job.id
    data = insist(partial(_data, job_id, seq))
    if data is None:
        raise Cancelled

    def checkpoint(part: Arrays) -> None:
        with unless_outage():
            parts.save(job_id, seq, _to_bytes(part))

    problem = build_problem(given.problem.spec)
    done = _to_bytes(continue_part(problem, given.sample, given.options, _to_arrays(data), progress, checkpoint))
    insist(partial(parts.store, job_id, seq, done))


def _amounts(job_id: str) -> parts.Amounts:
    with transaction() as session:
        return parts.amounts(session, job_id)


def _offer(job_id: str, made: list[tuple[int, bytes]]) -> None:
    with transaction() as session:
        job = session.get(JobRow, job_id)
        if job is None or job.state != "running":
            raise Cancelled
        parts.add(session, job_id, made)
        parts.offer(session, job)


def _data(job_id: str, seq: int) -> bytes | None:
    with transaction() as session:
        return parts.read(session, job_id, seq)


def _results(job_id: str, count: int) -> list[Arrays]:
    with transaction() as session:
        return [_to_arrays(parts.result(session, job_id, seq)) for seq in range(count)]


def _to_bytes(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _to_arrays(data: bytes) -> Arrays:
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        return dict(stored)


def _now_and_then(act: Progress) -> Progress:
    """Progress that is noted at most every so many seconds."""
    last = -math.inf

    def progress(fraction: float, message: str) -> None:
        nonlocal last
        if time.monotonic() - last > REPORT_SECONDS:
            act(fraction, message)
            last = time.monotonic()

    return progress


def _note(job_id: str, seq: int, fraction: float, message: str) -> None:
    with unless_outage():
        parts.report(job_id, seq, fraction)


def _reporter(job_id: str, attempt: int) -> Progress:
    """Notes progress now and then; the longer a job runs, the further apart its log lines."""
    began = time.monotonic()
    last_line = -math.inf

    def report(fraction: float, message: str) -> None:
        nonlocal last_line
        moment, line = time.monotonic(), None
        if moment - last_line >= max(LOG_SECONDS, (moment - began) / LOG_LINES):
            last_line, line = moment, f"{fraction:.0%}, {message}"
        # Nobody can want it less while the database is out; the next report will tell.
        wanted = True
        with unless_outage():
            # Storing the posterior is part of the work, so learning alone never shows 100 %.
            wanted = service.report(job_id, attempt, 0.99 * fraction, message, line)
        if not wanted:
            raise Cancelled

    return _now_and_then(report)


def _end_with_parent() -> None:
    """Exit when the worker that started this process is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
