"""Slow calls are computed in solver processes (:mod:`app.solving`).

Large calls go there at once. Any other call is tried in this process first, for a moment; if it takes longer, it starts
again in a solver process, and the next call like it goes there at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from time import monotonic
from typing import TypeVar

import anyio
from cachetools import TTLCache
from fastapi import Request

from app import metrics
from app.prescriptions.context import AnswerBody, PrescribeCall
from app.solving import Solvers
from bco_core import deadlines
from bco_core.errors import OutOfTime

# Time to try a decision in this process, and time to load a posterior first.
QUICK_SECONDS = 0.2
LOAD_SECONDS = 2.0
# Calls with more contexts × scenarios are not tried in this process.
LARGE = 1_000_000

Answers = TypeVar("Answers")
# The least number of contexts that took long lately, by kind of call.
SlowCalls = TTLCache[Hashable, int]


def slow_calls() -> SlowCalls:
    return TTLCache(10_000, ttl=600.0)


def is_slow(slow: SlowCalls, call: PrescribeCall) -> bool:
    """Tell whether a call is large, or has as many contexts as one of its kind that took long."""
    work = call.request.work
    return work * call.request.scenarios > LARGE or work >= slow.get(_kind(call), math.inf)


def _kind(call: PrescribeCall) -> Hashable:
    request = call.request
    plain = request.risk is None, request.problem_patch is None, frozenset(request.include)
    return type(request), call.posterior_id, request.policy, request.scenarios, request.costs_over, plain


def quickly(answer: Callable[[], Answers]) -> Answers | None:
    """Return what ``answer`` returns, or None if it takes long."""
    try:
        with deadlines.until(monotonic() + LOAD_SECONDS, quick=True):
            return answer()
    except OutOfTime:
        return None


async def offload(http: Request, task: str, call: PrescribeCall) -> AnswerBody:
    """Answer a call in a solver process: with the best decision when the time is up, or 503."""
    state, kind = http.app.state, _kind(call)
    state.slow[kind] = min(state.slow.get(kind, math.inf), call.request.work)
    solvers: Solvers = state.solvers
    body = await anyio.to_thread.run_sync(call.to_json, limiter=state.prescribers)
    try:
        facts, content = await solvers.solve(http, call.workspace, task, call.posterior_id, body, call.deadline)
    except OutOfTime:
        raise call.too_long() from None
    for status, solver, count in facts["found"]:
        metrics.count_prescriptions([status] * count, [solver] * count)
    return AnswerBody(call.posterior_id, facts["digest"], content)
