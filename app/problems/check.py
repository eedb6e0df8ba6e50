"""Check that a problem can be built from a specification: small ones here, for a moment, others in a solver process,
where a long check blocks no other request."""

from __future__ import annotations

from time import monotonic
from typing import Any

import anyio
import orjson
from fastapi import Request

from app.http.errors import UnavailableError, of_core
from app.problems.schemas import NewProblem
from app.settings import get_settings
from bco_core import deadlines
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.problems.registry import check_problem

QUICK_SECONDS = 0.2
# Bytes of a specification beyond which it goes to a solver process at once.
LARGE = 20_000


async def check(http: Request, request: NewProblem) -> None:
    """Refuse a specification that no problem can be built from, at its place in the request."""
    state, seconds = http.app.state, get_settings().prescribe_seconds
    deadline = monotonic() + seconds
    try:
        body = await anyio.to_thread.run_sync(_check_here, request, deadline, limiter=state.checkers)
        if body is not None:
            await state.solvers.solve(http, http.scope["caller"].workspace, "check_problem", "", body, deadline)
    except InvalidInput as error:
        raise of_core(error, "spec") from None
    except OutOfTime:
        detail = f"the problem could not be checked within {seconds} s (BCO_PRESCRIBE_SECONDS); make it smaller"
        raise UnavailableError(detail) from None


def _check_here(request: NewProblem, deadline: float) -> bytes | None:
    """Return None if the problem was built here, or the body for a solver process."""
    spec: dict[str, Any] = request.spec.model_dump()
    body = orjson.dumps({"spec": spec, "deadline": deadline})
    if len(body) > LARGE:
        return body
    try:
        with deadlines.until(monotonic() + QUICK_SECONDS, quick=True):
            check_problem(spec)
    except OutOfTime:
        return body
    return None
