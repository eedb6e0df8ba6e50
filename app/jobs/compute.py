"""The computation of one job, in a process of its own: read the rows, learn, store the posterior.

The process ends with its worker, and its result counts only if the job still wants it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import wait

import torch

from app import logs
from app.datasets.encoding import ContextEncoding
from app.datasets.service import read_table
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobRow, ProblemRow
from app.jobs import checkpoints, service
from app.jobs.schemas import NewJob
from app.posteriors import service as posteriors
from app.problems.schemas import outcome_names
from app.settings import get_settings
from bco_core.data import Sample
from bco_core.errors import BcoError, Cancelled
from bco_core.inference.learn import learn
from bco_core.problems.registry import build_problem

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.3


def main(job_id: str, attempt: int) -> None:
    """Entry point of the child process."""
    _end_with_parent()
    logs.configure(get_settings())
    logs.job_id.set(job_id)
    torch.set_num_threads(get_settings().threads)
    run(job_id, attempt)


def run(job_id: str, attempt: int) -> None:
    """Learn and store; a failure the user can act on becomes the job's error."""
    try:
        _learn(job_id, attempt)
    except Cancelled:
        log.info("job %s is no longer wanted", job_id)
    except BcoError as error:
        service.fail(job_id, attempt, str(error))


def _learn(job_id: str, attempt: int) -> None:
    with transaction() as session:
        job = session.get_one(JobRow, job_id)
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
        table = read_table(session, dataset.id)
    request = NewJob(problem_id=problem.id, dataset_id=dataset.id, **job.spec)
    contexts = ContextEncoding.of(dataset.columns).encode_table(table)
    outcomes = torch.stack([torch.tensor(table.column(name).to_numpy()) for name in outcome_names(problem.spec)], dim=1)
    last_report = 0.0

    def progress(fraction: float, message: str) -> None:
        nonlocal last_report
        if time.monotonic() - last_report > REPORT_SECONDS:
            last_report = time.monotonic()
            # Storing the posterior is part of the work, so learning alone never shows 100 %.
            if not service.report(job_id, attempt, 0.99 * fraction, message):
                raise Cancelled

    progress(0.0, f"learning from {len(outcomes)} rows")
    sample = Sample(torch.from_numpy(contexts), outcomes)
    posterior, diagnostics = learn(
        build_problem(problem.spec),
        sample,
        request.learning_options(),
        progress,
        checkpoint=lambda arrays: checkpoints.save(job_id, attempt, arrays),
        resume=checkpoints.load(job_id),
    )
    posteriors.store(job, attempt, problem, dataset, posterior, diagnostics)


def _end_with_parent() -> None:
    """Exit when the worker that started this process is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
