"""/v1/posteriors/{id}/prescribe"""

from __future__ import annotations

from time import monotonic

import anyio
import orjson
from fastapi import APIRouter, Request, Response

from app.http.security import Reader
from app.prescriptions import service
from app.prescriptions.admission import place, turn
from app.prescriptions.schemas import PrescribeAnswer, PrescribeRequest
from app.prescriptions.slow import QUICK_SECONDS, elsewhere, is_slow, quickly

router = APIRouter(prefix="/v1/posteriors", tags=["prescriptions"])


@router.post("/{posterior_id}/prescribe", response_model=PrescribeAnswer)
async def prescribe(posterior_id: str, request: PrescribeRequest, caller: Reader, http: Request) -> Response:
    """Decide for one or many contexts: the decision, what it may cost, and what hedging buys against the MAP decision.

    The same request gives the same answer, bit for bit, as long as the posterior's digest is the same; for two-stage
    problems up to rounding in the last digits, since their solver learns from request to request.
    """
    state, began = http.app.state, monotonic()

    def answer() -> bytes:
        # The service builds exactly PrescribeAnswer; validating ten thousand again would cost more than prescribing.
        return orjson.dumps(
            service.prescribe(state.posteriors, caller.workspace, posterior_id, request, began, QUICK_SECONDS)
        )

    with place(state.places):
        body = None
        if not is_slow(state.slow, posterior_id, request):
            async with turn(state.turns):
                body = await anyio.to_thread.run_sync(quickly, answer, limiter=state.prescribers)
        if body is None:
            body = await elsewhere(http, caller.workspace, posterior_id, request, began)
    return Response(body, media_type="application/json")
