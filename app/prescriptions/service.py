"""Answer prescribe and evaluate requests: resolve aliases, limit concurrency, then decide here or in a solver process.

The fast path, the router and the log's ``reproduce`` share this path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import NamedTuple

from fastapi import Request

from app.aliases import service as aliases
from app.aliases.schemas import is_name
from app.http.errors import HttpError, NotFoundError
from app.prescriptions.batching import Batcher
from app.prescriptions.cache import PosteriorCache
from app.prescriptions.context import AnswerBody, PrescribeCall, with_batch_key
from app.prescriptions.evaluate import evaluate
from app.prescriptions.offload import QUICK_SECONDS, is_slow, offload, quickly
from app.prescriptions.prescribe import prescribe
from app.prescriptions.schemas import EvaluateRequest, PrescribeRequest

Answers = Sequence[AnswerBody | Exception | None]


class CallKind(NamedTuple):
    """The request model of a kind of call, the function that answers calls, and whether calls may share a batch."""

    model: type[PrescribeRequest]
    answer: Callable[[PosteriorCache, Sequence[PrescribeCall], float], list[AnswerBody | Exception]]
    batched: bool


CALL_KINDS = {
    "prescribe": CallKind(PrescribeRequest, prescribe, batched=True),
    "evaluate": CallKind(EvaluateRequest, evaluate, batched=False),
}


async def answer(http: Request, kind: str, workspace: str, name: str, request: PrescribeRequest) -> bytes:
    """Answer a request to the posterior of an id or alias as JSON, with its id in the log.

    The posterior of an alias is looked up at most once a second.
    """
    if not is_name(name):
        body = await compute(http, kind, workspace, name, request)
    else:
        remembered, key = http.app.state.aliases, aliases.key(workspace, name)
        look_up = partial(aliases.look_up, workspace, name)
        posterior_id = await remembered.get(key, look_up)
        try:
            body = await compute(http, kind, workspace, posterior_id, request)
        except HttpError as error:
            # The alias may have moved a moment ago, and its former posterior been deleted.
            if error.status != NotFoundError.status:
                raise
            remembered.forget(key)
            moved_to = await remembered.get(key, look_up)
            if moved_to == posterior_id:
                raise
            body = await compute(http, kind, workspace, moved_to, request)
    content: bytes = http.app.state.log.keep(kind, http, request, body)
    return content


async def compute(
    http: Request,
    kind: str,
    workspace: str,
    posterior_id: str,
    request: PrescribeRequest,
    revision: int | None = None,
) -> AnswerBody:
    """Compute the answer to a request, together with others that wait, or in a solver process if it takes long.

    Features look back on ``revision`` of the posterior's data set, on the newest if None.
    """
    state = http.app.state
    call = PrescribeCall(workspace, posterior_id, request, monotonic(), revision)

    def decide(calls: Sequence[PrescribeCall]) -> Answers:
        answers = quickly(lambda: CALL_KINDS[kind].answer(state.posteriors, calls, QUICK_SECONDS))
        return answers or [None] * len(calls)

    with state.admission.slot(workspace):
        body = None
        if not is_slow(state.slow, call):
            call, key = with_batch_key(state.posteriors, call)
            batcher: Batcher[PrescribeCall, AnswerBody | None] = state.batcher
            body = await batcher.answer(key if CALL_KINDS[kind].batched else None, call, request.work, decide)
        return body or await offload(http, kind, call)
