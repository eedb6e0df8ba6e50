"""Hundreds of jobs while processes are killed at random moments: nothing is lost and nothing is doubled.

Run by ``make torture``. Workers, the API, all of them at once and PostgreSQL itself die by kill −9 and are started
again, as a supervisor would; what was accepted ends exactly once.
"""

from __future__ import annotations

import io
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

import httpx
import pyarrow.parquet as pq
import pytest

from app.demo import MORNINGS, as_csv, bakery_rows
from tests.support.fleet import Fleet, Postgres, new_fleets, new_postgres
from tests.support.journey import Json, answered
from tests.support.polling import crowding, wait_until
from tests.support.processes import finished, in_database, is_ready, prepare, read, submit

pytestmark = pytest.mark.torture

LEARNING, BATCHES = 160, 40
# How soon one worker alone goes on with what the one before it has left.
RECOVERY_SECONDS = 60.0
# The default: with less, a live worker that gets no processor time for seconds is taken for dead.
PATIENT = {"BCO_WORKER_DEADLINE_SECONDS": "8"}
CONTEXTS = [{name: row[name] for name in MORNINGS[0]} for row in bakery_rows(2500, seed=5)]


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres | None]:
    """A PostgreSQL for each test: workers of a test before would help those of this one."""
    if request.param == "sqlite":
        yield None
    else:
        with new_postgres() as server:
            yield server


@pytest.fixture
def fleet_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Fleet]]:
    with new_fleets(tmp_path_factory) as start:
        yield start


def accepted(act: Callable[[], str]) -> str:
    """Ask until somebody answers; the Idempotency-Key of the request makes sure that asking again makes nothing new."""
    end = time.monotonic() + 180 * crowding()
    while True:
        try:
            return act()
        except (httpx.TransportError, AssertionError):
            assert time.monotonic() < end, "nobody accepts anything"
            time.sleep(0.3)


def new_job(fleet: Fleet, ids: Json, number: int) -> str:
    inference = {"method": "vi", "members": 2, "epochs": 15, "patience": 100, "particles": 50}
    body = ids | {"predictor": {"kind": "mlp", "hidden": [8]}, "inference": inference, "seed": number}
    headers = {"Idempotency-Key": f"job {number}".replace(" ", "-")}
    job_id: str = answered(fleet.http.post("/v1/jobs", json=body, headers=headers), 202)["id"]
    return job_id


def new_batch(fleet: Fleet, posterior_id: str, number: int) -> str:
    path = f"/v1/posteriors/{posterior_id}/batch-prescriptions/upload"
    content: Json = {"data": {"scenarios": 1000}, "files": {"file": ("contexts.csv", as_csv(CONTEXTS).encode())}}
    headers = {"Idempotency-Key": f"batch-{number}"}
    job_id: str = answered(fleet.http.post(path, headers=headers, **content), 202)["id"]
    return job_id


def strike(fleet: Fleet, server: Postgres | None, chance: random.Random) -> str:
    """Kill something, and start it again after a while."""
    victims = ["worker", "worker", "worker", "api", "everything"] + ["postgres"] * 2 * (server is not None)
    victim = chance.choice(victims)
    if victim == "worker":
        fleet.kill_worker(chance.randrange(len(fleet.workers)))
    elif victim == "api":
        fleet.kill_api()
    elif victim == "everything":
        fleet.kill_api()
        for number in range(len(fleet.workers)):
            fleet.kill_worker(number)
    elif server is not None:
        server.kill()
        time.sleep(chance.uniform(0, 5))
        server.start()
    return victim


def test_two_hundred_jobs_end_exactly_once_however_processes_die(
    server: Postgres | None, fleet_on: Callable[..., Fleet], empty_database: Callable[[str], str]
) -> None:
    chance = random.Random(20)
    fleet = fleet_on(empty_database("sqlite") if server is None else server.url, **PATIENT)
    ids = prepare(fleet.http)
    first = finished(fleet.http, submit(fleet.http, ids, epochs=3))
    jobs = [new_job(fleet, ids, number) for number in range(LEARNING // 2)]
    batches = [new_batch(fleet, first["posterior_id"], number) for number in range(BATCHES // 2)]

    struck: Counter[str] = Counter()
    for number in range(LEARNING // 2):
        struck[strike(fleet, server, chance)] += 1
        time.sleep(chance.uniform(0.2, 8))
        jobs.append(accepted(lambda number=number: new_job(fleet, ids, LEARNING // 2 + number)))
        if number % 4 == 0:
            sent = BATCHES // 2 + number // 4
            batches.append(accepted(lambda sent=sent: new_batch(fleet, first["posterior_id"], sent)))
    wait_until("the API is ready", lambda: is_ready(fleet.http))
    for worker in fleet.workers:
        fleet.wait_for(worker)

    ended = [finished(fleet.http, job) for job in [*jobs, *batches]]
    told = Counter((job["kind"], job["state"]) for job in ended)
    given_up = [job for job in ended if job["state"] == "failed"]
    # Only what met the death of its worker three times may have failed, and it says so.
    assert all("died 3 times" in job["error"] for job in given_up), given_up
    assert told[("learn", "succeeded")] + told[("prescribe", "succeeded")] + len(given_up) == LEARNING + BATCHES
    assert len(given_up) <= 5, (told, struck)
    assert len({*jobs, *batches}) == LEARNING + BATCHES == len(jobs) + len(batches)

    counted = "SELECT count(*) FROM jobs WHERE id <> :job_id"
    assert in_database(fleet.url, counted, first["id"])[0][0] == LEARNING + BATCHES
    doubled = "SELECT job_id FROM posteriors WHERE job_id <> :job_id GROUP BY job_id HAVING count(*) > 1"
    assert in_database(fleet.url, doubled, "") == []
    ends = "SELECT count(*) FROM job_log WHERE job_id = :job_id AND (text = 'succeeded' OR text LIKE 'failed%')"
    for job in ended:
        found = in_database(fleet.url, "SELECT id FROM posteriors WHERE job_id = :job_id", job["id"])
        assert len(found) == (job["state"] == "succeeded" and job["kind"] == "learn")
        assert in_database(fleet.url, ends, job["id"])[0][0] == 1
    answers = set()
    for job in ended:
        if job["kind"] == "prescribe" and job["state"] == "succeeded":
            file = fleet.http.get(f"/v1/jobs/{job['id']}/result", params={"format": "parquet"}).content
            table = pq.read_table(io.BytesIO(file))
            assert table.column("temperature").to_pylist() == [context["temperature"] for context in CONTEXTS]
            answers.add(tuple(table.column("decision.loaves").to_pylist()))
    assert len(answers) == 1
    assert '"level":"ERROR"' not in fleet.messages()


# The first number is for trying it out.
@pytest.mark.parametrize("jobs", [10, 200])
def test_one_worker_alone_goes_on_within_a_minute_each_time_it_is_killed(
    server: Postgres | None, fleet_on: Callable[..., Fleet], empty_database: Callable[[str], str], jobs: int
) -> None:
    """Each round has four jobs and a batch, and kills the worker in the middle of one of them."""
    chance = random.Random(jobs)
    fleet = fleet_on(empty_database("sqlite") if server is None else server.url, 1, **PATIENT)
    ids = prepare(fleet.http)
    posterior_id = finished(fleet.http, submit(fleet.http, ids, epochs=3))["posterior_id"]
    known, waits = [], []
    for number in range(jobs // 5):
        made = [new_job(fleet, ids, 1_000 + 5 * number + seed) for seed in range(4)]
        made.append(new_batch(fleet, posterior_id, 1_000 + number))
        known.extend(made)
        wait_until("something runs", lambda made=made: "running" in states(fleet, made))
        time.sleep(chance.uniform(0, 2))
        before = standing(fleet, made)
        fleet.kill_worker(0)
        began = time.monotonic()
        wait_until("it goes on", lambda made=made, before=before: standing(fleet, made) > before)
        waits.append(time.monotonic() - began)
        for job in made:
            assert finished(fleet.http, job)["state"] == "succeeded"
    assert max(waits) < RECOVERY_SECONDS * crowding(), waits
    for job in known:
        assert in_database(fleet.url, "SELECT count(*) FROM posteriors WHERE job_id = :job_id", job)[0][0] <= 1


def states(fleet: Fleet, jobs: list[str]) -> set[str]:
    return {read(fleet.http, job)["state"] for job in jobs}


def standing(fleet: Fleet, jobs: list[str]) -> tuple[int, int]:
    """How many jobs have ended and how often they were begun; either grows as soon as a worker goes on."""
    found = [read(fleet.http, job) for job in jobs]
    return sum(job["state"] == "succeeded" for job in found), sum(job["attempts"] for job in found)


def test_a_job_that_kills_its_worker_three_times_is_given_up_with_that_reason(
    fleet_on: Callable[..., Fleet], empty_database: Callable[[str], str]
) -> None:
    fleet = fleet_on(empty_database("sqlite"), 1)
    job_id = submit(fleet.http, prepare(fleet.http), epochs=100_000)
    for attempt in (1, 2, 3):
        marker = f"{job_id} starts, attempt {attempt}"
        wait_until("the job runs", lambda marker=marker: marker in fleet.messages())
        fleet.kill_worker(0)
    job = finished(fleet.http, job_id)
    assert (job["state"], job["attempts"]) == ("failed", 4)
    assert "its worker died 3 times" in job["error"]
    quick = submit(fleet.http, prepare(fleet.http), epochs=3)
    assert finished(fleet.http, quick)["state"] == "succeeded"
