"""The whole journey: from a history and a problem to decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack, cast

from bco_client import tables
from bco_client.operations import datasets, jobs, posteriors, problems
from bco_client.options import BacktestOptions, LearnOptions, PrescribeOptions, Roles
from bco_client.records import Backtest, Dataset, Evaluation, Posterior, Prescription, Problem
from bco_client.steps import Steps
from bco_client.tables import File, Row, Table

# Contexts in one prescribe call. A frame with more rows goes as a batch job, which all workers share.
MOST_AT_ONCE = 1_000


class LearnRoles(Roles, LearnOptions, total=False):
    """What the columns of a history are, and how to learn from it."""


class BacktestRoles(Roles, BacktestOptions, total=False):
    """What the columns of a history are, and what to compare on it."""


def learn(
    data: Table | File | Dataset | str,
    problem: Mapping[str, Any] | Problem | str,
    *,
    name: str = "",
    timeout: float | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[LearnRoles],
) -> Steps[Posterior]:
    """Send a history and a problem, learn, and wait for the posterior.

    ``data`` is a frame, rows, a file, or a data set or its id; ``problem`` a specification, or a problem or its id. The
    outcomes are the problem's unless they are named. With an ``idempotency_key``, the whole call may be made again.
    """
    roles, rest = _apart(options)
    problem_id, dataset_id = yield from _sent(data, problem, name, roles, idempotency_key)
    job = yield from jobs.learn(problem_id, dataset_id, name=name or None, idempotency_key=idempotency_key, **rest)
    done = yield from jobs.wait(job, timeout=timeout)
    return (yield from posteriors.read(done.posterior_id or ""))


def backtest(
    data: Table | File | Dataset | str,
    problem: Mapping[str, Any] | Problem | str,
    *,
    actual_decision: Mapping[str, str] | None = None,
    name: str = "",
    timeout: float | None = None,
    idempotency_key: str | None = None,
    **options: Unpack[BacktestRoles],
) -> Steps[Backtest]:
    """Would it have been worth using? Policies, baselines and the decision actually taken, on rows that none had seen.

    ``data`` and ``problem`` are as for ``learn``; ``actual_decision`` names, for each decision, the column with
    the one actually taken.
    """
    roles, rest = _apart(options)
    if actual_decision and not isinstance(data, str | Dataset):
        roles.setdefault("decisions", list(actual_decision.values()))
    problem_id, dataset_id = yield from _sent(data, problem, name, roles, idempotency_key)
    asked = {"problem_id": problem_id, "dataset_id": dataset_id, "name": name or None, **rest}
    job = yield from jobs.create("backtest", idempotency_key=idempotency_key, actual_decision=actual_decision, **asked)
    summary = (yield from jobs.wait(job, timeout=timeout)).summary or {}
    verdict = summary.get("verdict") or {}
    told = {"worth_using": verdict.get("worth_using", ""), "verdict": verdict.get("text", "")}
    return Backtest(raw=summary, job_id=job.id, notes=list(summary.get("notes", [])), **told)


def _sent(
    data: Table | File | Dataset | str,
    problem: Mapping[str, Any] | Problem | str,
    name: str,
    roles: Roles,
    key: str | None,
) -> Steps[tuple[str, str]]:
    """The ids of a problem and of a data set, sent unless they are there already."""
    described = yield from _problem(problem, name, key)
    if not isinstance(data, str | Dataset):
        roles.setdefault("outcomes", described.outcomes)
        sent = yield from datasets.create(data, name or described.name, idempotency_key=key, **roles)
        return described.id, sent.id
    if roles:
        raise TypeError(f"the data set is there already; {', '.join(roles)} can only be said of one that is sent")
    return described.id, data if isinstance(data, str) else data.id


def _problem(problem: Mapping[str, Any] | Problem | str, name: str, key: str | None) -> Steps[Problem]:
    if isinstance(problem, Problem):
        return problem
    if isinstance(problem, str):
        return (yield from problems.read(problem))
    return (yield from problems.create(problem, name, idempotency_key=key))


def _apart(options: Mapping[str, Any]) -> tuple[Roles, Any]:
    """What concerns the data set, and what the job."""
    roles = {name: value for name, value in options.items() if name in Roles.__annotations__ and value is not None}
    return cast(Roles, roles), {name: value for name, value in options.items() if name not in Roles.__annotations__}


def prescribe(posterior: Posterior, data: Any, batch: bool | None, options: PrescribeOptions) -> Steps[Any]:
    """Decide for one context or for a table; the answer is of the kind that was given.

    A dict gives one prescription and a list of dicts a list of them. A frame gives a frame with a row for each row, a
    pandas frame with the same index. Columns that the posterior does not know stay here. ``batch`` says whether a frame
    goes as a batch job: by default if it has more than :data:`MOST_AT_ONCE` rows.
    """
    known = _known(posterior, data)
    if isinstance(data, Mapping):
        (only,) = yield from _at_once(posterior.id, known, options)
        return only
    if tables.kind_of(data) == "rows":
        return (yield from _at_once(posterior.id, known, options))
    if tables.row_count(data) > MOST_AT_ONCE if batch is None else batch:
        job = yield from jobs.prescribe(posterior.id, known, **options)
        yield from jobs.wait(job)
        result = yield from jobs.result(job.id, to=tables.kind_of(data))
        return tables.answers_beside(result, tables.column_names(known), data)
    found = yield from _at_once(posterior.id, tables.as_rows(known), options)
    return tables.as_given([tables.flat(one.raw) for one in found], data)


def _known(posterior: Posterior, data: Any) -> Any:
    """A table of the columns that the posterior knows, so that a history can be decided for as it is."""
    names = posterior.context_names
    return tables.select([data] if isinstance(data, Mapping) else tables.with_index(data, names), names)


def _at_once(posterior_id: str, contexts: Sequence[Row], options: PrescribeOptions) -> Steps[list[Prescription]]:
    found: list[Prescription] = []
    for first in range(0, len(contexts), MOST_AT_ONCE):
        told = yield from posteriors.prescribe(posterior_id, contexts[first : first + MOST_AT_ONCE], **options)
        for index, one in enumerate(told.prescriptions):
            found.append(replace(one, logged_as=told.id, index=index))
    return found


def evaluate(
    posterior: Posterior,
    data: Any,
    alternatives: Sequence[Mapping[str, Any]] | None,
    decisions: Any,
    options: PrescribeOptions,
) -> Steps[Any]:
    """What decisions of the caller's own would cost: one evaluation for a dict, one for each row of a table.

    ``decisions`` may be a frame as ``data`` is, with a column for each decision.
    """
    contexts = tables.as_rows(_known(posterior, data))
    if decisions is not None:
        decisions = [decisions] if isinstance(decisions, Mapping) else _each(decisions)
    told = yield from posteriors.evaluate(
        posterior.id, contexts, alternatives=alternatives, decisions=decisions, **options
    )
    evaluations: list[Evaluation] = told.evaluations
    return evaluations[0] if isinstance(data, Mapping) else evaluations


def _each(decisions: Any) -> list[Any]:
    if isinstance(decisions, Sequence) and not all(isinstance(entry, Mapping) for entry in decisions):
        return list(decisions)
    return list(tables.as_rows(decisions))
