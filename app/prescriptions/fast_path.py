"""The short road to a prescription: past the router, for what it is asked most.

A request for ``POST /v1/posteriors/{id}/prescribe`` with a small JSON body is read, validated once and answered right
here, behind the same door, limits and records as all others. Whatever is not in order about it (a query, another type
of content, a body that is no valid request, a key that may not read) goes on to the router, body and all, so that every
refusal has one author.
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

from app.http.security import Caller
from app.http.tables import PARQUET
from app.prescriptions.router import answer
from app.prescriptions.schemas import PrescribeRequest

_PATH = re.compile(r"/v1/posteriors/([0-9A-Za-z._-]{1,64})/prescribe")
_JSON = re.compile(rb"application/json(;\s*charset=utf-8)?", re.IGNORECASE)
# Larger bodies are not parsed on the event loop.
_LARGEST = 32_000


@dataclass(frozen=True)
class _Route:
    """What the metrics call the road; the router's own route has the same path."""

    path: str = "/v1/posteriors/{posterior_id}/prescribe"


_ROUTE = _Route()


class FastPath:
    """Middleware between the door and the router. Errors are answered as the application ``of`` answers them."""

    def __init__(self, app: ASGIApp, of: FastAPI) -> None:
        self.app = app
        self._short = ExceptionMiddleware(self._answer, handlers=of.exception_handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None or not _is_plain(scope):
            await self.app(scope, receive, send)
            return
        scope["posterior_id"] = found[1]
        await self._short(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages: list[Message] = []
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
        caller: Caller = scope["caller"]
        try:
            # The last message of a client that has left has no body, and what came before it is no JSON.
            request = PrescribeRequest.model_validate(orjson.loads(b"".join(one.get("body", b"") for one in messages)))
        except (orjson.JSONDecodeError, ValidationError):
            await self.app(scope, _again(messages, receive), send)
            return
        scope["route"] = _ROUTE
        content = await answer(Request(scope, receive), caller.workspace, scope["posterior_id"], request)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def _is_plain(scope: Scope) -> bool:
    """Whether there is nothing about a request that the router would have to look at."""
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


def _again(messages: list[Message], receive: Receive) -> Receive:
    """What was received already, for who comes next; then whatever else comes."""
    left = iter(messages)

    async def replay() -> Message:
        return next(left, None) or await receive()

    return replay
