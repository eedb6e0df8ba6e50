"""The log: what was prescribed and evaluated, and what happened then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack

from bco_client import tables
from bco_client.records import LoggedCall, Prescription, Recorded, Reproduced
from bco_client.steps import Steps, ask, content, get, listed, record

Values = Mapping[str, float | None]


class Filter(TypedDict, total=False):
    """Which calls; what is not given does not matter."""

    posterior_id: str
    kind: Literal["prescribe", "evaluate"]
    key: str
    since: datetime
    until: datetime
    has_outcome: bool


def list_all(*, limit: int | None = None, **only: Unpack[Filter]) -> Steps[list[LoggedCall]]:
    """What was prescribed and evaluated, newest first."""
    return listed(LoggedCall, "prescriptions", limit=limit, **_asked(only))


def read(prescription_id: str) -> Steps[LoggedCall]:
    """Request, answer as it was sent, and what happened later."""
    return record(LoggedCall, get("prescriptions", prescription_id))


def record_outcome(
    prescription: Prescription | str,
    outcomes: Values | None = None,
    *,
    actual_decision: Values | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    replace: bool = False,
) -> Steps[Recorded]:
    """Record what happened and the decision actually taken: for a prescription, or by the id of a call that had one
    context; for several of its contexts in ``rows``.

    The same values may be sent again; others raise Conflict unless ``replace`` is asked for.
    """
    given = {"outcomes": outcomes, "actual_decision": actual_decision}
    body: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if isinstance(prescription, Prescription):
        if prescription.logged_as is None:
            raise ValueError("the service keeps no log of this prescription, so nothing can be recorded of it")
        rows, body, prescription = [{"index": prescription.index, **body}], {}, prescription.logged_as
    body |= {name: value for name, value in {"rows": rows, "replace": replace or None}.items() if value is not None}
    return record(Recorded, ask("prescriptions", prescription, "outcome", body=body))


def reproduce(prescription_id: str) -> Steps[Reproduced]:
    """Decide again as was asked then: is the answer the same, bit for bit?"""
    return record(Reproduced, ask("prescriptions", prescription_id, "reproduce"))


def export(*, to: tables.Kind = "rows", **only: Unpack[Filter]) -> Steps[Any]:
    """A table with a row for each context: context, outcomes, ``decision.…``, ``actual_decision.…`` and their costs."""
    format = tables.fetched_as(to)
    found = yield from content(get("prescriptions", "export", format=format, **_asked(only)))
    return tables.from_file(found, format, to)


def _asked(only: Filter) -> dict[str, Any]:
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in only.items()}
