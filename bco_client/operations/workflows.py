"""Workflows across objects: from a history and a problem to decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

from bco_client import tables
from bco_client.operations import datasets, jobs, posteriors, problems
from bco_client.options import BacktestArguments, LearnArguments, PrescribeArguments, RoleArguments
from bco_client.records import (
    BacktestResult,
    ContextPrescription,
    DatasetRecord,
    EvaluationRecord,
    PosteriorRecord,
    ProblemRecord,
)
from bco_client.steps import Steps
from bco_client.tables import File, Row, Table

# Contexts in one prescribe call. A frame with more rows goes as a batch job.
MOST_AT_ONCE = 1_000


class LearnRoles(RoleArguments, LearnArguments, total=False):
    """Roles of the columns, and options of learning."""


class BacktestRoles(RoleArguments, BacktestArguments, total=False):
    """Roles of the columns, and options of a backtest."""


def learn(
    data: Table | File | DatasetRecord | str,
    problem: Mapping[str, Any] | ProblemRecord | str,
    *,
    name: str = "",
    timeout: float | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[LearnRoles],
) -> Steps[PosteriorRecord]:
    """Send a history and a problem, learn, and wait for the posterior.

    ``data`` is a frame, rows, a file, or a data set or its id; ``problem`` a specification, or a problem or its id. The
    outcomes default to the problem's. With an ``idempotency_key``, the whole call can be repeated.
    """
    roles, rest = _split_options(options)
    problem_id, dataset_id = yield from _create_missing(data, problem, name, roles, idempotency_key)
    job = yield from jobs.learn(problem_id, dataset_id, name=name or None, idempotency_key=idempotency_key, **rest)
    done = yield from jobs.wait(job, timeout=timeout)
    return (yield from posteriors.read(done.posterior_id or ""))


def backtest(
    data: Table | File | DatasetRecord | str,
    problem: Mapping[str, Any] | ProblemRecord | str,
    *,
    actual_decision: Mapping[str, str] | None = None,
    name: str = "",
    timeout: float | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[BacktestRoles],
) -> Steps[BacktestResult]:
    """Compare policies, baselines and the decisions actually taken on rows that none has learned from.

    ``data`` and ``problem`` are as for ``learn``; ``actual_decision`` names, for each decision, the column with
    the one actually taken.
    """
    roles, rest = _split_options(options)
    if actual_decision and not isinstance(data, str | DatasetRecord):
        roles.setdefault("decisions", list(actual_decision.values()))
    problem_id, dataset_id = yield from _create_missing(data, problem, name, roles, idempotency_key)
    body = {"problem_id": problem_id, "dataset_id": dataset_id, "name": name or None, **rest}
    job = yield from jobs.create("backtest", idempotency_key=idempotency_key, actual_decision=actual_decision, **body)
    summary = (yield from jobs.wait(job, timeout=timeout)).summary or {}
    verdict = summary.get("verdict") or {}
    fields = {"worth_using": verdict.get("worth_using", ""), "verdict": verdict.get("text", "")}
    return BacktestResult(raw=summary, job_id=job.id, notes=list(summary.get("notes", [])), **fields)


def _create_missing(
    data: Table | File | DatasetRecord | str,
    problem: Mapping[str, Any] | ProblemRecord | str,
    name: str,
    roles: RoleArguments,
    key: str | None,
) -> Steps[tuple[str, str]]:
    """Create the problem and the data set unless they exist, and return their ids."""
    stored_problem = yield from _problem(problem, name, key)
    if not isinstance(data, str | DatasetRecord):
        roles.setdefault("outcomes", stored_problem.outcomes)
        dataset = yield from datasets.create(data, name or stored_problem.name, idempotency_key=key, **roles)
        return stored_problem.id, dataset.id
    if roles:
        raise TypeError(f"the data set exists already; {', '.join(roles)} can be given only with new data")
    return stored_problem.id, data if isinstance(data, str) else data.id


def _problem(problem: Mapping[str, Any] | ProblemRecord | str, name: str, key: str | None) -> Steps[ProblemRecord]:
    if isinstance(problem, ProblemRecord):
        return problem
    if isinstance(problem, str):
        return (yield from problems.read(problem))
    return (yield from problems.create(problem, name, idempotency_key=key))


def _split_options(options: Mapping[str, Any]) -> tuple[RoleArguments, Any]:
    """Split options into those of the data set and those of the job."""
    roles = {
        name: value for name, value in options.items() if name in RoleArguments.__annotations__ and value is not None
    }
    return cast(RoleArguments, roles), {
        name: value for name, value in options.items() if name not in RoleArguments.__annotations__
    }


def prescribe(posterior: PosteriorRecord, data: Any, batch: bool | None, options: PrescribeArguments) -> Steps[Any]:
    """Decide for one context or for a table; the answer has the type of ``data``.

    A dict gives one prescription and a list of dicts a list of them. A frame gives a frame with a row for each row, a
    pandas frame with the same index. Columns that the posterior does not know are not sent. ``batch`` sends a frame
    as a batch job, the default for more than :data:`MOST_AT_ONCE` rows.
    """
    known = _select_context_columns(posterior, data)
    if isinstance(data, Mapping):
        (only,) = yield from _prescribe_chunks(posterior.id, known, options)
        return only
    if tables.kind_of(data) == "rows":
        return (yield from _prescribe_chunks(posterior.id, known, options))
    if tables.row_count(data) > MOST_AT_ONCE if batch is None else batch:
        job = yield from jobs.prescribe(posterior.id, known, **options)
        yield from jobs.wait(job)
        result = yield from jobs.result(job.id, to=tables.kind_of(data))
        return tables.answers_beside(result, tables.column_names(known), data)
    rows = yield from _prescribe_chunks(posterior.id, tables.as_rows(known), options)
    return tables.as_given([tables.flat(one.raw) for one in rows], data)


def _select_context_columns(posterior: PosteriorRecord, data: Any) -> Any:
    """Return the table with only the columns that the posterior knows, so that a history can be passed unchanged."""
    names = posterior.context_names
    return tables.select([data] if isinstance(data, Mapping) else tables.with_index(data, names), names)


def _prescribe_chunks(
    posterior_id: str, contexts: Sequence[Row], options: PrescribeArguments
) -> Steps[list[ContextPrescription]]:
    prescriptions: list[ContextPrescription] = []
    for first in range(0, len(contexts), MOST_AT_ONCE):
        answer = yield from posteriors.prescribe(posterior_id, contexts[first : first + MOST_AT_ONCE], **options)
        for index, one in enumerate(answer.prescriptions):
            prescriptions.append(replace(one, logged_as=answer.id, index=index))
    return prescriptions


def evaluate(
    posterior: PosteriorRecord,
    data: Any,
    alternatives: Sequence[Mapping[str, Any]] | None,
    decisions: Any,
    options: PrescribeArguments,
) -> Steps[Any]:
    """Price decisions of your own: return one evaluation for a dict, or one for each row of a table.

    ``decisions`` may be a frame like ``data``, with a column for each decision.
    """
    contexts = tables.as_rows(_select_context_columns(posterior, data))
    if decisions is not None:
        decisions = [decisions] if isinstance(decisions, Mapping) else _each(decisions)
    answer = yield from posteriors.evaluate(
        posterior.id, contexts, alternatives=alternatives, decisions=decisions, **options
    )
    evaluations: list[EvaluationRecord] = answer.evaluations
    return evaluations[0] if isinstance(data, Mapping) else evaluations


def _each(decisions: Any) -> list[Any]:
    if isinstance(decisions, Sequence) and not all(isinstance(entry, Mapping) for entry in decisions):
        return list(decisions)
    return list(tables.as_rows(decisions))
