"""The whole service on this machine: its supervised processes, and a service that runs for the length of a block."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
import time
from types import TracebackType
from typing import Self

import httpx

from app.child_processes import PYTHON, SupervisedProcess, start_service
from app.db.migrate import migrate
from app.settings import Settings

WORKER_COMMAND = (*PYTHON, "-m", "app.jobs.worker")
API_COMMAND = (*PYTHON, "-m", "app.commands.cli", "api")
SERVE_COMMAND = (*PYTHON, "-m", "app.commands.cli", "serve")
# Time for the API to finish open requests after SIGTERM, and for its supervisor to wait for that.
DRAIN_SECONDS = 25
GRACE_SECONDS = 30.0
# The supervisor needs time to stop its processes before it is killed itself.
SUPERVISOR_GRACE_SECONDS = 2 * GRACE_SECONDS
# Importing the numerics takes seconds on an idle machine, and minutes on a crowded one.
READY_SECONDS = 300.0


def serve(settings: Settings) -> int:
    """Migrate, then run the API and the workers until SIGTERM; restart a process that ends.

    Return the API's exit code if it cannot start the first time: its port is taken, or a setting is wrong.
    """
    migrate(settings.sqlalchemy_url)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A service that nohup started stays when its terminal closes.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: stop.set())
    environment = os.environ | {"BCO_HOST": settings.host, "BCO_PORT": str(settings.port)}
    environment["BCO_PROCESSES"] = str(settings.processes)
    supervised = [SupervisedProcess("API", API_COMMAND, environment)]
    supervised += [SupervisedProcess("worker", WORKER_COMMAND, environment) for _ in range(settings.workers)]
    api, first = supervised[0], True
    try:
        while not stop.wait(0.5):
            for process in supervised:
                code = process.check()
                if process is api and code is not None:
                    if first and code > 0 and not api.has_run:
                        return code
                    first = False
    finally:
        stop_all([process.process for process in supervised])
    return 0


def stop_all(processes: list[subprocess.Popen[bytes]], grace: float = GRACE_SECONDS) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + grace
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(host: str, port: int) -> bool:
    """Return whether the port can be listened on; raise OSError for any other reason than that it is taken."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def url(host: str, port: int) -> str:
    """Return the address at which a browser on this machine finds a service that listens on ``host``."""
    if host in ("0.0.0.0", "::"):  # noqa: S104
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class NotStarted(Exception):
    """A service ended before it was ready, or did not become ready in time."""


class LocalService:
    """``bco serve`` in a process of its own: ``with LocalService() as service: httpx.get(service.url + "/livez")``."""

    def __init__(self, port: int | None = None, quiet: bool = True, **environment: str) -> None:
        self.port = port or free_port()
        self.url = url("127.0.0.1", self.port)
        self._quiet = quiet
        self._environment = os.environ | environment | {"BCO_HOST": "127.0.0.1", "BCO_PORT": str(self.port)}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if self._quiet:
            self._environment["BCO_LOG_LEVEL"] = "WARNING"
        out = subprocess.DEVNULL if self._quiet else None
        self.process = start_service(SERVE_COMMAND, self._environment, stdout=out)
        try:
            self._wait_until_ready(self.process)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/readyz").is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise NotStarted("The service did not start; its messages are above.")

    def wait(self) -> None:
        """Wait until the service ends."""
        if self.process is not None:
            self.process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process is not None:
            stop_all([self.process], SUPERVISOR_GRACE_SECONDS)
