"""The API as a process of its own, or as several that share its port."""

from __future__ import annotations

import gc
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import typer
import uvicorn
from prometheus_client import multiprocess

from app.commands.children import PYTHON, SupervisedProcess
from app.commands.serve import DRAIN_SECONDS, _stop_all, url
from app.http.protocol import bounded
from app.posteriors import shared
from app.settings import Settings

# Longer than clients and proxies keep a connection, so that none is closed just as they use it again.
KEEP_ALIVE_SECONDS = 75
_COMMAND = (*PYTHON, "-m", "app.commands.cli", "api")
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
_BACKLOG = 2048


class Server(uvicorn.Server):
    """Says where it listens as soon as it does, unless it is one of several."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and not sockets:
            _say_where(self.config.host, self.config.port)


def run(settings: Settings) -> bool:
    """Serve until told to stop; False if it could not even start. SIGTERM lets open requests finish first."""
    if settings.processes > 1 and not is_one_of_several():
        return _supervise(settings)
    # Importing the application takes seconds, and a supervisor needs none of it.
    from app.main import create_app
    from app.prescriptions.memory import give_back_early
    from app.prescriptions.warm import warm_up

    give_back_early()
    application = create_app()
    warm_up()
    # What is there by now stays: the collector need not look through all of it again while everybody waits.
    gc.collect()
    gc.freeze()
    server = Server(
        uvicorn.Config(
            application,
            host=settings.host,
            port=settings.port,
            http=bounded(settings),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    )
    # Clients that follow a job would otherwise keep the process open until the job ends.
    application.state.stopping = lambda: server.should_exit
    # Its imports take seconds, which the first call that needs it should not have to wait for.
    application.state.solvers.start()
    server.run([_listening(settings)] if is_one_of_several() else None)
    return server.started


def is_one_of_several() -> bool:
    """Whether this process was started by a supervisor that holds the port already."""
    return shared.FOLDER in os.environ


def _supervise(settings: Settings) -> bool:
    """So many processes behind one port until told to stop; one that ends is started again.

    The system deals connections to them. They share the arrays of loaded posteriors and their metrics through a folder
    that only they can read and that goes with them.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # The port is held here, though not listened at: it stays ours while all processes are down.
    with tempfile.TemporaryDirectory(prefix="bco-") as folder, _bound(settings):
        metrics = Path(folder) / "metrics"
        metrics.mkdir()
        environment = os.environ | {shared.FOLDER: folder, _METRICS: str(metrics)}
        kept = [SupervisedProcess("API process", _COMMAND, environment) for _ in range(settings.processes)]
        _say_where(settings.host, settings.port)
        try:
            bury: Callable[[int, str], None] = multiprocess.mark_process_dead
            return _keep_alive(kept, stop, lambda pid: bury(pid, str(metrics)))
        finally:
            _stop_all([process.process for process in kept], DRAIN_SECONDS + 2)


def _keep_alive(kept: list[SupervisedProcess], stop: threading.Event, bury: Callable[[int], None]) -> bool:
    """False if a process could not even start the first time: a setting is wrong, and would be wrong again."""
    while not stop.wait(0.2):
        for process in kept:
            pid = process.process.pid
            code = process.look()
            if code is None:
                continue
            bury(pid)
            if code > 0 and not any(one.has_run for one in kept):
                return False
    return True


def _listening(settings: Settings) -> socket.socket:
    listening = _bound(settings)
    listening.listen(_BACKLOG)
    return listening


def _bound(settings: Settings) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(address)
    return bound


def _say_where(host: str, port: int) -> None:
    address = url(host, port)
    typer.echo(f"The API listens at {address}; its docs page, to try things out, is {address}/docs")
