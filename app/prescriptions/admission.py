"""So many prescriptions at a time, and short ones one after the other.

Requests over the limit get 503 at once, those over their workspace's share 429. Side by side, short computations would
only take the interpreter from each other, operation by operation, and all of them would end later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from app.http.errors import TooManyError, UnavailableError
from app.metrics import IN_FLIGHT

TURN_SECONDS = 0.05


class Places:
    """Places for prescribe calls, ``most`` of them for one workspace at the same time; 0 for all."""

    def __init__(self, total: int, most: int) -> None:
        self._total, self._most = total, most or total
        self._by_workspace: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        return self._by_workspace.total()

    @contextmanager
    def of(self, workspace: str) -> Iterator[None]:
        """Take a place for the current request and give it back, or refuse at once if there is none."""
        if self.taken >= self._total:
            detail = f"{self._total} prescriptions are being made already (BCO_MAX_PRESCRIPTIONS); try again shortly"
            raise UnavailableError(detail, headers={"Retry-After": "1"})
        if self._by_workspace[workspace] >= self._most:
            much = f"{self._most} prescriptions of this workspace are being made already"
            detail = f"{much} (BCO_MAX_WORKSPACE_PRESCRIPTIONS); try again shortly"
            raise TooManyError(detail, headers={"Retry-After": "1"})
        self._by_workspace[workspace] += 1
        IN_FLIGHT.set(self.taken)
        try:
            yield
        finally:
            self._by_workspace[workspace] -= 1
            # Workspaces come and go; those without a call are not remembered.
            self._by_workspace += Counter()
            IN_FLIGHT.set(self.taken)


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
