"""What tables are made of: times with their zone, and who owns a row."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

# Where objects belong that are made without a key, and those from before there were keys.
DEFAULT_WORKSPACE = "default"


class Timestamp(sa.TypeDecorator[datetime]):
    """UTC with its time zone, also on SQLite, which keeps none."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def now() -> datetime:
    return datetime.now(UTC)


class Owned:
    """An object of one workspace; the keys of others do not see it."""

    id: Mapped[str] = mapped_column(primary_key=True)
    workspace: Mapped[str] = mapped_column(server_default=DEFAULT_WORKSPACE, index=True)
