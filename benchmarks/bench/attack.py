"""Attack a local service with hostile clients and measure what other clients notice.

The bench starts its own service, and each attack runs against it for a few seconds over loopback. Attackers connect
from 127.0.0.2 with keys of their own workspace. Meanwhile one process polls ``/livez`` and another prescribes in a
second workspace. ``benchmarks/bench/attacks.py`` lists the attacks.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console

from app.child_processes import PYTHON
from app.commands.serve import LocalService
from app.demo import MORNINGS, bakery_rows, example_problem
from benchmarks.bench import attack_payloads
from benchmarks.bench.attacks import ATTACKS, Answers, Target
from benchmarks.bench.latency_probe import LatencyProbe
from benchmarks.bench.serving import train

ATTACK_SECONDS = 8.0
# Longest wait for pending work to end, both before the next attack and before calls in flight are counted.
CALM_SECONDS = 15.0
LIMITS = {"livez_worst_ms": 500.0, "api_peak_mb": 1_500.0, "places_leaked": 0, "orphans": 0}


class Memory:
    """Peak resident memory of the largest API process, sampled ten times a second."""

    def __init__(self, service: LocalService) -> None:
        self.peak_mb, self._service, self._stop = 0.0, service, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        processes: list[psutil.Process] = []
        while not self._stop.wait(0.1):
            with suppress(psutil.NoSuchProcess, IndexError):
                if not processes or not all(process.is_running() for process in processes):
                    processes = [one for one in family(self._service) if "api" in one.cmdline()]
                total = max(process.memory_info().rss for process in processes) if processes else 0
                self.peak_mb = max(self.peak_mb, total / 1e6)

    def stop(self) -> float:
        self._stop.set()
        self._thread.join()
        return round(self.peak_mb, 1)


def family(service: LocalService) -> list[psutil.Process]:
    if service.process is None:
        raise RuntimeError("the service is not running")
    result: list[psutil.Process] = psutil.Process(service.process.pid).children(recursive=True)
    return result


# the run


def run(as_json: bool, only: list[str] | None = None, seconds: float = ATTACK_SECONDS) -> dict[str, Any]:
    """Run the attacks; print and return the worst figures over all of them, and the figures of each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    figures = _measure(only or list(ATTACKS), seconds, Console(stderr=True))
    if as_json:
        Console().print(json.dumps(figures), soft_wrap=True, highlight=False)
    else:
        for name, value in figures.items():
            Console().print(f"{name:24}{value}")
    return figures


def _measure(names: list[str], seconds: float, console: Console) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {
            "BCO_DATABASE_URL": f"sqlite:///{Path(folder) / 'attack.db'}",
            "BCO_REQUESTS_PER_SECOND": "0",
        }
        with LocalService(**settings) as service:
            prepared = prepare(service, settings, console)
            memory, result = Memory(service), {}
            with (
                LatencyProbe("GET", f"{service.url}/livez") as livez,
                LatencyProbe("POST", prepared["address"], prepared["tenant"], {"contexts": MORNINGS[:1]}) as tenant,
            ):
                for name in names:
                    console.print(f"attack: {name}")
                    result[name] = _attack(ATTACKS[name], prepared["target"], seconds, livez, tenant)
                    console.print(result[name])
                    _until_calm(service.url)
            leaked = _places(service.url, prepared["tenant"])
            peak = memory.stop()
            orphans = _count_orphans(service)
    return {
        "livez_worst_ms": max(one["livez_worst_ms"] for one in result.values()),
        "api_peak_mb": peak,
        "other_tenant_p99_ms": max(one["other_tenant_p99_ms"] for one in result.values()),
        "places_leaked": leaked,
        "orphans": orphans,
        "attacks": result,
    }


def prepare(service: LocalService, settings: dict[str, str], console: Console) -> dict[str, Any]:
    """Create keys in two workspaces, and train one posterior for the other tenant and two for the attacker."""
    console.print("learning what is attacked")
    keys = {
        name: _key(settings, name, workspace, scopes)
        for name, workspace, scopes in (
            ("reader", "attackers", "read"),
            ("trainer", "attackers", "read,train"),
            ("tenant", "others", "read,train,admin"),
        )
    }
    with _client(service, keys["tenant"]) as tenant:
        theirs = _posterior(tenant, example_problem(), _history())
    with _client(service, keys["trainer"]) as attacker:
        posterior = _posterior(attacker, example_problem(), _history())
        whole = _posterior(attacker, attack_payloads.trucks(), attack_payloads.loads())
    return {
        "target": lambda seconds: Target(service.port, keys["reader"], keys["trainer"], posterior, whole, seconds),
        "tenant": {"Authorization": f"Bearer {keys['tenant']}"},
        "address": f"{service.url}/v1/posteriors/{theirs}/prescribe",
    }


def _client(service: LocalService, key: str) -> httpx.Client:
    return httpx.Client(base_url=service.url, timeout=120, headers={"Authorization": f"Bearer {key}"})


def _history() -> dict[str, Any]:
    return {"name": "days", "outcomes": ["croissants", "loaves"], "rows": bakery_rows(300)}


def _posterior(client: httpx.Client, problem: dict[str, Any], dataset: dict[str, Any]) -> str:
    made = {
        "problem_id": client.post("/v1/problems", json=problem).raise_for_status().json()["id"],
        "dataset_id": client.post("/v1/datasets", json=dataset).raise_for_status().json()["id"],
    }
    return train(client, made | {"predictor": {"kind": "linear"}, "inference": {"method": "vi", "epochs": 2}})[1]


def _key(settings: dict[str, str], name: str, workspace: str, scopes: str) -> str:
    options = ("--workspace", workspace, "--scopes", scopes)
    command = (*PYTHON, "-m", "app.commands.cli", "keys", "create", name, *options)
    made = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
    return made.stdout.strip()


def _attack(
    attack: Callable[[Target], Answers],
    target: Callable[[float], Target],
    seconds: float,
    livez: LatencyProbe,
    tenant: LatencyProbe,
) -> dict[str, Any]:
    livez.new_latencies()
    tenant.new_latencies()
    began = time.monotonic()
    heard = attack(target(seconds))
    took = time.monotonic() - began
    alive, served = livez.new_latencies(), sorted(tenant.new_latencies())
    return {
        "livez_worst_ms": _ms(max(alive)),
        "other_tenant_p99_ms": _ms(served[math.ceil(0.99 * len(served)) - 1]),
        "other_tenant_refused": sum(latency == math.inf for latency in served),
        "seconds": round(took, 1),
        "answers": dict(heard),
    }


def _ms(seconds: float) -> float:
    return round(1000 * min(seconds, 600.0), 1)


def _until_calm(url: str) -> None:
    """Wait until the service answers three times in a row within 0.1 s, for at most ``CALM_SECONDS``."""
    end, calm = time.monotonic() + CALM_SECONDS, 0
    with httpx.Client(timeout=30) as client:
        while calm < 3 and time.monotonic() < end:
            began = time.monotonic()
            with suppress(httpx.HTTPError):
                client.get(f"{url}/readyz")
            calm = calm + 1 if time.monotonic() - began < 0.1 else 0
            time.sleep(0.2)


def _places(url: str, headers: dict[str, str]) -> int:
    """Return the number of prescribe calls still counted as in flight after abandoned calls have had time to end."""
    end, held = time.monotonic() + CALM_SECONDS, 1
    with httpx.Client(headers=headers, timeout=60) as client:
        while held and time.monotonic() < end:
            text = client.get(f"{url}/metrics").text
            values = [
                line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(attack_payloads.IN_FLIGHT)
            ]
            held = int(sum(map(float, values)))
            time.sleep(0.2)
    return held


def _count_orphans(service: LocalService) -> int:
    """Kill the supervisor and return how many of its processes still run half a minute later."""
    everyone = family(service)
    if service.process is not None:
        service.process.kill()
        service.process.wait()
    left = psutil.wait_procs(everyone, timeout=30)[1]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return len(left)
