"""Record and cost the outcomes of a prescription and the decision actually taken.

Values may arrive one by one; a recorded value changes only with ``replace``. Costs are computed between two reads of
the recorded values, so that no request waits for a solver while the database is locked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple

import sqlalchemy as sa
import torch
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from torch import Tensor

from app.db.base import now
from app.db.engine import affected_rows, transaction
from app.db.tables import OutcomeRow, PrescriptionRow
from app.http.errors import ConflictError, InvalidRequest, NotFoundError, UnavailableError
from app.http.routes import parse_json
from app.log import service
from app.log.schemas import NewOutcome, RecordedAnswer, Values
from app.prescriptions.cache import PosteriorCache, cached_posterior
from app.prescriptions.patching import cached_patched_problem
from app.problems.schemas import outcome_names
from bco_core import deadlines
from bco_core.policies import decide_for_outcomes
from bco_core.problems.base import DecisionProblem

# Attempts to store outcomes while others record them too.
_TRIES = 5
_KEY = ("prescription_id", "number")
GONE = "the posterior of this prescription was deleted, so its outcomes cannot be costed"

Pointer = tuple[str | int, ...]


class _Report(NamedTuple):
    """The values that a request reports for one context, and their place in the request."""

    outcomes: Values
    actual_decision: Values
    where: Pointer


def record(
    cache: PosteriorCache, workspace: str, prescription_id: str, request: NewOutcome, by: str | None, seconds: float
) -> bytes:
    """Record and cost outcomes: ``RecordedAnswer`` as JSON. Raises OutOfTime if costing takes longer."""
    entry = service.get(workspace, prescription_id)
    reports = _reports(request, entry.row.contexts)
    try:
        posterior = cache.row(workspace, entry.row.posterior_id)
    except NotFoundError:
        raise ConflictError(GONE) from None
    if posterior.digest != entry.row.digest:
        raise ConflictError(
            "the posterior of this prescription was replaced by another, whose problem may have other costs"
        )
    loaded = cached_posterior(cache, posterior)
    _check_names(reports, outcome_names(posterior.problem), "outcomes")
    _check_names(reports, loaded.decisions, "actual_decision")
    decided = entry.decided()
    for _ in range(_TRIES):
        with transaction() as session:
            before = _read_recorded(session, prescription_id)
        changed = _find_changes(reports, before, request.replace)
        with deadlines.until(monotonic() + seconds):
            # A patch of the call holds for its outcomes too.
            patch = parse_json(entry.request).get("problem_patch")
            problem = cached_patched_problem(cache, posterior, loaded.problem, patch).problem
            rows = _price_changes(problem, outcome_names(posterior.problem), loaded.decisions, changed, decided)
        stored = _store(prescription_id, before, rows, by)
        if stored is not None:
            answer = RecordedAnswer(
                id=entry.row.id,
                posterior_id=entry.row.posterior_id,
                contexts=entry.row.contexts,
                recorded=len(stored),
                rows=[service.recorded_outcome(stored[number]) for number in sorted(reports)],
            )
            return answer.model_dump_json().encode()
    raise UnavailableError(
        "other requests record outcomes of this prescription at the same moment; try again", retry_after=1
    )


def _reports(request: NewOutcome, contexts: int) -> dict[int, _Report]:
    """Return the reported values by the number of the context."""
    if not request.rows:
        if contexts > 1:
            detail = f"the call had {contexts} contexts; say which ones by rows, each with its index"
            raise InvalidRequest.at(("outcomes" if request.outcomes else "actual_decision",), detail)
        return {0: _Report(request.outcomes, request.actual_decision, ())}
    reports: dict[int, _Report] = {}
    for place, one in enumerate(request.rows):
        where = ("rows", place)
        if one.index >= contexts:
            raise InvalidRequest.at((*where, "index"), f"the call had {contexts} context(s), the first has index 0")
        if one.index in reports:
            raise InvalidRequest.at((*where, "index"), "an earlier row has this index already")
        if not (one.outcomes or one.actual_decision):
            raise InvalidRequest.at(where, "send outcomes or actual_decision; there is nothing to record")
        reports[one.index] = _Report(one.outcomes, one.actual_decision, where)
    return reports


def _check_names(reports: dict[int, _Report], known: Sequence[str], field: str) -> None:
    names = set(known)
    for one in reports.values():
        values: Values = getattr(one, field)
        if not values.keys() <= names:
            unknown = next(name for name in values if name not in names)
            what = "outcomes" if field == "outcomes" else "decisions"
            raise InvalidRequest.at((*one.where, field, unknown), f"the posterior's {what} are {', '.join(known)}")


def _read_recorded(session: Session, prescription_id: str) -> dict[int, OutcomeRow]:
    return {row.number: row for row in service.outcomes_of(session, [prescription_id])}


def _find_changes(reports: dict[int, _Report], before: dict[int, OutcomeRow], again: bool) -> dict[int, _Report]:
    """Return the values to record for the contexts with new ones."""
    changed: dict[int, _Report] = {}
    for number, one in reports.items():
        old = before.get(number)
        if old is None or again:
            outcomes, actual = _drop_nulls(one.outcomes), _drop_nulls(one.actual_decision)
        else:
            outcomes = _merge(old.outcomes, one, "outcomes")
            actual = _merge(old.actual_decision, one, "actual_decision")
        if old is None or (outcomes, actual) != (old.outcomes, old.actual_decision):
            changed[number] = _Report(outcomes, actual, one.where)
    return changed


def _drop_nulls(values: Values) -> Values:
    return {name: value for name, value in values.items() if value is not None}


def _merge(old: Values, one: _Report, field: str) -> Values:
    new = _drop_nulls(getattr(one, field))
    for name, value in new.items():
        if name in old and old[name] != value:
            detail = "another value is recorded already; send replace if the recorded one was wrong"
            raise ConflictError(detail, ((*one.where, field, name), detail))
    return old | new


def _price_changes(
    problem: DecisionProblem,
    outcomes: Sequence[str],
    decisions: Sequence[str],
    changed: dict[int, _Report],
    decided: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the rows to store, each with promised and realised costs; ``outcomes`` and ``decisions`` are names."""
    numbers = list(changed)
    realised = _matrix([changed[number].outcomes for number in numbers], outcomes)
    answered = _matrix([decided[number]["decision"] for number in numbers], decisions)
    actual = _matrix([changed[number].actual_decision for number in numbers], decisions)
    complete = realised.isfinite().all(dim=1)
    best = torch.full_like(answered, math.nan)
    if complete.any():
        best[complete] = decide_for_outcomes(problem, realised[complete]).double()
    costs = [_costs(problem, each, realised) for each in (answered, actual, best)]
    rows = []
    for number, realised_cost, actual_cost, best_cost in zip(numbers, *costs, strict=True):
        promise = decided[number]
        quantiles = promise["cost_quantiles"]
        rows.append(
            {
                "number": number,
                "outcomes": changed[number].outcomes,
                "actual_decision": changed[number].actual_decision,
                "promised": promise["expected_cost"],
                "low": quantiles["0.05"],
                "high": quantiles["0.95"],
                "realised_cost": realised_cost,
                "actual_decision_cost": actual_cost,
                "best_cost": best_cost,
            }
        )
    return rows


def _matrix(rows: list[dict[str, Any]], names: Sequence[str]) -> Tensor:
    """Return named values as a matrix (n, names), NaN for missing ones."""
    listed = [[math.nan if row.get(name) is None else row[name] for name in names] for row in rows]
    return torch.tensor(listed, dtype=torch.float64).view(len(rows), len(names))


def _costs(problem: DecisionProblem, decisions: Tensor, outcomes: Tensor) -> list[float | None]:
    """Return the costs of decisions (n, d_z) with outcomes (n, d_y); None if a number is missing."""
    costs = torch.full((len(outcomes),), math.nan, dtype=torch.float64)
    known = decisions.isfinite().all(dim=1) & outcomes.isfinite().all(dim=1)
    if known.any():
        costs[known] = problem.cost(decisions[known], outcomes[known]).double()
    return [cost if math.isfinite(cost) else None for cost in costs.tolist()]


def _store(
    prescription_id: str, before: dict[int, OutcomeRow], rows: list[dict[str, Any]], by: str | None
) -> dict[int, OutcomeRow] | None:
    """Store rows and return all recorded ones; None if others were recorded since the read ``before``."""
    with transaction() as session:
        # The first write takes the lock, also on SQLite: nobody else records for this prescription until the end.
        entry = PrescriptionRow.id == prescription_id
        touched = sa.update(PrescriptionRow).where(entry).values(recorded=PrescriptionRow.recorded)
        if not affected_rows(session, touched):
            raise NotFoundError(service.MISSING)
        if not _same(_read_recorded(session, prescription_id), before):
            return None
        session.expire_all()
        if rows:
            moment = now()
            common = {"prescription_id": prescription_id, "recorded_at": moment, "recorded_by": by}
            session.execute(_upsert(session), [row | common for row in rows])
        recorded = _read_recorded(session, prescription_id)
        session.execute(sa.update(PrescriptionRow).where(entry).values(recorded=len(recorded)))
    return recorded


def _same(one: dict[int, OutcomeRow], other: dict[int, OutcomeRow]) -> bool:
    return one.keys() == other.keys() and all(
        (one[number].outcomes, one[number].actual_decision) == (other[number].outcomes, other[number].actual_decision)
        for number in one
    )


def _upsert(session: Session) -> Any:
    inserting: Any = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    statement, names = inserting(OutcomeRow), [column.name for column in sa.inspect(OutcomeRow).columns]
    fresh = {name: statement.excluded[name] for name in names if name not in _KEY}
    return statement.on_conflict_do_update(index_elements=_KEY, set_=fresh)
