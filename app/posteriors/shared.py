"""Arrays of posteriors, and fresh draws from them, as files that all API processes of one service map into their
memory, so they take it once.

The first process that needs a posterior reads it from the database, checks it and writes the files; the others map
them. A process that drops a posterior takes the files away: who has them mapped keeps them, and the system has the
memory back when nobody does.
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
    # A supervisor imports this module too, and needs nothing of the core.
    from bco_core.data import Arrays

log = logging.getLogger(__name__)

# Where the files are, if there are several processes: their supervisor sets it.
FOLDER = "BCO_SHARED_FOLDER"


def folder() -> Path | None:
    return Path(os.environ[FOLDER]) / "posteriors" if FOLDER in os.environ else None


def mapped(name: str, read: Callable[[], Arrays]) -> Arrays:
    """The arrays that ``read`` returns, from the files of other processes if they are there."""
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
        # Written to only in this process's own memory, if at all.
        return {file.stem: np.asarray(np.load(file, mmap_mode="c")) for file in place.iterdir()}
    except FileNotFoundError:
        # Another process has just taken the files away.
        return read()


def _write(place: Path, arrays: Arrays) -> None:
    """All files or none: they get their name once they are complete."""
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
