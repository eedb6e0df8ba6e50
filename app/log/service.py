"""Find, list and read logged prescriptions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.blobs import CorruptBlob
from app.db.engine import transaction
from app.db.former_names import logged_request
from app.db.tables import OutcomeRow, PrescriptionRow
from app.http.errors import NotFoundError
from app.http.routes import parse_json
from app.http.rows import find, matching, page
from app.ids import first_id
from app.log.schemas import FirstAnswer, PrescriptionSummary, RecordedOutcome
from app.log.writer import as_json, decompress

log = logging.getLogger(__name__)

# Calls of more compressed bytes have no first answer in lists.
_LISTED_BYTES = 32_000
MISSING = "the log has no prescription with this id; GET /v1/prescriptions lists those it has"


@dataclass(frozen=True)
class LogFilter:
    """Conditions on logged prescriptions; all of a workspace by default."""

    posterior_id: str | None = None
    kind: str | None = None
    key_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    has_outcome: bool | None = None

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        row = PrescriptionRow
        conditions = matching(row, posterior_id=self.posterior_id, kind=self.kind, key_id=self.key_id)
        # Ids sort by time.
        if self.since is not None:
            conditions.append(row.id >= first_id("pres", _milliseconds(self.since)))
        if self.until is not None:
            conditions.append(row.id < first_id("pres", _milliseconds(self.until)))
        if self.has_outcome is not None:
            conditions.append(row.recorded > 0 if self.has_outcome else row.recorded == 0)
        return conditions


def _milliseconds(moment: datetime) -> int:
    """Return the milliseconds since 1970; a time without a zone is UTC."""
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@dataclass(frozen=True)
class LogEntry:
    """A logged call with its request and answer as JSON, both checked against their digests."""

    row: PrescriptionRow
    request: bytes
    answer: bytes

    def contexts(self) -> list[Any]:
        contexts: list[Any] = parse_json(self.request)["contexts"]
        return contexts

    def decided(self) -> list[dict[str, Any]]:
        """Return the prescription of each context."""
        answer = orjson.loads(self.answer)
        if self.row.kind == "evaluate":
            return [one["ours"] for one in answer["evaluations"]]
        prescriptions: list[dict[str, Any]] = answer["prescriptions"]
        return prescriptions


def log_entry(row: PrescriptionRow) -> LogEntry:
    request = _in_new_names(decompress(row.request, row.request_sha256))
    return LogEntry(row, request, decompress(row.answer, row.answer_sha256))


def _in_new_names(request: bytes) -> bytes:
    """Return a logged request with the names of today; earlier versions had another name for the patch."""
    if b'"problem":' not in request:
        return request
    fields = parse_json(request)
    renamed = logged_request(fields)
    return request if renamed == fields else as_json(renamed)


def listing(workspace: str, limit: int, cursor: str | None, only: LogFilter) -> tuple[list[sa.Row[Any]], str | None]:
    columns = [getattr(PrescriptionRow, name) for name in PrescriptionSummary.model_fields]
    with transaction() as session:
        return page(session, PrescriptionRow, workspace, limit, cursor, *only.conditions(), columns=columns)


def first_answers(prescription_ids: Sequence[str]) -> dict[str, FirstAnswer]:
    """Return the answers to the first contexts of calls, by id; large and damaged calls are left out."""
    row = PrescriptionRow
    small = [sa.func.length(column) <= _LISTED_BYTES for column in (row.request, row.answer)]
    answers: dict[str, FirstAnswer] = {}
    with transaction() as session:
        for one in session.scalars(sa.select(row).where(row.id.in_(prescription_ids), *small)):
            try:
                answers[one.id] = _first(log_entry(one))
            except CorruptBlob:
                log.warning("the prescription %s is damaged, so the list shows no answer of it", one.id)
    return answers


def _first(entry: LogEntry) -> FirstAnswer:
    answer = entry.decided()[0]
    fields = {name: answer[name] for name in ("decision", "expected_cost", "status")}
    return FirstAnswer(context=entry.contexts()[0], **fields)


def get(workspace: str, prescription_id: str) -> LogEntry:
    with transaction() as session:
        row = find(session, PrescriptionRow, workspace, prescription_id)
    if row is None:
        raise NotFoundError(MISSING)
    return log_entry(row)


def outcomes_of(session: Session, prescription_ids: Sequence[str]) -> list[OutcomeRow]:
    """Return the recorded outcomes of prescriptions, in the order of their contexts."""
    row = OutcomeRow
    query = sa.select(row).where(row.prescription_id.in_(prescription_ids)).order_by(row.prescription_id, row.number)
    return list(session.scalars(query))


def read(workspace: str, prescription_id: str) -> bytes:
    """Return a ``PrescriptionRecord`` as JSON, with the answer as it was sent."""
    entry = get(workspace, prescription_id)
    with transaction() as session:
        outcomes = [recorded_outcome(row).model_dump(mode="json") for row in outcomes_of(session, [prescription_id])]
    summary = PrescriptionSummary.model_validate(entry.row, from_attributes=True).model_dump_json().encode()
    return b'%b,"request":%b,"answer":%b,"outcomes":%b}' % (
        summary[:-1],
        entry.request,
        entry.answer,
        orjson.dumps(outcomes),
    )


def recorded_outcome(row: OutcomeRow) -> RecordedOutcome:
    return RecordedOutcome(
        index=row.number,
        outcomes=row.outcomes,
        actual_decision=row.actual_decision,
        promised_cost=row.promised,
        realised_cost=row.realised_cost,
        actual_decision_cost=row.actual_decision_cost,
        best_cost=row.best_cost,
        regret=_less(row.realised_cost, row.best_cost),
        actual_decision_regret=_less(row.actual_decision_cost, row.best_cost),
        saved=_less(row.actual_decision_cost, row.realised_cost),
        recorded_at=row.recorded_at,
        recorded_by=row.recorded_by,
    )


def _less(cost: float | None, other: float | None) -> float | None:
    return None if cost is None or other is None else cost - other
