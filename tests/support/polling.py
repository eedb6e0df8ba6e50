"""Wait for processes, however slow the machine is.

``wait_until`` waits for an eventual condition and gives up once no process of this test run has worked for a while.
``within`` checks a condition that has a time limit, such as "gone within three seconds".
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

# An idle worker polls its queues with about 6 % of a core. A process above this share is computing.
BUSY_SHARE = 0.15
LOOK_SECONDS = 3.0
# Give up on work that never ends.
MOST_SECONDS = 900.0


class Movement:
    """Watches the child processes: do they compute, start or end?"""

    def __init__(self) -> None:
        self._looked_at, self._used = time.monotonic(), cpu_seconds()

    def seen(self) -> bool:
        """Whether a process has worked since the last look; False between two looks."""
        elapsed = time.monotonic() - self._looked_at
        if elapsed < LOOK_SECONDS:
            return False
        before, self._used = self._used, cpu_seconds()
        self._looked_at += elapsed
        busy = any(used - before.get(process, 0.0) > BUSY_SHARE * elapsed for process, used in self._used.items())
        return busy or self._used.keys() != before.keys()


def cpu_seconds() -> dict[psutil.Process, float]:
    """Return the processor time of every descendant process."""
    used = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            used[process] = sum(process.cpu_times()[:2])
    return used


def crowding() -> float:
    """Return the load per processor, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(what: str, true: Callable[[], object], patience: float = 60.0) -> None:
    """Poll until ``true`` holds; fail with ``what`` if nothing has worked for ``patience`` seconds."""
    began = moved = time.monotonic()
    movement = Movement()
    while not true():
        now = time.monotonic()
        if movement.seen():
            moved = now
        assert now - moved < patience * crowding(), f"nothing has moved for {now - moved:.0f} s: {what}"
        assert now - began < MOST_SECONDS, f"not within {MOST_SECONDS:g} s: {what}"
        # Poll less often over time, so that polling itself causes no load.
        time.sleep(min(0.5, 0.05 + (now - began) / 40))


def within(what: str, true: Callable[[], object], seconds: float) -> None:
    """Poll until ``true`` holds; fail with ``what`` after ``seconds``, scaled up on a busy machine."""
    end = time.monotonic() + seconds * crowding()
    while not true():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
