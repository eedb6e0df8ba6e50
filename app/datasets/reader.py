"""Has uploaded files read by other processes: what a file unfolds to never takes this one's memory or time."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from app.datasets import unpack
from app.http.errors import InvalidRequest, TooLarge, Unavailable
from app.settings import Settings

# Files that are read at the same time; others wait for a place.
PLACES = 2
_COMMAND = (sys.executable, "-P", str(Path(unpack.__file__)))
# Arrow's own allocators reserve far more addresses than they use, and addresses are what is limited.
_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}

_places = threading.BoundedSemaphore(PLACES)
_idle: list[subprocess.Popen[bytes]] = []


def read_file(content: bytes, settings: Settings) -> tuple[str, pa.Table]:
    """The format and the table of an uploaded file; refuses what cannot be read within memory and time."""
    if not _places.acquire(timeout=settings.upload_seconds):
        raise Unavailable("other files are still being read; send the file again in a moment")
    try:
        with tempfile.TemporaryDirectory(prefix="bco-upload-") as folder:
            source, target = Path(folder, "source"), Path(folder, "target")
            source.write_bytes(content)
            limits = {"max_rows": settings.max_rows, "max_cells": settings.max_cells}
            bounds = {"memory": settings.upload_mb * 1_000_000, "seconds": settings.upload_seconds}
            told = _ask({"source": str(source), "target": str(target)} | limits | bounds)
            if "format" not in told:
                raise _refusal(told, settings)
            # The pages of a mapped file go when the table goes; its folder may go before.
            table = pa.ipc.open_file(pa.memory_map(str(target))).read_all()
    finally:
        _places.release()
    return told["format"], table


def _refusal(told: dict[str, Any], settings: Settings) -> Exception:
    if "refused" in told:
        return InvalidRequest.at(("file",), told["refused"])
    if told.get("ended") == signal.SIGALRM:
        detail = f"reading the file takes longer than {settings.upload_seconds:g} s (BCO_UPLOAD_SECONDS)"
    else:
        detail = f"reading the file takes more than {settings.upload_mb} MB of memory (BCO_UPLOAD_MB)"
    where = ("file",), detail
    return TooLarge(f"{detail}; send fewer rows, or shorter texts", where)


def _ask(question: dict[str, Any]) -> dict[str, Any]:
    """What a reading process says of a file; if it says nothing, the signal that has ended it."""
    process = _take()
    to_it, from_it = cast("BinaryIO", process.stdin), cast("BinaryIO", process.stdout)
    try:
        to_it.write(json.dumps(question).encode() + b"\n")
        to_it.flush()
        line = from_it.readline()
    except BrokenPipeError:
        line = b""
    if not line:
        _end(process)
        return {"ended": -process.returncode}
    told: dict[str, Any] = json.loads(line)
    if "memory" in told or _idle:
        # One that has run out of memory may not find it again, and more than one idle process only holds memory.
        _end(process)
    else:
        _idle.append(process)
    return told


def _take() -> subprocess.Popen[bytes]:
    while _idle:
        process = _idle.pop()
        if process.poll() is None:
            return process
        _end(process)
    return subprocess.Popen(
        _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | _ENVIRONMENT, cwd="/"
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.kill()


@atexit.register
def close() -> None:
    """End the process that waits."""
    while _idle:
        _end(_idle.pop())
