"""What every route with a body does before it reads one: authority first, then size, then JSON within bounds.

FastAPI reads and parses a body before it looks at who is asking. ``Guarded`` routes refuse a caller without the scope
first. A JSON parser holds the interpreter as long as it runs, whatever thread it runs in, so what keeps other requests
alive is how much it is given at once: bytes, values and depth.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive

from app.http.errors import InvalidRequest, TooLargeError
from app.http.security import check_scopes, scopes_of
from app.settings import get_settings

# The parser's own limit.
MOST_LEVELS = 200
# Routes that need little take little, in bytes; those that read no body may still be sent one.
SMALL_BODIES = {
    "/v1/jobs": 64_000,
    "/v1/aliases/{name}": 64_000,
    "/v1/webhooks": 64_000,
    "/v1/problems": 16_000_000,
    "/v1/problems/import": 32_000_000,
    "/v1/posteriors/{posterior_id}/batch-prescriptions": 64_000,
}
NO_BODY = 64_000
# Smaller ones are parsed sooner than handed to a thread.
_LARGE_BYTES = 50_000

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ScopedRoute(APIRoute):
    """A route class: scope before body, and bodies within the bounds of their address."""

    def unguarded(self) -> Handler:
        """What serves a request that may be served."""
        return super().get_route_handler()

    def get_route_handler(self) -> Handler:
        serve = self.unguarded()
        needed, path, reads = scopes_of(self.dependant), self.path, self.body_field is not None

        async def guarded(request: Request) -> Response:
            check_scopes(request.scope["caller"], needed)
            most = SMALL_BODIES.get(path) if reads else NO_BODY
            return await serve(_Bounded(request, most))

        return guarded


class _Bounded(Request):
    """A request whose body is cut off at a limit and whose JSON is refused before it costs much."""

    def __init__(self, request: Request, most: int | None) -> None:
        if most is None and not request.headers.get("content-type", "").startswith("multipart/"):
            most = get_settings().max_json_mb * 1_000_000
        super().__init__(request.scope, request.receive if most is None else _limited(request, most))

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) < _LARGE_BYTES:
                self._json = parsed(body)
            else:
                self._json = await run_in_threadpool(parsed, body)
        return self._json


def _limited(request: Request, most: int) -> Receive:
    """What a request sends, up to so many bytes."""
    size = f"{most // 1_000_000} MB" if most >= 1_000_000 else f"{most // 1_000} kB"
    error = TooLargeError(f"this address takes at most {size}; a table goes to /v1/datasets/upload, as CSV or Parquet")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise error
    receive, received = request.receive, 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise error
        return message

    return counted


@contextmanager
def _without_pauses() -> Iterator[None]:
    """While so much is made and nothing dropped, looking for what can be dropped costs ten times the parsing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def parsed(body: bytes) -> Any:
    """The value that a JSON text stands for, if it has few enough values and levels."""
    most = get_settings().max_json_values
    # Each value but the first stands behind a comma or a bracket; those in texts are counted too.
    if sum(map(body.count, (b",", b"[", b"{"))) > most:
        detail = f"the JSON has more than {most} values (BCO_MAX_JSON_VALUES); send a table as CSV or Parquet"
        raise TooLargeError(detail)
    try:
        with _without_pauses():
            return from_json(body)
    except ValueError as error:
        if "recursion" in str(error):
            raise InvalidRequest.at((), f"the JSON has more than {MOST_LEVELS} levels") from None
        if "escape" in str(error):
            # Half a character is JSON, if nothing else; where it stands is for the model to say.
            return json.loads(body)
        raise json.JSONDecodeError("invalid", "", 0) from None
