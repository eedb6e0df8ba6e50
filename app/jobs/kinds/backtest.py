"""Compare policies with each other and with the actual decisions, on rows that they have not seen.

A part is one policy in one split. The result is a file with a line for each row and policy, and a summary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson
import sqlalchemy as sa
import torch
from sqlalchemy.orm import Session

from app.backtests import existing
from app.backtests.backtest import Backtest, Step, check_actual_decision
from app.backtests.existing import ExistingPosterior
from app.backtests.schemas import BacktestOptions, NewBacktest
from app.datasets.service import MISSING as NO_DATASET
from app.datasets.service import read_table
from app.db import former_names
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobRow, PosteriorRow, ProblemRow
from app.http.errors import InvalidRequest, NotFoundError
from app.http.rows import find
from app.http.tables import from_parquet, to_parquet
from app.jobs import queue
from app.jobs.kinds.base import Checkpoint, JobDraft, JobKind, JobPart, Store
from app.jobs.kinds.learn import check_rows, outline_of
from app.jobs.kinds.prescribe import PRESCRIBE
from app.posteriors import history
from app.posteriors import service as posteriors
from app.prescriptions.cache import load_posterior
from app.problems.schemas import outcome_names
from app.problems.service import MISSING as NO_PROBLEM
from bco_core.errors import InvalidInput
from bco_core.inference.learn import estimate
from bco_core.problems.base import ProblemOutline
from bco_core.progress import Progress

# Seconds of one core that a rule takes in a split: for fitting, and for each row. Good to a factor of five.
_RULE_SECONDS = {"boosted": (0.5, 4e-4), "neighbours": (0.1, 1e-4), "kernel": (0.1, 2e-4), "ieo": (10.0, 3e-3)}
_OTHER_SECONDS = (0.05, 1e-5)
# Units of a part's work in a second.
_WORK_A_SECOND = 10


# creating the job


def check(workspace: str, request: NewBacktest) -> JobDraft:
    """Refuse a comparison that cannot work, before anything is learned."""
    with transaction() as session:
        problem = find(session, ProblemRow, workspace, request.problem_id)
        if problem is None:
            raise InvalidRequest.at(("problem_id",), NO_PROBLEM)
        dataset = find(session, DatasetRow, workspace, request.dataset_id)
        if dataset is None:
            raise InvalidRequest.at(("dataset_id",), NO_DATASET)
        table = read_table(session, dataset.id, dataset.revision)
    check_rows(outcome_names(problem.spec), dataset)
    check_actual_decision(problem.spec, dataset.columns, request.actual_decision)
    spec = request.model_dump(exclude={"kind", "name", "problem_id", "dataset_id"}) | {"revision": dataset.revision}
    draft = JobDraft(request.name or problem.name, problem.id, spec, dataset.id)
    if request.posteriors:
        return _compare_existing(workspace, request, problem, dataset, draft)
    if dataset_has_no_time(dataset) and request.judged is not None:
        detail = "rows without a time column are all judged, each once; leave out judged, or upload a time column"
        raise InvalidRequest.at(("judged",), detail)
    width = history.planned_width(dataset, request.features, outcome_names(problem.spec))
    planned = Backtest(problem.spec, dataset, table, request)
    outline = outline_of(problem.spec)
    work = [_seconds(planned, step, outline, width) for step in planned.possible_steps]
    return replace(draft, estimate_seconds=sum(work))


def dataset_has_no_time(dataset: DatasetRow) -> bool:
    return history.column_of(dataset.columns, "time") is None


def _seconds(planned: Backtest, step: Step, outline: ProblemOutline, width: int) -> float:
    """Return the estimated seconds of a policy in a split."""
    split = planned.splits[step.split]
    for index, one in enumerate(planned.options.ours):
        if one.label == step.policy:
            try:
                return estimate(outline, one.learning_options(planned.options.seed), len(split.known), width)
            except InvalidInput as error:
                raise InvalidRequest.at(("ours", index), str(error)) from None
    fitting, a_row = _RULE_SECONDS.get(step.policy, _OTHER_SECONDS)
    return fitting + a_row * (len(split.known) + len(split.judged))


def _compare_existing(
    workspace: str, request: NewBacktest, problem: ProblemRow, dataset: DatasetRow, draft: JobDraft
) -> JobDraft:
    """Complete the draft of a comparison of existing posteriors; aliases are resolved now, as they may move."""
    rows = [_posterior(workspace, named, ("posteriors", index)) for index, named in enumerate(request.posteriors)]
    existing.check(problem.spec, rows)
    with transaction() as session:
        fresh, notes = existing.unseen(session, dataset, dataset.revision, rows)
    notes += [
        f"{row.id} was learned for a problem with other numbers than the one that judges it"
        for row in rows
        if row.problem != problem.spec
    ]
    return replace(
        draft,
        posterior_id=rows[0].id,
        spec=draft.spec | {"posteriors": [row.id for row in rows]},
        estimate_seconds=len(fresh) * len(rows) * 1e-3,
        warnings=notes,
    )


def _posterior(workspace: str, named: str, where: tuple[str | int, ...]) -> PosteriorRow:
    try:
        return posteriors.get(workspace, named)
    except NotFoundError as error:
        raise InvalidRequest.at(where, error.detail) from None


# running the job


@dataclass(frozen=True)
class BacktestInputs:
    """A job and its backtest."""

    job: JobRow
    backtest: Backtest
    notes: list[str]


def read(job: JobRow) -> BacktestInputs:
    with transaction() as session:
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
        table = read_table(session, dataset.id, job.spec["revision"])
    options = BacktestOptions(**{name: job.spec[name] for name in BacktestOptions.model_fields})
    names = job.spec["posteriors"]
    if not names:
        return BacktestInputs(job, Backtest(problem.spec, dataset, table, options), [])
    rows = [posteriors.get(job.workspace, named) for named in names]
    with transaction() as session:
        fresh, notes = existing.unseen(session, dataset, job.spec["revision"], rows)
    loaded = tuple(ExistingPosterior(row.id, row, load_posterior(row)) for row in rows)
    return BacktestInputs(job, Backtest(problem.spec, dataset, table, options, loaded, torch.from_numpy(fresh)), notes)


def split(inputs: BacktestInputs, progress: Progress) -> list[JobPart]:
    planned = inputs.backtest
    judged = sum(len(one.judged) for one in planned.splits)
    progress(0.0, f"judging {judged} rows in {len(planned.splits)} split(s) by {len(planned.policies)} policies")
    outline = outline_of(planned.spec)
    width = (
        1 if planned.posteriors else history.planned_width(planned.dataset, planned.options.features, planned.outcomes)
    )
    return [
        JobPart(math.ceil(_WORK_A_SECOND * _seconds(planned, step, outline, width)), orjson.dumps([*step]))
        for step in planned.steps
    ]


def work(inputs: BacktestInputs, data: bytes, progress: Progress, checkpoint: Checkpoint) -> bytes:
    """Return the costs of a policy in a split, as Parquet; there are no checkpoints."""
    split, policy = orjson.loads(data)
    return to_parquet(inputs.backtest.work(Step(split, former_names.policy(policy)), progress))


def join(inputs: BacktestInputs, results: Sequence[bytes], progress: Progress) -> Store:
    progress(0.0, "comparing")
    summary = inputs.backtest.summary([from_parquet(result) for result in results])
    summary["notes"] = [f"{note[:1].upper()}{note[1:]}." for note in inputs.notes] + summary["notes"]

    def store(session: Session) -> str:
        session.execute(sa.update(JobRow).where(JobRow.id == inputs.job.id).values(summary=summary))
        return str(summary["verdict"]["text"])

    return store


BACKTEST = JobKind(
    name="backtest",
    queue=queue.COMPUTING,
    request=NewBacktest,
    check=check,
    read=read,
    split=split,
    work=work,
    join=join,
    keeps_parts=True,
    files=PRESCRIBE.files,
)
