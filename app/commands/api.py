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

from app.child_processes import PYTHON, SupervisedProcess
from app.commands.serve import DRAIN_SECONDS, stop_all, url
from app.http.protocol import limited_protocol
from app.posteriors import shared
from app.settings import Settings

# Longer than clients and proxies keep a connection, so that none is closed just as they use it again.
KEEP_ALIVE_SECONDS = 75
_COMMAND = (*PYTHON, "-m", "app.commands.cli", "api")
_METRICS = "PROMETHEUS_MULTIPROC_DIR"
_BACKLOG = 2048


class Server(uvicorn.Server):
    """Prints its address as soon as it listens, unless it is one of several."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and not sockets:
            _print_address(self.config.host, self.config.port)


def run(settings: Settings) -> bool:
    """Serve until SIGTERM, which lets open requests finish first; return whether the server could start."""
    if settings.processes > 1 and not is_one_of_several():
        return _supervise(settings)
    # Importing the application takes seconds, and a supervisor needs none of it.
    from app.main import create_app
    from app.prescriptions.cache import give_back_early
    from bco_core.compile_kernels import warm_up

    give_back_early()
    application = create_app()
    warm_up()
    # Everything loaded so far stays: the garbage collector need not look through it again during requests.
    gc.collect()
    gc.freeze()
    server = Server(
        uvicorn.Config(
            application,
            host=settings.host,
            port=settings.port,
            http=limited_protocol(settings),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
    )
    # Clients that follow a job would otherwise keep the process open until the job ends.
    application.state.stopping = lambda: server.should_exit
    # Its imports take seconds; the first call that needs it should not wait for them.
    application.state.solvers.start()
    server.run([_listening(settings)] if is_one_of_several() else None)
    return server.started


def is_one_of_several() -> bool:
    """Return whether this process was started by a supervisor that holds the port."""
    return shared.FOLDER in os.environ


def _supervise(settings: Settings) -> bool:
    """Run several processes behind one port until SIGTERM; restart one that ends.

    The system distributes connections among them. They share the arrays of loaded posteriors and their metrics through
    a folder that only they can read and that is removed with them.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Bound here but not listened on: the port stays ours while all processes are down.
    with tempfile.TemporaryDirectory(prefix="bco-") as folder, _bound(settings):
        metrics = Path(folder) / "metrics"
        metrics.mkdir()
        environment = os.environ | {shared.FOLDER: folder, _METRICS: str(metrics)}
        supervised = [SupervisedProcess("API process", _COMMAND, environment) for _ in range(settings.processes)]
        _print_address(settings.host, settings.port)
        try:
            forget: Callable[[int, str], None] = multiprocess.mark_process_dead
            return _keep_alive(supervised, stop, lambda pid: forget(pid, str(metrics)))
        finally:
            stop_all([process.process for process in supervised], DRAIN_SECONDS + 2)


def _keep_alive(
    supervised: list[SupervisedProcess], stop: threading.Event, forget_metrics: Callable[[int], None]
) -> bool:
    """Return False if a process cannot start the first time: a setting is wrong, and would be wrong again."""
    while not stop.wait(0.2):
        for process in supervised:
            pid = process.process.pid
            code = process.check()
            if code is None:
                continue
            forget_metrics(pid)
            if code > 0 and not any(one.has_run for one in supervised):
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


def _print_address(host: str, port: int) -> None:
    address = url(host, port)
    typer.echo(f"The API listens at {address}; its docs page, to try things out, is {address}/docs")
