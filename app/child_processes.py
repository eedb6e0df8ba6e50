"""Child processes of the service, of two kinds.

Service processes (the API, workers) run for as long as their supervisor: :class:`SupervisedProcess` restarts them.

Limited children do a piece of work within limits of memory and time, and are killed with their parent. They answer one
request after the other over a socket pair, each a JSON header and bytes. Two ways to start them:

- :class:`FileReaders` runs a module in a fresh interpreter, for files of strangers: nothing of the service is in reach.
- :class:`Template` is a process that has imported everything and forks children on request, within milliseconds. Solver
  processes of the API and computing processes of workers are such forks.

No child imports from the working directory. This module imports the standard library alone, so that children start
quickly.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import logging
import math
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

log = logging.getLogger(__name__)

# -P: an orjson.py in the working directory is not imported in place of the package.
PYTHON = (sys.executable, "-P")
_SOURCE = str(Path(__file__).parents[1])
_PR_SET_PDEATHSIG = 1
# Loaded before any fork: a new process must not load libraries before it runs a program of its own.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(parent: int, by: signal.Signals) -> None:
    """Have the kernel send a signal to this process when the thread that started it ends; on Linux alone.

    The process exits if its parent is gone already.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _address_space() -> int:
    """Return the bytes of addresses that this process uses."""
    with open("/proc/self/statm") as counts:
        return int(counts.read().split()[0]) * resource.getpagesize()


# service processes

# A process that runs for this long has started; when it ends, the next one may start at once.
STARTED_SECONDS = 10.0
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0


def start_service(command: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that gets SIGTERM when this one is gone, even by kill -9.

    It is tied to the thread that starts it: call this from one that lasts.
    """
    tie = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    # Its own children leave the working directory alone, too, however they are started.
    return subprocess.Popen(command, env={**environment, "PYTHONSAFEPATH": "1"}, preexec_fn=tie, **options)


class SupervisedProcess:
    """A process that is restarted when it ends: soon the first time, later each time it ends early."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._command, self._environment = command, environment
        self._wait, self._due = FIRST_WAIT, 0.0
        self.has_run = False
        self._start()

    def _start(self) -> None:
        # A process group of its own: Ctrl-C reaches it through us, in order.
        self.process = start_service(self._command, self._environment, start_new_session=True)
        self._began, self._ended = time.monotonic(), False

    def check(self) -> int | None:
        """Restart the process if that is due; return the exit code if it has ended since the last check."""
        now = time.monotonic()
        if self._ended:
            if now >= self._due:
                self._start()
            return None
        lasted = now - self._began >= STARTED_SECONDS
        self.has_run |= lasted
        code = self.process.poll()
        if code is None:
            return None
        self._ended = True
        self._wait = FIRST_WAIT if lasted else min(2 * self._wait, LONGEST_WAIT)
        self._due = now + self._wait
        log.error("the %s stopped (exit code %s); starting another in %g s", self.name, code, self._wait)
        return code


# messages between limited children and their parents

_LENGTHS = struct.Struct("!IQ")

Header = dict[str, Any]
# Answers one request: a body in, a header and a body out.
Task = Callable[[bytes], tuple[Header, bytes]]


class ConnectionClosed(Exception):
    """The other side is gone."""


def send(connection: socket.socket, header: Header, body: bytes = b"") -> None:
    packed = json.dumps(header).encode()
    try:
        connection.sendall(_LENGTHS.pack(len(packed), len(body)) + packed)
        connection.sendall(body)
    except (BrokenPipeError, ConnectionResetError):
        raise ConnectionClosed from None


def receive(connection: socket.socket, deadline: float = math.inf) -> tuple[Header, bytes]:
    """Return the next message; raise TimeoutError at ``deadline``, a moment of the monotonic clock."""
    header, body = _LENGTHS.unpack(_receive_exactly(connection, _LENGTHS.size, deadline))
    return json.loads(_receive_exactly(connection, header, deadline)), bytes(
        _receive_exactly(connection, body, deadline)
    )


def _receive_exactly(connection: socket.socket, size: int, deadline: float) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        connection.settimeout(None if deadline == math.inf else max(deadline - time.monotonic(), 1e-3))
        try:
            count = connection.recv_into(view[filled:])
        except ConnectionResetError:
            count = 0
        if not count:
            raise ConnectionClosed
        filled += count
    return data


def _start_limited(
    command: Sequence[str], environment: Mapping[str, str], **options: Any
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process whose standard input is a socket; it ends when this process closes the other end."""
    ours, theirs = socket.socketpair()
    with theirs:
        return subprocess.Popen(command, stdin=theirs.fileno(), env=environment, **options), ours


def _standard_input() -> socket.socket:
    return socket.socket(fileno=os.dup(sys.stdin.fileno()))


# children that read files of strangers

# Files that are read by one kind of process at the same time; others wait.
MOST_READERS = 2


class InvalidFile(Exception):
    """The file cannot be used; the sentence says why, and ``where`` in which part of the request."""

    def __init__(self, sentence: str, where: Sequence[str | int] = ()) -> None:
        super().__init__(sentence)
        self.where = tuple(where)


class ReadersBusy(Exception):
    """No reader became free in time."""


class FileReaders:
    """Processes that run a module's ``main``, which calls :func:`serve_files`; at most one idle process is kept."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self.command = (*PYTHON, "-m", module)
        self.environment = {"PYTHONPATH": _SOURCE, "MALLOC_ARENA_MAX": "1", **environment}
        self.idle: dict[subprocess.Popen[bytes], socket.socket] = {}
        self._places = threading.BoundedSemaphore(MOST_READERS)
        atexit.register(self.close)

    def ask(self, question: Header, megabytes: int, time_limit_seconds: float) -> Header:
        """Return a process's answer about a file; without one, the signal that ended it, as ``ended``."""
        if not self._places.acquire(timeout=time_limit_seconds):
            raise ReadersBusy
        try:
            return self._ask(question | {"memory": megabytes * 1_000_000, "seconds": time_limit_seconds})
        finally:
            self._places.release()

    def _ask(self, question: Header) -> Header:
        process, connection = self._take()
        try:
            send(connection, question)
            answer, _ = receive(connection)
        except ConnectionClosed:
            _kill(process, connection)
            return {"ended": -process.returncode}
        if "memory" in answer or self.idle:
            # One that has run out of memory may not find it again, and more than one idle process only holds memory.
            _kill(process, connection)
        else:
            self.idle[process] = connection
        return answer

    def _take(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        while self.idle:
            process, connection = self.idle.popitem()
            if process.poll() is None:
                return process, connection
            _kill(process, connection)
        return _start_limited(self.command, os.environ | self.environment, stdout=subprocess.DEVNULL, cwd="/")

    def close(self) -> None:
        """Kill the idle process."""
        while self.idle:
            _kill(*self.idle.popitem())


def _kill(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    connection.close()
    with process:
        process.kill()


def serve_files(answer: Callable[[Header], Header]) -> None:
    """Answer for file after file until the process that asks is gone; each within its memory and time."""
    connection, at_rest = _standard_input(), _address_space()
    with contextlib.suppress(ConnectionClosed):
        while True:
            question, _ = receive(connection)
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (at_rest + question["memory"], hard))
            # Nothing catches this signal, so it ends the process whatever that is doing.
            signal.setitimer(signal.ITIMER_REAL, question["seconds"])
            try:
                facts = answer(question)
            except InvalidFile as error:
                facts = {"refused": str(error), "where": list(error.where)}
            except MemoryError:
                facts = {"memory": True}
            signal.setitimer(signal.ITIMER_REAL, 0)
            send(connection, facts)


# children forked from a template

_FORK, _REAP, _READY = b"f", b"b", b"r"
_ORDER_BYTES = 1 + 8
# A fork that has not reported by then never will.
_FORK_SECONDS = 10.0
_EXIT_SECONDS = 5.0


class Template:
    """A process that children are forked from; it takes seconds to start and milliseconds to fork.

    Its module's ``main`` calls :func:`serve_forks`.
    """

    def __init__(self, module: str, *arguments: str, **variables: str) -> None:
        # The same source as this process, wherever it is started.
        paths = filter(None, (_SOURCE, os.environ.get("PYTHONPATH")))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"} | variables
        # Forks report their counts to the process that asked, which counts for all.
        environment.pop("PROMETHEUS_MULTIPROC_DIR", None)
        self._process, self._control = _start_limited(
            (*PYTHON, "-m", module, *arguments), environment, start_new_session=True
        )
        self._lock = threading.Lock()
        self._ready = False

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether it has imported everything."""
        with self._lock:
            if not self._ready:
                with contextlib.suppress(BlockingIOError):
                    self._ready = self._control.recv(1, socket.MSG_DONTWAIT) == _READY
            return self._ready

    def wait_until_ready(self) -> None:
        with self._lock:
            if not self._ready:
                self._ready = self._control.recv(1) == _READY

    def fork(self) -> ForkedProcess:
        """Return a new child; raise ConnectionClosed if the template is gone."""
        with self._lock:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    socket.send_fds(self._control, [_FORK + bytes(8)], [theirs.fileno()])
                except OSError:
                    ours.close()
                    raise ConnectionClosed from None
        try:
            hello, _ = receive(ours, time.monotonic() + _FORK_SECONDS)
        except (ConnectionClosed, TimeoutError):
            ours.close()
            self.close()
            raise ConnectionClosed from None
        return ForkedProcess(self, hello["pid"], ours)

    def reap(self, pid: int) -> None:
        """Have the template wait for a dead child; until then no other process gets its number."""
        with self._lock, contextlib.suppress(OSError):
            self._control.sendall(_REAP + pid.to_bytes(8, "big"))

    def close(self) -> None:
        """End the template, and with it its children."""
        self._control.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ForkedProcess:
    """One child of a template."""

    def __init__(self, template: Template, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._template, self._connection = template, connection
        self._lock = threading.Lock()
        self._alive = True

    @property
    def alive(self) -> bool:
        """Whether a process without an open request is still there."""
        # A timeout left over from the last request would apply despite the flags.
        self._connection.settimeout(0)
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def ask(self, header: Header, body: bytes, deadline: float) -> tuple[Header, bytes]:
        """Return the answer to a request; raise TimeoutError at ``deadline``, ConnectionClosed if the process ends."""
        self._connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        self.request(header, body)
        return receive(self._connection, deadline)

    def request(self, header: Header, body: bytes) -> None:
        """Send a request whose answer is received later."""
        send(self._connection, header, body)

    def wait(self, seconds: float) -> bool:
        """Whether there is an answer within this time, or the end of the process."""
        return bool(select.select([self._connection], [], [], seconds)[0])

    def answer(self) -> tuple[Header, bytes]:
        """Return the answer to the last request; raise ConnectionClosed if the process has ended without one."""
        return receive(self._connection)

    def kill(self, wait: bool = False) -> None:
        """End the process; whoever waits for its answer gets ConnectionClosed. With ``wait``, wait for its end."""
        with self._lock:
            if not self._alive:
                return
            self._alive = False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            if wait:
                _wait_for_exit(self.pid)
            self._template.reap(self.pid)
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.kill()
        self._connection.close()


def _wait_for_exit(pid: int) -> None:
    """Wait until a process that need not be our child has ended; where the system cannot tell, do not wait."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                select.select([descriptor], [], [], _EXIT_SECONDS)
            finally:
                os.close(descriptor)


def serve_forks(tasks: Mapping[str, Task], describe_error: Callable[[Exception], Header], memory_mb: int = 0) -> None:
    """Run as a template: fork and reap children until the parent closes the control socket.

    Each child answers requests for ``tasks`` one after the other. An error becomes the header of an answer; a child
    whose header says ``memory`` ends. ``memory_mb`` bounds what each may take; 0 for no bound.
    """
    control = _standard_input()
    try:
        control.sendall(_READY)
    except ConnectionError:
        return
    while True:
        try:
            order, sockets, _, _ = socket.recv_fds(control, _ORDER_BYTES, 1, socket.MSG_WAITALL)
        except ConnectionError:
            # The parent is gone and has not even read that we are ready.
            return
        if len(order) < _ORDER_BYTES:
            return
        if order[:1] == _REAP:
            os.waitpid(int.from_bytes(order[1:], "big"), 0)
            continue
        if os.fork() == 0:
            control.close()
            # The control socket is the template's alone.
            with open(os.devnull) as nothing:
                os.dup2(nothing.fileno(), 0)
            _serve_requests(socket.socket(fileno=sockets[0]), tasks, describe_error, memory_mb)
        os.close(sockets[0])


def _serve_requests(
    connection: socket.socket, tasks: Mapping[str, Task], describe_error: Callable[[Exception], Header], memory_mb: int
) -> NoReturn:
    """Run as a forked child; never return into the template's loop."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(os.getppid(), signal.SIGKILL)
        if memory_mb and sys.platform == "linux":
            # What torch and numba have reserved already says little about memory: bound what comes on top.
            limit = _address_space() + memory_mb * 1_000_000
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        send(connection, {"pid": os.getpid()})
        while True:
            header, body = receive(connection)
            try:
                facts, answer = tasks[header["task"]](body)
            except Exception as error:
                facts, answer = describe_error(error), b""
            send(connection, facts, answer)
            if "memory" in facts:
                break
    except ConnectionClosed:
        pass
    finally:
        sys.stdout.flush()
        os._exit(0)
