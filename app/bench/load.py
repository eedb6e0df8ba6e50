"""How the service answers under load: many clients prescribe over HTTP, alone and while a job learns.

A real ``bco serve`` on a fresh SQLite file; the clients are in this process, so they share its machine.
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
from rich.console import Console

from app.demo import MORNINGS, bakery_rows, example_problem
from app.local import LocalService

CLIENTS = (1, 8, 32)
SECONDS = 10.0


def run(as_json: bool, seconds: float = SECONDS) -> dict[str, Any]:
    """Measure and print requests a second and latency in milliseconds for each number of clients."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder) / 'bench.db'}"
        with (
            LocalService(BCO_DATABASE_URL=database, BCO_MAX_PRESCRIPTIONS="256") as service,
            httpx.Client(base_url=service.url, timeout=120) as client,
        ):
            figures = _measure(client, service.url, seconds, console)
    if as_json:
        Console().print(json.dumps(figures), soft_wrap=True, highlight=False)
    else:
        for name, found in figures.items():
            Console().print(f"{name:24}" + "  ".join(f"{what} {value:g}" for what, value in found.items()))
    return figures


def _measure(client: httpx.Client, url: str, seconds: float, console: Console) -> dict[str, Any]:
    outcomes = [item["name"] for item in example_problem()["spec"]["items"]]
    problem = client.post("/v1/problems", json=example_problem()).json()
    rows = {"name": "bench", "outcomes": outcomes, "rows": bakery_rows()}
    dataset = client.post("/v1/datasets", json=rows).json()
    request = {"problem_id": problem["id"], "dataset_id": dataset["id"]}
    console.print("learning the posterior that will prescribe")
    posterior = _learned(client, request | {"posterior": {"epochs": 2}})
    address = f"{url}/v1/posteriors/{posterior}/prescribe"

    figures = {}
    for clients in CLIENTS:
        console.print(f"{clients} client(s)")
        figures[f"idle_{clients}"] = asyncio.run(_load(address, clients, seconds))
    learning = request | {"posterior": {"method": "vi", "members": 8, "epochs": 100_000, "patience": 100_000}}
    job = client.post("/v1/jobs", json=learning).json()
    while client.get(f"/v1/jobs/{job['id']}").json()["progress"] == 0:
        time.sleep(0.1)
    for clients in CLIENTS:
        console.print(f"{clients} client(s) while a job learns")
        figures[f"learning_{clients}"] = asyncio.run(_load(address, clients, seconds))
    if client.get(f"/v1/jobs/{job['id']}").json()["state"] != "running":
        raise RuntimeError("the job ended before the load did")
    client.post(f"/v1/jobs/{job['id']}/cancel")
    return figures


def _learned(client: httpx.Client, request: dict[str, Any]) -> str:
    job = client.post("/v1/jobs", json=request).json()
    while job["state"] in ("queued", "running"):
        time.sleep(0.1)
        job = client.get(f"/v1/jobs/{job['id']}").json()
    if job["state"] != "succeeded":
        raise RuntimeError(f"the job {job['state']}: {job['error']}")
    posterior: str = job["posterior_id"]
    return posterior


async def _load(address: str, clients: int, seconds: float) -> dict[str, float]:
    """So many clients, each with one context at a time, one request after the other."""
    latencies: list[float] = []
    refused = 0
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:
        await http.post(address, json={"contexts": MORNINGS[:1]})
        end = time.perf_counter() + seconds

        async def one(number: int) -> None:
            nonlocal refused
            body = {"contexts": [MORNINGS[number % len(MORNINGS)]]}
            while time.perf_counter() < end:
                began = time.perf_counter()
                answer = await http.post(address, json=body)
                if answer.status_code == 503:
                    refused += 1
                    await asyncio.sleep(0.05)
                    continue
                answer.raise_for_status()
                latencies.append(time.perf_counter() - began)

        await asyncio.gather(*(one(number) for number in range(clients)))
    centiles = statistics.quantiles(latencies, n=100)
    return {
        "requests_per_s": round(len(latencies) / seconds, 1),
        "p50_ms": round(centiles[49] * 1000, 1),
        "p99_ms": round(centiles[98] * 1000, 1),
        "refused": refused,
    }
