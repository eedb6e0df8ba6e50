"""Show API errors as HTML pages to browsers."""

from __future__ import annotations

from urllib.parse import quote

import orjson
from fastapi.responses import RedirectResponse, Response
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.pages.api_client import sentence
from app.pages.render import render

_PROBLEM = b"application/problem+json"
# The header of htmx requests for a part of a page.
FRAGMENT = "hx-request"


class ErrorPages:
    """Outermost middleware: turns problem JSON into pages for browsers, and 401 into a redirect to the login form."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_for_people(Headers(scope=scope)):
            await self.app(scope, receive, send)
            return
        start: Message | None = None
        body = bytearray()

        async def watched(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _is_problem(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    await _page(scope, orjson.loads(bytes(body)), start)(scope, receive, send)

        await self.app(scope, receive, watched)


def _is_for_people(headers: Headers) -> bool:
    return "text/html" in headers.get("accept", "") or FRAGMENT in headers


def _is_problem(message: Message) -> bool:
    return any(name == b"content-type" and value.startswith(_PROBLEM) for name, value in message["headers"])


def _page(scope: Scope, problem: dict[str, object], start: Message) -> ASGIApp:
    request = Request(scope)
    is_page = not request.url.path.startswith("/v1/")
    if problem["status"] == 401 and is_page:
        # A part of a page cannot show the form, so the whole page redirects.
        if FRAGMENT in request.headers:
            return Response(status_code=204, headers={"HX-Redirect": "/login"})
        there = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?next={quote(there if request.method == 'GET' else '/', safe='')}", 303)
    template = "refusal.html" if FRAGMENT in request.headers else "error.html"
    detail = sentence(str(problem["detail"]))
    response = render(request, template, int(str(problem["status"])), problem=problem, detail=detail)
    for name, value in start["headers"]:
        if not name.lower().startswith(b"content-"):
            response.headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return response
