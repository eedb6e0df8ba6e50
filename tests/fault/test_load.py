"""Load: a hundred clients upload, learn, prescribe, cancel and delete at once, including each other's objects.

Each of them gets a valid answer and never an internal error; a busy service may answer 503 with Retry-After.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.commands.serve import LocalService
from app.demo import as_csv, bakery_rows, example_problem
from tests.support.journey import CONTEXTS, OUTCOMES, QUICK, Json, pages
from tests.support.polling import wait_until
from tests.support.processes import wait_for_job

CLIENTS = 100
UNFINISHED = ("queued", "running")
CSV = as_csv(bakery_rows(40)).encode()
JOB: Json = {"predictor": {"kind": "linear"}, "inference": QUICK}
# The valid statuses of each act, besides 503 with Retry-After. Other clients may delete objects at any moment.
EXPECTED = {
    "upload": {201},
    "problem": {201},
    "job": {202, 409, 422},
    "prescribe": {200},
    "read": {200, 404},
    "list": {200},
    "cancel": {202, 404, 409},
    "delete": {204, 404, 409},
}
MOST_ACTS = 10_000
WEIGHTS = {"upload": 4, "problem": 3, "job": 3, "prescribe": 12, "read": 6, "list": 2, "cancel": 3, "delete": 4}


@dataclass
class World:
    """State shared by all clients: the objects they created and the answers they got."""

    posterior_id: str
    objects: dict[str, list[str]] = field(default_factory=lambda: {"problems": [], "datasets": [], "jobs": []})
    seen: Counter[tuple[str, int]] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    repeated: int = 0

    def successes(self) -> dict[str, int]:
        """Count the successes of each act, except cancelling, which needs luck."""
        return {
            act: sum(count for (seen, status), count in self.seen.items() if seen == act and status < 300)
            for act in ACTS
            if act != "cancel"
        }

    def is_complete(self) -> bool:
        return self.repeated > 0 and min(self.successes().values()) > 0

    def pick(self, rng: random.Random, kind: str) -> str:
        return rng.choice(self.objects[kind][-50:] or ["nowhere"])

    def note(self, act: str, response: httpx.Response) -> bool:
        """Count an answer; return whether it is a success."""
        self.seen[act, response.status_code] += 1
        busy = response.status_code == 503 and response.headers.get("retry-after", "").isdigit()
        if response.status_code not in EXPECTED[act] and not busy:
            self.errors.append(f"{act}: {response.status_code} {response.text[:300]}")
        return response.is_success


async def act_as_client(client: httpx.AsyncClient, world: World, number: int, until: float) -> None:
    """Act until the time is up and every act has succeeded, at most MOST_ACTS times.

    On a busy machine the time alone may be too short for a job to find a problem and a data set to learn from.
    """
    rng = random.Random(number)
    for _ in range(MOST_ACTS):
        if time.monotonic() > until and world.is_complete():
            return
        (act,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        await ACTS[act](client, world, rng)


async def create(client: httpx.AsyncClient, world: World, rng: random.Random, act: str, path: str, **body: Any) -> None:
    """Create an object; half of the time, send the request twice with a key, which must create one object."""
    headers = {"Idempotency-Key": f"{rng.getrandbits(80):x}"} if rng.random() < 0.5 else {}
    response = await client.post(path, headers=headers, **body)
    if not world.note(act, response):
        return
    kind = path.split("/")[2]
    world.objects[kind].append(response.json()["id"])
    if headers:
        again = await client.post(path, headers=headers, **body)
        world.repeated += 1
        if world.note(act, again) and again.content != response.content:
            world.errors.append(f"{act}: sent twice, made twice")


async def upload(client: httpx.AsyncClient, world: World, rng: random.Random) -> None:
    form = {"name": "load", "outcomes": ",".join(OUTCOMES)}
    await create(client, world, rng, "upload", "/v1/datasets/upload", data=form, files={"file": ("load.csv", CSV)})


async def problem(client: httpx.AsyncClient, world: World, rng: random.Random) -> None:
    await create(client, world, rng, "problem", "/v1/problems", json=example_problem())


async def job(client: httpx.AsyncClient, world: World, rng: random.Random) -> None:
    ids = {"problem_id": world.pick(rng, "problems"), "dataset_id": world.pick(rng, "datasets")}
    await create(client, world, rng, "job", "/v1/jobs", json=JOB | ids)


async def prescribe(client: httpx.AsyncClient, world: World, rng: random.Random) -> None:
    contexts = rng.choices(CONTEXTS, k=rng.choice([1, 1, 1, 20]))
    path = f"/v1/posteriors/{world.posterior_id}/prescribe"
    response = await client.post(path, json={"contexts": contexts, "scenarios": 40})
    if world.note("prescribe", response) and len(response.json()["prescriptions"]) != len(contexts):
        world.errors.append("prescribe: not a decision for each context")


async def read(client: httpx.AsyncClient, world: World, rng: random.Random) -> None:
    kind = rng.choice(list(world.objects))
    identifier = world.pick(rng, kind)
    response = await client.get(f"/v1/{kind}/{identifier}")
    if world.note("read", response) and response.json()["id"] != identifier:
        world.errors.append("read: another object")


async def listing(client: httpx.AsyncClient, world: World, rng: random.Random) -> None:
    world.note("list", await client.get(f"/v1/{rng.choice(list(world.objects))}", params={"limit": 20}))


async def cancel(client: httpx.AsyncClient, world: World, rng: random.Random) -> None:
    world.note("cancel", await client.post(f"/v1/jobs/{world.pick(rng, 'jobs')}/cancel"))


async def delete(client: httpx.AsyncClient, world: World, rng: random.Random) -> None:
    kind = rng.choice(list(world.objects))
    world.note("delete", await client.delete(f"/v1/{kind}/{world.pick(rng, kind)}"))


ACTS = {
    "upload": upload,
    "problem": problem,
    "job": job,
    "prescribe": prescribe,
    "read": read,
    "list": listing,
    "cancel": cancel,
    "delete": delete,
}


def shared_posterior(http: httpx.Client) -> str:
    """Learn a posterior that no client deletes."""
    ids = {"problem_id": http.post("/v1/problems", json=example_problem()).json()["id"]}
    body = {"name": "days", "outcomes": OUTCOMES, "rows": bakery_rows(60)}
    ids["dataset_id"] = http.post("/v1/datasets", json=body).json()["id"]
    found = http.post("/v1/jobs", json=JOB | ids).json()
    found = wait_for_job(http, found["id"])
    assert found["state"] == "succeeded", found
    return str(found["posterior_id"])


async def run_clients(url: str, world: World, seconds: float) -> None:
    limits = httpx.Limits(max_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        until = time.monotonic() + seconds
        await asyncio.gather(*(act_as_client(client, world, number, until) for number in range(CLIENTS)))


def cancel_all_jobs(http: httpx.Client) -> None:
    """Cancel all unfinished jobs and wait until none is left."""

    def has_ended() -> bool:
        unfinished = [job for page in pages(http, "/v1/jobs", 200) for job in page if job["state"] in UNFINISHED]
        for job in unfinished:
            assert http.post(f"/v1/jobs/{job['id']}/cancel").status_code in (202, 409)
        return not unfinished

    wait_until("nothing waits or runs", has_ended)


def run_load(url: str, seconds: float) -> World:
    with (
        LocalService(BCO_DATABASE_URL=url, BCO_WORKERS="1", BCO_MAX_WORKSPACE_PRESCRIPTIONS="100") as service,
        httpx.Client(base_url=service.url, timeout=120) as http,
    ):
        world = World(shared_posterior(http))
        asyncio.run(run_clients(service.url, world, seconds))
        cancel_all_jobs(http)
        assert http.get("/readyz").status_code == 200
        metrics = http.get("/metrics").text
    assert world.errors == []
    assert 'status="500"' not in metrics
    assert world.is_complete(), world.seen
    return world


@pytest.mark.slow
def test_a_hundred_clients_get_valid_answers_for_some_seconds(tmp_path: Path) -> None:
    run_load(f"sqlite:///{tmp_path / 'bco.db'}", 5)


@pytest.mark.torture
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_hundred_clients_get_valid_answers_for_a_minute(kind: str, empty_database: Callable[[str], str]) -> None:
    world = run_load(empty_database(kind), 60)
    assert world.seen["cancel", 202] > 0
    print({f"{act} {status}": n for (act, status), n in sorted(world.seen.items())})  # noqa: T201
