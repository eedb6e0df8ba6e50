"""The computation of one job, in a process of its own: read the rows, learn, store the posterior.

The process ends with its worker, and its result counts only if the job still wants it.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
import torch

from app import logs
from app.datasets.encoding import ContextEncoding
from app.datasets.service import read_table
from app.db.engine import transaction
from app.db.outage import insist, is_outage
from app.db.tables import DatasetRow, JobRow, ProblemRow
from app.errors import ApiError
from app.jobs import checkpoints, service
from app.jobs.schemas import NewJob
from app.posteriors import service as posteriors
from app.prescriptions import batches
from app.problems.schemas import outcome_names
from app.settings import get_settings
from bco_core.data import Sample
from bco_core.errors import BcoError, Cancelled
from bco_core.inference.learn import learn
from bco_core.inference.training import Progress
from bco_core.problems.registry import build_problem

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.3
# Lines in a job's log: at most one in so many seconds, and about this many each time its age grows by a factor of e.
LOG_SECONDS = 1.0
LOG_LINES = 50


def main(job_id: str, attempt: int) -> None:
    """Entry point of the child process."""
    _end_with_parent()
    logs.configure(get_settings())
    logs.job_id.set(job_id)
    torch.set_num_threads(get_settings().threads)
    run(job_id, attempt)


def shard_main(job_id: str, seq: int) -> None:
    """Entry point of the child process that prescribes for a part of a batch."""
    _end_with_parent()
    torch.set_num_threads(get_settings().threads)
    run_shard(job_id, seq)


def run_shard(job_id: str, seq: int) -> None:
    """Prescribe and store; what a planner can correct becomes the job's error."""
    try:
        batches.prescribe_shard(job_id, seq)
    except (BcoError, ApiError) as error:
        reason = error.detail if isinstance(error, ApiError) else str(error)
        insist(lambda: batches.fail(job_id, f"part {seq}: {reason}"))


def run(job_id: str, attempt: int) -> None:
    """Learn and store; a failure the user can act on becomes the job's error. Outages are waited for."""
    try:
        _learn(job_id, attempt)
    except Cancelled:
        log.info("job %s is no longer wanted", job_id)
    except BcoError as error:
        reason = str(error)
        insist(lambda: service.fail(job_id, attempt, reason))


def _read(job_id: str) -> tuple[JobRow, ProblemRow, DatasetRow, pa.Table]:
    with transaction() as session:
        job = session.get_one(JobRow, job_id)
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
        return job, problem, dataset, read_table(session, dataset.id)


def _learn(job_id: str, attempt: int) -> None:
    job, problem, dataset, table = insist(lambda: _read(job_id))
    request = NewJob(problem_id=problem.id, dataset_id=dataset.id, **job.spec)
    contexts = ContextEncoding.of(dataset.columns).encode_table(table)
    outcomes = torch.stack([torch.tensor(table.column(name).to_numpy()) for name in outcome_names(problem.spec)], dim=1)
    progress = _reporter(job_id, attempt)
    progress(0.0, f"learning from {len(outcomes)} rows")
    sample = Sample(torch.from_numpy(contexts), outcomes)
    posterior, diagnostics = learn(
        build_problem(problem.spec),
        sample,
        request.learning_options(),
        progress,
        checkpoint=_checkpointer(job_id, attempt),
        resume=insist(lambda: checkpoints.load(job_id)),
    )
    insist(lambda: posteriors.store(job, attempt, problem, dataset, posterior, diagnostics))


def _checkpointer(job_id: str, attempt: int) -> Callable[[dict[str, Any]], None]:
    """Keeps where the computation has got to; while the database is out, the last state kept has to do."""

    def checkpoint(arrays: dict[str, Any]) -> None:
        try:
            checkpoints.save(job_id, attempt, arrays)
        except sa.exc.SQLAlchemyError as error:
            if not is_outage(error):
                raise

    return checkpoint


def _reporter(job_id: str, attempt: int) -> Progress:
    """Notes progress now and then; the longer a job runs, the further apart its log lines."""
    began = time.monotonic()
    last_report = last_line = -math.inf

    def progress(fraction: float, message: str) -> None:
        nonlocal last_report, last_line
        moment = time.monotonic()
        if moment - last_report <= REPORT_SECONDS:
            return
        last_report, line = moment, None
        if moment - last_line >= max(LOG_SECONDS, (moment - began) / LOG_LINES):
            last_line, line = moment, f"{fraction:.0%}, {message}"
        try:
            # Storing the posterior is part of the work, so learning alone never shows 100 %.
            wanted = service.report(job_id, attempt, 0.99 * fraction, message, line)
        except sa.exc.SQLAlchemyError as error:
            if not is_outage(error):
                raise
            # Nobody can want it less while the database is out; the next report will tell.
            return
        if not wanted:
            raise Cancelled

    return progress


def _end_with_parent() -> None:
    """Exit when the worker that started this process is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
