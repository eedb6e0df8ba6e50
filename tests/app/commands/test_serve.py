"""``bco serve``: its processes ignore modules in the working directory, restart each other and end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from app import child_processes
from app.child_processes import SupervisedProcess
from app.commands.serve import free_port
from tests.support.polling import wait_until, within
from tests.support.processes import ROOT, alive, descendants, is_ready, kill, worker_processes


class ServeProcess:
    """``bco serve`` in a folder with modules named like packages."""

    def __init__(self, folder: Path) -> None:
        self.marks = folder / "marks"
        for name in ("orjson", "rich", "uvicorn", "numpy", "torch"):
            source = f"open({str(self.marks)!r}, 'a').write('{name} ')\nraise ImportError('not the real one')\n"
            (folder / f"{name}.py").write_text(source)
        self.port = free_port()
        settings = {"BCO_DATABASE_URL": f"sqlite:///{folder / 'bco.db'}", "BCO_PORT": str(self.port)}
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "app.commands.cli", "serve"],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": ROOT} | settings,
                stdout=log,
                stderr=log,
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30)
        self.messages = lambda: (folder / "log").read_text()

    def apis(self) -> list[psutil.Process]:
        return [
            process
            for process in alive(set(psutil.Process(self.process.pid).children()))
            if "app.commands.cli" in process.cmdline()
        ]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    running = ServeProcess(tmp_path_factory.mktemp("serving"))
    try:
        wait_until("it is ready", lambda: is_ready(running.http) or running.process.poll() is not None)
        wait_until("its worker is ready", lambda: "worker is ready" in running.messages())
        yield running
    finally:
        kill(descendants(running.process.pid))
        running.process.kill()
        running.process.wait()
        running.http.close()


@pytest.mark.slow
def test_modules_in_the_working_directory_are_not_imported(serving: ServeProcess) -> None:
    assert is_ready(serving.http), serving.messages()
    assert not serving.marks.exists(), serving.marks.read_text()


@pytest.mark.slow
def test_an_api_that_dies_twice_is_restarted_and_the_workers_stay(serving: ServeProcess) -> None:
    workers = worker_processes(descendants(serving.process.pid))
    assert len(workers) == 1
    for _ in range(2):
        wait_until("there is an API", serving.apis)
        (api,) = serving.apis()
        api.send_signal(signal.SIGKILL)
        within("it is gone", lambda api=api: api not in serving.apis(), 5)
    wait_until("another API is ready", lambda: is_ready(serving.http) or serving.process.poll() is not None)
    assert serving.process.poll() is None
    assert worker_processes(descendants(serving.process.pid)) == workers


@pytest.mark.slow
def test_no_process_outlives_a_killed_serve(serving: ServeProcess) -> None:
    """Runs last: it kills the shared service."""
    wait_until("it is ready", lambda: is_ready(serving.http))
    everyone = descendants(serving.process.pid)
    assert len(everyone) >= 3
    serving.process.kill()
    serving.process.wait()
    try:
        within("every process is gone", lambda: not alive(everyone), 20)
    finally:
        kill(everyone)


def test_a_process_that_keeps_ending_is_restarted_with_growing_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "FIRST_WAIT", 0.1)
    monkeypatch.setattr(child_processes, "LONGEST_WAIT", 1.0)
    kept, codes = SupervisedProcess("API", (sys.executable, "-c", "raise SystemExit(3)"), os.environ), []
    end = time.monotonic() + 60
    while len(codes) < 4 and time.monotonic() < end:
        code = kept.check()
        if code is not None:
            codes.append((code, kept._wait))
        time.sleep(0.01)
    assert codes == [(3, 0.2), (3, 0.4), (3, 0.8), (3, 1.0)]
    assert not kept.has_run
