"""What every kind of object needs: lists a page at a time, and deletion that respects use."""

from __future__ import annotations

from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.engine import transaction
from app.errors import Conflict, InvalidRequest, NotFound
from app.ids import is_id

Row = TypeVar("Row")


def find(session: Session, table: type[Row], identifier: str) -> Row | None:
    """The row with this id. What cannot be an id is not looked for: databases differ in what text they take."""
    return session.get(table, identifier) if is_id(identifier) else None


def read(table: type[Row], identifier: str, missing: str) -> Row:
    """The row with this id, in a transaction of its own; NotFound with the sentence ``missing`` if there is none."""
    with transaction() as session:
        row = find(session, table, identifier)
    if row is None:
        raise NotFound(missing)
    return row


def page(
    session: Session, query: sa.Select[Any], key: Any, limit: int, cursor: str | None
) -> tuple[list[Any], str | None]:
    """Up to ``limit`` rows after ``cursor`` (the last id shown), newest first, and the next cursor if there is one."""
    if cursor is not None:
        if not is_id(cursor):
            raise InvalidRequest.at(("query", "cursor"), "this is not a cursor; take next_cursor from the last answer")
        query = query.where(key < cursor)
    rows = list(session.scalars(query.order_by(key.desc()).limit(limit + 1)))
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None


def affected(session: Session, statement: sa.Update | sa.Delete) -> int:
    """Run a statement and tell how many rows it changed."""
    return session.connection().execute(statement).rowcount


def delete_row(session: Session, table: Any, identifier: str, missing: str, in_use: str) -> None:
    """Delete one row; foreign keys refuse what others still use, whatever happens at the same moment."""
    if not is_id(identifier):
        raise NotFound(missing)
    try:
        deleted = affected(session, sa.delete(table).where(table.id == identifier))
    except sa.exc.IntegrityError:
        raise Conflict(in_use) from None
    if not deleted:
        raise NotFound(missing)
