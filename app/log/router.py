"""/v1/prescriptions"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time
from typing import Annotated, Any, TypeVar

import anyio
import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from app.http.errors import NotFoundError, UnavailableError
from app.http.routes import ScopedRoute, parse_json
from app.http.schemas import Limit, Moment, Page
from app.http.security import Reader, Trainer
from app.ids import created_at, is_id
from app.log import export, outcomes, reproduce, service
from app.log.schemas import (
    Format,
    Kind,
    ListedPrescription,
    NewOutcome,
    PrescriptionRecord,
    RecordedAnswer,
    ReproduceAnswer,
)
from app.log.service import Filter
from app.prescriptions.evaluate_schemas import EvaluateRequest
from app.prescriptions.offload import QUICK_SECONDS, quickly
from app.prescriptions.router import answer_of, evaluation_of
from app.prescriptions.schemas import PrescribeRequest
from app.settings import get_settings
from bco_core.errors import OutOfTime

router = APIRouter(prefix="/v1/prescriptions", tags=["prescriptions"], route_class=ScopedRoute)

# An answer is in the log after so many seconds at the latest, unless the database is out.
SETTLED_SECONDS = 1.0
_LOOK_SECONDS = 0.1
# How each kind of call is answered again: the model of its request, and what answers it.
ROADS: dict[str, tuple[Any, Any]] = {
    "prescribe": (PrescribeRequest, answer_of),
    "evaluate": (EvaluateRequest, evaluation_of),
}

Value = TypeVar("Value")


def wanted(
    posterior_id: str | None = None,
    kind: Kind | None = None,
    key: Annotated[str | None, Query(description="the id of the caller's key")] = None,
    since: Annotated[Moment | None, Query(description="such as 2026-01-31T06:00:00Z")] = None,
    until: Moment | None = None,
    has_outcome: Annotated[bool | None, Query(description="whether an outcome is recorded of any context")] = None,
) -> Filter:
    return Filter(posterior_id, kind, key, since, until, has_outcome)


Wanted = Annotated[Filter, Depends(wanted)]


async def _settled(prescription_id: str, look: Callable[[], Value]) -> Value:
    """What a look finds; one that was answered a moment ago, maybe by another process, may be on its way."""
    while True:
        try:
            return await anyio.to_thread.run_sync(look)
        except NotFoundError:
            if not is_id(prescription_id) or abs(time() - created_at(prescription_id)) > SETTLED_SECONDS:
                raise
        await anyio.sleep(_LOOK_SECONDS)


@router.get("")
def list_prescriptions(
    caller: Reader,
    only: Wanted,
    limit: Limit = 50,
    cursor: str | None = None,
    first: Annotated[bool, Query(description="tell each call's first context, and what was answered to it")] = False,
) -> Page[ListedPrescription]:
    """What was prescribed and evaluated: all, or of a posterior, kind, key or span of time, with or without outcome."""
    rows, next_cursor = service.listing(caller.workspace, limit, cursor, only)
    answers = service.first_answers([row.id for row in rows]) if first else {}
    items = [ListedPrescription(**row._mapping, first=answers.get(row.id)) for row in rows]
    return Page(items=items, next_cursor=next_cursor)


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses={200: {"content": {kind: {} for kind in export.MEDIA_TYPES.values()}, "description": "the file"}},
)
def export_prescriptions(
    caller: Reader,
    only: Wanted,
    format: Annotated[Format, Query(description="csv, or parquet for exact numbers")] = "csv",
) -> StreamingResponse:
    """A table with a row for each context: context, outcomes, `decision.…`, `actual_decision.…` and their costs.

    It can be sent as a data set. Its columns are those of the newest prescription that is asked for.
    """
    known = export.columns(caller.workspace, only)
    return StreamingResponse(
        export.pieces(caller.workspace, only, known, format),
        media_type=export.MEDIA_TYPES[format],
        headers={"Content-Disposition": f'attachment; filename="prescriptions.{format}"'},
    )


@router.get("/{prescription_id}", response_model=PrescriptionRecord)
async def read_prescription(prescription_id: str, caller: Reader) -> Response:
    """Request, answer as it was sent, and what happened later."""
    body = await _settled(prescription_id, lambda: service.read(caller.workspace, prescription_id))
    return Response(body, media_type="application/json")


@router.post("/{prescription_id}/outcome", response_model=RecordedAnswer)
async def record_outcome(prescription_id: str, request: NewOutcome, caller: Trainer, http: Request) -> Response:
    """Record what happened and the decision actually taken; the answer tells what that cost, and what was promised.

    The same values may be sent again, and missing ones later. Other values get 409 unless `replace` is asked for.
    """
    state, until = http.app.state, monotonic() + get_settings().prescribe_seconds
    workspace, by = caller.workspace, caller.key_id

    def here() -> bytes | None:
        return quickly(
            lambda: outcomes.record(state.posteriors, workspace, prescription_id, request, by, QUICK_SECONDS)
        )

    body = await _settled(prescription_id, here)
    if body is None:
        # A process of its own would not know what is on its way into the log.
        await _settled(prescription_id, lambda: service.get(workspace, prescription_id))
        asked = {"workspace": workspace, "prescription_id": prescription_id, "by": by, "until": until}
        sent = orjson.dumps(asked | {"request": request.model_dump()})
        try:
            _, body = await state.solvers.solve(http, workspace, "outcome", prescription_id, sent, until)
        except OutOfTime:
            limit = f"{get_settings().prescribe_seconds} s (BCO_PRESCRIBE_SECONDS)"
            raise UnavailableError(f"costing what happened takes longer than {limit}; send fewer rows") from None
    return Response(body, media_type="application/json")


@router.post("/{prescription_id}/reproduce", response_model=ReproduceAnswer)
async def reproduce_prescription(prescription_id: str, caller: Reader, http: Request) -> Response:
    """Decide again as was asked then, by the same posterior and the same rows: is the answer the same?

    It is the same bit for bit, but for two-stage problems, whose solver learns from request to request, and for calls
    that a time limit has cut off.
    """

    def look() -> service.Opened:
        found = service.get(caller.workspace, prescription_id)
        reproduce.check(found)
        return found

    found = await _settled(prescription_id, look)
    model, answer = ROADS[found.row.kind]
    request = model.model_validate(parse_json(found.request))
    body = await answer(http, caller.workspace, found.row.posterior_id, request, reproduce.revision(found))
    answered = await anyio.to_thread.run_sync(reproduce.compared, found, body)
    return Response(answered, media_type="application/json")
