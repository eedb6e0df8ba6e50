"""/v1/posteriors/{id}/prescribe"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import Annotated

import anyio
import orjson
from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.aliases import service as aliases
from app.aliases.schemas import is_name
from app.http.errors import HttpError, InvalidRequest, NotFoundError, UnavailableError
from app.http.routes import ScopedRoute
from app.http.security import Reader
from app.http.tables import PARQUET
from app.prescriptions import context
from app.prescriptions import evaluate as evaluate_module
from app.prescriptions.batching import Together
from app.prescriptions.drift import DriftAnswer, Source
from app.prescriptions.drift_from_log import judge_log
from app.prescriptions.evaluate_schemas import EvaluateAnswer, EvaluateRequest
from app.prescriptions.offload import QUICK_SECONDS, elsewhere, is_slow, quickly
from app.prescriptions.schemas import PrescribeAnswer, PrescribeRequest
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
    """Decide for one or many contexts: the decision, what it may cost, and what hedging buys against the MAP decision.

    The same request gives the same answer, bit for bit, as long as the posterior's digest is the same; for two-stage
    problems up to rounding in the last digits, since their solver learns from request to request. With ``include`` the
    answer is opened; its scenarios alone are also served as a table, to those who accept Parquet.
    """
    if PARQUET in http.headers.get("accept", ""):
        check_table(request)
        body = await answer(http, caller.workspace, posterior_id, request)
        table = await anyio.to_thread.run_sync(scenario_table, body, limiter=http.app.state.prescribers)
        return Response(table, media_type=PARQUET)
    body = await answer(http, caller.workspace, posterior_id, request)
    return Response(body, media_type="application/json")


@router.post("/{posterior_id}/evaluate", response_model=EvaluateAnswer)
async def evaluate(posterior_id: str, request: EvaluateRequest, caller: Reader, http: Request) -> Response:
    """What decisions of your own would cost, over the scenarios of ``prescribe`` and against its decision, in pairs.

    What breaks a rule of the problem is priced all the same, and said. What a decision leaves out, or gives as null, is
    decided by us with the rest as it is given.
    """
    serve = partial(evaluation_of, http, caller.workspace, request=request)
    body = await by_name(http, caller.workspace, posterior_id, serve)
    return Response(http.app.state.log.keep("evaluate", http, request, body), media_type="application/json")


@router.get("/{posterior_id}/drift", response_model=DriftAnswer)
async def read_posterior_drift(
    posterior_id: str,
    caller: Reader,
    http: Request,
    dataset_id: Annotated[
        str | None, Query(description="judge all rows of this data set; by default rows that came after learning")
    ] = None,
    source: Annotated[
        Source, Query(description="log: judge prescriptions whose outcome was recorded, by what they have promised")
    ] = "dataset",
) -> Response:
    """Whether later rows cost what was promised: the latest 5,000 are decided for and costed with what happened."""
    if source == "log":
        if dataset_id is not None:
            raise InvalidRequest.at(("query", "dataset_id"), "the log has outcomes of its own; leave dataset_id out")
        found = await run_in_threadpool(judge_log, caller.workspace, posterior_id)
        return Response(found.model_dump_json(), media_type="application/json")
    until = monotonic() + get_settings().prescribe_seconds
    asked = {"workspace": caller.workspace, "posterior_id": posterior_id, "dataset_id": dataset_id, "until": until}
    with http.app.state.places.of(caller.workspace):
        try:
            _, body = await http.app.state.solvers.solve(
                http, caller.workspace, "drift", posterior_id, orjson.dumps(asked), until
            )
        except OutOfTime:
            limit = f"{get_settings().prescribe_seconds} s (BCO_PRESCRIBE_SECONDS)"
            raise UnavailableError(f"not a single row could be judged within {limit}; try again later") from None
    return Response(body, media_type="application/json")


async def answer(http: Request, workspace: str, named: str, request: PrescribeRequest) -> bytes:
    """The answer to a prescribe request as JSON, with its id in the log."""
    body = await by_name(http, workspace, named, partial(answer_of, http, workspace, request=request))
    kept: bytes = http.app.state.log.keep("prescribe", http, request, body)
    return kept


async def by_name(http: Request, workspace: str, named: str, serve: Callable[[str], Awaitable[bytes]]) -> bytes:
    """What the posterior of an id or alias serves. Which one an alias names is looked up at most once a second."""
    if not is_name(named):
        return await serve(named)
    remembered, key = http.app.state.aliases, aliases.key(workspace, named)
    named_lately = await remembered.get(key, lambda: aliases.look_up(workspace, named))
    try:
        return await serve(named_lately)
    except HttpError as error:
        # What it named a moment ago may have been deleted after it moved.
        if error.status != NotFoundError.status:
            raise
        remembered.forget(key)
        named_now = await remembered.get(key, lambda: aliases.look_up(workspace, named))
        if named_now == named_lately:
            raise
    return await serve(named_now)


async def answer_of(
    http: Request, workspace: str, posterior_id: str, request: PrescribeRequest, revision: int | None = None
) -> bytes:
    """The answer, decided together with those of other requests that wait, or elsewhere if it takes long.

    It looks back on a ``revision`` of the posterior's data set, on the newest one unless another is named.
    """
    state, began = http.app.state, monotonic()
    cache = state.posteriors

    def decide(requests: Sequence[PrescribeRequest]) -> Sequence[bytes | Exception | None]:
        answers = quickly(
            lambda: context.prescribe(cache, workspace, posterior_id, requests, began, QUICK_SECONDS, revision)
        )
        return answers or [None] * len(requests)

    with state.places.of(workspace):
        body = None
        if not is_slow(state.slow, posterior_id, request):
            kind = context.kind(cache, workspace, posterior_id, request) if revision is None else None
            together: Together[PrescribeRequest, bytes | None] = state.together
            body = await together.answer(kind, request, len(request.contexts), decide)
        if body is None:
            body = await elsewhere(http, workspace, posterior_id, request, began, revision=revision)
        return body


async def evaluation_of(
    http: Request, workspace: str, posterior_id: str, request: EvaluateRequest, revision: int | None = None
) -> bytes:
    """The answer to an evaluate request, found alone, or elsewhere if it takes long."""
    state, began = http.app.state, monotonic()

    def judge(requests: Sequence[PrescribeRequest]) -> Sequence[bytes | None]:
        found = partial(evaluate_module.answer, state.posteriors, workspace, posterior_id, request, began)
        return [quickly(lambda: found(QUICK_SECONDS, revision))]

    with state.places.of(workspace):
        body = None
        if not is_slow(state.slow, posterior_id, request):
            together: Together[PrescribeRequest, bytes | None] = state.together
            body = await together.answer(None, request, request.work, judge)
        if body is None:
            body = await elsewhere(http, workspace, posterior_id, request, began, "evaluate", revision)
        return body
