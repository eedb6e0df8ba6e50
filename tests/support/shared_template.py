"""One solver template for each process of the test run: services fork it instead of starting an interpreter.

``python -m tests.support.shared_template`` imports and warms up what ``app.commands.solver`` needs, once. Each request
then forks a process that is a template itself, with its own environment.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.child_processes import PYTHON, ConnectionClosed, Template, receive, send, serve_forks

ROOT = str(Path(__file__).parents[2])


class ForkedTemplate(Template):
    """A solver template that starts within milliseconds."""

    def __init__(self, module: str, *arguments: str, **variables: str) -> None:
        assert module == "app.commands.solver"
        self._control, theirs = socket.socketpair()
        with theirs:
            environment = os.environ | {"PYTHONSAFEPATH": "1"} | variables
            environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
            self._process: Any = first_template().fork(theirs, environment, int(arguments[0]))
        self._lock = threading.Lock()
        self._ready = False


class _Process:
    """The part of ``subprocess.Popen`` that a template needs, for a process that is not our child."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid, self._descriptor = pid, descriptor

    def __del__(self) -> None:
        os.close(self._descriptor)

    def poll(self, seconds: float = 0.0) -> int | None:
        return 0 if select.select([self._descriptor], [], [], seconds)[0] else None

    def wait(self, timeout: float = 60.0) -> None:
        if self.poll(timeout) is None:
            raise subprocess.TimeoutExpired("a forked template", timeout)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class _First:
    """The process that all templates are forked from, warmed up. It ends with this one."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            command = (*PYTHON, "-m", "tests.support.shared_template")
            environment = os.environ | {"PYTHONPATH": ROOT, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), env=environment, start_new_session=True)
        atexit.register(self.close)
        receive(self._orders)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        self._orders.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def fork(self, control: socket.socket, environment: dict[str, str], memory_mb: int) -> _Process:
        """Start a template that takes requests from the other end of ``control``."""
        with self._lock:
            send(self._orders, {"environment": environment, "memory_mb": memory_mb})
            socket.send_fds(self._orders, [b"c"], [control.fileno()])
            answer, _ = receive(self._orders)
            _, (descriptor, *_), _, _ = socket.recv_fds(self._orders, 1, 1)
        return _Process(answer["pid"], descriptor)


_running: list[_First] = []
_starting = threading.Lock()


def first_template() -> _First:
    """Return the process that templates are forked from; start one and wait for it if there is none."""
    with _starting:
        if not _running or not _running[-1].alive:
            _running.append(_First())
        return _running[-1]


def main() -> None:
    import torch

    from app import logs
    from app.commands import solver
    from app.settings import get_settings
    from app.solving import describe_error

    torch.set_num_threads(1)
    solver.warm_up()
    orders = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    send(orders, {"ready": True})
    while True:
        order, _ = receive(orders)
        _, (control, *_), _, _ = socket.recv_fds(orders, 1, 1)
        _reap_children()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            orders.close()
            os.dup2(control, 0)
            os.close(control)
            os.environ.clear()
            os.environ.update(order["environment"])
            get_settings.cache_clear()
            logs.configure(get_settings())
            serve_forks(solver.TASKS, describe_error, order["memory_mb"])
            os._exit(0)
        os.close(control)
        # The process id cannot be reused before this process has reaped it.
        descriptor = os.pidfd_open(pid)
        send(orders, {"pid": pid})
        socket.send_fds(orders, [b"p"], [descriptor])
        os.close(descriptor)


def _reap_children() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    # The test run ends by closing its end of the socket.
    with suppress(ConnectionClosed):
        main()
