"""So many prescriptions at a time, and short ones one after the other.

Who comes beyond the limit is asked to come again instead of waiting without end. Side by side, short computations would
only take the interpreter from each other, operation by operation, and all of them would end later.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from app.http.errors import Unavailable
from app.metrics import IN_FLIGHT

TURN_SECONDS = 0.05


@asynccontextmanager
async def turn(turns: asyncio.Semaphore) -> AsyncIterator[None]:
    """Wait for one's turn, in the order of coming. Who takes longer than it lasts goes on beside the next."""
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


class Places:
    def __init__(self) -> None:
        self._taken = 0
        self._lock = threading.Lock()

    @contextmanager
    def one(self, limit: int) -> Iterator[None]:
        """Take a place and give it back, or refuse at once if all are taken."""
        with self._lock:
            if self._taken >= limit:
                detail = f"{limit} prescriptions are being made already (BCO_MAX_PRESCRIPTIONS); try again shortly"
                raise Unavailable(detail, headers={"Retry-After": "1"})
            self._taken += 1
        IN_FLIGHT.set(self._taken)
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1
            IN_FLIGHT.set(self._taken)
