"""What happened after a prescription and the decision actually taken: recorded once, and costed.

Values may come one after the other; what is recorded is changed only where ``replace`` is asked for. Costs are computed
between two looks at what is recorded, so that nobody waits for a solver while the database is locked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple

import sqlalchemy as sa
import torch
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from torch import Tensor

from app.db.base import now
from app.db.engine import affected, transaction
from app.db.tables import OutcomeRow, PosteriorRow, PrescriptionRow
from app.http.errors import ConflictError, InvalidRequest, NotFoundError, UnavailableError
from app.http.routes import parse_json
from app.log import service
from app.log.schemas import NewOutcome, RecordedAnswer, Values
from app.prescriptions.cache import Cache, Ready, ready
from app.prescriptions.patching import asked_for
from app.problems.schemas import outcome_names
from bco_core import deadline
from bco_core.policies import decide_for_outcomes
from bco_core.problems.base import DecisionProblem

# How often others may be first before this is given up.
_TRIES = 5
_KEY = ("prescription_id", "number")
GONE = "the posterior of this prescription was deleted, so nobody can tell what its outcomes cost"

Pointer = tuple[str | int, ...]


class _Said(NamedTuple):
    """What a request says of one context, and where in the request it does."""

    outcomes: Values
    actual_decision: Values
    where: Pointer


def record(
    cache: Cache, workspace: str, prescription_id: str, asked: NewOutcome, by: str | None, seconds: float
) -> bytes:
    """Record and cost what happened: JSON in the shape of ``RecordedAnswer``. OutOfTime if costing takes longer."""
    found = service.get(workspace, prescription_id)
    said = _said(asked, found.row.contexts)
    try:
        posterior = cache.row(workspace, found.row.posterior_id)
    except NotFoundError:
        raise ConflictError(GONE) from None
    if posterior.digest != found.row.digest:
        raise ConflictError(
            "the posterior of this prescription was replaced by another, which may cost outcomes otherwise"
        )
    loaded = ready(cache, posterior)
    _check_names(said, outcome_names(posterior.problem), "outcomes")
    _check_names(said, loaded.decisions, "actual_decision")
    decided = found.decided()
    for _ in range(_TRIES):
        with transaction() as session:
            before = _recorded(session, prescription_id)
        changed = _changed(said, before, asked.replace)
        with deadline.until(monotonic() + seconds):
            # What a call has changed of the problem counts for what came of it too.
            patch = parse_json(found.request).get("problem_patch")
            problem = asked_for(cache, posterior, loaded.problem, patch).problem
            rows = _costed(posterior, replace(loaded, problem=problem), changed, decided)
        stored = _store(prescription_id, before, rows, by)
        if stored is not None:
            rows_now = [service.recorded(stored[number]) for number in sorted(said)]
            return _answer(found.row, len(stored), rows_now)
    raise UnavailableError("others record outcomes of this prescription at the same moment; try again", retry_after=1)


def _answer(row: PrescriptionRow, recorded: int, rows: list[Any]) -> bytes:
    answer = RecordedAnswer(
        id=row.id, posterior_id=row.posterior_id, contexts=row.contexts, recorded=recorded, rows=rows
    )
    return answer.model_dump_json().encode()


def _said(asked: NewOutcome, contexts: int) -> dict[int, _Said]:
    """What is said, by the number of the context."""
    if not asked.rows:
        if contexts > 1:
            detail = f"the call had {contexts} contexts; say which ones by rows, each with its index"
            raise InvalidRequest.at(("outcomes" if asked.outcomes else "actual_decision",), detail)
        return {0: _Said(asked.outcomes, asked.actual_decision, ())}
    said: dict[int, _Said] = {}
    for place, one in enumerate(asked.rows):
        where = ("rows", place)
        if one.index >= contexts:
            raise InvalidRequest.at((*where, "index"), f"the call had {contexts} context(s), the first has index 0")
        if one.index in said:
            raise InvalidRequest.at((*where, "index"), "an earlier row has this index already")
        if not (one.outcomes or one.actual_decision):
            raise InvalidRequest.at(where, "send outcomes or actual_decision; there is nothing to record")
        said[one.index] = _Said(one.outcomes, one.actual_decision, where)
    return said


def _check_names(said: dict[int, _Said], known: Sequence[str], field: str) -> None:
    names = set(known)
    for one in said.values():
        values: Values = getattr(one, field)
        if not values.keys() <= names:
            stranger = next(name for name in values if name not in names)
            what = "outcomes" if field == "outcomes" else "decisions"
            raise InvalidRequest.at((*one.where, field, stranger), f"the posterior's {what} are {', '.join(known)}")


def _recorded(session: Session, prescription_id: str) -> dict[int, OutcomeRow]:
    return {row.number: row for row in service.outcomes_of(session, [prescription_id])}


def _changed(said: dict[int, _Said], before: dict[int, OutcomeRow], again: bool) -> dict[int, _Said]:
    """What is to be recorded of the contexts about which something new is said."""
    changed: dict[int, _Said] = {}
    for number, one in said.items():
        old = before.get(number)
        if old is None or again:
            outcomes, actual = _known(one.outcomes), _known(one.actual_decision)
        else:
            outcomes = _merged(old.outcomes, one, "outcomes")
            actual = _merged(old.actual_decision, one, "actual_decision")
        if old is None or (outcomes, actual) != (old.outcomes, old.actual_decision):
            changed[number] = _Said(outcomes, actual, one.where)
    return changed


def _known(values: Values) -> Values:
    return {name: value for name, value in values.items() if value is not None}


def _merged(old: Values, one: _Said, field: str) -> Values:
    new = _known(getattr(one, field))
    for name, value in new.items():
        if name in old and old[name] != value:
            detail = "another value is recorded already; send replace if that one was wrong"
            raise ConflictError(detail, ((*one.where, field, name), detail))
    return old | new


def _costed(
    posterior: PosteriorRow, loaded: Ready, changed: dict[int, _Said], decided: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows to be stored, each with what was promised and what came of it."""
    numbers, problem = list(changed), loaded.problem
    happened = _matrix([changed[number].outcomes for number in numbers], outcome_names(posterior.problem))
    answered = _matrix([decided[number]["decision"] for number in numbers], loaded.decisions)
    actual = _matrix([changed[number].actual_decision for number in numbers], loaded.decisions)
    complete = happened.isfinite().all(dim=1)
    best = torch.full_like(answered, math.nan)
    if complete.any():
        best[complete] = decide_for_outcomes(problem, happened[complete]).double()
    costs = [_costs(problem, decisions, happened) for decisions in (answered, actual, best)]
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
    """Named values as (n, names), NaN where there is none."""
    listed = [[math.nan if row.get(name) is None else row[name] for name in names] for row in rows]
    return torch.tensor(listed, dtype=torch.float64).view(len(rows), len(names))


def _costs(problem: DecisionProblem, decisions: Tensor, happened: Tensor) -> list[float | None]:
    """What decisions (n, d_z) cost with what happened (n, d_y); None where a number is missing or nothing helps."""
    costs = torch.full((len(happened),), math.nan, dtype=torch.float64)
    known = decisions.isfinite().all(dim=1) & happened.isfinite().all(dim=1)
    if known.any():
        costs[known] = problem.cost(decisions[known], happened[known]).double()
    return [cost if math.isfinite(cost) else None for cost in costs.tolist()]


def _store(
    prescription_id: str, before: dict[int, OutcomeRow], rows: list[dict[str, Any]], by: str | None
) -> dict[int, OutcomeRow] | None:
    """Store rows and tell all that is recorded by now; None if something was recorded since the look ``before``."""
    with transaction() as session:
        # The first write takes the lock, also on SQLite: nobody else records for this prescription until the end.
        kept = PrescriptionRow.id == prescription_id
        touched = sa.update(PrescriptionRow).where(kept).values(recorded=PrescriptionRow.recorded)
        if not affected(session, touched):
            raise NotFoundError(service.MISSING)
        if not _same(_recorded(session, prescription_id), before):
            return None
        session.expire_all()
        if rows:
            moment = now()
            common = {"prescription_id": prescription_id, "recorded_at": moment, "recorded_by": by}
            session.execute(_upsert(session), [row | common for row in rows])
        recorded = _recorded(session, prescription_id)
        session.execute(sa.update(PrescriptionRow).where(kept).values(recorded=len(recorded)))
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
