"""Share arrays of posteriors, and fresh draws from them, between the API processes of one service by mapped files.

The first process that needs a posterior reads it from the database, checks it and writes the files; the others map
them, so that the arrays are in memory once. A process that drops a posterior deletes the files: processes that have
mapped them keep them, and the memory is free when none has.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    # A supervisor imports this module too, without the core.
    from bco_core.data import Arrays

log = logging.getLogger(__name__)

# Environment variable with the folder of the files; the supervisor of several processes sets it.
FOLDER = "BCO_SHARED_FOLDER"


def folder() -> Path | None:
    return Path(os.environ[FOLDER]) / "posteriors" if FOLDER in os.environ else None


def read_shared(name: str, read: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of ``read``, from files if another process has written them."""
    place = folder()
    if place is None:
        return read()
    place = place / name
    if not place.is_dir():
        arrays = read()
        try:
            _write(place, arrays)
        except OSError as error:
            log.warning("a posterior is not shared with other processes: %s", error.strerror)
            return arrays
    try:
        # Copy on write: changes stay in this process.
        return {file.stem: np.asarray(np.load(file, mmap_mode="c")) for file in place.iterdir()}
    except FileNotFoundError:
        # Another process has just deleted the files.
        return read()


def _write(place: Path, arrays: Arrays) -> None:
    """Write all files or none: the folder gets its name once they are complete."""
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
    try:
        for name, values in arrays.items():
            np.save(made / f"{name}.npy", values, allow_pickle=False)
        made.rename(place)
    except OSError:
        shutil.rmtree(made, ignore_errors=True)
        # Another process may have been faster, with the same arrays.
        if not place.is_dir():
            raise


def forget(name: str) -> None:
    place = folder()
    if place is not None:
        shutil.rmtree(place / name, ignore_errors=True)
