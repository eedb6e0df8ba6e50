"""Answers that are still being sent when their key is revoked or expires: they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


async def until_revoked(
    app: ASGIApp, still: Callable[[], Awaitable[bool]], every: float, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve a request; once it waits for its client to leave, it is told so too when the key no longer works.

    A story told as events then ends as if it were over. Anything else stays cut off, so that half a file never looks
    like a whole one.
    """
    read = revoked = is_story = is_over = False

    async def watched() -> Message:
        nonlocal read, revoked
        if not read:
            message = await receive()
            read = not message.get("more_body", False)
            return message
        leaving = asyncio.ensure_future(receive())
        try:
            while not (await asyncio.wait({leaving}, timeout=max(every, 0.1)))[0]:
                if not await still():
                    revoked = True
                    return {"type": "http.disconnect"}
            return leaving.result()
        finally:
            leaving.cancel()

    async def noted(message: Message) -> None:
        nonlocal is_story, is_over
        if message["type"] == "http.response.start":
            is_story = any(name == b"content-type" and b"event-stream" in value for name, value in message["headers"])
        is_over = message["type"] == "http.response.body" and not message.get("more_body", False)
        await send(message)

    await app(scope, watched, noted)
    if revoked and is_story and not is_over:
        await send({"type": "http.response.body", "body": b"", "more_body": False})
