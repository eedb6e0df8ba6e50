"""Speed of the service: a real ``bco serve`` on a fresh SQLite file, measured over HTTP from outside."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.progress import Progress

from app.commands.serve import LocalService
from app.demo import MORNINGS, bakery_rows, example_problem

SINGLE_REQUESTS = 1000
BATCH_CONTEXTS = 10_000
POSTERIORS = 10


def run(as_json: bool) -> dict[str, float]:
    """Measure and print; the figures are medians unless their name says otherwise."""
    with fresh_service() as (service, client):
        figures = _measure(client, service, Console(stderr=True))
    if as_json:
        Console().print(json.dumps(figures), soft_wrap=True, highlight=False)
    else:
        for name, value in figures.items():
            Console().print(f"{name:24}{value:12.2f}")
    return figures


@contextmanager
def fresh_service(**settings: Any) -> Iterator[tuple[LocalService, httpx.Client]]:
    """Yield a service on an empty database, and its client."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalService(BCO_DATABASE_URL=f"sqlite:///{Path(folder) / 'bench.db'}", **settings) as service,
        httpx.Client(base_url=service.url, timeout=120) as client,
    ):
        yield service, client


def _measure(client: httpx.Client, service: LocalService, console: Console) -> dict[str, float]:
    outcomes = [item["name"] for item in example_problem()["spec"]["items"]]
    problem = client.post("/v1/problems", json=example_problem()).json()
    body = {"name": "bench", "outcomes": outcomes, "rows": bakery_rows()}
    dataset = client.post("/v1/datasets", json=body).json()
    rows = bakery_rows(BATCH_CONTEXTS, seed=1)
    contexts = [{name: row[name] for name in MORNINGS[0]} for row in rows]

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("training posteriors", total=POSTERIORS)
        starts, posteriors = [], []
        request = {"problem_id": problem["id"], "dataset_id": dataset["id"], "inference": {"epochs": 2}}
        # The first job waits until the worker is up; starts are measured on a running service.
        train(client, request)
        for seed in range(POSTERIORS):
            start, posterior = train(client, request | {"seed": seed})
            starts.append(start)
            posteriors.append(posterior)
            bar.advance(task)

        bar.update(task, description="prescribing", completed=0, total=SINGLE_REQUESTS)
        for posterior in posteriors:
            _prescribe(client, posterior, contexts[:1])
        latencies = []
        for index in range(SINGLE_REQUESTS):
            latencies.append(_prescribe(client, posteriors[0], contexts[index : index + 1]))
            bar.advance(task)

        bar.update(task, description="prescribing in bulk", completed=0, total=3)
        bulk = []
        for _ in range(3):
            bulk.append(_prescribe(client, posteriors[0], contexts))
            bar.advance(task)

    centiles = statistics.quantiles(latencies, n=100)
    return {
        "prescribe_p50_ms": round(centiles[49] * 1000, 2),
        "prescribe_p99_ms": round(centiles[98] * 1000, 2),
        "batch_contexts_per_s": round(BATCH_CONTEXTS / statistics.median(bulk), 1),
        "job_start_s": round(statistics.median(starts), 3),
        "job_start_max_s": round(max(starts), 3),
        "api_rss_mb": round(api_memory(service) / 1e6, 1),
    }


def train(client: httpx.Client, request: dict[str, Any]) -> tuple[float, str]:
    """Train a posterior; return the seconds from POST until the job runs, and the posterior's id."""
    began = time.perf_counter()
    job = client.post("/v1/jobs", json=request).raise_for_status().json()
    start = None
    while job["state"] in ("queued", "running"):
        time.sleep(0.02)
        job = client.get(f"/v1/jobs/{job['id']}").json()
        if start is None and job["state"] != "queued":
            start = time.perf_counter() - began
    if job["state"] != "succeeded" or start is None:
        raise RuntimeError(f"the job {job['state']}: {job['error']}")
    return start, job["posterior_id"]


def _prescribe(client: httpx.Client, posterior: str, contexts: list[dict[str, Any]]) -> float:
    began = time.perf_counter()
    response = client.post(f"/v1/posteriors/{posterior}/prescribe", json={"contexts": contexts, "scenarios": 200})
    response.raise_for_status()
    return time.perf_counter() - began


def api_memory(service: LocalService) -> int:
    """Return the memory in bytes of the processes that listen on the service's port; shared memory counts once."""
    if service.process is None:
        raise RuntimeError("the service is not running")
    result = [
        int(process.memory_full_info().pss)
        for process in psutil.Process(service.process.pid).children(recursive=True)
        if any(c.status == psutil.CONN_LISTEN and c.laddr.port == service.port for c in process.net_connections("tcp"))
    ]
    if not result:
        raise RuntimeError("no process listens on the service's port")
    return sum(result)
