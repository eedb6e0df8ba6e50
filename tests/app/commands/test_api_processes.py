"""``bco api --processes 2``: shared port, memory and metrics, and replacement of dead processes."""

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
from tests.support.journey import CONTEXTS, Json, learn_posterior
from tests.support.polling import wait_until
from tests.support.processes import BCO, ROOT, alive, descendants, kill

BODY = {"contexts": CONTEXTS[:1], "scenarios": 40}


@dataclass(frozen=True)
class ApiProcesses:
    """A running supervisor, its URL, and two posteriors."""

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
        """Prescribe over a new connection, which either process may accept."""
        identifier = (posterior or self.posterior)["id"]
        return httpx.post(f"{self.url}/v1/posteriors/{identifier}/prescribe", json=BODY, timeout=60)

    def memory_maps(self) -> list[str]:
        """Return the memory maps of each listening process; they name memory-mapped files."""
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
def api(tmp_path: Path) -> Iterator[ApiProcesses]:
    database, port = f"sqlite:///{tmp_path / 'bco.db'}", free_port()
    with service_on(database):
        migrate(get_settings().sqlalchemy_url)
        with TestClient(create_app()) as client:
            posterior, other = learn_posterior(client), learn_posterior(client, seed=2)
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {
        "BCO_DATABASE_URL": database,
        "BCO_PORT": str(port),
        "PYTHONPATH": ROOT,
        "TMPDIR": str(tmp_path / "tmp"),
    }
    supervisor = subprocess.Popen((*BCO, "api", "--processes", "2"), env=environment)
    made = ApiProcesses(supervisor, f"http://127.0.0.1:{port}", posterior, other)
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


def test_two_processes_act_as_one_service(api: ApiProcesses, tmp_path: Path) -> None:
    calls = api.reach_both()
    answered = 'bco_requests_total{method="POST",route="/v1/posteriors/{posterior_id}/prescribe",status="200"}'
    # Each process reports all calls once the last one is counted.
    wait_until("all calls are counted", lambda: {api.metric(answered) for _ in range(6)} == {calls})
    wait_until("no call is running", lambda: api.metric("bco_prescriptions_in_flight") == 0)
    assert api.metric("bco_workers") == 0
    assert api.metric('bco_jobs{state="succeeded"}') == 2
    # Both map the same memory.
    assert len(set(re.findall(rf"(\d+) +\S+{api.particles}", "".join(api.memory_maps())))) == 1
    # A posterior deleted by one process is soon unknown to the other.
    api.prescribe(api.other)
    assert httpx.delete(f"{api.url}/v1/posteriors/{api.other['id']}").status_code == 204
    time.sleep(1.5 * FRESH_SECONDS)
    assert {api.prescribe(api.other).status_code for _ in range(20)} == {404}
    # On SIGTERM all processes stop and leave no files.
    processes = api.listening()
    api.supervisor.send_signal(signal.SIGTERM)
    assert api.supervisor.wait(60) == 0
    assert alive(set(processes)) == set()
    assert list((tmp_path / "tmp").glob("bco-*")) == []


@pytest.mark.slow
def test_a_process_that_dies_is_replaced_and_none_outlives_the_supervisor(api: ApiProcesses) -> None:
    api.reach_both()
    first, second = api.listening()
    first.kill()
    wait_until("it is gone", lambda: not alive({first}))
    wait_until("it is replaced", lambda: len(api.listening()) == 2)
    assert second in api.listening()
    api.reach_both()
    processes = set(api.listening())
    api.supervisor.kill()
    api.supervisor.wait(60)
    wait_until("all are gone", lambda: not alive(processes))


@pytest.mark.slow
def test_a_used_port_fails_with_a_message(api: ApiProcesses) -> None:
    environment = os.environ | {"BCO_PORT": str(httpx.URL(api.url).port), "PYTHONPATH": ROOT}
    found = subprocess.run((*BCO, "api", "--processes", "2"), env=environment, capture_output=True, text=True)
    assert found.returncode == 1
    assert "is taken" in found.stderr
