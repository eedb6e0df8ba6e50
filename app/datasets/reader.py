"""Read uploaded files in confined processes, so that unpacking cannot exhaust this one's memory or time."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from app.child_processes import FileReaders, ReadersBusy
from app.http.errors import InvalidRequest, TooLargeError, UnavailableError
from app.settings import Settings

# Arrow's own allocators reserve far more addresses than they use, and addresses are limited.
readers = FileReaders("app.datasets.unpack", {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"})


def read_file(content: bytes, settings: Settings, sheet: str = "") -> tuple[str, pa.Table]:
    """Return the format and the table of an uploaded file; refuse one that exceeds memory or time."""
    with tempfile.TemporaryDirectory(prefix="bco-upload-") as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        source.write_bytes(content)
        limits = {"max_rows": settings.max_rows, "max_cells": settings.max_cells}
        question = {"source": str(source), "target": str(target), "sheet": sheet} | limits
        answer = ask_reader(readers, question, settings, "send fewer rows, or shorter texts")
        # The pages of a mapped file go when the table goes; its folder may go before.
        return answer["format"], pa.ipc.open_file(pa.memory_map(str(target))).read_all()


def ask_reader(processes: FileReaders, question: dict[str, Any], settings: Settings, remedy: str) -> dict[str, Any]:
    """Return a process's answer about a file; raise 422, 413 or 503 if it could not read it."""
    try:
        answer = processes.ask(question, settings.upload_mb, settings.upload_seconds)
    except ReadersBusy:
        raise UnavailableError("other files are still being read; send the file again in a moment") from None
    if "refused" in answer:
        raise InvalidRequest.at(answer["where"] or ("file",), answer["refused"])
    if answer.get("ended") == signal.SIGSEGV:
        raise InvalidRequest.at(("file",), "the file cannot be read; is it damaged? Write it again")
    if answer.get("ended") == signal.SIGALRM:
        detail = f"reading the file takes longer than {settings.upload_seconds:g} s (BCO_UPLOAD_SECONDS)"
    elif "ended" in answer or "memory" in answer:
        detail = f"reading the file takes more than {settings.upload_mb} MB of memory (BCO_UPLOAD_MB)"
    else:
        return answer
    raise TooLargeError(f"{detail}; {remedy}", (("file",), detail))
