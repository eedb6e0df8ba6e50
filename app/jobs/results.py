"""Results of jobs: files, in pieces that never hold memory or a connection for all of it, and backtests over time."""

from __future__ import annotations

from collections.abc import Iterator

from app.backtests.backtest import Backtest
from app.backtests.over_time import over_time
from app.backtests.schemas import BacktestOptions, OverTimeAnswer
from app.datasets.service import read_table
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobRow, ProblemRow
from app.http.errors import ConflictError, InvalidRequest
from app.ids import sibling_id
from app.jobs import parts, service
from app.jobs.kinds import KINDS

MEDIA_TYPES = sorted({file.media_type for kind in KINDS.values() for file in kind.files.values()})


def find_results(workspace: str, job_id: str, format: str | None = None) -> tuple[JobRow, parts.Results]:
    """Return a succeeded job and the results of its parts; refuse one that makes no file, or none in this format."""
    job = service.get(workspace, job_id)
    kind = KINDS[job.kind]
    if not kind.files:
        instead = f"; its result is the posterior {sibling_id(job.id, 'post')}" if kind.makes_posterior else ""
        raise ConflictError(f"this job makes no file{instead}")
    if format is not None and format not in kind.files:
        raise InvalidRequest.at(("query", "format"), f"this job's file is {' or '.join(kind.files)}")
    if job.state != "succeeded":
        raise ConflictError(f"the job is {job.state} ({job.progress:.0%}); the result is there once it has succeeded")
    results = parts.Results(job_id)
    if not results:
        raise ConflictError(
            "the result is older than BCO_KEEP_PARTS_DAYS and was removed; run the same batch as a new job"
        )
    return job, results


def file(workspace: str, job_id: str, format: str) -> tuple[str, Iterator[bytes]]:
    """Return the media type and the pieces of a job's result in a format."""
    job, results = find_results(workspace, job_id, format)
    chosen = KINDS[job.kind].files[format]
    # Read all once, so that damage is reported before the file begins: later the connection could only be cut.
    for _ in results:
        pass
    return chosen.media_type, chosen.write(results)


def backtest_over_time(workspace: str, job_id: str, stretches: int) -> OverTimeAnswer:
    """Return the costs of a backtest's policies over time."""
    job, results = find_results(workspace, job_id)
    if job.kind != "backtest" or job.summary is None:
        raise ConflictError(f"this is a job of kind {job.kind}; only backtests compare costs over time")
    with transaction() as session:
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
        table = read_table(session, dataset.id, job.spec["revision"])
    # Existing posteriors that were compared are not needed any more.
    planned = Backtest(problem.spec, dataset, table, BacktestOptions())
    return over_time(planned, job.summary, results, stretches)
