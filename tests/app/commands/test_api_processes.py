"""``bco api --processes 2``: one port, one memory, one set of metrics, and a process that dies is replaced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from starlette.testclient import TestClient

from app.commands.serve import free_port
from app.db.migrate import migrate
from app.main import create_app
from app.prescriptions.cache import FRESH_SECONDS
from app.settings import get_settings
from tests.support.in_process import service_on
from tests.support.journey import CONTEXTS, Json, learned
from tests.support.polling import wait_until
from tests.support.processes import BCO, ROOT, alive, descendants, kill

BODY = {"contexts": CONTEXTS[:1], "scenarios": 40}


@dataclass(frozen=True)
class Several:
    """A running supervisor, where its processes listen, and two posteriors that they can use."""

    supervisor: subprocess.Popen[bytes]
    url: str
    posterior: Json
    other: Json

    def listening(self) -> list[psutil.Process]:
        port = httpx.URL(self.url).port
        found = []
        for process in alive(descendants(self.supervisor.pid)):
            with suppress(psutil.NoSuchProcess):
                if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in process.net_connections("tcp")):
                    found.append(process)
        return found

    def prescribe(self, posterior: Json | None = None) -> httpx.Response:
        """Over a new connection, which either process may get."""
        identifier = (posterior or self.posterior)["id"]
        return httpx.post(f"{self.url}/v1/posteriors/{identifier}/prescribe", json=BODY, timeout=60)

    def memory_maps(self) -> list[str]:
        """The maps of each listening process, in which files read by memory-mapping are named."""
        return [Path(f"/proc/{process.pid}/maps").read_text() for process in self.listening()]

    def reach_both(self) -> int:
        """Call until both processes have read the posterior's particles, and return the number of calls."""
        calls = 0

        def both_have_read() -> bool:
            nonlocal calls
            calls += 1
            assert self.prescribe().status_code == 200
            return [self.particles in maps for maps in self.memory_maps()] == [True, True]

        wait_until("both processes have answered", both_have_read)
        return calls

    @property
    def particles(self) -> str:
        return f"{self.posterior['id']}/particles.npy"

    def metric(self, line: str) -> float:
        found = re.search(rf"^{re.escape(line)} (\S+)$", httpx.get(f"{self.url}/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Several]:
    database, port = f"sqlite:///{tmp_path / 'bco.db'}", free_port()
    with service_on(database):
        migrate(get_settings().sqlalchemy_url)
        with TestClient(create_app()) as client:
            posterior, other = learned(client), learned(client, seed=2)
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {
        "BCO_DATABASE_URL": database,
        "BCO_PORT": str(port),
        "PYTHONPATH": ROOT,
        "TMPDIR": str(tmp_path / "tmp"),
    }
    supervisor = subprocess.Popen((*BCO, "api", "--processes", "2"), env=environment)
    made = Several(supervisor, f"http://127.0.0.1:{port}", posterior, other)
    started = set[psutil.Process]()
    try:
        wait_until("both processes listen", lambda: supervisor.poll() is None and len(made.listening()) == 2)
        started = descendants(supervisor.pid)
        yield made
    finally:
        started |= descendants(supervisor.pid)
        supervisor.terminate()
        supervisor.wait(60)
        kill(started)


@pytest.mark.slow
def test_two_processes_are_one_service(several: Several, tmp_path: Path) -> None:
    calls = several.reach_both()
    answered = 'bco_requests_total{method="POST",route="/v1/posteriors/{posterior_id}/prescribe",status="200"}'
    # Either process knows of all calls, once it has counted the last one.
    wait_until("all calls are counted", lambda: {several.metric(answered) for _ in range(6)} == {calls})
    wait_until("none is under way", lambda: several.metric("bco_prescriptions_in_flight") == 0)
    assert several.metric("bco_workers") == 0
    assert several.metric('bco_jobs{state="succeeded"}') == 2
    # Both read the very same memory.
    assert len(set(re.findall(rf"(\d+) +\S+{several.particles}", "".join(several.memory_maps())))) == 1
    # What one deletes is unknown to the other after a moment.
    several.prescribe(several.other)
    assert httpx.delete(f"{several.url}/v1/posteriors/{several.other['id']}").status_code == 204
    time.sleep(1.5 * FRESH_SECONDS)
    assert {several.prescribe(several.other).status_code for _ in range(20)} == {404}
    # Told to stop, all do, and leave nothing behind.
    processes = several.listening()
    several.supervisor.send_signal(signal.SIGTERM)
    assert several.supervisor.wait(60) == 0
    assert alive(set(processes)) == set()
    assert list((tmp_path / "tmp").glob("bco-*")) == []


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_and_none_outlives_the_supervisor(several: Several) -> None:
    several.reach_both()
    first, second = several.listening()
    first.kill()
    wait_until("it is gone", lambda: not alive({first}))
    wait_until("another one has taken its place", lambda: len(several.listening()) == 2)
    assert second in several.listening()
    several.reach_both()
    processes = set(several.listening())
    several.supervisor.kill()
    several.supervisor.wait(60)
    wait_until("all are gone", lambda: not alive(processes))


@pytest.mark.slow
def test_a_port_that_is_taken_is_said_in_a_sentence(several: Several) -> None:
    environment = os.environ | {"BCO_PORT": str(httpx.URL(several.url).port), "PYTHONPATH": ROOT}
    found = subprocess.run((*BCO, "api", "--processes", "2"), env=environment, capture_output=True, text=True)
    assert found.returncode == 1
    assert "is taken" in found.stderr
