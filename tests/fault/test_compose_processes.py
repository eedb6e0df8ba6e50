"""The compose file's own commands with its own environment, as processes on a real PostgreSQL, two workers among them.

No container engine is needed: what a container would run is run here, and killed here.
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
from tests.support.journey import Json, answered, prepare_fund
from tests.support.polling import crowding, wait_until, within
from tests.support.processes import (
    alive,
    descendants,
    finished,
    in_database,
    is_computing,
    is_ready,
    posteriors_of,
    prepare,
    read,
    submit,
)

ROOT = Path(__file__).parents[2]
COMPOSE: Json = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: Json = COMPOSE["services"]
OURS = ("migrate", "api", "worker")
DEFAULT: int = Settings.model_fields["database_connections"].default

# the file


def test_every_command_is_one_that_the_command_line_knows() -> None:
    known = get_command(cli.app).commands  # type: ignore[attr-defined]
    for name in OURS:
        program, command = SERVICES[name]["command"]
        assert program == "bco"
        assert command in known
    assert [SERVICES[name]["command"][1] for name in OURS] == list(OURS)


def test_every_variable_is_a_setting_and_has_a_value_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OURS:
        environment = SERVICES[name]["environment"]
        assert environment["BCO_DATABASE_URL"].startswith("postgresql://bco:${POSTGRES_PASSWORD:?")
        assert environment["BCO_DATABASE_URL"].endswith("@postgres/bco")
        for variable, value in environment.items():
            assert variable.removeprefix("BCO_").lower() in Settings.model_fields
            monkeypatch.setenv(variable, re.sub(r"\$\{[^}]*\}", "secret", value))
        assert Settings().port == 8000


def test_the_database_is_the_one_that_the_address_names() -> None:
    environment = SERVICES["postgres"]["environment"]
    assert (environment["POSTGRES_USER"], environment["POSTGRES_DB"]) == ("bco", "bco")
    assert environment["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    assert "POSTGRES_PASSWORD=" in (ROOT / ".env.example").read_text().splitlines()
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    (volume,) = SERVICES["postgres"]["volumes"]
    assert volume.partition(":")[0] in COMPOSE["volumes"]


def test_nothing_is_published_but_the_api_and_only_on_this_machine() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"api": ["127.0.0.1:8000:8000"]}
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert [name for name, service in SERVICES.items() if "outside" in service["networks"]] == ["api"]


def test_every_container_runs_without_privileges_on_a_file_system_it_cannot_write() -> None:
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


class Answering:
    """A port that answers every GET with 200."""

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


def test_every_container_has_its_share_of_the_machine_and_no_more() -> None:
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


def test_what_the_image_installs_is_named_with_its_hash_and_its_pinned_version() -> None:
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
    """Each worker has, besides itself, a process that computes a job and one that computes a part; and two connections
    to beat and to listen by. Each solver process of the API has one, to load what it decides with."""
    most = {
        name: Settings(database_connections=SERVICES[name]["environment"].get("BCO_DATABASE_CONNECTIONS", DEFAULT))
        for name in ("api", "worker")
    }
    processes = 1 + 2 * most["worker"].worker_concurrency
    worker = processes * most["worker"].database_connections + 2
    solvers = most["api"].solver_processes
    assert most["api"].database_connections + solvers + 4 * worker <= 100 - 3
    assert DEFAULT + solvers + 4 * (processes * DEFAULT + 2) <= 100 - 3
    engine = create_engine("postgresql+psycopg://nobody@/nowhere")
    assert engine.pool.size() + engine.pool._max_overflow == DEFAULT  # type: ignore[attr-defined]


def test_health_is_asked_where_the_api_answers_and_parts_wait_for_each_other() -> None:
    routes = {route.path for route in create_app().routes if isinstance(route, Route)}
    (asked,) = re.findall(r"^ +CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for command in (SERVICES["api"]["healthcheck"]["test"][1:], json.loads(asked)):
        (path,) = re.findall(r"'(/\w+)'", command[-1])
        assert path in routes
        with Answering() as port:
            # Any port that is configured is the one that is asked.
            check = [sys.executable, *command[1:]]
            assert subprocess.run(check, env={"BCO_PORT": str(port)}).returncode == 0
        assert subprocess.run(check, env={"BCO_PORT": str(port)}, stderr=subprocess.DEVNULL).returncode != 0
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("api", "worker"):
        assert SERVICES[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
        assert SERVICES[name]["restart"] == "unless-stopped"
        # A process that is killed before it has drained has drained for nothing.
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > DRAIN_SECONDS


def test_the_image_is_built_from_files_that_are_there() -> None:
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in (ROOT / ".dockerignore").read_text().splitlines()


# the processes


@pytest.fixture(scope="module")
def fleet(mortal_postgres: Postgres, fleet_on: Callable[..., Fleet]) -> Fleet:
    """Two workers; the compose file's environment, but for the database's address and the port."""
    connections = {"BCO_DATABASE_CONNECTIONS": str(DEFAULT)}
    return fleet_on(mortal_postgres.url, 2, **SERVICES["api"]["environment"] | connections)


@pytest.fixture(scope="module")
def ids(fleet: Fleet) -> Json:
    return prepare(fleet.http)


@pytest.mark.slow
def test_the_parts_serve_only_those_with_a_key(fleet: Fleet, ids: Json) -> None:
    assert httpx.get(f"{fleet.url_of_api}/v1/jobs").status_code == 401
    assert httpx.get(f"{fleet.url_of_api}/readyz").status_code == 200
    job = finished(fleet.http, submit(fleet.http, ids, epochs=3))
    body = {"contexts": MORNINGS}
    answer = answered(fleet.http.post(f"/v1/posteriors/{job['posterior_id']}/prescribe", json=body))
    assert len(answer["prescriptions"]) == 3


@pytest.mark.slow
def test_no_process_has_more_connections_than_it_may(fleet: Fleet, ids: Json) -> None:
    """An API and two workers while a job computes and many ask at once."""
    job = submit(fleet.http, ids, epochs=100_000)
    wait_until("the job runs", lambda: is_computing(fleet.http, job))
    with ThreadPoolExecutor(40) as many:
        asked = [many.submit(fleet.http.get, "/v1/jobs") for _ in range(200)]
        counted = in_database(fleet.url, "SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL", job)
    assert {answer.result().status_code for answer in asked} == {200}
    fleet.http.post(f"/v1/jobs/{job}/cancel")
    # One more asks this question.
    assert 3 < counted[0][0] <= (1 + 2 * 3) * DEFAULT + 1


@pytest.mark.slow
def test_a_job_that_takes_too_long_fails_with_that_reason_and_can_be_run_again(fleet: Fleet, ids: Json) -> None:
    job_id = submit(fleet.http, ids, epochs=100_000, time_limit_seconds=1)
    job = finished(fleet.http, job_id)
    assert (job["state"], job["error"]) == ("failed", "it took longer than its time limit of 1 s")
    assert answered(fleet.http.post(f"/v1/jobs/{job_id}/retry"), 202)["state"] == "queued"
    again = finished(fleet.http, job_id)
    assert (again["state"], again["attempts"]) == ("failed", 2)


def computing(fleet: Fleet, before: set[psutil.Process]) -> set[psutil.Process]:
    """The processes that were started for the work of this moment."""
    return alive(fleet.processes() - before)


@pytest.mark.slow
def test_a_job_whose_computation_is_killed_three_times_fails_with_that_reason(fleet: Fleet, ids: Json) -> None:
    before = fleet.processes()
    job_id = submit(fleet.http, ids, epochs=100_000)
    for attempt in (1, 2, 3):
        wait_until("it runs", lambda n=attempt: read(fleet.http, job_id)["attempts"] == n)
        wait_until("it computes", lambda: computing(fleet, before))
        for process in computing(fleet, before):
            process.kill()
    job = finished(fleet.http, job_id)
    assert job["state"] == "failed"
    assert "died 3 times" in job["error"]
    texts = [line["text"] for line in answered(fleet.http.get(f"/v1/jobs/{job_id}/log"))["lines"]]
    assert texts.count("started") == 4


@pytest.mark.slow
def test_a_cancelled_job_frees_its_cpu_and_a_follower_hears_of_it(fleet: Fleet, ids: Json) -> None:
    before = fleet.processes()
    job_id = submit(fleet.http, ids, epochs=100_000)
    heard: list[str] = []
    follower = threading.Thread(target=follow, args=(fleet, job_id, heard))
    follower.start()
    wait_until("it computes", lambda: is_computing(fleet.http, job_id))
    busy = computing(fleet, before)
    assert busy
    wait_until("the follower hears that it runs", lambda: any('"state":"running"' in line for line in heard))
    fleet.http.post(f"/v1/jobs/{job_id}/cancel")
    within("its process is gone", lambda: not alive(busy), 2)
    within("the follower has heard all", lambda: not follower.is_alive(), 10)
    assert '"state":"cancelled"' in heard[-1]


def follow(fleet: Fleet, job_id: str, heard: list[str]) -> None:
    with fleet.http.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        for line in response.iter_lines():
            if line.startswith("data:"):
                heard.append(line)


def submit_batch(fleet: Fleet, posterior_id: str, contexts: list[Json], **form: Any) -> str:
    path = f"/v1/posteriors/{posterior_id}/batch-prescriptions/upload"
    file = {"file": ("contexts.csv", as_csv(contexts).encode())}
    job_id: str = answered(fleet.http.post(path, data=form, files=file), 202)["id"]
    return job_id


def contexts_of(days: int) -> list[Json]:
    return [{name: row[name] for name in MORNINGS[0]} for row in bakery_rows(days, seed=5)]


@pytest.mark.slow
def test_jobs_and_batches_survive_the_death_of_database_worker_and_api(
    fleet: Fleet, ids: Json, mortal_postgres: Postgres
) -> None:
    learned = finished(fleet.http, submit(fleet.http, ids, epochs=3))["posterior_id"]
    jobs = [submit(fleet.http, ids, epochs=80, seed=seed) for seed in range(4)]
    contexts = contexts_of(2000)
    batch = submit_batch(fleet, learned, contexts, scenarios=1000)
    wait_until("two jobs run", lambda: sum(is_computing(fleet.http, job) for job in jobs) == 2)

    mortal_postgres.kill()
    wait_until("the API is not ready", lambda: fleet.http.get("/readyz").status_code == 503)
    refused = fleet.http.post("/v1/jobs", json=ids)
    assert (refused.status_code, int(refused.headers["Retry-After"]) > 0) == (503, True)
    assert fleet.http.get("/livez").status_code == 200
    # Longer than the silence after which a worker counts as dead.
    time.sleep(3.5)
    mortal_postgres.start()
    wait_until("the API is ready", lambda: is_ready(fleet.http))
    wait_until("the workers are back", lambda: fleet.messages().count("can be used again") >= 2)
    for part in (fleet.api, *fleet.workers):
        assert part.process.poll() is None
    # What ran has gone on: nobody took anybody for dead.
    assert max(read(fleet.http, job)["attempts"] for job in jobs) == 1

    fleet.kill_worker(0)
    fleet.kill_api()
    wait_until("the new API is ready", lambda: is_ready(fleet.http))
    ended = [finished(fleet.http, job) for job in [*jobs, batch]]
    assert [(job["state"], job["error"]) for job in ended] == [("succeeded", None)] * 5
    assert [posteriors_of(fleet.url, job) for job in jobs] == [1] * 4
    file = fleet.http.get(f"/v1/jobs/{batch}/result", params={"format": "parquet"}).content
    table = pq.read_table(io.BytesIO(file))
    assert table.column("temperature").to_pylist() == [context["temperature"] for context in contexts]
    body = {"contexts": contexts[-50:], "scenarios": 1000}
    expected = answered(fleet.http.post(f"/v1/posteriors/{learned}/prescribe", json=body))["prescriptions"]
    decided = table.column("decision.loaves").to_pylist()[-50:]
    assert decided == pytest.approx([found["decision"]["loaves"] for found in expected], rel=1e-6)
    # A connection that died in the middle of a read is told of by the library, too.
    own = "\n".join(line for line in fleet.messages().splitlines() if '"logger":"sqlalchemy' not in line)
    assert "Traceback" not in own, own


def four_chains(fleet: Fleet) -> Json:
    inference = {"chains": 4, "steps": 6000, "burn_in": 3000, "particles": 100, "inverse_temperature": 100}
    return prepare_fund(fleet.http) | {"predictor": {"kind": "linear"}, "inference": inference}


def ten_members(fleet: Fleet) -> Json:
    """Five linear ones and five networks, each under all the configurations that compete."""
    return prepare(fleet.http, SHARED_ROWS) | {
        "predictor": {"hidden": [8]},
        "inference": {"method": "auto", "epochs": 25, "particles": 50},
    }


@pytest.mark.slow
@pytest.mark.parametrize("job", [four_chains, ten_members])
def test_the_parts_of_one_job_run_on_several_workers_and_survive_the_death_of_one(
    fleet: Fleet, job: Callable[[Fleet], Json]
) -> None:
    body = job(fleet)
    undisturbed = finished(fleet.http, answered(fleet.http.post("/v1/jobs", json=body), 202)["id"])
    job_id = answered(fleet.http.post("/v1/jobs", json=body), 202)["id"]

    def begun() -> set[tuple[int, str]]:
        query = "SELECT seq, taken FROM job_parts WHERE job_id = :job_id AND done > 0"
        return {(seq, taken) for seq, taken in in_database(fleet.url, query, job_id)}

    wait_until("others compute beside the job's own process", lambda: len({how for _, how in begun()}) == 2)
    owner = next(n for n, worker in enumerate(fleet.workers) if f"job {job_id} starts" in worker.messages())
    before = read(fleet.http, job_id)["progress"]
    fleet.kill_worker(owner)
    wait_until("someone else goes on with it", lambda: read(fleet.http, job_id)["attempts"] == 2)
    wait_until("it comes further", lambda: read(fleet.http, job_id)["progress"] > before)
    ended = finished(fleet.http, job_id)
    assert (ended["state"], ended["error"]) == ("succeeded", None)
    digests = {
        answered(fleet.http.get(f"/v1/posteriors/{one['posterior_id']}"))["digest"] for one in (ended, undisturbed)
    }
    assert len(digests) == 1
    assert in_database(fleet.url, "SELECT seq FROM job_parts WHERE job_id = :job_id", job_id) == []


@pytest.mark.slow
def test_told_to_stop_the_api_ends_its_stories_and_workers_hand_their_jobs_back(fleet: Fleet, ids: Json) -> None:
    job_id = submit(fleet.http, ids, epochs=100_000)
    wait_until("it computes", lambda: is_computing(fleet.http, job_id))
    heard: list[str] = []
    follower = threading.Thread(target=follow, args=(fleet, job_id, heard))
    follower.start()
    began = time.monotonic()
    wait_until("someone listens", lambda: heard)
    assert fleet.api.stop(DRAIN_SECONDS) in (0, -signal.SIGTERM)
    within("the follower has heard all", lambda: not follower.is_alive(), 10)
    assert time.monotonic() - began < DRAIN_SECONDS * crowding()
    for worker in fleet.workers:
        children = descendants(worker.process.pid)
        assert worker.stop(30) == 0
        assert not alive(children)
    # The worker that was told second may have taken up what the first handed back.
    assert sum("handed back" in worker.messages() for worker in fleet.workers) >= 1
    assert in_database(fleet.url, "SELECT state FROM jobs WHERE id = :job_id", job_id) == [("queued",)]
