"""Clients in processes of their own that ask one question again and again, and tell how long the answers took.

Light on imports: such a process starts in a moment, also on a machine that is busy.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import httpx

PAUSE_SECONDS = 0.05


def watch(pipe: Connection, method: str, url: str, headers: dict[str, str], body: Any) -> None:
    """Ask until told to stop; when told to tell, send the seconds of each answer since. Refused is forever."""
    latencies: list[float] = []
    with httpx.Client(headers=headers, timeout=60) as client:
        while True:
            began = time.perf_counter()
            try:
                good = client.request(method, url, json=body).status_code == 200
            except httpx.HTTPError:
                good = False
            latencies.append(time.perf_counter() - began if good else math.inf)
            if pipe.poll(PAUSE_SECONDS):
                if pipe.recv() == "stop":
                    return
                pipe.send(latencies)
                latencies = []


class Watcher:
    """Such a client; ``seen`` gives the seconds of each answer since it was called last."""

    def __init__(self, method: str, url: str, headers: dict[str, str] | None = None, body: Any = None) -> None:
        self._question = (method, url, headers or {}, body)

    def __enter__(self) -> Self:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=watch, args=(theirs, *self._question), daemon=True)
        self._process.start()
        self.seen()
        return self

    def seen(self) -> list[float]:
        self._pipe.send("tell")
        found: list[float] = self._pipe.recv()
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pipe.send("stop")
        self._process.join(90)
