"""/v1/posteriors/{id}: prescribe, evaluate, drift"""

from __future__ import annotations

from time import monotonic
from typing import Annotated

import anyio
import orjson
from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.http.errors import InvalidRequest, UnavailableError
from app.http.routes import ScopedRoute
from app.http.security import Reader
from app.http.tables import PARQUET
from app.prescriptions.drift import DriftAnswer, Source, judge_log
from app.prescriptions.schemas import EvaluateAnswer, EvaluateRequest, PrescribeAnswer, PrescribeRequest
from app.prescriptions.service import answer
from app.prescriptions.tables import check_table, scenario_table
from app.settings import get_settings
from bco_core.errors import OutOfTime

router = APIRouter(prefix="/v1/posteriors", tags=["prescriptions"], route_class=ScopedRoute)


@router.post(
    "/{posterior_id}/prescribe",
    response_model=PrescribeAnswer,
    responses={200: {"content": {PARQUET: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def prescribe(posterior_id: str, request: PrescribeRequest, caller: Reader, http: Request) -> Response:
    """Decide for one or many contexts: the decision, its cost distribution, and its gain over the MAP decision.

    The same request gives the same answer, bit for bit, as long as the posterior's digest is the same; for two-stage
    problems up to rounding in the last digits, since their solver learns from request to request. ``include`` adds
    parts to the answer; clients that accept Parquet get the scenarios alone as a table.
    """
    as_table = PARQUET in http.headers.get("accept", "")
    if as_table:
        check_table(request)
    body = await answer(http, "prescribe", caller.workspace, posterior_id, request)
    if as_table:
        table = await anyio.to_thread.run_sync(scenario_table, body, limiter=http.app.state.prescribers)
        return Response(table, media_type=PARQUET)
    return Response(body, media_type="application/json")


@router.post("/{posterior_id}/evaluate", response_model=EvaluateAnswer)
async def evaluate(posterior_id: str, request: EvaluateRequest, caller: Reader, http: Request) -> Response:
    """Judge decisions of your own over the scenarios of ``prescribe``, each compared with its decision.

    A decision that breaks rules of the problem is costed too, and the answer lists the rules. We choose the best values
    for entries that a decision omits or gives as null.
    """
    body = await answer(http, "evaluate", caller.workspace, posterior_id, request)
    return Response(body, media_type="application/json")


@router.get("/{posterior_id}/drift", response_model=DriftAnswer)
async def read_posterior_drift(
    posterior_id: str,
    caller: Reader,
    http: Request,
    dataset_id: Annotated[
        str | None, Query(description="judge all rows of this data set; by default rows added after learning")
    ] = None,
    source: Annotated[
        Source, Query(description="log: judge logged prescriptions with a recorded outcome by their promised costs")
    ] = "dataset",
) -> Response:
    """Compare promised with realised costs on later rows: decide for the latest 5,000 and cost their outcomes."""
    if source == "log":
        if dataset_id is not None:
            raise InvalidRequest.at(("query", "dataset_id"), "the log has outcomes of its own; leave dataset_id out")
        verdict = await run_in_threadpool(judge_log, caller.workspace, posterior_id)
        return Response(verdict.model_dump_json(), media_type="application/json")
    deadline = monotonic() + get_settings().prescribe_seconds
    task = {"workspace": caller.workspace, "posterior_id": posterior_id, "dataset_id": dataset_id, "deadline": deadline}
    with http.app.state.admission.slot(caller.workspace):
        try:
            _, body = await http.app.state.solvers.solve(
                http, caller.workspace, "drift", posterior_id, orjson.dumps(task), deadline
            )
        except OutOfTime:
            limit = f"{get_settings().prescribe_seconds} s (BCO_PRESCRIBE_SECONDS)"
            raise UnavailableError(f"not a single row could be judged within {limit}; try again later") from None
    return Response(body, media_type="application/json")
