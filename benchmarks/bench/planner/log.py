"""Cost of logging every prescription: two services on one database, one with the log and one without, in turns.

Both answer the same calls of one client in turns of some seconds, so that other load on the machine affects both alike.
``log_overhead`` is the share by which a call takes longer with the log, a median over pairs of turns. The log is
written outside of requests, but writing still slows the requests that arrive meanwhile. ``log_cpu_overhead`` is the
same for the processor time of the API, which depends less on other load.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from app.commands.serve import LocalService
from app.demo import MORNINGS
from benchmarks.bench.clients import Connection
from benchmarks.bench.planner.bakery import learn_posterior

TURNS, SECONDS = 12, 2.0
# The log writes everything within this time.
_SETTLE_SECONDS = 0.4
_CONTENTS = [json.dumps({"contexts": [morning]}).encode() for morning in MORNINGS]


def log_overhead(turns: int = TURNS, seconds: float = SECONDS) -> dict[str, float]:
    """Return ``log_overhead``, ``log_cpu_overhead`` and the milliseconds of a call without the log.

    The service with the log keeps every call.
    """
    with tempfile.TemporaryDirectory() as folder:
        shared: dict[str, Any] = {
            "BCO_DATABASE_URL": f"sqlite:///{Path(folder) / 'bench.db'}",
            "BCO_LOG_RATE": "1000000",
        }
        with (
            LocalService(**shared, BCO_LOG_PRESCRIPTIONS="true") as on,
            LocalService(**shared, BCO_LOG_PRESCRIPTIONS="false") as off,
        ):
            with httpx.Client(base_url=on.url, timeout=120) as client:
                posterior = learn_posterior(client)
            result = asyncio.run(_in_turns([on, off], posterior, turns, seconds))
            _check(on, posterior, sum(calls for calls, _, _ in result[0]))
    took, worked = ([[one[what] / one[0] for one in service] for service in result] for what in (1, 2))
    return {
        "log_overhead": round(_share(took), 4),
        "log_cpu_overhead": round(_share(worked), 4),
        "without_log_ms": round(1000 * statistics.median(took[1]), 3),
    }


def _share(costs: list[list[float]]) -> float:
    """Return the median share by which the first of two costs exceeds the second."""
    with_log, without = costs
    return statistics.median(on / off for on, off in zip(with_log, without, strict=True)) - 1


async def _in_turns(
    services: list[LocalService], posterior: str, turns: int, seconds: float
) -> list[list[tuple[int, float, float]]]:
    """Return, for each service and turn, the number of calls, their seconds and their processor seconds."""
    connections = [await Connection.open(f"{one.url}/v1/posteriors/{posterior}/prescribe") for one in services]
    processes = [_listener(one) for one in services]
    for connection in connections:
        await _calls(connection, seconds)
    result: list[list[tuple[int, float, float]]] = [[] for _ in services]
    for turn in range(turns):
        # Each service goes first equally often.
        for which in (0, 1) if turn % 2 else (1, 0):
            await asyncio.sleep(_SETTLE_SECONDS)
            before = _worked(processes[which])
            calls, took = await _calls(connections[which], seconds)
            await asyncio.sleep(_SETTLE_SECONDS)
            result[which].append((calls, took, _worked(processes[which]) - before))
    for connection in connections:
        connection.close()
    return result


async def _calls(connection: Connection, seconds: float) -> tuple[int, float]:
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        if await connection.post(_CONTENTS[number % len(_CONTENTS)]) != 200:
            raise RuntimeError("the service did not answer")
        number += 1
    return number, time.perf_counter() - began


def _listener(service: LocalService) -> psutil.Process:
    """Return the API process of a service."""
    if service.process is None:
        raise RuntimeError("the service is not running")
    for process in psutil.Process(service.process.pid).children(recursive=True):
        if any(c.status == psutil.CONN_LISTEN and c.laddr.port == service.port for c in process.net_connections("tcp")):
            return process
    raise RuntimeError("no process listens on the service's port")


def _worked(process: psutil.Process) -> float:
    used: Any = process.cpu_times()
    return float(used.user + used.system)


def _check(service: LocalService, posterior: str, calls: int) -> None:
    """Raise an error if the service logged fewer calls than were measured."""
    with httpx.Client(base_url=service.url, timeout=120) as client:
        lines = client.get("/metrics").raise_for_status().text.splitlines()
    kept = sum(float(line.split()[-1]) for line in lines if line.startswith('bco_logged_prescriptions_total{result="k'))
    if kept < calls:
        raise RuntimeError(f"only {kept:g} of {calls} calls were kept")
