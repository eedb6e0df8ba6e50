"""Find, list and delete rows of a workspace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.base import WorkspaceObject
from app.db.engine import affected_rows, transaction
from app.http.errors import ConflictError, InvalidRequest, NotFoundError
from app.ids import is_id

Row = TypeVar("Row", bound=WorkspaceObject)


def find(session: Session, table: type[Row], workspace: str, identifier: str) -> Row | None:
    """Return the row with this id if it belongs to the workspace.

    Text that cannot be an id is not sent: databases differ in what text they take.
    """
    row = session.get(table, identifier) if is_id(identifier) else None
    return row if row is not None and row.workspace == workspace else None


def read(table: type[Row], workspace: str, identifier: str, missing: str) -> Row:
    """Return the row with this id, in a transaction of its own; raise NotFoundError(missing) if there is none."""
    with transaction() as session:
        row = find(session, table, workspace, identifier)
    if row is None:
        raise NotFoundError(missing)
    return row


def matching(table: type[Row], **wanted: str | None) -> list[sa.ColumnElement[bool]]:
    """Return conditions for ``page``: each column equals its value, unless that is None.

    Text that cannot be an id matches nothing and is not sent: databases differ in what text they take.
    """
    return [
        getattr(table, name) == value if is_id(value) or not name.endswith("_id") else sa.false()
        for name, value in wanted.items()
        if value is not None
    ]


def page(
    session: Session,
    table: type[Row],
    workspace: str,
    limit: int,
    cursor: str | None,
    *conditions: sa.ColumnElement[bool],
    columns: Sequence[Any],
) -> tuple[list[sa.Row[Any]], str | None]:
    """Return columns of up to ``limit`` rows after ``cursor`` (the last id shown), newest first, and the next cursor.

    Only ``columns`` are read: whole objects may be large.
    """
    query = sa.select(*columns).where(table.workspace == workspace, *conditions)
    if cursor is not None:
        if not is_id(cursor):
            raise InvalidRequest.at(("query", "cursor"), "this is not a cursor; use next_cursor of the last answer")
        query = query.where(table.id < cursor)
    rows = list(session.execute(query.order_by(table.id.desc()).limit(limit + 1)))
    return rows[:limit], rows[limit - 1].id if len(rows) > limit else None


def delete_row(session: Session, table: type[Row], workspace: str, identifier: str, missing: str, in_use: str) -> None:
    """Delete one row; foreign keys prevent deleting one that is in use, even if the use begins at the same moment."""
    if not is_id(identifier):
        raise NotFoundError(missing)
    try:
        query = sa.delete(table).where(table.id == identifier, table.workspace == workspace)
        deleted = affected_rows(session, query)
    except sa.exc.IntegrityError:
        raise ConflictError(in_use) from None
    if not deleted:
        raise NotFoundError(missing)
