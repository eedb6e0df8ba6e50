"""Throughput and latency under load: many clients prescribe over HTTP, alone and while a job learns.

The service is a real ``bco serve`` on a fresh SQLite file. The clients run in this process, on the same machine. Some
figures depend less on the speed of the machine: ``overhead_ms`` is the time of a call over HTTP minus its time in the
core; ``batching_gain`` is the throughput of 32 clients with batching divided by that without; ``vs_plain`` is the
requests per second divided by those of :mod:`benchmarks.bench.baseline_endpoint`.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch
from rich.console import Console
from sqlalchemy.orm import Session

from app.commands.serve import LocalService, free_port
from app.datasets.encoding import ContextEncoding
from app.db.engine import create_engine
from app.db.tables import PosteriorRow
from app.demo import MORNINGS, bakery_rows, example_problem
from app.posteriors import service as posteriors
from bco_core.prescribe import PrescribeOptions, prescribe
from bco_core.problems.registry import build_problem
from benchmarks.bench.clients import Connection, load
from benchmarks.bench.serving import api_memory, train

CLIENTS = (1, 8, 32)
SECONDS = 10.0
_MOST = CLIENTS[-1]
_BODIES: list[dict[str, Any]] = [{"contexts": [morning]} for morning in MORNINGS]

Figures = dict[str, Any]


def run(as_json: bool, seconds: float = SECONDS) -> Figures:
    """Measure and print requests a second and latency in milliseconds for each number of clients."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder) / 'bench.db'}"
        figures, posterior = _measure_batched(database, seconds, console)
        console.print(f"{_MOST} clients, each call decided alone")
        with LocalService(
            BCO_DATABASE_URL=database, BCO_MAX_PRESCRIPTIONS="256", BCO_MAX_BATCHED_CONTEXTS="1"
        ) as service:
            alone = asyncio.run(load(_address(service, posterior), _BODIES, _MOST, seconds))
    console.print(f"{_MOST} clients of a plain endpoint")
    plain = _measure_baseline(seconds)
    together = figures[f"idle_{_MOST}"]
    figures |= {
        "clients32_rps": together["requests_per_s"],
        "clients32_p99_ms": together["p99_ms"],
        "batching_gain": round(together["requests_per_s"] / alone["requests_per_s"], 2),
        "plain_rps": plain["requests_per_s"],
        "vs_plain": round(together["requests_per_s"] / plain["requests_per_s"], 2),
    }
    if as_json:
        Console().print(json.dumps(figures), soft_wrap=True, highlight=False)
    else:
        for name, result in figures.items():
            shown = result if isinstance(result, dict) else {"": result}
            Console().print(f"{name:24}" + "  ".join(f"{what} {value:g}".strip() for what, value in shown.items()))
    return figures


def _measure_batched(database: str, seconds: float, console: Console) -> tuple[Figures, str]:
    """Return the figures of the service with batching, and the id of the posterior that prescribes."""
    with (
        LocalService(BCO_DATABASE_URL=database, BCO_MAX_PRESCRIPTIONS="256") as service,
        httpx.Client(base_url=service.url, timeout=120) as client,
    ):
        console.print("learning the posterior that will prescribe")
        request = _create_inputs(client)
        _, posterior = train(client, request | {"inference": {"epochs": 2}})
        address = _address(service, posterior)
        figures: Figures = {}
        for clients in CLIENTS:
            console.print(f"{clients} client(s)")
            figures[f"idle_{clients}"] = asyncio.run(load(address, _BODIES, clients, seconds))
        console.print("the same calls over HTTP and in the core, in turns")
        figures |= asyncio.run(_overhead(address, database, posterior, seconds))
        figures["api_rss_mb"] = round(api_memory(service) / 1e6, 1)
        console.print("a worker with nothing to do")
        figures["idle_worker_cpu"] = round(_idle_worker(service, seconds), 4)
        figures |= _while_a_job_learns(client, request, address, seconds, console)
    return figures, posterior


def _create_inputs(client: httpx.Client) -> dict[str, Any]:
    outcomes = [item["name"] for item in example_problem()["spec"]["items"]]
    problem = client.post("/v1/problems", json=example_problem()).json()
    dataset = client.post("/v1/datasets", json={"name": "bench", "outcomes": outcomes, "rows": bakery_rows()}).json()
    return {"problem_id": problem["id"], "dataset_id": dataset["id"]}


def _address(service: LocalService, posterior: str) -> str:
    return f"{service.url}/v1/posteriors/{posterior}/prescribe"


def _while_a_job_learns(
    client: httpx.Client, request: dict[str, Any], address: str, seconds: float, console: Console
) -> Figures:
    learning = request | {"inference": {"method": "vi", "members": 8, "epochs": 100_000, "patience": 100_000}}
    job, figures = client.post("/v1/jobs", json=learning).json(), {}
    while client.get(f"/v1/jobs/{job['id']}").json()["progress"] == 0:
        time.sleep(0.1)
    for clients in CLIENTS:
        console.print(f"{clients} client(s) while a job learns")
        figures[f"learning_{clients}"] = asyncio.run(load(address, _BODIES, clients, seconds))
    if client.get(f"/v1/jobs/{job['id']}").json()["state"] != "running":
        raise RuntimeError("the job ended before the load did")
    client.post(f"/v1/jobs/{job['id']}/cancel")
    return figures


async def _overhead(address: str, database: str, posterior_id: str, seconds: float) -> Figures:
    """Return the median times of one client's calls over HTTP and of the same calls to the core here, in turns."""
    torch.set_num_threads(1)
    with Session(create_engine(database)) as session:
        row = session.get_one(PosteriorRow, posterior_id)
        posterior = posteriors.load(session, row)
    problem, encoding, options = (
        build_problem(row.problem),
        ContextEncoding.of(row.columns),
        PrescribeOptions(row.policy),
    )
    rows = [torch.from_numpy(encoding.encode_rows(encoding.in_order([morning])).matrix) for morning in MORNINGS]
    draws = posterior.draws(options.scenarios)
    connection = await Connection.open(address)
    over_http, in_core, number = [], [], 0
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        await connection.post(json.dumps(_BODIES[number % len(_BODIES)]).encode())
        between = time.perf_counter()
        prescribe(posterior, problem, rows[number % len(rows)], options, draws)
        over_http.append(between - began)
        in_core.append(time.perf_counter() - between)
        number += 1
    connection.close()
    alone, core = (1000 * statistics.median(times) for times in (over_http, in_core))
    return {"alone_p50_ms": round(alone, 2), "core_p50_ms": round(core, 2), "overhead_ms": round(alone - core, 2)}


def _idle_worker(service: LocalService, seconds: float) -> float:
    """Return the share of a core that the service's idle worker uses."""
    if service.process is None:
        raise RuntimeError("the service is not running")
    children = psutil.Process(service.process.pid).children(recursive=True)
    workers = [one for one in children if "app.jobs.worker" in one.cmdline()]

    def cpu_seconds() -> float:
        return float(sum(one.cpu_times().user + one.cpu_times().system for one in workers))

    before, began = cpu_seconds(), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds() - before) / (time.perf_counter() - began)


def _measure_baseline(seconds: float) -> dict[str, float]:
    port = free_port()
    with subprocess.Popen((sys.executable, "-m", "benchmarks.bench.baseline_endpoint", str(port))) as process:
        try:
            _wait_for(process, f"http://127.0.0.1:{port}/openapi.json")
            return asyncio.run(load(f"http://127.0.0.1:{port}/prescribe", _BODIES, _MOST, seconds))
        finally:
            process.terminate()


def _wait_for(process: subprocess.Popen[bytes], url: str) -> None:
    while process.poll() is None:
        try:
            httpx.get(url).raise_for_status()
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("the plain endpoint did not start; its messages are above")
