"""The result of a backtest over time, made from what its parts have found."""

from __future__ import annotations

from app.backtests.backtest import Backtest
from app.backtests.over_time import over_time
from app.backtests.schemas import BacktestOptions, OverTimeAnswer
from app.datasets.service import read_table
from app.db.engine import transaction
from app.db.tables import DatasetRow, ProblemRow
from app.http.errors import ConflictError
from app.jobs import results


def read(workspace: str, job_id: str, stretches: int) -> OverTimeAnswer:
    job, found = results.find_results(workspace, job_id)
    if job.kind != "backtest" or job.summary is None:
        raise ConflictError(f"this is a job of kind {job.kind}; only backtests compare costs over time")
    with transaction() as session:
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
        table = read_table(session, dataset.id, job.spec["revision"])
    # Where posteriors that were there already were compared, these are not needed any more.
    planned = Backtest(problem.spec, dataset, table, BacktestOptions())
    return over_time(planned, job.summary, found, stretches)
