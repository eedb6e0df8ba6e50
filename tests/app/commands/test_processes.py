"""Real processes over real HTTP: the whole workflow, cancellation, crashes and shutdown.

On SQLite everything runs under ``bco serve``; on PostgreSQL API and workers run separately, as on several machines.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from app.commands.serve import LocalService, free_port
from app.demo import MORNINGS
from tests.support.journey import Json, check_json
from tests.support.polling import wait_until, within
from tests.support.processes import (
    DEADLINE,
    Part,
    alive,
    descendants,
    epochs_for,
    in_database,
    is_computing,
    is_ready,
    kill,
    posteriors_of,
    prepare,
    read,
    run_user_journey,
    submit,
    wait_for_job,
    worker_processes,
)

# one machine: bco serve on SQLite


@pytest.fixture(scope="module")
def sqlite_url(empty_database: Callable[[str], str]) -> str:
    return empty_database("sqlite")


@pytest.fixture(scope="module")
def service(sqlite_url: str) -> Iterator[LocalService]:
    with LocalService(BCO_DATABASE_URL=sqlite_url, BCO_MAX_BODY_MB="1", **DEADLINE) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: LocalService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url, timeout=30) as http:
        yield http


@pytest.fixture(scope="module")
def ids(client: httpx.Client) -> Json:
    return run_user_journey(client)


def service_processes(service: LocalService) -> set[psutil.Process]:
    assert service.process is not None
    return descendants(service.process.pid)


@pytest.fixture
def running_job(service: LocalService, client: httpx.Client, ids: Json) -> Iterator[tuple[str, set[psutil.Process]]]:
    """A job that would run for hours, and the processes started for it."""
    before = service_processes(service)
    job_id = submit(client, ids, epochs=100_000)
    wait_until("the job runs", lambda: is_computing(client, job_id))
    yield job_id, service_processes(service) - before
    client.post(f"/v1/jobs/{job_id}/cancel")


@pytest.mark.slow
def test_serve_runs_the_whole_workflow_on_one_machine(ids: Json) -> None:
    assert set(ids) == {"problem_id", "dataset_id"}


@pytest.mark.slow
def test_serve_learns_the_same_posterior_from_the_same_seed(client: httpx.Client, ids: Json) -> None:
    digests = []
    for seed in (3, 3, 4):
        job = wait_for_job(client, submit(client, ids, epochs=3, seed=seed))
        digests.append(check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))["digest"])
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.slow
def test_a_cancelled_job_stops_computing_within_three_seconds(
    client: httpx.Client, running_job: tuple[str, set[psutil.Process]]
) -> None:
    job_id, children = running_job
    assert len(children) == 1
    answer = check_json(client.post(f"/v1/jobs/{job_id}/cancel"), 202)
    assert answer["state"] == "cancelled"
    within("the computing process is gone", lambda: not alive(children), 3)
    job = read(client, job_id)
    assert (job["state"], job["attempts"], job["error"]) == ("cancelled", 1, None)
    response = client.post(f"/v1/posteriors/{job['posterior_id']}/prescribe", json={"contexts": MORNINGS})
    assert response.status_code == 409


@pytest.mark.slow
def test_a_job_after_a_cancelled_one_succeeds(client: httpx.Client, ids: Json) -> None:
    assert wait_for_job(client, submit(client, ids, epochs=3))["state"] == "succeeded"


@pytest.mark.slow
def test_the_api_responds_while_a_job_computes(
    client: httpx.Client, running_job: tuple[str, set[psutil.Process]]
) -> None:
    times = []
    for _ in range(20):
        began = time.monotonic()
        assert client.get("/readyz").status_code == 200
        times.append(time.monotonic() - began)
    assert sorted(times)[10] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("declared", [True, False], ids=["with its length", "in chunks"])
def test_a_body_over_the_limit_is_refused_over_real_http(client: httpx.Client, declared: bool) -> None:
    parts = [b'{"name": "'] + [b"x" * 100_000] * 15 + [b'"}']
    headers = {"Content-Type": "application/json"}
    body = b"".join(parts) if declared else iter(parts)
    response = client.post("/v1/problems", content=body, headers=headers)
    assert response.status_code == 413
    assert response.headers["content-type"] == "application/problem+json"
    assert "BCO_MAX_BODY_MB" in response.json()["detail"]
    assert client.get("/livez").text == "ok"


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_job_finishes_once(
    service: LocalService, sqlite_url: str, client: httpx.Client, ids: Json
) -> None:
    epochs = epochs_for(client, ids, seconds=2)
    before = service_processes(service)
    (worker,) = worker_processes(before)
    orphans = descendants(worker.pid)
    job_id = submit(client, ids, epochs)
    wait_until("the job runs", lambda: is_computing(client, job_id))
    orphans |= descendants(worker.pid)
    worker.send_signal(signal.SIGKILL)
    within("the computing process ends with its worker", lambda: not alive(orphans), 5)
    job = wait_for_job(client, job_id)
    assert (job["state"], job["attempts"], job["error"]) == ("succeeded", 2, None)
    assert posteriors_of(sqlite_url, job_id) == 1
    replaced = worker_processes(service_processes(service))
    assert len(replaced) == 1
    assert worker not in replaced


@pytest.mark.slow
def test_a_killed_api_is_replaced_and_keeps_accepted_jobs(
    service: LocalService, client: httpx.Client, ids: Json
) -> None:
    accepted = submit(client, ids, epochs=3)
    (api,) = [process for process in alive(service_processes(service)) if "app.commands.cli" in process.cmdline()]
    api.send_signal(signal.SIGKILL)
    wait_until("another API is ready", lambda: is_ready(client))
    assert wait_for_job(client, accepted)["state"] == "succeeded"


@pytest.mark.slow
def test_stopping_a_service_during_a_job_leaves_no_process_and_requeues_it(
    service: LocalService, sqlite_url: str, client: httpx.Client, ids: Json, tmp_path: Path
) -> None:
    """Runs last on SQLite: it stops the shared service."""
    job_id = submit(client, ids, epochs=100_000)
    wait_until("the job runs", lambda: is_computing(client, job_id))
    everyone = service_processes(service)
    assert len(everyone) >= 4
    service.__exit__(None, None, None)
    try:
        within("every process is gone", lambda: not alive(everyone), 10)
    finally:
        kill(everyone)
    with Part(tmp_path, "worker", "worker", BCO_DATABASE_URL=sqlite_url, **DEADLINE) as worker:
        wait_until("the job is taken up", lambda: f"{job_id} starts, attempt 1" in worker.messages())
        in_database(sqlite_url, "UPDATE jobs SET state = 'cancelled' WHERE id = :job_id", job_id)
        within("the worker is idle", lambda: f"{job_id} cancelled" in worker.messages(), 5)
        assert worker.stop() == 0
        assert "stopped" in worker.messages()


# several machines: separate API and workers on PostgreSQL


@pytest.fixture(scope="module")
def postgres_url(empty_database: Callable[[str], str]) -> str:
    return empty_database("postgresql")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apart")


@pytest.fixture(scope="module")
def environment(postgres_url: str) -> dict[str, str]:
    return {"BCO_DATABASE_URL": postgres_url, "BCO_PORT": str(free_port()), "BCO_LOG_LEVEL": "INFO"} | DEADLINE


@pytest.fixture(scope="module")
def api(folder: Path, environment: dict[str, str]) -> Iterator[Part]:
    """The API, started while two machines migrate the same database."""
    with (
        Part(folder, "migrate1", "migrate", **environment) as one,
        Part(folder, "migrate2", "migrate", **environment) as two,
        Part(folder, "api", "api", **environment) as running,
    ):
        for migration in (one, two):
            assert migration.done() == 0, migration.messages()
            assert "up to date" in migration.messages()
        yield running


@pytest.fixture(scope="module")
def remote(api: Part, environment: dict[str, str]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{environment['BCO_PORT']}", timeout=30) as http:
        wait_until("the API is ready", lambda: is_ready(http))
        yield http


@pytest.fixture(scope="module")
def queued_job(remote: httpx.Client) -> str:
    """A job created while no worker runs."""
    return submit(remote, prepare(remote), epochs=3)


@pytest.fixture(scope="module")
def workers(queued_job: str, folder: Path, environment: dict[str, str]) -> Iterator[list[Part]]:
    """Two workers on one queue; a test that stops one removes it from the list."""
    with (
        Part(folder, "worker1", "worker", **environment) as one,
        Part(folder, "worker2", "worker", **environment) as two,
    ):
        for worker in (one, two):
            wait_until("the worker is ready", lambda worker=worker: " ready " in worker.messages())
        yield [one, two]


@pytest.mark.slow
def test_a_job_stays_queued_while_no_worker_runs(remote: httpx.Client, queued_job: str) -> None:
    time.sleep(1.5)
    job = read(remote, queued_job)
    assert (job["state"], job["attempts"], job["message"]) == ("queued", 0, "waiting for a worker")


@pytest.mark.slow
def test_a_queued_job_is_taken_by_the_first_worker(remote: httpx.Client, queued_job: str, workers: list[Part]) -> None:
    job = wait_for_job(remote, queued_job)
    assert (job["state"], job["attempts"]) == ("succeeded", 1)
    assert sum(f"{queued_job} starts" in worker.messages() for worker in workers) == 1


@pytest.mark.slow
def test_the_whole_workflow_runs_with_separate_api_and_workers(remote: httpx.Client, workers: list[Part]) -> None:
    assert len(workers) == 2
    run_user_journey(remote)


@pytest.mark.slow
def test_the_job_of_a_killed_worker_is_finished_exactly_once_by_the_other(
    postgres_url: str, remote: httpx.Client, workers: list[Part]
) -> None:
    ids = prepare(remote)
    job_id = submit(remote, ids, epochs_for(remote, ids, seconds=2))
    wait_until("the job runs", lambda: is_computing(remote, job_id))
    (holder,) = [worker for worker in workers if f"{job_id} starts, attempt 1" in worker.messages()]
    workers.remove(holder)
    children = descendants(holder.process.pid)
    assert children
    holder.process.kill()
    holder.process.wait()
    within("its computing process ends with it", lambda: not alive(children), 5)
    job = wait_for_job(remote, job_id)
    assert (job["state"], job["attempts"], job["error"]) == ("succeeded", 2, None)
    assert f"{job_id} starts, attempt 2" in workers[0].messages()
    assert posteriors_of(postgres_url, job_id) == 1
    body = {"contexts": MORNINGS}
    assert remote.post(f"/v1/posteriors/{job['posterior_id']}/prescribe", json=body).status_code == 200


@pytest.mark.slow
def test_cancelling_a_job_leaves_no_stack_trace_in_the_worker_log(remote: httpx.Client, workers: list[Part]) -> None:
    (worker,) = workers
    job_id = submit(remote, prepare(remote), epochs=100_000)
    wait_until("the job runs", lambda: is_computing(remote, job_id))
    remote.post(f"/v1/jobs/{job_id}/cancel")
    within("the worker logs the cancellation", lambda: f"{job_id} cancelled" in worker.messages(), 5)
    next_job = submit(remote, prepare(remote), epochs=3)
    assert wait_for_job(remote, next_job)["state"] == "succeeded"
    assert "Traceback" not in worker.messages(), worker.messages()


@pytest.mark.slow
def test_a_worker_stopped_during_a_job_stops_soon_and_keeps_it_active(
    remote: httpx.Client, workers: list[Part]
) -> None:
    (worker,) = workers
    job_id = submit(remote, prepare(remote), epochs=100_000)
    wait_until("the job runs", lambda: is_computing(remote, job_id))
    try:
        assert worker.stop() == 0
        assert read(remote, job_id)["state"] in ("queued", "running")
    finally:
        remote.post(f"/v1/jobs/{job_id}/cancel")


@pytest.mark.slow
def test_the_api_stops_cleanly_on_sigterm(api: Part) -> None:
    # The server re-raises the signal after shutdown; both exit codes are clean.
    assert api.stop() in (0, -signal.SIGTERM)
    assert "Traceback" not in api.messages(), api.messages()
