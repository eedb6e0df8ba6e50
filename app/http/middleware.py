"""ASGI middlewares: the record of each request, and limits of bodies."""

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
# Bodies up to this size do not count towards the total: there are no more of them than connections.
SMALL_BODY = 64_000
_QUIET = ("/livez", "/readyz", "/metrics")
# Pages load from this service only and run no inline scripts; Swagger UI needs inline styles.
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
    """Outermost middleware: gives every request an id, a log line, metrics and security headers.

    Unexpected errors are logged here with their traceback and answered without it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        header = Headers(scope=scope).get("x-request-id", "")
        identifier = header if _REQUEST_ID.fullmatch(header) else uuid4().hex
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
    # Callers may invent methods; labels must stay few.
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
    """Refuse request bodies over a limit, by their Content-Length or as they stream in.

    A body stays in memory until its request is answered, so all of them together have a limit too: beyond it, large
    bodies get 503. Small bodies always pass, so that a few large ones do not block others.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_total_bytes: int) -> None:
        self.app = app
        self.max_bytes, self.max_total_bytes = max_bytes, max_total_bytes
        self.total = 0

    def _size_error(self, headers: dict[str, str] | None = None) -> TooLargeError:
        limit = self.max_bytes // 1_000_000
        detail = f"the body is larger than {limit} MB (BCO_MAX_BODY_MB); send fewer rows at once, or send Parquet"
        return TooLargeError(detail, headers=headers)

    def _exceeds_total(self, size: int) -> bool:
        """Return whether a body of this size exceeds the total with the others; a single one never does."""
        return self.total > 0 and self.total + size > self.max_total_bytes

    def _total_error(self, headers: dict[str, str] | None = None) -> UnavailableError:
        limit = self.max_total_bytes // 1_000_000
        detail = (
            f"the bodies of all open requests may take {limit} MB together (BCO_MAX_BODIES_MB); try again in a moment"
        )
        return UnavailableError(detail, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        size = int(declared) if declared.isdigit() else 0
        if size > self.max_bytes or (size > SMALL_BODY and self._exceeds_total(size)):
            refusal = self._size_error if size > self.max_bytes else self._total_error
            await refusal({"Connection": "close"}).answer()(scope, receive, send)
            return
        received = held = 0

        async def limited_receive() -> Message:
            nonlocal received, held
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise self._size_error()
            if received > max(SMALL_BODY, held):
                self.total -= held
                held = 0
                if self._exceeds_total(received):
                    raise self._total_error()
                self.total += received
                held = received
            return message

        try:
            await self.app(scope, limited_receive, send)
        finally:
            self.total -= held
