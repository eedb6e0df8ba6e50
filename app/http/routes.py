"""Routes that check scope, size and JSON before FastAPI reads a body, and refuse unknown query parameters.

FastAPI reads and parses a body before it checks the caller. ``ScopedRoute`` refuses a caller without the scope first. A
JSON parser blocks the interpreter as long as it runs, in any thread, so bodies are limited in bytes, values and depth.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive

from app.http.errors import InvalidRequest, TooLargeError
from app.http.security import check_scopes, scopes_of
from app.settings import get_settings

# The parser's own limit.
MOST_LEVELS = 200
# Largest bodies of some routes, in bytes, and of routes that read no body.
SMALL_BODIES = {
    "/v1/jobs": 64_000,
    "/v1/aliases/{name}": 64_000,
    "/v1/webhooks": 64_000,
    "/v1/problems": 16_000_000,
    "/v1/problems/import": 32_000_000,
    "/v1/posteriors/{posterior_id}/batch-prescriptions": 64_000,
}
NO_BODY = 64_000
# Smaller bodies are parsed faster than they are handed to a thread.
_LARGE_BYTES = 50_000

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ScopedRoute(APIRoute):
    """A route class: checks the scope before it reads the body, and limits the body."""

    def unchecked_handler(self) -> Handler:
        """Return the handler of a request that has passed the checks."""
        return super().get_route_handler()

    def get_route_handler(self) -> Handler:
        serve = self.unchecked_handler()
        needed, path, reads = scopes_of(self.dependant), self.path, self.body_field is not None

        async def check_and_serve(request: Request) -> Response:
            check_scopes(request.scope["caller"], needed)
            most = SMALL_BODIES.get(path) if reads else NO_BODY
            return await serve(_LimitedRequest(request, most))

        return check_and_serve


class _LimitedRequest(Request):
    """A request whose body is limited and whose JSON is refused before it costs much."""

    def __init__(self, request: Request, most: int | None) -> None:
        if most is None and not request.headers.get("content-type", "").startswith("multipart/"):
            most = get_settings().max_json_mb * 1_000_000
        super().__init__(request.scope, request.receive if most is None else _limit(request, most))

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) < _LARGE_BYTES:
                self._json = parse_json(body)
            else:
                self._json = await run_in_threadpool(parse_json, body)
        return self._json


def _limit(request: Request, most: int) -> Receive:
    """Return the request's ``receive``, limited to ``most`` bytes."""
    size = f"{most // 1_000_000} MB" if most >= 1_000_000 else f"{most // 1_000} kB"
    error = TooLargeError(
        f"this address accepts at most {size}; upload tables to /v1/datasets/upload, as CSV or Parquet"
    )
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise error
    receive, received = request.receive, 0

    async def limited_receive() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise error
        return message

    return limited_receive


@contextmanager
def _without_gc() -> Iterator[None]:
    """Pause the garbage collector: while many objects are created and none dropped, it costs ten times the parsing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def parse_json(body: bytes) -> Any:
    """Return the value of a JSON text; refuse one with too many values or levels."""
    most = get_settings().max_json_values
    # Each value but the first follows a comma or a bracket; those inside strings are counted too.
    if sum(map(body.count, (b",", b"[", b"{"))) > most:
        detail = f"the JSON has more than {most} values (BCO_MAX_JSON_VALUES); send a table as CSV or Parquet"
        raise TooLargeError(detail)
    try:
        with _without_gc():
            return from_json(body)
    except ValueError as error:
        if "recursion" in str(error):
            raise InvalidRequest.at((), f"the JSON is nested more than {MOST_LEVELS} levels deep") from None
        if "escape" in str(error):
            # A lone surrogate is valid JSON; the model will say where it is.
            return json.loads(body)
        raise json.JSONDecodeError("invalid", "", 0) from None


# query parameters


def refuse_unknown_query(request: Request) -> None:
    """Refuse query parameters that the route does not declare; a dependency of every router."""
    if not request.query_params:
        return
    declared = _declared(request.scope["route"])
    unknown = [name for name in request.query_params if name not in declared]
    if unknown:
        choices = f"it accepts {', '.join(declared)}" if declared else "it accepts none"
        detail = f"this address does not have this query parameter; {choices}"
        raise InvalidRequest(detail, *((("query", name), detail) for name in unknown))


def _declared(route: APIRoute) -> list[str]:
    return [field.alias for field in get_flat_params(route.dependant) if isinstance(field.field_info, Query)]
