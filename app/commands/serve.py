"""Running the whole service on this machine: supervised processes, and a handle on a service started for a while."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Self

import httpx

from app.db.migrate import migrate
from app.settings import Settings

log = logging.getLogger(__name__)

WORKER_COMMAND = (sys.executable, "-m", "app.jobs.worker")
API_COMMAND = (sys.executable, "-m", "app.commands.cli", "api")
# An API that ends sooner than this has not started at all.
START_SECONDS = 10.0
# How long the API finishes what it has begun when it is told to stop, and how long its supervisor waits for that.
DRAIN_SECONDS = 25
GRACE_SECONDS = 30.0
# The supervisor needs time to stop its processes before it is killed itself.
SUPERVISOR_GRACE_SECONDS = 2 * GRACE_SECONDS
# Importing the numerics takes seconds on an idle machine, and minutes on a crowded one.
READY_SECONDS = 300.0


def serve(settings: Settings) -> int:
    """Migrate, then run the API and the workers until told to stop; a process that dies is started again.

    An API that cannot even start, because its port is taken or a setting is wrong, ends it all instead.
    """
    migrate(settings.sqlalchemy_url)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A service that nohup started stays when its terminal closes.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: stop.set())
    environment = os.environ | {"BCO_HOST": settings.host, "BCO_PORT": str(settings.port)}
    environment["BCO_PROCESSES"] = str(settings.processes)
    # Children get their own process group, so that Ctrl-C reaches them through us, in order.
    api, began = subprocess.Popen(API_COMMAND, env=environment, start_new_session=True), time.monotonic()
    workers = [
        subprocess.Popen(WORKER_COMMAND, env=environment, start_new_session=True) for _ in range(settings.workers)
    ]
    try:
        while not stop.wait(0.5):
            if api.poll() is not None:
                log.error("the API stopped (exit code %s)", api.returncode)
                if time.monotonic() - began < START_SECONDS:
                    return api.returncode or 1
                api, began = subprocess.Popen(API_COMMAND, env=environment, start_new_session=True), time.monotonic()
            for index, worker in enumerate(workers):
                if worker.poll() is not None:
                    log.warning("a worker stopped (exit code %s); starting another", worker.returncode)
                    workers[index] = subprocess.Popen(WORKER_COMMAND, env=environment, start_new_session=True)
    finally:
        _stop_all([api, *workers])
    return 0


def _stop_all(processes: list[subprocess.Popen[bytes]], grace: float = GRACE_SECONDS) -> None:
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(host: str, port: int) -> bool:
    """Whether the port can be listened on; OSError if the reason is not that it is taken."""
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
    """Where a browser on this machine finds a service that listens on ``host``."""
    if host in ("0.0.0.0", "::"):  # noqa: S104
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class NotStarted(Exception):
    """A service ended before it was ready, or did not become ready at all."""


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
        self.process = subprocess.Popen(
            (sys.executable, "-m", "app.commands.cli", "serve"),
            env=self._environment,
            stdout=subprocess.DEVNULL if self._quiet else None,
        )
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
        """Until the service ends, however it does."""
        if self.process is not None:
            self.process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process is not None:
            _stop_all([self.process], SUPERVISOR_GRACE_SECONDS)
