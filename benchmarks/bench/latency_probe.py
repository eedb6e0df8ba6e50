"""Clients in separate processes that repeat one request and report how long the answers took.

The module imports little, so that such a process starts quickly even on a busy machine.
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


def repeat_request(pipe: Connection, method: str, url: str, headers: dict[str, str], body: Any) -> None:
    """Repeat the request until the pipe says ``stop``; on ``tell``, send the seconds of each answer so far.

    Answers that were sent once are not sent again. An answer other than 200 counts as infinite.
    """
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


class LatencyProbe:
    """A client in a separate process; ``new_latencies`` returns the seconds of each answer since its last call."""

    def __init__(self, method: str, url: str, headers: dict[str, str] | None = None, body: Any = None) -> None:
        self._question = (method, url, headers or {}, body)

    def __enter__(self) -> Self:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=repeat_request, args=(theirs, *self._question), daemon=True)
        self._process.start()
        self.new_latencies()
        return self

    def new_latencies(self) -> list[float]:
        self._pipe.send("tell")
        result: list[float] = self._pipe.recv()
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pipe.send("stop")
        self._process.join(90)
