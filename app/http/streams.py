"""Streamed answers end when their key is revoked or expires."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


async def until_revoked(
    app: ASGIApp, still_valid: Callable[[], Awaitable[bool]], every: float, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve a request; report a disconnect to it when the client leaves or the key stops working.

    A stream of events then ends normally. Any other answer stays incomplete, so that half a file never looks whole.
    """
    read = revoked = is_event_stream = is_over = False

    async def watched_receive() -> Message:
        nonlocal read, revoked
        if not read:
            message = await receive()
            read = not message.get("more_body", False)
            return message
        leaving = asyncio.ensure_future(receive())
        try:
            while not (await asyncio.wait({leaving}, timeout=max(every, 0.1)))[0]:
                if not await still_valid():
                    revoked = True
                    return {"type": "http.disconnect"}
            return leaving.result()
        finally:
            leaving.cancel()

    async def recorded_send(message: Message) -> None:
        nonlocal is_event_stream, is_over
        if message["type"] == "http.response.start":
            is_event_stream = any(
                name == b"content-type" and b"event-stream" in value for name, value in message["headers"]
            )
        is_over = message["type"] == "http.response.body" and not message.get("more_body", False)
        await send(message)

    await app(scope, watched_receive, recorded_send)
    if revoked and is_event_stream and not is_over:
        await send({"type": "http.response.body", "body": b"", "more_body": False})
