"""Database outages: recognise them, and wait until they are over.

An outage means that the database is gone, locked or full. The API answers 503; workers and computations wait, so that
no job fails because of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import sqlalchemy as sa

log = logging.getLogger(__name__)

Value = TypeVar("Value")

RETRY_AFTER_SECONDS = 1
NO_ROOM = "the disk of the database is full"
_LONGEST_WAIT = 2.0


def is_outage(error: BaseException) -> bool:
    """Return whether trying again later may help: no connection, a full disk, or a lock held for too long."""
    if isinstance(error, sa.exc.TimeoutError | sa.exc.InterfaceError):
        return True
    if isinstance(error, sa.exc.OperationalError):
        # SQLite raises this for a missing table, too, and waiting does not help then.
        return "no such " not in str(error.orig)
    return isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated


def in_words(error: BaseException) -> str:
    """Return a description of an outage for planners and operators."""
    text = str(getattr(error, "orig", None) or error).lower()
    if "disk" in text or "no space" in text or "full" in text:
        return NO_ROOM
    if "locked" in text or isinstance(error, sa.exc.TimeoutError):
        return "the database is busy"
    return "the database does not answer"


@contextmanager
def unless_outage() -> Iterator[None]:
    """Ignore database outages in this block: the action will be repeated anyway."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        if not is_outage(error):
            raise


def insist(act: Callable[[], Value], stop: threading.Event | None = None) -> Value:
    """Run an action, again and again during a database outage; give up only when ``stop`` is set."""
    wait = 0.1
    while True:
        try:
            return act()
        except Exception as error:
            if not is_outage(error) or (stop is not None and stop.is_set()):
                raise
            if wait == 0.1:
                log.warning("%s; trying again until it works", in_words(error))
        if stop is None:
            time.sleep(wait)
        else:
            stop.wait(wait)
        wait = min(2 * wait, _LONGEST_WAIT)
