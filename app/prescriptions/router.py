"""/v1/posteriors/{id}/prescribe"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial

import orjson
from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.prescriptions import service
from app.prescriptions.admission import Places, turn
from app.prescriptions.schemas import PrescribeAnswer, PrescribeRequest
from app.settings import get_settings

router = APIRouter(prefix="/v1/posteriors", tags=["prescriptions"])
# Prescriptions have threads of their own, so that many of them do not keep other requests waiting.
_threads = ThreadPoolExecutor(8, "prescribe")
places = Places()


@router.post("/{posterior_id}/prescribe", response_model=PrescribeAnswer)
async def prescribe(posterior_id: str, request: PrescribeRequest, caller: Reader, http: Request) -> Response:
    """Decide for one or many contexts: the decision, what it may cost, and what hedging buys against the MAP decision.

    The same request gives the same answer, bit for bit, as long as the posterior's digest is the same; for two-stage
    problems up to rounding in the last digits, since their solver learns from request to request.
    """
    with places.one(get_settings().max_prescriptions):
        # With the context of the request, so that log lines name it.
        work = partial(copy_context().run, _answer, caller.workspace, posterior_id, request)
        async with turn(http.app.state.turns):
            body = await asyncio.get_running_loop().run_in_executor(_threads, work)
    return Response(body, media_type="application/json")


def _answer(workspace: str, posterior_id: str, request: PrescribeRequest) -> bytes:
    # The service builds exactly PrescribeAnswer; validating ten thousand again would cost more than prescribing.
    return orjson.dumps(service.prescribe(workspace, posterior_id, request))
