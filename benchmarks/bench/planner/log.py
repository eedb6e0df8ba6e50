"""What keeping every prescription costs: two services on one database, one with the log and one without, in turns.

Both answer the same calls of one client, in turns of some seconds, so that what else the machine does meets both alike.
``log_overhead`` is the share by which a call takes longer with the log, a median over pairs of turns: what is written
off the path of requests still takes its time from those that come meanwhile. ``log_cpu_overhead`` is the same for the
processor time of the API, which a crowded machine moves less.
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
from benchmarks.bench.planner.bakery import learned

TURNS, SECONDS = 12, 2.0
# The log has written everything by then.
_SETTLE_SECONDS = 0.4
_CONTENTS = [json.dumps({"contexts": [morning]}).encode() for morning in MORNINGS]


def log_overhead(turns: int = TURNS, seconds: float = SECONDS) -> dict[str, float]:
    """``log_overhead``, ``log_cpu_overhead`` and the milliseconds a call without the log; every call is kept."""
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
                posterior = learned(client)
            found = asyncio.run(_in_turns([on, off], posterior, turns, seconds))
            _check(on, posterior, sum(calls for calls, _, _ in found[0]))
    took, worked = ([[one[what] / one[0] for one in service] for service in found] for what in (1, 2))
    return {
        "log_overhead": round(_share(took), 4),
        "log_cpu_overhead": round(_share(worked), 4),
        "without_log_ms": round(1000 * statistics.median(took[1]), 3),
    }


def _share(costs: list[list[float]]) -> float:
    """By which the first of two costs is above the second."""
    with_log, without = costs
    return statistics.median(on / off for on, off in zip(with_log, without, strict=True)) - 1


async def _in_turns(
    services: list[LocalService], posterior: str, turns: int, seconds: float
) -> list[list[tuple[int, float, float]]]:
    """For each service and turn: the calls, the seconds that they took and the processor's seconds."""
    connections = [await Connection.open(f"{one.url}/v1/posteriors/{posterior}/prescribe") for one in services]
    processes = [_listener(one) for one in services]
    for connection in connections:
        await _calls(connection, seconds)
    found: list[list[tuple[int, float, float]]] = [[] for _ in services]
    for turn in range(turns):
        # Each is first as often as the other.
        for which in (0, 1) if turn % 2 else (1, 0):
            await asyncio.sleep(_SETTLE_SECONDS)
            before = _worked(processes[which])
            calls, took = await _calls(connections[which], seconds)
            await asyncio.sleep(_SETTLE_SECONDS)
            found[which].append((calls, took, _worked(processes[which]) - before))
    for connection in connections:
        connection.close()
    return found


async def _calls(connection: Connection, seconds: float) -> tuple[int, float]:
    began, number = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        if await connection.post(_CONTENTS[number % len(_CONTENTS)]) != 200:
            raise RuntimeError("the service did not answer")
        number += 1
    return number, time.perf_counter() - began


def _listener(service: LocalService) -> psutil.Process:
    """The API of a service."""
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
    """What was measured must have been kept."""
    with httpx.Client(base_url=service.url, timeout=120) as client:
        lines = client.get("/metrics").raise_for_status().text.splitlines()
    kept = sum(float(line.split()[-1]) for line in lines if line.startswith('bco_logged_prescriptions_total{result="k'))
    if kept < calls:
        raise RuntimeError(f"only {kept:g} of {calls} calls were kept")
