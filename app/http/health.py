"""Readiness: the database exists, has this version's tables and can be written."""

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

# Bytes of the test write after the disk was full, and free bytes that SQLite needs.
PROBE_BYTES = 100_000
LEAST_FREE_BYTES = 10_000_000


def is_ready(state: State) -> bool:
    """Check the database each time, so that a fault shows as long as it lasts."""
    try:
        return _file_exists(state) and is_current(get_engine()) and _can_write(state)
    except sa.exc.SQLAlchemyError as error:
        log.warning("not ready: %s", outage.in_words(error))
        return False


def _file_exists(state: State) -> bool:
    """Check that SQLite's file exists: connections outlive it, and their writes would be lost."""
    path = _sqlite_file()
    if path is None:
        return True
    try:
        status = os.stat(path)
    except FileNotFoundError:
        log.error("not ready: the database file %s is gone", path)
        return False
    if shutil.disk_usage(path.parent).free < LEAST_FREE_BYTES:
        log.error("not ready: the disk of %s is full", path)
        return False
    file_id = (status.st_dev, status.st_ino)
    if state.database_file not in (None, file_id):
        log.warning("the database file %s was replaced; using the new one from now on", path)
        get_engine().dispose()
    state.database_file = file_id
    return True


def _sqlite_file() -> Path | None:
    url = get_engine().url
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def _can_write(state: State) -> bool:
    """After a write has failed because the disk was full, try one until it succeeds."""
    if state.full_at == -math.inf:
        return True
    probe = {"workspace": "", "path": "/readyz", "key": uuid4().hex}
    with transaction() as session:
        session.add(AnswerRow(**probe, body_sha256="", claim="", answer=bytes(PROBE_BYTES)))
    with transaction() as session:
        session.execute(sa.delete(AnswerRow).where(AnswerRow.workspace == "", AnswerRow.path == "/readyz"))
    state.full_at = -math.inf
    return True
