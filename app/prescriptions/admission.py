"""So many prescriptions at a time, and short ones one after the other.

Requests over the limit get 503 at once. Side by side, short computations would only take the interpreter from each
other, operation by operation, and all of them would end later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from app.http.errors import Unavailable
from app.metrics import IN_FLIGHT

TURN_SECONDS = 0.05


@contextmanager
def place(places: anyio.CapacityLimiter) -> Iterator[None]:
    """Take a place for the current request and give it back, or refuse at once if all are taken."""
    try:
        places.acquire_nowait()
    except anyio.WouldBlock:
        limit = places.total_tokens
        detail = f"{limit} prescriptions are being made already (BCO_MAX_PRESCRIPTIONS); try again shortly"
        raise Unavailable(detail, headers={"Retry-After": "1"}) from None
    IN_FLIGHT.set(places.borrowed_tokens)
    try:
        yield
    finally:
        places.release()
        IN_FLIGHT.set(places.borrowed_tokens)


@asynccontextmanager
async def turn(turns: asyncio.Semaphore) -> AsyncIterator[None]:
    """Wait for a turn, first come first served. Work that takes longer than its turn goes on beside the next."""
    await turns.acquire()
    passed = False

    def pass_on() -> None:
        nonlocal passed
        if not passed:
            passed = True
            turns.release()

    overdue = asyncio.get_running_loop().call_later(TURN_SECONDS, pass_on)
    try:
        yield
    finally:
        overdue.cancel()
        pass_on()
