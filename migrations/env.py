"""Runs the migrations on the connection that ``app.db.migrate`` hands over."""

from __future__ import annotations

from typing import Any

from alembic import context

from app.db.tables import Base


def ours_alone(name: str | None, kind: str, parents: Any) -> bool:
    """On SQLite the job engine's tables share our schema: leave them out of comparisons."""
    return kind != "table" or name in Base.metadata.tables


connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    include_name=ours_alone,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
