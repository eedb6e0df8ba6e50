"""A worker that has nothing to do costs next to nothing, starts a job at once, and is not taken for dead when slow."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from conftest import DATABASES
from in_process import service_on
from journey import answered, create_job
from patience import wait_until
from processes import Part
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import WorkerRow
from app.jobs import presence, service
from app.main import create_app

SECONDS = 10.0


@pytest.fixture(scope="module", params=DATABASES)
def own_database(request: pytest.FixtureRequest, empty_database: Callable[[str], str]) -> str:
    return empty_database(request.param)


@pytest.fixture(scope="module")
def worker(own_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    folder = tmp_path_factory.mktemp("idle")
    environment = {"BCO_DATABASE_URL": own_database}
    with Part(folder, "migrate", "migrate", **environment) as migrating:
        assert migrating.done() == 0
    with Part(folder, "worker", "worker", **environment) as worker:
        wait_until("the worker is ready", lambda: "the worker is ready" in worker.messages())
        yield worker


def cpu_seconds(process: psutil.Process) -> float:
    everyone = [process, *process.children(recursive=True)]
    return sum(each.cpu_times().user + each.cpu_times().system for each in everyone)


def test_an_idle_worker_uses_hardly_any_cpu(worker: Part) -> None:
    process = psutil.Process(worker.process.pid)

    def used(seconds: float) -> float:
        before = cpu_seconds(process)
        time.sleep(seconds)
        return (cpu_seconds(process) - before) / seconds

    wait_until("it has imported what it needs for its first look", lambda: used(2) < 0.05)
    # One per cent on an idle machine; on a crowded one the same work takes longer.
    assert used(SECONDS) < 0.025


def test_a_job_starts_at_once(worker: Part, own_database: str) -> None:
    with service_on(own_database), TestClient(create_app()) as client:
        waits = []
        for _ in range(3):
            job_id = create_job(client)["id"]
            wait_until("the job has ended", lambda job_id=job_id: service.state(job_id) not in ("queued", "running"))
            job = answered(client.get(f"/v1/jobs/{job_id}"))
            assert job["state"] == "succeeded", job
            row = service.get("default", job_id)
            assert row.started_at is not None
            waits.append((row.started_at - row.created_at).total_seconds())
            time.sleep(1)
    assert min(waits) < 0.5


# who lives


def known(pid: int, machine: str | None = None, silent: float = 0.0) -> str:
    """A worker that is such a process and has been silent for so long."""
    with transaction() as session:
        presence.beat(session, "worker_x")
        row = session.get_one(WorkerRow, "worker_x", populate_existing=True)
        row.pid, row.born, row.beat_at = pid, presence._born(pid), row.beat_at - silent
        row.machine = machine or row.machine
    return row.id


@pytest.fixture
def sleeper(client: TestClient) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()
    presence.retire("worker_x")


def test_a_worker_is_dead_as_soon_as_its_process_is(sleeper: subprocess.Popen[bytes]) -> None:
    worker_id = known(sleeper.pid)
    assert worker_id in presence.living(8.0)
    sleeper.kill()
    # Not even buried yet: what is left of a process in the system's table does not live.
    wait_until("the process is gone", lambda: presence._born(sleeper.pid) == "")
    assert worker_id not in presence.living(8.0, judge=False)


def test_a_slow_worker_keeps_its_jobs_while_its_process_lives(sleeper: subprocess.Popen[bytes]) -> None:
    assert known(sleeper.pid, silent=100.0) in presence.living(8.0)
    assert known(sleeper.pid, silent=100_000.0) not in presence.living(8.0)


def test_another_process_with_the_same_number_is_another(sleeper: subprocess.Popen[bytes]) -> None:
    worker_id = known(sleeper.pid)
    with transaction() as session:
        session.get_one(WorkerRow, worker_id).born = "1"
    assert worker_id not in presence.living(8.0)


def test_of_a_worker_elsewhere_only_a_long_silence_tells(sleeper: subprocess.Popen[bytes]) -> None:
    assert known(1, "elsewhere", silent=20.0) in presence.living(8.0)
    assert known(1, "elsewhere", silent=40.0) in presence.living(8.0, judge=False)
    assert known(1, "elsewhere", silent=40.0) not in presence.living(8.0)


def test_the_heartbeat_goes_on_while_the_worker_is_held_up(
    own_database: str, worker: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own connection waits for nothing that the worker's other connections wait for."""
    with service_on(own_database):

        def beats() -> float:
            with transaction() as session:
                (row,) = (row for row in session.query(WorkerRow) if row.pid == worker.process.pid)
            return row.beat_at

        first = beats()
        time.sleep(5)
        assert beats() > first


def test_what_a_process_is_called_does_not_matter(tmp_path: Path) -> None:
    assert int(presence._born(os.getpid())) > 0
    odd = tmp_path / "a ) Z (b"
    odd.symlink_to(sys.executable)
    with subprocess.Popen([odd, "-c", "import time; time.sleep(60)"]) as process:
        wait_until("it runs under that name", lambda: ")" in psutil.Process(process.pid).name())
        assert int(presence._born(process.pid)) > 0
        process.kill()
