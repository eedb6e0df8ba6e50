"""Fast path that bypasses the router for small prescribe requests.

``POST /v1/posteriors/{id}/prescribe`` with a small JSON body is parsed, validated and answered here, behind the same
authentication, limits and records as all other requests. Any other request (with a query, another content type, an
invalid body, or a key that may not read) goes on to the router with its body, so that one place words every refusal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import orjson
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.tables import PARQUET
from app.prescriptions.schemas import PrescribeRequest
from app.prescriptions.service import answer

_PATH = re.compile(r"/v1/posteriors/([0-9A-Za-z._-]{1,64})/prescribe")
_JSON = re.compile(rb"application/json(;\s*charset=utf-8)?", re.IGNORECASE)
# Larger bodies are not parsed on the event loop.
_LARGEST = 32_000


@dataclass(frozen=True)
class _Route:
    """The route's name in the metrics, the same as the router's."""

    path: str = "/v1/posteriors/{posterior_id}/prescribe"


_ROUTE = _Route()


class FastPath:
    """Middleware before the router. Errors are answered by the exception handlers of the application ``of``."""

    def __init__(self, app: ASGIApp, of: FastAPI) -> None:
        self.app = app
        self._prescribe = ExceptionMiddleware(self._answer, handlers=of.exception_handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if match is None or not _is_plain(scope):
            await self.app(scope, receive, send)
            return
        scope["posterior_id"] = match[1]
        await self._prescribe(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = []
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
        try:
            # If the client has left, the last message has no body and the earlier ones are not valid JSON.
            request = PrescribeRequest.model_validate(orjson.loads(b"".join(one.get("body", b"") for one in messages)))
        except (orjson.JSONDecodeError, ValidationError):
            await self.app(scope, _replay(messages, receive), send)
            return
        scope["route"] = _ROUTE
        workspace, posterior_id = scope["caller"].workspace, scope["posterior_id"]
        content = await answer(Request(scope, receive), "prescribe", workspace, posterior_id, request)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def _is_plain(scope: Scope) -> bool:
    """Tell whether nothing about a request but its body needs the router."""
    if scope["query_string"] or "read" not in scope["caller"].scopes:
        return False
    kind, length = b"", b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind = value
        elif name == b"content-length":
            length = value
        elif name == b"accept" and PARQUET.encode() in value:
            return False
    return length.isdigit() and int(length) <= _LARGEST and _JSON.fullmatch(kind) is not None


def _replay(messages: list[Message], receive: Receive) -> Receive:
    """Return a ``receive`` that repeats the messages received already, then goes on."""
    left = iter(messages)

    async def replay() -> Message:
        return next(left, None) or await receive()

    return replay
