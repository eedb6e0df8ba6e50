"""The compose file, and its commands run as processes on a real PostgreSQL with two workers.

No container engine is needed: the tests run and kill the processes that containers would run.
"""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow.parquet as pq
import pytest
import yaml
from starlette.routing import Route
from typer.main import get_command

from app.commands import cli
from app.commands.serve import DRAIN_SECONDS
from app.db.engine import create_engine
from app.demo import MORNINGS, as_csv, bakery_rows
from app.main import create_app
from app.settings import Settings
from bco_core.inference.vi.plan import SHARED_ROWS
from tests.support.fleet import Fleet, Postgres
from tests.support.journey import Json, check_json, prepare_fund
from tests.support.polling import crowding, wait_until, within
from tests.support.processes import (
    alive,
    descendants,
    in_database,
    is_computing,
    is_ready,
    posteriors_of,
    prepare,
    read,
    submit,
    wait_for_job,
)

ROOT = Path(__file__).parents[2]
COMPOSE: Json = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: Json = COMPOSE["services"]
OURS = ("migrate", "api", "worker")
DEFAULT: int = Settings.model_fields["database_connections"].default

# the file


def test_every_command_exists_in_the_cli() -> None:
    known = get_command(cli.app).commands  # type: ignore[attr-defined]
    for name in OURS:
        program, command = SERVICES[name]["command"]
        assert program == "bco"
        assert command in known
    assert [SERVICES[name]["command"][1] for name in OURS] == list(OURS)


def test_every_variable_is_a_setting_with_a_valid_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OURS:
        environment = SERVICES[name]["environment"]
        assert environment["BCO_DATABASE_URL"].startswith("postgresql://bco:${POSTGRES_PASSWORD:?")
        assert environment["BCO_DATABASE_URL"].endswith("@postgres/bco")
        for variable, value in environment.items():
            assert variable.removeprefix("BCO_").lower() in Settings.model_fields
            monkeypatch.setenv(variable, re.sub(r"\$\{[^}]*\}", "secret", value))
        assert Settings().port == 8000


def test_the_database_matches_its_address() -> None:
    environment = SERVICES["postgres"]["environment"]
    assert (environment["POSTGRES_USER"], environment["POSTGRES_DB"]) == ("bco", "bco")
    assert environment["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    assert "POSTGRES_PASSWORD=" in (ROOT / ".env.example").read_text().splitlines()
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    (volume,) = SERVICES["postgres"]["volumes"]
    assert volume.partition(":")[0] in COMPOSE["volumes"]


def test_only_the_api_is_published_and_only_locally() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"api": ["127.0.0.1:8000:8000"]}
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert [name for name, service in SERVICES.items() if "outside" in service["networks"]] == ["api"]


def test_containers_run_unprivileged_on_a_read_only_file_system() -> None:
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        assert any(entry.startswith("/tmp:size=") for entry in service["tmpfs"]), name  # noqa: S108
        assert all(":size=" in entry for entry in service["tmpfs"]), name
    assert SERVICES["postgres"]["user"] == "postgres"
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    stages = [line for line in lines if line.startswith("FROM ")]
    assert len(stages) == 2
    assert all(stage.startswith("FROM ${PYTHON_IMAGE}") for stage in stages)
    assert "ARG PYTHON_IMAGE=python:3.11-slim" in lines[: lines.index(stages[0])]
    assert lines.index("USER bco") > lines.index(stages[1])


class OkServer:
    """A local server that answers every GET with 200; entering it returns its port."""

    def __enter__(self) -> int:
        handler = type("Ok", (BaseHTTPRequestHandler,), {"do_GET": _ok, "log_message": lambda *_: None})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self._server.server_port

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _ok(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()


def test_every_container_has_resource_limits() -> None:
    for name, service in SERVICES.items():
        assert service["pids_limit"] == 512, name
        assert re.search(r"\d+g", service["mem_limit"]), name
        assert re.search(r"\d", str(service["cpus"])), name


def test_images_can_be_pinned_by_digest() -> None:
    assert SERVICES["postgres"]["image"] == "${POSTGRES_IMAGE:-postgres:16}"
    for name in OURS:
        assert SERVICES[name]["build"]["args"]["PYTHON_IMAGE"] == "${PYTHON_IMAGE:-python:3.11-slim}"


def test_compiled_kernels_are_on_a_volume() -> None:
    (folder,) = re.findall(r"NUMBA_CACHE_DIR=(\S+)", (ROOT / "Dockerfile").read_text())
    for name in OURS:
        assert SERVICES[name]["volumes"] == [f"kernels:{folder}"]
    assert "kernels" in COMPOSE["volumes"]
    assert f"--owner=bco --mode=0700 {folder}" in (ROOT / "Dockerfile").read_text()


def test_installed_packages_are_pinned_by_version_and_hash() -> None:
    pinned = {line.lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()}
    locked = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert len(locked) > 40
    for line in locked:
        version, _, digest = line.partition(" --hash=sha256:")
        assert version.lower().replace("_", "-") in pinned
        assert re.fullmatch(r"[0-9a-f]{64}", digest), line
    names = {re.split("[=]", line)[0].lower().replace("_", "-") for line in locked} | {"torch"}
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[^\w-]", name)[0].lower() for name in needed} <= names
    assert "--require-hashes --requirement requirements.lock" in (ROOT / "Dockerfile").read_text()


def test_the_api_and_four_workers_fit_postgresqls_default_connections() -> None:
    """Count what each process may open.

    A worker runs a job process and a part process and has two more connections, for heartbeats and notifications. Each
    solver process of the API has one, to load posteriors.
    """
    settings = {
        name: Settings(database_connections=SERVICES[name]["environment"].get("BCO_DATABASE_CONNECTIONS", DEFAULT))
        for name in ("api", "worker")
    }
    processes = 1 + 2 * settings["worker"].worker_concurrency
    worker = processes * settings["worker"].database_connections + 2
    solvers = settings["api"].solver_processes
    assert settings["api"].database_connections + solvers + 4 * worker <= 100 - 3
    assert DEFAULT + solvers + 4 * (processes * DEFAULT + 2) <= 100 - 3
    engine = create_engine("postgresql+psycopg://nobody@/nowhere")
    assert engine.pool.size() + engine.pool._max_overflow == DEFAULT  # type: ignore[attr-defined]


def test_health_checks_call_the_api_and_services_wait_for_each_other() -> None:
    routes = {route.path for route in create_app().routes if isinstance(route, Route)}
    (healthcheck,) = re.findall(r"^ +CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for command in (SERVICES["api"]["healthcheck"]["test"][1:], json.loads(healthcheck)):
        (path,) = re.findall(r"'(/\w+)'", command[-1])
        assert path in routes
        with OkServer() as port:
            # The check uses the configured port.
            check = [sys.executable, *command[1:]]
            assert subprocess.run(check, env={"BCO_PORT": str(port)}).returncode == 0
        assert subprocess.run(check, env={"BCO_PORT": str(port)}, stderr=subprocess.DEVNULL).returncode != 0
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("api", "worker"):
        assert SERVICES[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
        assert SERVICES[name]["restart"] == "unless-stopped"
        # The container must not be killed before it has drained.
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > DRAIN_SECONDS


def test_the_image_copies_only_existing_files() -> None:
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in (ROOT / ".dockerignore").read_text().splitlines()


# the processes


@pytest.fixture(scope="module")
def fleet(killable_postgres: Postgres, start_fleet: Callable[..., Fleet]) -> Fleet:
    """Start two workers with the compose file's environment, except for the database's address and the port."""
    connections = {"BCO_DATABASE_CONNECTIONS": str(DEFAULT)}
    return start_fleet(killable_postgres.url, 2, **SERVICES["api"]["environment"] | connections)


@pytest.fixture(scope="module")
def ids(fleet: Fleet) -> Json:
    return prepare(fleet.http)


@pytest.mark.slow
def test_the_api_serves_only_requests_with_a_key(fleet: Fleet, ids: Json) -> None:
    assert httpx.get(f"{fleet.url_of_api}/v1/jobs").status_code == 401
    assert httpx.get(f"{fleet.url_of_api}/readyz").status_code == 200
    job = wait_for_job(fleet.http, submit(fleet.http, ids, epochs=3))
    body = {"contexts": MORNINGS}
    answer = check_json(fleet.http.post(f"/v1/posteriors/{job['posterior_id']}/prescribe", json=body))
    assert len(answer["prescriptions"]) == 3


@pytest.mark.slow
def test_database_connections_stay_below_the_limit(fleet: Fleet, ids: Json) -> None:
    """Count the connections of an API and two workers during a job and many requests."""
    job = submit(fleet.http, ids, epochs=100_000)
    wait_until("the job runs", lambda: is_computing(fleet.http, job))
    with ThreadPoolExecutor(40) as many:
        answers = [many.submit(fleet.http.get, "/v1/jobs") for _ in range(200)]
        counted = in_database(fleet.url, "SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL", job)
    assert {answer.result().status_code for answer in answers} == {200}
    fleet.http.post(f"/v1/jobs/{job}/cancel")
    # This query uses one more connection.
    assert 3 < counted[0][0] <= (1 + 2 * 3) * DEFAULT + 1


@pytest.mark.slow
def test_a_job_over_its_time_limit_fails_and_can_be_retried(fleet: Fleet, ids: Json) -> None:
    job_id = submit(fleet.http, ids, epochs=100_000, time_limit_seconds=1)
    job = wait_for_job(fleet.http, job_id)
    assert (job["state"], job["error"]) == ("failed", "it took longer than its time limit of 1 s")
    assert check_json(fleet.http.post(f"/v1/jobs/{job_id}/retry"), 202)["state"] == "queued"
    again = wait_for_job(fleet.http, job_id)
    assert (again["state"], again["attempts"]) == ("failed", 2)


def new_processes(fleet: Fleet, before: set[psutil.Process]) -> set[psutil.Process]:
    """Return the living processes that have started since ``before`` was taken."""
    return alive(fleet.processes() - before)


@pytest.mark.slow
def test_a_job_whose_process_is_killed_three_times_fails_with_that_reason(fleet: Fleet, ids: Json) -> None:
    before = fleet.processes()
    job_id = submit(fleet.http, ids, epochs=100_000)
    for attempt in (1, 2, 3):
        wait_until("it runs", lambda n=attempt: read(fleet.http, job_id)["attempts"] == n)
        wait_until("it computes", lambda: new_processes(fleet, before))
        for process in new_processes(fleet, before):
            process.kill()
    job = wait_for_job(fleet.http, job_id)
    assert job["state"] == "failed"
    assert "died 3 times" in job["error"]
    texts = [line["text"] for line in check_json(fleet.http.get(f"/v1/jobs/{job_id}/log"))["lines"]]
    assert texts.count("started") == 4


@pytest.mark.slow
def test_a_cancelled_job_frees_its_cpu_and_ends_its_event_stream(fleet: Fleet, ids: Json) -> None:
    before = fleet.processes()
    job_id = submit(fleet.http, ids, epochs=100_000)
    events: list[str] = []
    follower = threading.Thread(target=follow, args=(fleet, job_id, events))
    follower.start()
    wait_until("it computes", lambda: is_computing(fleet.http, job_id))
    busy = new_processes(fleet, before)
    assert busy
    wait_until("the event stream says that it runs", lambda: any('"state":"running"' in line for line in events))
    fleet.http.post(f"/v1/jobs/{job_id}/cancel")
    within("its process is gone", lambda: not alive(busy), 2)
    within("the event stream has ended", lambda: not follower.is_alive(), 10)
    assert '"state":"cancelled"' in events[-1]


def follow(fleet: Fleet, job_id: str, events: list[str]) -> None:
    with fleet.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        for line in response.iter_lines():
            if line.startswith("data:"):
                events.append(line)


def submit_batch(fleet: Fleet, posterior_id: str, contexts: list[Json], **form: Any) -> str:
    path = f"/v1/posteriors/{posterior_id}/batch-prescriptions/upload"
    file = {"file": ("contexts.csv", as_csv(contexts).encode())}
    job_id: str = check_json(fleet.http.post(path, data=form, files=file), 202)["id"]
    return job_id


def contexts_of(days: int) -> list[Json]:
    return [{name: row[name] for name in MORNINGS[0]} for row in bakery_rows(days, seed=5)]


@pytest.mark.slow
def test_jobs_survive_killing_the_database_a_worker_and_the_api(
    fleet: Fleet, ids: Json, killable_postgres: Postgres
) -> None:
    learned = wait_for_job(fleet.http, submit(fleet.http, ids, epochs=3))["posterior_id"]
    jobs = [submit(fleet.http, ids, epochs=80, seed=seed) for seed in range(4)]
    contexts = contexts_of(2000)
    batch = submit_batch(fleet, learned, contexts, scenarios=1000)
    wait_until("two jobs run", lambda: sum(is_computing(fleet.http, job) for job in jobs) == 2)

    killable_postgres.kill()
    wait_until("the API is not ready", lambda: fleet.http.get("/readyz").status_code == 503)
    refused = fleet.http.post("/v1/jobs", json=ids)
    assert (refused.status_code, int(refused.headers["Retry-After"]) > 0) == (503, True)
    assert fleet.http.get("/livez").status_code == 200
    # Longer than the deadline after which a silent worker counts as dead.
    time.sleep(3.5)
    killable_postgres.start()
    wait_until("the API is ready", lambda: is_ready(fleet.http))
    wait_until("the workers are back", lambda: fleet.messages().count("can be used again") >= 2)
    for part in (fleet.api, *fleet.workers):
        assert part.process.poll() is None
    # Running jobs have gone on: no worker was taken for dead.
    assert max(read(fleet.http, job)["attempts"] for job in jobs) == 1

    fleet.kill_worker(0)
    fleet.kill_api()
    wait_until("the new API is ready", lambda: is_ready(fleet.http))
    ended = [wait_for_job(fleet.http, job) for job in [*jobs, batch]]
    assert [(job["state"], job["error"]) for job in ended] == [("succeeded", None)] * 5
    assert [posteriors_of(fleet.url, job) for job in jobs] == [1] * 4
    file = fleet.http.get(f"/v1/jobs/{batch}/result", params={"format": "parquet"}).content
    table = pq.read_table(io.BytesIO(file))
    assert table.column("temperature").to_pylist() == [context["temperature"] for context in contexts]
    body = {"contexts": contexts[-50:], "scenarios": 1000}
    expected = check_json(fleet.http.post(f"/v1/posteriors/{learned}/prescribe", json=body))["prescriptions"]
    decided = table.column("decision.loaves").to_pylist()[-50:]
    assert decided == pytest.approx([found["decision"]["loaves"] for found in expected], rel=1e-6)
    # SQLAlchemy, too, logs a connection that died during a read.
    own = "\n".join(line for line in fleet.messages().splitlines() if '"logger":"sqlalchemy' not in line)
    assert "Traceback" not in own, own


def four_chains(fleet: Fleet) -> Json:
    inference = {"chains": 4, "steps": 6000, "burn_in": 3000, "particles": 100, "inverse_temperature": 100}
    return prepare_fund(fleet.http) | {"predictor": {"kind": "linear"}, "inference": inference}


def ten_members(fleet: Fleet) -> Json:
    """Return a job of five linear members and five networks, each with all competing configurations."""
    return prepare(fleet.http, SHARED_ROWS) | {
        "predictor": {"hidden": [8]},
        "inference": {"method": "auto", "epochs": 25, "particles": 50},
    }


@pytest.mark.slow
@pytest.mark.parametrize("job", [four_chains, ten_members])
def test_parts_of_a_job_run_on_several_workers_and_survive_a_killed_one(
    fleet: Fleet, job: Callable[[Fleet], Json]
) -> None:
    body = job(fleet)
    uninterrupted = wait_for_job(fleet.http, check_json(fleet.http.post("/v1/jobs", json=body), 202)["id"])
    job_id = check_json(fleet.http.post("/v1/jobs", json=body), 202)["id"]

    def started_parts() -> set[tuple[int, str]]:
        query = "SELECT seq, taken FROM job_parts WHERE job_id = :job_id AND done > 0"
        return {(seq, taken) for seq, taken in in_database(fleet.url, query, job_id)}

    wait_until("other processes compute parts, too", lambda: len({how for _, how in started_parts()}) == 2)
    owner = next(n for n, worker in enumerate(fleet.workers) if f"job {job_id} starts" in worker.messages())
    before = read(fleet.http, job_id)["progress"]
    fleet.kill_worker(owner)
    wait_until("another worker takes it over", lambda: read(fleet.http, job_id)["attempts"] == 2)
    wait_until("it makes progress", lambda: read(fleet.http, job_id)["progress"] > before)
    ended = wait_for_job(fleet.http, job_id)
    assert (ended["state"], ended["error"]) == ("succeeded", None)
    digests = {
        check_json(fleet.http.get(f"/v1/posteriors/{one['posterior_id']}"))["digest"] for one in (ended, uninterrupted)
    }
    assert len(digests) == 1
    assert in_database(fleet.url, "SELECT seq FROM job_parts WHERE job_id = :job_id", job_id) == []


@pytest.mark.slow
def test_on_sigterm_the_api_ends_event_streams_and_workers_hand_jobs_back(fleet: Fleet, ids: Json) -> None:
    job_id = submit(fleet.http, ids, epochs=100_000)
    wait_until("it computes", lambda: is_computing(fleet.http, job_id))
    events: list[str] = []
    follower = threading.Thread(target=follow, args=(fleet, job_id, events))
    follower.start()
    began = time.monotonic()
    wait_until("the event stream has begun", lambda: events)
    assert fleet.api.stop(DRAIN_SECONDS) in (0, -signal.SIGTERM)
    within("the event stream has ended", lambda: not follower.is_alive(), 10)
    assert time.monotonic() - began < DRAIN_SECONDS * crowding()
    for worker in fleet.workers:
        children = descendants(worker.process.pid)
        assert worker.stop(30) == 0
        assert not alive(children)
    # The worker that stops last may have taken over what the first handed back.
    assert sum("handed back" in worker.messages() for worker in fleet.workers) >= 1
    assert in_database(fleet.url, "SELECT state FROM jobs WHERE id = :job_id", job_id) == [("queued",)]
