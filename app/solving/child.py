"""A solver process from its own side, and the template that all of them are forked from.

The template imports and warms up once; a fork of it is ready within milliseconds and shares its memory. It forks and
buries on request, and exits when its API does. A solver process serves one request after the other. The kernel ends it
with the template, however busy it is.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from app.lifelines import die_with_parent
from app.solving import wire
from app.solving.failures import describe_error

# One request (a body) in, facts and an answer out.
Task = Callable[[bytes], tuple[wire.Header, bytes]]

FORK, BURY = b"f", b"b"
ORDER_BYTES = 1 + 8
READY = b"r"


def serve_orders(control: socket.socket, tasks: Mapping[str, Task], memory_mb: int) -> None:
    """The template's life: fork and bury solver processes until the API closes the control socket."""
    try:
        control.sendall(READY)
    except ConnectionError:
        return
    while True:
        try:
            order, sockets, _, _ = socket.recv_fds(control, ORDER_BYTES, 1, socket.MSG_WAITALL)
        except ConnectionError:
            # The API is gone and has not even read what was said.
            return
        if len(order) < ORDER_BYTES:
            return
        if order[:1] == BURY:
            os.waitpid(int.from_bytes(order[1:], "big"), 0)
            continue
        if os.fork() == 0:
            control.close()
            os.close(0)
            _live(socket.socket(fileno=sockets[0]), tasks, memory_mb)
        os.close(sockets[0])


def _live(connection: socket.socket, tasks: Mapping[str, Task], memory_mb: int) -> NoReturn:
    """A solver process's life; it never returns into the template's."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with_parent(os.getppid(), signal.SIGKILL)
        _bound_memory(memory_mb)
        wire.send(connection, {"pid": os.getpid()})
        while True:
            header, body = wire.receive(connection)
            facts, answer = _answer(tasks[header["task"]], body)
            wire.send(connection, facts, answer)
            if "memory" in facts:
                break
    except wire.Ended:
        pass
    finally:
        sys.stdout.flush()
        os._exit(0)


def _answer(task: Task, body: bytes) -> tuple[wire.Header, bytes]:
    try:
        return task(body)
    except Exception as error:
        return describe_error(error), b""


def _bound_memory(megabytes: int) -> None:
    """Let the address space grow by so much: what torch and numba have reserved already says little about memory."""
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            reserved = int(statm.read().split()[0]) * resource.getpagesize()
        limit = reserved + megabytes * 1_000_000
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
