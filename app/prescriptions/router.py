"""/v1/posteriors/{id}/prescribe"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from fastapi import APIRouter, Request, Response

from app.http.routes import Guarded
from app.http.security import Reader
from app.prescriptions import service
from app.prescriptions.schemas import PrescribeAnswer, PrescribeRequest
from app.prescriptions.slow import QUICK_SECONDS, elsewhere, is_slow, quickly
from app.prescriptions.together import Together

router = APIRouter(prefix="/v1/posteriors", tags=["prescriptions"], route_class=Guarded)


@router.post("/{posterior_id}/prescribe", response_model=PrescribeAnswer)
async def prescribe(posterior_id: str, request: PrescribeRequest, caller: Reader, http: Request) -> Response:
    """Decide for one or many contexts: the decision, what it may cost, and what hedging buys against the MAP decision.

    The same request gives the same answer, bit for bit, as long as the posterior's digest is the same; for two-stage
    problems up to rounding in the last digits, since their solver learns from request to request.
    """
    body = await answer(http, caller.workspace, posterior_id, request)
    return Response(body, media_type="application/json")


async def answer(http: Request, workspace: str, posterior_id: str, request: PrescribeRequest) -> bytes:
    """The answer as JSON, decided together with those of other requests that wait, or elsewhere if it takes long."""
    state, began = http.app.state, monotonic()
    cache = state.posteriors

    def decide(requests: Sequence[PrescribeRequest]) -> Sequence[bytes | Exception | None]:
        answers = quickly(lambda: service.prescribe(cache, workspace, posterior_id, requests, began, QUICK_SECONDS))
        return answers or [None] * len(requests)

    with state.places.of(workspace):
        body = None
        if not is_slow(state.slow, posterior_id, request):
            kind = service.kind(cache, workspace, posterior_id, request)
            together: Together[PrescribeRequest, bytes | None] = state.together
            body = await together.answer(kind, request, len(request.contexts), decide)
        if body is None:
            body = await elsewhere(http, workspace, posterior_id, request, began)
        return body
