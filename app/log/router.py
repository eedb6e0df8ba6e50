"""/v1/prescriptions"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, time
from typing import Annotated, TypeVar

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
from app.log.service import LogFilter
from app.prescriptions.offload import QUICK_SECONDS, quickly
from app.prescriptions.service import CALL_KINDS, compute
from app.settings import get_settings
from bco_core.errors import OutOfTime

router = APIRouter(prefix="/v1/prescriptions", tags=["prescriptions"], route_class=ScopedRoute)

# An answer is in the log after this long at the latest, unless the database is out.
WRITTEN_SECONDS = 1.0
_RETRY_SECONDS = 0.1

Value = TypeVar("Value")


def log_filter(
    posterior_id: str | None = None,
    kind: Kind | None = None,
    key: Annotated[str | None, Query(description="the id of the caller's key")] = None,
    since: Annotated[Moment | None, Query(description="such as 2026-01-31T06:00:00Z")] = None,
    until: Moment | None = None,
    has_outcome: Annotated[bool | None, Query(description="whether any context has a recorded outcome")] = None,
) -> LogFilter:
    return LogFilter(posterior_id, kind, key, since, until, has_outcome)


FilterQuery = Annotated[LogFilter, Depends(log_filter)]


async def _once_written(prescription_id: str, look: Callable[[], Value]) -> Value:
    """Return what ``look`` returns; retry for an answer of a moment ago, which some process may not have written."""
    while True:
        try:
            return await anyio.to_thread.run_sync(look)
        except NotFoundError:
            if not is_id(prescription_id) or abs(time() - created_at(prescription_id)) > WRITTEN_SECONDS:
                raise
        await anyio.sleep(_RETRY_SECONDS)


@router.get("")
def list_prescriptions(
    caller: Reader,
    only: FilterQuery,
    limit: Limit = 50,
    cursor: str | None = None,
    first: Annotated[bool, Query(description="add each call's first context and its answer")] = False,
) -> Page[ListedPrescription]:
    """List logged calls: all, or those of a posterior, kind, key or time span, with or without outcome."""
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
    only: FilterQuery,
    format: Annotated[Format, Query(description="csv, or parquet for exact numbers")] = "csv",
) -> StreamingResponse:
    """A table with a row for each context: context, outcomes, `decision.…`, `actual_decision.…` and their costs.

    It can be uploaded as a data set. Its columns are those of the newest prescription.
    """
    known = export.columns(caller.workspace, only)
    return StreamingResponse(
        export.pieces(caller.workspace, only, known, format),
        media_type=export.MEDIA_TYPES[format],
        headers={"Content-Disposition": f'attachment; filename="prescriptions.{format}"'},
    )


@router.get("/{prescription_id}", response_model=PrescriptionRecord)
async def read_prescription(prescription_id: str, caller: Reader) -> Response:
    """Read the request, the answer as it was sent, and its outcomes."""
    body = await _once_written(prescription_id, lambda: service.read(caller.workspace, prescription_id))
    return Response(body, media_type="application/json")


@router.post("/{prescription_id}/outcome", response_model=RecordedAnswer)
async def record_outcome(prescription_id: str, request: NewOutcome, caller: Trainer, http: Request) -> Response:
    """Record realised outcomes and the decision actually taken; the answer has their costs and the promised cost.

    The same values may be sent again, and missing ones later. Other values get 409 without `replace`.
    """
    state, deadline = http.app.state, monotonic() + get_settings().prescribe_seconds
    workspace, by = caller.workspace, caller.key_id

    def here() -> bytes | None:
        return quickly(
            lambda: outcomes.record(state.posteriors, workspace, prescription_id, request, by, QUICK_SECONDS)
        )

    body = await _once_written(prescription_id, here)
    if body is None:
        # A solver process cannot see answers that are not written yet.
        await _once_written(prescription_id, lambda: service.get(workspace, prescription_id))
        task = {"workspace": workspace, "prescription_id": prescription_id, "by": by, "deadline": deadline}
        sent = orjson.dumps(task | {"request": request.model_dump()})
        try:
            _, body = await state.solvers.solve(http, workspace, "outcome", prescription_id, sent, deadline)
        except OutOfTime:
            limit = f"{get_settings().prescribe_seconds} s (BCO_PRESCRIBE_SECONDS)"
            raise UnavailableError(f"costing the outcomes takes longer than {limit}; send fewer rows") from None
    return Response(body, media_type="application/json")


@router.post("/{prescription_id}/reproduce", response_model=ReproduceAnswer)
async def reproduce_prescription(prescription_id: str, caller: Reader, http: Request) -> Response:
    """Answer a logged request again, by the same posterior and the same rows, and compare the answers.

    They are the same bit for bit, except for two-stage problems, whose solver learns from request to request, and for
    calls cut off by a time limit.
    """

    def look() -> service.LogEntry:
        entry = service.get(caller.workspace, prescription_id)
        reproduce.check(entry)
        return entry

    entry = await _once_written(prescription_id, look)
    row, revision = entry.row, reproduce.revision(entry)
    request = CALL_KINDS[row.kind].model.model_validate(parse_json(entry.request))
    body = await compute(http, row.kind, caller.workspace, row.posterior_id, request, revision)
    comparison = await anyio.to_thread.run_sync(reproduce.compare, entry, body)
    return Response(comparison, media_type="application/json")
