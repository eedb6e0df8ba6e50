"""How the service answers under load: many clients prescribe over HTTP, alone and while a job learns.

A real ``bco serve`` on a fresh SQLite file; the clients are in this process, so they share its machine.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import statistics
import time
from typing import Any

import httpx
from rich.console import Console

from app.commands.demo import MORNINGS, bakery_rows, example_problem
from benchmarks.bench.serving import fresh_service, train

CLIENTS = (1, 8, 32)
SECONDS = 10.0


def run(as_json: bool, seconds: float = SECONDS) -> dict[str, Any]:
    """Measure and print requests a second and latency in milliseconds for each number of clients."""
    with fresh_service(BCO_MAX_PRESCRIPTIONS="256") as (service, client):
        figures = _measure(client, service.url, seconds, Console(stderr=True))
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
    _, posterior = train(client, request | {"posterior": {"epochs": 2}})
    address = f"{url}/v1/posteriors/{posterior}/prescribe"

    figures, bodies = {}, [{"contexts": [morning]} for morning in MORNINGS]
    for clients in CLIENTS:
        console.print(f"{clients} client(s)")
        figures[f"idle_{clients}"] = asyncio.run(load(address, bodies, clients, seconds))
    learning = request | {"posterior": {"method": "vi", "members": 8, "epochs": 100_000, "patience": 100_000}}
    job = client.post("/v1/jobs", json=learning).json()
    while client.get(f"/v1/jobs/{job['id']}").json()["progress"] == 0:
        time.sleep(0.1)
    for clients in CLIENTS:
        console.print(f"{clients} client(s) while a job learns")
        figures[f"learning_{clients}"] = asyncio.run(load(address, bodies, clients, seconds))
    if client.get(f"/v1/jobs/{job['id']}").json()["state"] != "running":
        raise RuntimeError("the job ended before the load did")
    client.post(f"/v1/jobs/{job['id']}/cancel")
    return figures


async def load(address: str, bodies: list[dict[str, Any]], clients: int, seconds: float) -> dict[str, float]:
    """So many clients, each on a connection of its own, post one body after the other.

    They speak HTTP by themselves: a client library would take as much of the machine as the service.
    """
    latencies: list[float] = []
    refused = 0
    url = httpx.URL(address)

    async def one(number: int) -> None:
        nonlocal refused
        head = f"POST {url.path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
        contents = [json.dumps(body).encode() for body in bodies]
        requests = itertools.cycle(
            f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
            for content in contents[number % len(contents) :] + contents[: number % len(contents)]
        )
        reader, writer = await asyncio.open_connection(url.host, url.port)
        await _answer(reader, writer, next(requests))
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            status = await _answer(reader, writer, next(requests))
            if status == 503:
                refused += 1
                await asyncio.sleep(0.05)
            elif status == 200:
                latencies.append(time.perf_counter() - began)
            else:
                raise RuntimeError(f"the service answered {status}")
        writer.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    centiles = statistics.quantiles(latencies, n=100)
    return {
        "requests_per_s": round(len(latencies) / seconds, 1),
        "p50_ms": round(centiles[49] * 1000, 1),
        "p99_ms": round(centiles[98] * 1000, 1),
        "refused": refused,
    }


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """The status of an answer, read to its end."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    (length,) = re.findall(r"^content-length: (\d+)\r$", head, re.MULTILINE)
    await reader.readexactly(int(length))
    return int(head.split(" ", 2)[1])
