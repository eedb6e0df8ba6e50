"""Prescriptions that may take long are made in solver processes (:mod:`app.solving`).

Large calls go there at once. Any other call is tried here first, for a moment; if it takes longer, it is begun again
there, and the next one like it goes there at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from time import monotonic
from typing import TypeVar

import anyio
import orjson
from cachetools import TTLCache
from fastapi import Request

from app import metrics
from app.prescriptions.context import prescribe_until, too_long
from app.prescriptions.schemas import PrescribeRequest
from app.solving import Solvers
from bco_core import deadline
from bco_core.errors import OutOfTime

# For how long a decision is tried here, and a posterior that is not in memory is made ready. Contexts × scenarios
# beyond which a call is not even tried.
QUICK_SECONDS = 0.2
LOAD_SECONDS = 2.0
LARGE = 1_000_000

Answers = TypeVar("Answers")
# The least number of contexts that took long lately, for each kind of call.
SlowCalls = TTLCache[Hashable, int]


def slow_calls() -> SlowCalls:
    return TTLCache(10_000, ttl=600.0)


def is_slow(known: SlowCalls, posterior_id: str, request: PrescribeRequest) -> bool:
    count = request.work
    return count * request.scenarios > LARGE or count >= known.get(_kind(posterior_id, request), math.inf)


def _kind(posterior_id: str, request: PrescribeRequest) -> Hashable:
    plain = request.risk is None, request.problem_patch is None, frozenset(request.include)
    return type(request), posterior_id, request.policy, request.scenarios, request.costs_over, plain


def quickly(answer: Callable[[], Answers]) -> Answers | None:
    """The answers, unless they take long."""
    try:
        with deadline.until(monotonic() + LOAD_SECONDS, quick=True):
            return answer()
    except OutOfTime:
        return None


async def elsewhere(
    http: Request,
    workspace: str,
    posterior_id: str,
    request: PrescribeRequest,
    began: float,
    task: str = "prescribe",
    revision: int | None = None,
) -> bytes:
    """The answer by a solver process: the best there is when the time is up, or 503."""
    state = http.app.state
    kind, count = _kind(posterior_id, request), request.work
    state.slow[kind] = min(state.slow.get(kind, math.inf), count)

    def asked() -> bytes:
        whose = {"workspace": workspace, "posterior_id": posterior_id, "revision": revision}
        return orjson.dumps(whose | {"request": request.model_dump(), "began": began})

    solvers: Solvers = state.solvers
    body = await anyio.to_thread.run_sync(asked, limiter=state.prescribers)
    try:
        until = prescribe_until(request, began)
        facts, answer = await solvers.solve(http, workspace, task, posterior_id, body, until)
    except OutOfTime:
        raise too_long(request) from None
    for status, solver, number in facts["found"]:
        metrics.count_prescriptions([status] * number, [solver] * number)
    return answer
