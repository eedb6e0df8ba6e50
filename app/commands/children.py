"""Processes that belong to this one: they import nothing of the working directory, end with it, and are kept alive."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from app.lifelines import die_with_parent

log = logging.getLogger(__name__)

# -P: whatever lies in the working directory, an orjson.py of somebody's, is not imported in place of a package.
PYTHON = (sys.executable, "-P")
# A process that runs for so long has started; the next one may be started at once again when it ends.
STARTED_SECONDS = 10.0
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0


def start_service(command: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that is told to stop when this one is gone, even by kill -9.

    It is tied to the thread that starts it: call this from one that lasts.
    """
    tie = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    # Its own children leave the working directory alone, too, however they are started.
    safe = {**environment, "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(command, env=safe, preexec_fn=tie, **options)


class SupervisedProcess:
    """A process that is started again when it ends: soon the first time, ever later while it keeps ending early."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._command, self._environment = command, environment
        self._wait, self._due = FIRST_WAIT, 0.0
        self.has_run = False
        self._start()

    def _start(self) -> None:
        # A process group of its own: Ctrl-C reaches it through us, in order.
        self.process = start_service(self._command, self._environment, start_new_session=True)
        self._began, self._ended = time.monotonic(), False

    def look(self) -> int | None:
        """Start it again if that is due. The exit code of one that has ended since the last look."""
        now = time.monotonic()
        if self._ended:
            if now >= self._due:
                self._start()
            return None
        lasted = now - self._began >= STARTED_SECONDS
        self.has_run |= lasted
        code = self.process.poll()
        if code is None:
            return None
        self._ended = True
        self._wait = FIRST_WAIT if lasted else min(2 * self._wait, LONGEST_WAIT)
        self._due = now + self._wait
        log.error("the %s stopped (exit code %s); starting another in %g s", self.name, code, self._wait)
        return code
