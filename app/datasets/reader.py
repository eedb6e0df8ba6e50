"""Has uploaded files read by other processes: what a file unfolds to never takes this one's memory or time."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from app.child_processes import FileReaders, ReadersBusy
from app.http.errors import InvalidRequest, TooLargeError, UnavailableError
from app.settings import Settings

# Arrow's own allocators reserve far more addresses than they use, and addresses are what is limited.
readers = FileReaders("app.datasets.unpack", {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"})


def read_file(content: bytes, settings: Settings, sheet: str = "") -> tuple[str, pa.Table]:
    """The format and the table of an uploaded file; refuses what cannot be read within memory and time."""
    with tempfile.TemporaryDirectory(prefix="bco-upload-") as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        source.write_bytes(content)
        limits = {"max_rows": settings.max_rows, "max_cells": settings.max_cells}
        question = {"source": str(source), "target": str(target), "sheet": sheet} | limits
        told = asked(readers, question, settings, "send fewer rows, or shorter texts")
        # The pages of a mapped file go when the table goes; its folder may go before.
        return told["format"], pa.ipc.open_file(pa.memory_map(str(target))).read_all()


def asked(processes: FileReaders, question: dict[str, Any], settings: Settings, remedy: str) -> dict[str, Any]:
    """What a process says of a file that it could read; 422, 413 or 503 with a sentence otherwise."""
    try:
        told = processes.ask(question, settings.upload_mb, settings.upload_seconds)
    except ReadersBusy:
        raise UnavailableError("other files are still being read; send the file again in a moment") from None
    if "refused" in told:
        raise InvalidRequest.at(told["where"] or ("file",), told["refused"])
    if told.get("ended") == signal.SIGSEGV:
        raise InvalidRequest.at(("file",), "the file cannot be read; is it damaged? Write it again")
    if told.get("ended") == signal.SIGALRM:
        detail = f"reading the file takes longer than {settings.upload_seconds:g} s (BCO_UPLOAD_SECONDS)"
    elif "ended" in told or "memory" in told:
        detail = f"reading the file takes more than {settings.upload_mb} MB of memory (BCO_UPLOAD_MB)"
    else:
        return told
    raise TooLargeError(f"{detail}; {remedy}", (("file",), detail))
