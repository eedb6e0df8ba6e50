"""Plain ASGI middlewares."""

from __future__ import annotations

import logging
import re
from time import perf_counter
from urllib.parse import quote
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import metrics
from app.http.errors import TooLargeError, UnavailableError, unexpected
from app.logs import request_id

log = logging.getLogger("app.requests")

_REQUEST_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# Bodies up to so many bytes do not count together: there are no more of them than connections.
SMALL_BODY = 64_000
_QUIET = ("/livez", "/readyz", "/metrics")
# Pages load from this service alone and run no script written into them; Swagger UI writes styles into its own.
_CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SECURITY = {
    "Content-Security-Policy": _CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class RequestRecord:
    """Outermost: every request gets an id, a line in the log, its place in the metrics and an answer with safe headers.

    Unforeseen errors are logged here with their traceback and answered without it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identifier = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        token = request_id.set(identifier)
        began, status = perf_counter(), 0

        async def record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = identifier
                for name, value in _SECURITY.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith("/v1/"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await self.app(scope, receive, record)
        except Exception:
            log.exception("unexpected error on %s %s", scope["method"], quote(scope["path"]))
            if status:
                raise
            await unexpected()(scope, receive, record)
        finally:
            _note(scope, status, perf_counter() - began)
            request_id.reset(token)


def _note(scope: Scope, status: int, seconds: float) -> None:
    route = getattr(scope.get("route"), "path", "none")
    # Methods are the caller's to invent; labels must stay few.
    method = scope["method"] if scope["method"] in _METHODS else "other"
    metrics.REQUESTS.labels(method, route, status).inc()
    metrics.REQUEST_SECONDS.labels(method, route).observe(seconds)
    level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
    if log.isEnabledFor(level):
        caller = scope.get("caller")
        fields = {"status": status, "ms": round(1000 * seconds, 2)}
        if caller is not None:
            fields |= {"workspace": caller.workspace, "key_id": caller.key_id}
        log.log(level, "%s %s", scope["method"], quote(scope["path"]), extra={"fields": fields})


class BodyLimit:
    """Refuse request bodies over a limit, by their Content-Length or, without one, as they stream in.

    A body stays in memory until its request is answered, so all of them together have a limit too. What would not fit
    gets 503; small bodies pass, so that a few large ones keep nobody else from being served.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_together: int) -> None:
        self.app = app
        self.max_bytes, self.max_together = max_bytes, max_together
        self.together = 0

    def _error(self, headers: dict[str, str] | None = None) -> TooLargeError:
        limit = self.max_bytes // 1_000_000
        detail = f"the body is larger than {limit} MB (BCO_MAX_BODY_MB); send less at once, or send Parquet"
        return TooLargeError(detail, headers=headers)

    def _is_crowded(self, size: int) -> bool:
        """Whether a body of this size does not fit beside the others; one that is alone does."""
        return self.together > 0 and self.together + size > self.max_together

    def _crowd(self, headers: dict[str, str] | None = None) -> UnavailableError:
        limit = self.max_together // 1_000_000
        detail = f"requests under way have bodies of {limit} MB in all (BCO_MAX_BODIES_MB); try again in a moment"
        return UnavailableError(detail, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        size = int(declared) if declared.isdigit() else 0
        if size > self.max_bytes or (size > SMALL_BODY and self._is_crowded(size)):
            refusal = self._error if size > self.max_bytes else self._crowd
            await refusal({"Connection": "close"}).answer()(scope, receive, send)
            return
        received = held = 0

        async def counted() -> Message:
            nonlocal received, held
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise self._error()
            if received > max(SMALL_BODY, held):
                self.together -= held
                held = 0
                if self._is_crowded(received):
                    raise self._crowd()
                self.together += received
                held = received
            return message

        try:
            await self.app(scope, counted, send)
        finally:
            self.together -= held
