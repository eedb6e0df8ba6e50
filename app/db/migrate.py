"""Bring a database to this version: our tables by alembic, the job engine's by DBOS."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from dbos import DBOS

import migrations
from app.db.engine import create_engine


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return config


def migrate(url: str) -> None:
    """Upgrade to the newest version; safe to run again, and by several processes at once on PostgreSQL."""
    engine = create_engine(url)
    config = _config()
    try:
        if engine.dialect.name == "sqlite":
            with engine.connect() as connection:
                # This has an effect only before the first table; other databases keep their free pages.
                connection.exec_driver_sql("PRAGMA auto_vacuum=INCREMENTAL")
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7226001)")
            else:
                # SQLite changes a column by recreating its table; that must not delete rows that refer to it.
                connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()
    DBOS.migrate(url)


@lru_cache
def _newest() -> str | None:
    return ScriptDirectory.from_config(_config()).get_current_head()


def is_current(engine: sa.Engine) -> bool:
    """Return whether the database has the tables that this version expects."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision() == _newest()
