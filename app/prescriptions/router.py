"""/v1/posteriors/{id}/prescribe"""

from __future__ import annotations

import anyio
import orjson
from fastapi import APIRouter, Request, Response

from app.http.routes import Guarded
from app.http.security import Reader
from app.prescriptions import service
from app.prescriptions.admission import place, turn
from app.prescriptions.schemas import PrescribeAnswer, PrescribeRequest

router = APIRouter(prefix="/v1/posteriors", tags=["prescriptions"], route_class=Guarded)


@router.post("/{posterior_id}/prescribe", response_model=PrescribeAnswer)
async def prescribe(posterior_id: str, request: PrescribeRequest, caller: Reader, http: Request) -> Response:
    """Decide for one or many contexts: the decision, what it may cost, and what hedging buys against the MAP decision.

    The same request gives the same answer, bit for bit, as long as the posterior's digest is the same; for two-stage
    problems up to rounding in the last digits, since their solver learns from request to request.
    """
    state = http.app.state

    def answer() -> bytes:
        # The service builds exactly PrescribeAnswer; validating ten thousand again would cost more than prescribing.
        return orjson.dumps(service.prescribe(state.posteriors, caller.workspace, posterior_id, request))

    with place(state.places):
        async with turn(state.turns):
            body = await anyio.to_thread.run_sync(answer, limiter=state.prescribers)
    return Response(body, media_type="application/json")
