"""The log of prescribe and evaluate calls, and the outcomes recorded for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack

from bco_client import tables
from bco_client.records import CallRecord, ContextPrescription, OutcomeRecord, ReproduceReply
from bco_client.steps import Steps, ask, content, get, listed, record

Values = Mapping[str, float | None]


class CallFilter(TypedDict, total=False):
    """Filters for logged calls."""

    posterior_id: str
    kind: Literal["prescribe", "evaluate"]
    key: str
    since: datetime
    until: datetime
    has_outcome: bool


def list_all(*, limit: int | None = None, **only: Unpack[CallFilter]) -> Steps[list[CallRecord]]:
    """List logged calls, newest first."""
    return listed(CallRecord, "prescriptions", limit=limit, **_as_query(only))


def read(prescription_id: str) -> Steps[CallRecord]:
    """Return a logged call: its request, its answer and its outcomes."""
    return record(CallRecord, get("prescriptions", prescription_id))


def record_outcome(
    prescription: ContextPrescription | str,
    outcomes: Values | None = None,
    *,
    actual_decision: Values | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    replace: bool = False,
) -> Steps[OutcomeRecord]:
    """Record what happened and the decision actually taken: for a prescription, or by the id of a call that had one
    context; for several of its contexts in ``rows``.

    Sending the same values again is harmless; other values raise Conflict unless ``replace`` is set.
    """
    given = {"outcomes": outcomes, "actual_decision": actual_decision}
    body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if isinstance(prescription, ContextPrescription):
        if prescription.logged_as is None:
            raise ValueError("this prescription is not in the service's log, so no outcome can be recorded for it")
        rows, body, prescription = [{"index": prescription.index, **body}], {}, prescription.logged_as
    body |= {name: value for name, value in {"rows": rows, "replace": replace or None}.items() if value is not None}
    return record(OutcomeRecord, ask("prescriptions", prescription, "outcome", body=body))


def reproduce(prescription_id: str) -> Steps[ReproduceReply]:
    """Repeat a logged call and compare the answers bit for bit."""
    return record(ReproduceReply, ask("prescriptions", prescription_id, "reproduce"))


def export(*, to: tables.Kind = "rows", **only: Unpack[CallFilter]) -> Steps[Any]:
    """Return a table, one row for each context: context, outcomes, ``decision.…``, ``actual_decision.…`` and costs."""
    format = tables.fetched_as(to)
    file = yield from content(get("prescriptions", "export", format=format, **_as_query(only)))
    return tables.from_file(file, format, to)


def _as_query(only: CallFilter) -> dict[str, Any]:
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in only.items()}
