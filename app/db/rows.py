"""What every kind of object needs: lists a page at a time, and deletion that respects use."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.errors import Conflict, NotFound


def page(
    session: Session, query: sa.Select[Any], key: Any, limit: int, cursor: str | None
) -> tuple[list[Any], str | None]:
    """Up to ``limit`` rows after ``cursor`` (the last id shown), newest first, and the next cursor if there is one."""
    if cursor is not None:
        query = query.where(key < cursor)
    rows = list(session.scalars(query.order_by(key.desc()).limit(limit + 1)))
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None


def affected(session: Session, statement: sa.Update | sa.Delete) -> int:
    """Run a statement and tell how many rows it changed."""
    return session.connection().execute(statement).rowcount


def delete_row(session: Session, table: Any, identifier: str, missing: str, in_use: str) -> None:
    """Delete one row; foreign keys refuse what others still use, whatever happens at the same moment."""
    try:
        deleted = affected(session, sa.delete(table).where(table.id == identifier))
    except sa.exc.IntegrityError:
        raise Conflict(in_use) from None
    if not deleted:
        raise NotFound(missing)
