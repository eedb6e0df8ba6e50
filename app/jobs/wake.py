"""Waiting until something may have been queued, at next to no cost.

PostgreSQL tells its listeners when a job is queued. On SQLite, a number grows whenever another connection writes, and
looking at it touches no table. Either way nothing is lost if that fails: whoever waits looks for himself now and then.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

CHANNEL = "bco_queued"
# How often the number is looked at: people who wait for a job notice tenths of a second.
GLANCE_SECONDS = 0.1
_AGAIN_SECONDS = 2.0


def notify(session: Session) -> None:
    """Wake all who wait, once the transaction is committed; on SQLite they see that by themselves."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))


@contextmanager
def waiter(url: sa.URL, stop: threading.Event) -> Iterator[Callable[[float], None]]:
    """A function that waits for so many seconds, or until something may have been queued or the worker stops."""
    wait = _Glances(url, stop) if url.get_backend_name() == "sqlite" else _Listener(url, stop)
    try:
        yield wait
    finally:
        wait.close()


class _Glances:
    def __init__(self, url: sa.URL, stop: threading.Event) -> None:
        self._path, self._stop = url.database or "", stop
        self._connection: sqlite3.Connection | None = None
        self._seen = -1

    def __call__(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stop.wait(GLANCE_SECONDS):
            version = self._version()
            if version != self._seen:
                self._seen = version
                return

    def _version(self) -> int:
        try:
            if self._connection is None:
                # Opened so that it cannot make an empty file where there is none.
                uri = f"file:{self._path}?mode=rw"
                self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
            (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            return int(version)
        except sqlite3.Error:
            self.close()
            return self._seen

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class _Listener:
    def __init__(self, url: sa.URL, stop: threading.Event) -> None:
        self._address = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._stop = stop
        self._connection: psycopg.Connection | None = None

    def __call__(self, seconds: float) -> None:
        try:
            if self._connection is None:
                self._connection = psycopg.connect(self._address, autocommit=True, connect_timeout=5)
                self._connection.execute(f"LISTEN {CHANNEL}")
                # What was queued before is not told again.
                return
            for _ in self._connection.notifies(timeout=seconds, stop_after=1):
                return
        except psycopg.Error as error:
            log.debug("cannot listen for jobs: %s", error)
            self.close()
            self._stop.wait(min(seconds, _AGAIN_SECONDS))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
