"""Compare policies with each other and with what was really done, on rows that they had not seen.

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
from app.backtests.existing import Existing
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
from app.jobs.kinds.base import Checkpoint, Draft, JobKind, Part, Store
from app.jobs.kinds.learn import check_rows, outline_of
from app.jobs.kinds.prescribe import PRESCRIBE
from app.posteriors import history
from app.posteriors import service as posteriors
from app.prescriptions.cache import load_posterior
from app.problems.schemas import outcome_names
from app.problems.service import MISSING as NO_PROBLEM
from bco_core.errors import InvalidInput
from bco_core.inference.learn import estimate
from bco_core.problems.base import Outline
from bco_core.progress import Progress

# What a rule takes in a split, in seconds of one core: for fitting, and for each row. Good to a factor of five.
_RULE_SECONDS = {"boosted": (0.5, 4e-4), "neighbours": (0.1, 1e-4), "kernel": (0.1, 2e-4), "ieo": (10.0, 3e-3)}
_OTHER_SECONDS = (0.05, 1e-5)
# A part's work is counted in so many a second.
_WORK_A_SECOND = 10


# the job, as it is made


def check(workspace: str, request: NewBacktest) -> Draft:
    """Refuse what cannot be compared, before anything is learned."""
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
    draft = Draft(request.name or problem.name, problem.id, spec, dataset.id)
    if request.posteriors:
        return _comparing(workspace, request, problem, dataset, draft)
    if dataset_has_no_time(dataset) and request.judged is not None:
        detail = (
            "rows without a time are all judged, each once; leave judged out, or send the data with its time column"
        )
        raise InvalidRequest.at(("judged",), detail)
    width = history.planned_width(dataset, request.features, outcome_names(problem.spec))
    planned = Backtest(problem.spec, dataset, table, request)
    outline = outline_of(problem.spec)
    work = [_seconds(planned, step, outline, width) for step in planned.possible_steps]
    return replace(draft, seconds=sum(work))


def dataset_has_no_time(dataset: DatasetRow) -> bool:
    return history.column_of(dataset.columns, "time") is None


def _seconds(planned: Backtest, step: Step, outline: Outline, width: int) -> float:
    """About how long a policy takes in a split."""
    split = planned.splits[step.split]
    for index, one in enumerate(planned.asked.ours):
        if one.called == step.policy:
            try:
                return estimate(outline, one.learning_options(planned.asked.seed), len(split.known), width)
            except InvalidInput as error:
                raise InvalidRequest.at(("ours", index), str(error)) from None
    fitting, a_row = _RULE_SECONDS.get(step.policy, _OTHER_SECONDS)
    return fitting + a_row * (len(split.known) + len(split.judged))


def _comparing(workspace: str, request: NewBacktest, problem: ProblemRow, dataset: DatasetRow, draft: Draft) -> Draft:
    """Posteriors that are there already; an alias may move before the job begins, so it is resolved here."""
    rows = [_posterior(workspace, named, ("posteriors", index)) for index, named in enumerate(request.posteriors)]
    existing.check(problem.spec, rows)
    with transaction() as session:
        fresh, notes = existing.unseen(session, dataset, dataset.revision, rows)
    notes += [
        f"{row.id} was learned for a problem with other numbers than the one it is judged by"
        for row in rows
        if row.problem != problem.spec
    ]
    return replace(
        draft,
        posterior_id=rows[0].id,
        spec=draft.spec | {"posteriors": [row.id for row in rows]},
        seconds=len(fresh) * len(rows) * 1e-3,
        warnings=notes,
    )


def _posterior(workspace: str, named: str, where: tuple[str | int, ...]) -> PosteriorRow:
    try:
        return posteriors.get(workspace, named)
    except NotFoundError as error:
        raise InvalidRequest.at(where, error.detail) from None


# the job, as its workers see it


@dataclass(frozen=True)
class Given:
    """A job and the backtest that it is."""

    job: JobRow
    backtest: Backtest
    notes: list[str]


def read(job: JobRow) -> Given:
    with transaction() as session:
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
        table = read_table(session, dataset.id, job.spec["revision"])
    asked = BacktestOptions(**{name: job.spec[name] for name in BacktestOptions.model_fields})
    names = job.spec["posteriors"]
    if not names:
        return Given(job, Backtest(problem.spec, dataset, table, asked), [])
    rows = [posteriors.get(job.workspace, named) for named in names]
    with transaction() as session:
        fresh, notes = existing.unseen(session, dataset, job.spec["revision"], rows)
    loaded = tuple(Existing(row.id, row, load_posterior(row)) for row in rows)
    return Given(job, Backtest(problem.spec, dataset, table, asked, loaded, torch.from_numpy(fresh)), notes)


def split(given: Given, progress: Progress) -> list[Part]:
    planned = given.backtest
    judged = sum(len(one.judged) for one in planned.splits)
    progress(0.0, f"judging {judged} rows in {len(planned.splits)} split(s) by {len(planned.policies)} policies")
    outline = outline_of(planned.spec)
    width = (
        1 if planned.posteriors else history.planned_width(planned.dataset, planned.asked.features, planned.outcomes)
    )
    return [
        Part(math.ceil(_WORK_A_SECOND * _seconds(planned, step, outline, width)), orjson.dumps([*step]))
        for step in planned.steps
    ]


def work(given: Given, data: bytes, progress: Progress, checkpoint: Checkpoint) -> bytes:
    """What a policy would have cost in a split; it is begun anew wherever it was left."""
    split, policy = orjson.loads(data)
    return to_parquet(given.backtest.work(Step(split, former_names.policy(policy)), progress))


def join(given: Given, results: Sequence[bytes], progress: Progress) -> Store:
    progress(0.0, "comparing")
    summary = given.backtest.summary([from_parquet(result) for result in results])
    summary["notes"] = [f"{note[:1].upper()}{note[1:]}." for note in given.notes] + summary["notes"]

    def store(session: Session) -> str:
        session.execute(sa.update(JobRow).where(JobRow.id == given.job.id).values(summary=summary))
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
