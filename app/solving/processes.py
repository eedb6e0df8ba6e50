"""The template of solver processes and the processes themselves, as the API sees them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

from app.solving import wire
from app.solving.child import BURY, FORK, READY

# No module of the working directory is imported in place of a library: -P.
COMMAND = (sys.executable, "-P", "-m", "app.commands.solver")
_PACKAGES = str(Path(__file__).parents[2])
# A fork that has not said its name by then never will.
_FORK_SECONDS = 10.0
_EXIT_SECONDS = 5.0


class Template:
    """The process that solver processes are forked from; it takes seconds to start and milliseconds to fork."""

    def __init__(self, memory_mb: int) -> None:
        self._control, theirs = socket.socketpair()
        paths = [_PACKAGES, os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            # Arenas of threads reserve address space that nobody uses.
            "MALLOC_ARENA_MAX": "2",
            # A process with threads is not forked safely.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }
        # What solver processes count is told to the API, which counts it for all.
        environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
        with theirs:
            self._process = subprocess.Popen(
                (*COMMAND, str(memory_mb)), stdin=theirs.fileno(), env=environment, start_new_session=True
            )
        self._lock = threading.Lock()
        self._ready = False

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has imported all it needs."""
        with self._lock:
            if not self._ready:
                with contextlib.suppress(BlockingIOError):
                    self._ready = self._control.recv(1, socket.MSG_DONTWAIT) == READY
            return self._ready

    def fork(self) -> Process:
        """A new solver process; Ended if the template is gone."""
        with self._lock:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    socket.send_fds(self._control, [FORK + bytes(8)], [theirs.fileno()])
                except OSError:
                    ours.close()
                    raise wire.Ended from None
        try:
            hello, _ = wire.receive(ours, monotonic() + _FORK_SECONDS)
        except (wire.Ended, TimeoutError):
            ours.close()
            self.close()
            raise wire.Ended from None
        return Process(self, hello["pid"], ours)

    def bury(self, pid: int) -> None:
        """Until then a process that has ended keeps its number, so that no other one is meant by it."""
        with self._lock, contextlib.suppress(OSError):
            self._control.sendall(BURY + pid.to_bytes(8, "big"))

    def close(self) -> None:
        """End the template, and with it what was forked from it."""
        self._control.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Process:
    """One solver process. ``kept`` are the keys of the problems it has in memory, the last one last."""

    def __init__(self, template: Template, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.kept: dict[str, None] = {}
        self._template, self._connection = template, connection
        self._lock = threading.Lock()
        self._alive = True

    @property
    def alive(self) -> bool:
        """Whether a process that is not asked anything is still there."""
        # A timeout left from the last question would be waited for, whatever the flags.
        self._connection.settimeout(0)
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def ask(self, header: wire.Header, body: bytes, until: float) -> tuple[wire.Header, bytes]:
        self._connection.settimeout(max(until - monotonic(), 1e-3))
        wire.send(self._connection, header, body)
        return wire.receive(self._connection, until)

    def kill(self) -> None:
        """End the process at once; whoever waits for its answer is told that it has ended."""
        with self._lock:
            if not self._alive:
                return
            self._alive = False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._template.bury(self.pid)
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.kill()
        self._connection.close()
