"""Waiting for processes: as long as they get on with something, however slow or crowded the machine is.

``wait_until`` waits for what must come at some time. It gives up when no process of this test run has done any work for
a while. ``within`` holds a promise that has a time, such as "gone within three seconds".
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

# An idle worker looks into its queues with about 6 % of a core; a process over this share of one computes.
BUSY_SHARE = 0.15
LOOK_SECONDS = 3.0
# Work that never ends is no progress.
MOST_SECONDS = 900.0


class Movement:
    """Looks now and then at the processes that this one has started: do they compute, start or end?"""

    def __init__(self) -> None:
        self._looked_at, self._used = time.monotonic(), cpu_seconds()

    def seen(self) -> bool:
        """Whether something has moved since the last look; False in between two looks."""
        elapsed = time.monotonic() - self._looked_at
        if elapsed < LOOK_SECONDS:
            return False
        before, self._used = self._used, cpu_seconds()
        self._looked_at += elapsed
        busy = any(used - before.get(process, 0.0) > BUSY_SHARE * elapsed for process, used in self._used.items())
        return busy or self._used.keys() != before.keys()


def cpu_seconds() -> dict[psutil.Process, float]:
    """The processor time of every process that this one, or one of its children, has started."""
    used = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            used[process] = sum(process.cpu_times()[:2])
    return used


def crowding() -> float:
    """How many processes share a processor of this machine, 1 if there is room."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_until(what: str, true: Callable[[], object], patience: float = 60.0) -> None:
    """Poll while anything moves; fail with the promise's name when nothing has for ``patience`` seconds."""
    began = moved = time.monotonic()
    movement = Movement()
    while not true():
        now = time.monotonic()
        if movement.seen():
            moved = now
        assert now - moved < patience * crowding(), f"nothing has moved for {now - moved:.0f} s: {what}"
        assert now - began < MOST_SECONDS, f"not within {MOST_SECONDS:g} s: {what}"
        # Fewer questions the longer it takes, so that the asking itself is no work worth mentioning.
        time.sleep(min(0.5, 0.05 + (now - began) / 40))


def within(what: str, true: Callable[[], object], seconds: float) -> None:
    """Poll; a promise that is not kept in this time fails with its name. A crowded machine gets longer."""
    end = time.monotonic() + seconds * crowding()
    while not true():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
