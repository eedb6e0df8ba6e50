"""Whether this process can do what it is asked: its database is there, is of this version and takes what is written."""

from __future__ import annotations

import logging
import math
import os
import shutil
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa
from starlette.datastructures import State

from app.db import outage
from app.db.engine import get_engine, transaction
from app.db.migrate import is_current
from app.db.tables import AnswerRow

log = logging.getLogger(__name__)

# What is written to see whether there is room again, and what a disk must have left for SQLite.
PROBE_BYTES = 100_000
LEAST_FREE_BYTES = 10_000_000


def is_ready(state: State) -> bool:
    """Ask anew each time: what was wrong shows for as long as it lasts, and no longer."""
    try:
        return _file_is_there(state) and is_current(get_engine()) and _has_room(state)
    except sa.exc.SQLAlchemyError as error:
        log.warning("not ready: %s", outage.in_words(error))
        return False


def _file_is_there(state: State) -> bool:
    """Connections to a SQLite file outlive it; what they write after it is deleted is lost."""
    path = _sqlite_file()
    if path is None:
        return True
    try:
        found = os.stat(path)
    except FileNotFoundError:
        log.error("not ready: the database file %s is gone", path)
        return False
    if shutil.disk_usage(path.parent).free < LEAST_FREE_BYTES:
        log.error("not ready: the disk of %s is full", path)
        return False
    known = (found.st_dev, found.st_ino)
    if state.database_file not in (None, known):
        log.warning("the database file %s is another one; using that from now on", path)
        get_engine().dispose()
    state.database_file = known
    return True


def _sqlite_file() -> Path | None:
    url = get_engine().url
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def _has_room(state: State) -> bool:
    """After a write has failed for want of room, try one until it succeeds."""
    if state.full_at == -math.inf:
        return True
    probe = {"workspace": "", "path": "/readyz", "key": uuid4().hex}
    with transaction() as session:
        session.add(AnswerRow(**probe, body_sha256="", claim="", answer=bytes(PROBE_BYTES)))
    with transaction() as session:
        session.execute(sa.delete(AnswerRow).where(AnswerRow.workspace == "", AnswerRow.path == "/readyz"))
    state.full_at = -math.inf
    return True
