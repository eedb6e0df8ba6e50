"""Plain ASGI middlewares."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import TooLarge


class BodyLimit:
    """Refuse request bodies over a limit, by their Content-Length or, without one, as they stream in."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    def _error(self, headers: dict[str, str] | None = None) -> TooLarge:
        limit = self.max_bytes // 1_000_000
        detail = f"the body is larger than {limit} MB (BCO_MAX_BODY_MB); send less at once, or send Parquet"
        return TooLarge(detail, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.max_bytes:
            await self._error({"Connection": "close"}).answer()(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise self._error()
            return message

        await self.app(scope, counted, send)
