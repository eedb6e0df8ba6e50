"""Torture: hundreds of jobs while processes are killed at random; every accepted job ends exactly once.

Run by ``make torture``. Workers, the API, all of them at once and PostgreSQL are killed with kill −9 and started again,
as by a supervisor.
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
from tests.support.journey import Json, check_json
from tests.support.polling import crowding, wait_until
from tests.support.processes import in_database, is_ready, prepare, read, submit, wait_for_job

pytestmark = pytest.mark.torture

LEARNING, BATCHES = 160, 40
# A single restarted worker resumes the jobs of its predecessor within this time.
RECOVERY_SECONDS = 60.0
# The default; with less, a live worker without processor time for some seconds is taken for dead.
DEFAULT_DEADLINE = {"BCO_WORKER_DEADLINE_SECONDS": "8"}
CONTEXTS = [{name: row[name] for name in MORNINGS[0]} for row in bakery_rows(2500, seed=5)]


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres | None]:
    """Start a PostgreSQL server for each test, since workers of an earlier test would take its jobs."""
    if request.param == "sqlite":
        yield None
    else:
        with new_postgres() as server:
            yield server


@pytest.fixture
def start_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Fleet]]:
    with new_fleets(tmp_path_factory) as start:
        yield start


def retry_until_accepted(act: Callable[[], str]) -> str:
    """Repeat a request until it is accepted; its Idempotency-Key prevents duplicates."""
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
    job_id: str = check_json(fleet.http.post("/v1/jobs", json=body, headers=headers), 202)["id"]
    return job_id


def new_batch(fleet: Fleet, posterior_id: str, number: int) -> str:
    path = f"/v1/posteriors/{posterior_id}/batch-prescriptions/upload"
    content: Json = {"data": {"scenarios": 1000}, "files": {"file": ("contexts.csv", as_csv(CONTEXTS).encode())}}
    headers = {"Idempotency-Key": f"batch-{number}"}
    job_id: str = check_json(fleet.http.post(path, headers=headers, **content), 202)["id"]
    return job_id


def kill_at_random(fleet: Fleet, server: Postgres | None, rng: random.Random) -> str:
    """Kill a part at random and start it again after a while."""
    victims = ["worker", "worker", "worker", "api", "everything"] + ["postgres"] * 2 * (server is not None)
    victim = rng.choice(victims)
    if victim == "worker":
        fleet.kill_worker(rng.randrange(len(fleet.workers)))
    elif victim == "api":
        fleet.kill_api()
    elif victim == "everything":
        fleet.kill_api()
        for number in range(len(fleet.workers)):
            fleet.kill_worker(number)
    elif server is not None:
        server.kill()
        time.sleep(rng.uniform(0, 5))
        server.start()
    return victim


def test_two_hundred_jobs_end_exactly_once_while_processes_are_killed(
    server: Postgres | None, start_fleet: Callable[..., Fleet], empty_database: Callable[[str], str]
) -> None:
    rng = random.Random(20)
    fleet = start_fleet(empty_database("sqlite") if server is None else server.url, **DEFAULT_DEADLINE)
    ids = prepare(fleet.http)
    first = wait_for_job(fleet.http, submit(fleet.http, ids, epochs=3))
    jobs = [new_job(fleet, ids, number) for number in range(LEARNING // 2)]
    batches = [new_batch(fleet, first["posterior_id"], number) for number in range(BATCHES // 2)]

    kills: Counter[str] = Counter()
    for number in range(LEARNING // 2):
        kills[kill_at_random(fleet, server, rng)] += 1
        time.sleep(rng.uniform(0.2, 8))
        jobs.append(retry_until_accepted(lambda number=number: new_job(fleet, ids, LEARNING // 2 + number)))
        if number % 4 == 0:
            sent = BATCHES // 2 + number // 4
            batches.append(retry_until_accepted(lambda sent=sent: new_batch(fleet, first["posterior_id"], sent)))
    wait_until("the API is ready", lambda: is_ready(fleet.http))
    for worker in fleet.workers:
        fleet.wait_for(worker)

    ended = [wait_for_job(fleet.http, job) for job in [*jobs, *batches]]
    endings = Counter((job["kind"], job["state"]) for job in ended)
    given_up = [job for job in ended if job["state"] == "failed"]
    # Only jobs whose worker died three times may have failed, and they say so.
    assert all("died 3 times" in job["error"] for job in given_up), given_up
    assert endings[("learn", "succeeded")] + endings[("prescribe", "succeeded")] + len(given_up) == LEARNING + BATCHES
    assert len(given_up) <= 5, (endings, kills)
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


# The first number is for a quick trial.
@pytest.mark.parametrize("jobs", [10, 200])
def test_a_single_worker_resumes_within_a_minute_of_each_kill(
    server: Postgres | None, start_fleet: Callable[..., Fleet], empty_database: Callable[[str], str], jobs: int
) -> None:
    """Each round runs four jobs and a batch and kills the worker during one of them."""
    rng = random.Random(jobs)
    fleet = start_fleet(empty_database("sqlite") if server is None else server.url, 1, **DEFAULT_DEADLINE)
    ids = prepare(fleet.http)
    posterior_id = wait_for_job(fleet.http, submit(fleet.http, ids, epochs=3))["posterior_id"]
    all_jobs, waits = [], []
    for number in range(jobs // 5):
        created = [new_job(fleet, ids, 1_000 + 5 * number + seed) for seed in range(4)]
        created.append(new_batch(fleet, posterior_id, 1_000 + number))
        all_jobs.extend(created)
        wait_until("something runs", lambda created=created: "running" in states(fleet, created))
        time.sleep(rng.uniform(0, 2))
        before = progress_of(fleet, created)
        fleet.kill_worker(0)
        began = time.monotonic()
        wait_until("it goes on", lambda created=created, before=before: progress_of(fleet, created) > before)
        waits.append(time.monotonic() - began)
        for job in created:
            assert wait_for_job(fleet.http, job)["state"] == "succeeded"
    assert max(waits) < RECOVERY_SECONDS * crowding(), waits
    for job in all_jobs:
        assert in_database(fleet.url, "SELECT count(*) FROM posteriors WHERE job_id = :job_id", job)[0][0] <= 1


def states(fleet: Fleet, jobs: list[str]) -> set[str]:
    return {read(fleet.http, job)["state"] for job in jobs}


def progress_of(fleet: Fleet, jobs: list[str]) -> tuple[int, int]:
    """Count the succeeded jobs and all attempts; either grows as soon as a worker resumes."""
    found = [read(fleet.http, job) for job in jobs]
    return sum(job["state"] == "succeeded" for job in found), sum(job["attempts"] for job in found)


def test_a_job_whose_worker_dies_three_times_fails_with_that_reason(
    start_fleet: Callable[..., Fleet], empty_database: Callable[[str], str]
) -> None:
    fleet = start_fleet(empty_database("sqlite"), 1)
    job_id = submit(fleet.http, prepare(fleet.http), epochs=100_000)
    for attempt in (1, 2, 3):
        marker = f"{job_id} starts, attempt {attempt}"
        wait_until("the job runs", lambda marker=marker: marker in fleet.messages())
        fleet.kill_worker(0)
    job = wait_for_job(fleet.http, job_id)
    assert (job["state"], job["attempts"]) == ("failed", 4)
    assert "its worker died 3 times" in job["error"]
    quick = submit(fleet.http, prepare(fleet.http), epochs=3)
    assert wait_for_job(fleet.http, quick)["state"] == "succeeded"
