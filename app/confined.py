"""Processes that read files of strangers within memory and time: what a file unfolds to is never ours to bear.

:class:`Confined` is the side of the service, :func:`serve` that of the process. Each line on a process's input asks for
one file; each line on its output says how that went. This module imports the standard library alone, so that the
processes start quickly and have nothing to lose.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

# Files that are read by one kind of process at the same time; others wait for a place.
PLACES = 2


class InvalidFile(Exception):
    """The file cannot be used; the sentence says why, and ``where`` in which part of the request."""

    def __init__(self, sentence: str, where: Sequence[str | int] = ()) -> None:
        super().__init__(sentence)
        self.where = tuple(where)


class ReadersBusy(Exception):
    """No place became free in time."""


class FileReaders:
    """Processes that run a module's ``main``; at most one that is idle is kept."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        # -P: nothing is imported from the working directory.
        self.command = (sys.executable, "-P", "-m", module)
        # The process is of the same source as this one, wherever that was started.
        self.environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "MALLOC_ARENA_MAX": "1", **environment}
        self.idle: list[subprocess.Popen[bytes]] = []
        self._places = threading.BoundedSemaphore(PLACES)
        atexit.register(self.close)

    def ask(self, question: dict[str, Any], megabytes: int, seconds: float) -> dict[str, Any]:
        """What a process says of a file; if it says nothing, the signal that has ended it, as ``ended``."""
        if not self._places.acquire(timeout=seconds):
            raise ReadersBusy
        try:
            return self._ask(question | {"memory": megabytes * 1_000_000, "seconds": seconds})
        finally:
            self._places.release()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._take()
        to_it, from_it = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
        try:
            to_it.write(json.dumps(question).encode() + b"\n")
            to_it.flush()
            line = from_it.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            _end(process)
            return {"ended": -process.returncode}
        told: dict[str, Any] = json.loads(line)
        if "memory" in told or self.idle:
            # One that has run out of memory may not find it again, and more than one idle process only holds memory.
            _end(process)
        else:
            self.idle.append(process)
        return told

    def _take(self) -> subprocess.Popen[bytes]:
        while self.idle:
            process = self.idle.pop()
            if process.poll() is None:
                return process
            _end(process)
        environment = os.environ | self.environment
        return subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/")

    def close(self) -> None:
        """End the process that waits."""
        while self.idle:
            _end(self.idle.pop())


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


# the process


def serve_files(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer file after file until the input ends: with the process that asks, this one ends too."""
    at_rest = _address_space()
    for line in sys.stdin:
        asked = json.loads(line)
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (at_rest + asked["memory"], hard))
        # Nothing catches this signal, so it ends the process whatever that is doing.
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
        try:
            told = answer(asked)
        except InvalidFile as refusal:
            told = {"refused": str(refusal), "where": list(refusal.where)}
        except MemoryError:
            told = {"memory": True}
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.write(json.dumps(told) + "\n")
        sys.stdout.flush()


def _address_space() -> int:
    """Bytes of addresses that this process uses before it has read anything."""
    with open("/proc/self/statm") as counts:
        return int(counts.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
