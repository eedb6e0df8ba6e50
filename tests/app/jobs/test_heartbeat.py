"""Heartbeat: a slow live worker keeps its jobs; a job is taken over only from a dead worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.engine import get_engine, transaction
from app.db.tables import WorkerRow
from app.jobs import heartbeat
from tests.support.fleet import Fleet
from tests.support.in_process import DATABASES, service_on
from tests.support.polling import wait_until, within
from tests.support.processes import ROOT, is_computing, prepare, read, submit, wait_for_job

# This module depends on the database's own SQL.
pytestmark = pytest.mark.both_databases

# The smallest allowed value; a worker without heartbeats counts as dead after four times this.
DEADLINE = 2.0
HELD_UP = Path(ROOT) / "tests/support/blocked_worker.py"


# worker table and process table


def insert_worker(pid: int, machine: str | None = None, silent: float = 0.0) -> str:
    """Insert a worker with this process id that has sent no heartbeat for `silent` seconds."""
    with transaction() as session:
        heartbeat.beat(session, "worker_x")
        row = session.get_one(WorkerRow, "worker_x", populate_existing=True)
        row.pid, row.born, row.beat_at = pid, heartbeat._born(pid), row.beat_at - silent
        row.machine = machine or row.machine
    return row.id


@pytest.fixture
def sleeper(client: TestClient) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()
    heartbeat.retire("worker_x")


def test_a_worker_is_dead_as_soon_as_its_process_is(sleeper: subprocess.Popen[bytes]) -> None:
    worker_id = insert_worker(sleeper.pid)
    assert worker_id in heartbeat.live_workers(8.0)
    sleeper.kill()
    # A zombie counts as dead.
    wait_until("the process is gone", lambda: heartbeat._born(sleeper.pid) == "")
    assert worker_id not in heartbeat.live_workers(8.0, judge=False)


def test_a_slow_worker_keeps_its_jobs_while_its_process_lives(sleeper: subprocess.Popen[bytes]) -> None:
    assert insert_worker(sleeper.pid, silent=100.0) in heartbeat.live_workers(8.0)
    assert insert_worker(sleeper.pid, silent=100_000.0) not in heartbeat.live_workers(8.0)


def test_a_reused_process_id_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    worker_id = insert_worker(sleeper.pid)
    with transaction() as session:
        session.get_one(WorkerRow, worker_id).born = "1"
    assert worker_id not in heartbeat.live_workers(8.0)


def test_a_disconnected_worker_elsewhere_is_dead_after_a_long_silence(
    sleeper: subprocess.Popen[bytes],
) -> None:
    assert insert_worker(1, "elsewhere", silent=20.0) in heartbeat.live_workers(8.0)
    assert insert_worker(1, "elsewhere", silent=40.0) in heartbeat.live_workers(8.0, judge=False)
    assert insert_worker(1, "elsewhere", silent=40.0) not in heartbeat.live_workers(8.0)


def test_a_slow_worker_elsewhere_keeps_its_jobs_while_it_is_connected(sleeper: subprocess.Popen[bytes]) -> None:
    if get_engine().dialect.name == "sqlite":
        pytest.skip("SQLite shows no connections")
    heart = heartbeat._own_engine("worker_x")
    with heart.connect() as connection:
        assert connection.scalar(sa.text("SHOW tcp_keepalives_idle")) is not None
        assert insert_worker(1, "elsewhere", silent=100.0) in heartbeat.live_workers(8.0)
        assert insert_worker(1, "elsewhere", silent=100_000.0) not in heartbeat.live_workers(8.0)
    heart.dispose()
    within("it is gone", lambda: insert_worker(1, "elsewhere", silent=100.0) not in heartbeat.live_workers(8.0), 5)


def test_an_odd_process_name_does_not_matter(tmp_path: Path) -> None:
    assert int(heartbeat._born(os.getpid())) > 0
    odd = tmp_path / "a ) Z (b"
    odd.symlink_to(sys.executable)
    with subprocess.Popen([odd, "-c", "import time; time.sleep(60)"]) as process:
        wait_until("it runs under that name", lambda: ")" in psutil.Process(process.pid).name())
        assert int(heartbeat._born(process.pid)) > 0
        process.kill()


# real workers


@pytest.fixture(scope="module", params=DATABASES)
def fleet(
    request: pytest.FixtureRequest, empty_database: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """Two workers, one of which takes the only job."""
    environment = {"BCO_WORKER_DEADLINE_SECONDS": str(DEADLINE)}
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), empty_database(request.param), 2, **environment)
    yield fleet
    fleet.remove()


@pytest.fixture
def job(fleet: Fleet) -> Iterator[str]:
    """A job that runs longer than any test waits."""
    job_id = submit(fleet.http, prepare(fleet.http), epochs=100_000)
    wait_until("the job computes", lambda: is_computing(fleet.http, job_id))
    yield job_id
    fleet.http.post(f"/v1/jobs/{job_id}/cancel")
    wait_for_job(fleet.http, job_id)


def holder(fleet: Fleet, job_id: str) -> int:
    """Return the number of the worker that started the job last."""
    starts = [[line for line in part.messages().splitlines() if f"{job_id} starts" in line] for part in fleet.workers]
    return max((number for number, lines in enumerate(starts) if lines), key=lambda number: len(starts[number]))


def beat_at(url: str, pid: int) -> float:
    with service_on(url), transaction() as session:
        return session.scalars(sa.select(WorkerRow.beat_at).where(WorkerRow.pid == pid)).one()


def silence(url: str, pid: int) -> float:
    with service_on(url), transaction() as session:
        clock = float(session.scalars(sa.select(heartbeat.database_clock(session))).one())
    return clock - beat_at(url, pid)


@pytest.mark.slow
def test_a_silent_worker_keeps_its_job_while_its_process_lives(fleet: Fleet, job: str) -> None:
    worker = fleet.workers[holder(fleet, job)].process
    worker.send_signal(signal.SIGSTOP)
    try:
        time.sleep(heartbeat.ELSEWHERE * DEADLINE + 4)
        assert silence(fleet.url, worker.pid) > heartbeat.ELSEWHERE * DEADLINE
        assert (read(fleet.http, job)["state"], read(fleet.http, job)["attempts"]) == ("running", 1)
    finally:
        worker.send_signal(signal.SIGCONT)
    within("it sends heartbeats again", lambda: silence(fleet.url, worker.pid) < DEADLINE, 10)
    assert (read(fleet.http, job)["state"], read(fleet.http, job)["attempts"]) == ("running", 1)
    assert "taking over" not in fleet.messages()


@pytest.mark.slow
def test_a_worker_starved_of_cpu_keeps_its_job(fleet: Fleet, job: str) -> None:
    """The worker has idle priority on a processor that other processes keep busy."""
    worker = psutil.Process(fleet.workers[holder(fleet, job)].process.pid)
    processor = max(os.sched_getaffinity(0))
    with ExitStack() as stack:
        for process in (worker, *worker.children(recursive=True)):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, {processor})
                os.sched_setscheduler(thread.id, os.SCHED_IDLE, os.sched_param(0))
        for _ in range(4):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
            os.sched_setaffinity(busy.pid, {processor})
        longest, end = 0.0, time.monotonic() + 8 * DEADLINE
        used = sum(worker.cpu_times()[:2])
        while time.monotonic() < end:
            longest = max(longest, silence(fleet.url, worker.pid))
            time.sleep(0.2)
        # The worker was starved.
        assert sum(worker.cpu_times()[:2]) - used < 0.05 * 8 * DEADLINE
        assert (read(fleet.http, job)["state"], read(fleet.http, job)["attempts"]) == ("running", 1), longest
    assert "taking over" not in fleet.messages()


@pytest.mark.slow
def test_the_jobs_of_a_dead_process_are_taken_over_at_once(fleet: Fleet, job: str) -> None:
    number = holder(fleet, job)
    assert "taking over" not in fleet.workers[1 - number].messages()
    fleet.workers[number].process.kill()
    fleet.workers[number].process.wait()
    began = time.monotonic()
    wait_until("the other one takes it", lambda: read(fleet.http, job)["attempts"] == 2)
    # Faster than silence alone could show, even on a busy machine.
    assert time.monotonic() - began < 0.75 * heartbeat.STUCK * DEADLINE
    fleet.workers[number] = fleet.start("worker")
    fleet.wait_for(fleet.workers[number])


@pytest.mark.slow
@pytest.mark.parametrize("kind", DATABASES)
def test_the_heartbeat_has_its_own_thread_and_connection(
    kind: str, empty_database: Callable[[str], str], tmp_path: Path
) -> None:
    url = empty_database(kind)
    environment = os.environ | {
        "PYTHONPATH": ROOT,
        "BCO_DATABASE_URL": url,
        "BCO_WORKER_DEADLINE_SECONDS": str(DEADLINE),
        "BCO_LOG_FORMAT": "text",
    }
    subprocess.run([sys.executable, "-m", "app.commands.cli", "migrate"], env=environment, check=True, cwd=tmp_path)
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen([sys.executable, HELD_UP], env=environment, cwd=tmp_path, stderr=output)
    try:
        wait_until("the worker is blocked", lambda: "held up" in log.read_text())
        for _ in range(5):
            last = beat_at(url, worker.pid)
            within("its heartbeats continue", lambda last=last: beat_at(url, worker.pid) > last, 2 * DEADLINE)
    finally:
        for child in psutil.Process(worker.pid).children(recursive=True):
            child.kill()
        worker.kill()
        worker.wait()
