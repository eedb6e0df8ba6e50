"""One engine a process, on SQLite or PostgreSQL, and the transaction that services work in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.settings import get_settings


def create_engine(url: str | sa.URL) -> sa.Engine:
    """Return an engine that waits for locks; on SQLite it takes the write lock before the first write."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite":
        # A server that vanishes is noticed in seconds, not after the system's own minutes.
        timeouts = {"connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "tcp_user_timeout": 10_000}
        return sa.create_engine(
            parsed,
            pool_pre_ping=True,
            pool_size=get_settings().database_connections,
            max_overflow=0,
            pool_timeout=10,
            connect_args=timeouts,
            hide_parameters=True,
        )
    if parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(parsed, hide_parameters=True)

    @sa.event.listens_for(engine, "connect")
    def configure(connection: Any, record: Any) -> None:
        connection.isolation_level = "IMMEDIATE"
        connection.execute("PRAGMA busy_timeout=10000")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=NORMAL")

    return engine


@lru_cache
def get_engine() -> sa.Engine:
    return create_engine(get_settings().sqlalchemy_url)


@contextmanager
def transaction() -> Iterator[Session]:
    """Yield a session that commits at the end, or rolls back after an error."""
    with Session(get_engine(), expire_on_commit=False) as session, session.begin():
        yield session


def database_clock(session: Session) -> Any:
    """Return SQL for the database's own time in seconds, since clocks of machines differ."""
    if session.get_bind().dialect.name == "sqlite":
        return (sa.func.julianday("now") - 2440587.5) * 86400.0
    return sa.func.extract("epoch", sa.func.clock_timestamp())


def affected_rows(session: Session, statement: sa.Update | sa.Delete) -> int:
    """Run a statement; return the number of rows that it changed."""
    return session.connection().execute(statement).rowcount
