"""/v1/posteriors/{id}/prescribe"""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Response

from app.prescriptions import service
from app.prescriptions.schemas import PrescribeAnswer, PrescribeRequest
from app.security import Reader

router = APIRouter(prefix="/v1/posteriors", tags=["prescriptions"])


@router.post("/{posterior_id}/prescribe", response_model=PrescribeAnswer)
def prescribe(posterior_id: str, request: PrescribeRequest, caller: Reader) -> Response:
    """Decide for one or many contexts: the decision, what it may cost, and what hedging buys against the MAP decision.

    The same request gives the same answer, bit for bit, as long as the posterior's digest is the same.
    """
    # The service builds exactly PrescribeAnswer; validating ten thousand again would cost more than prescribing.
    return Response(
        orjson.dumps(service.prescribe(caller.workspace, posterior_id, request)), media_type="application/json"
    )
