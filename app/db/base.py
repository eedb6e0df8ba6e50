"""Column types and mixins of all tables."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

# Workspace of objects that are created without a key, and of those from before there were keys.
DEFAULT_WORKSPACE = "default"


class Timestamp(sa.TypeDecorator[datetime]):
    """UTC with its time zone, also on SQLite, which stores none."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def now() -> datetime:
    return datetime.now(UTC)


class WorkspaceObject:
    """An object of one workspace; keys of other workspaces do not see it."""

    id: Mapped[str] = mapped_column(primary_key=True)
    workspace: Mapped[str] = mapped_column(server_default=DEFAULT_WORKSPACE, index=True)
