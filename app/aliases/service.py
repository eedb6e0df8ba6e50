"""Create, move, read and delete aliases, and look up their posteriors.

A move locks the alias's row first, so that moves happen one after the other and each records its former posterior.
Moves are kept forever, even those of a deleted alias; a new alias of the same name continues its revisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.aliases.schemas import AliasTarget, is_name
from app.db.base import now
from app.db.engine import affected_rows, transaction
from app.db.tables import AliasMoveRow, AliasRow, PosteriorRow
from app.http.errors import ConflictError, InvalidRequest, NotFoundError
from app.http.rows import find, page
from app.ids import new_id

MISSING = "no alias has this name; GET /v1/aliases lists them"
NO_POSTERIOR = "no posterior has this id; GET /v1/posteriors lists them, and GET /v1/aliases their other names"
_GONE = "the posterior, or the alias, was changed at the same moment; read the alias and try again"
# A move by another process takes effect here after at most this long.
FRESH_SECONDS = 1.0


def real_id(session: Session, workspace: str, named: str) -> str:
    """Return the posterior's id for an id or an alias of the workspace."""
    if not is_name(named):
        return named
    return session.scalar(sa.select(AliasRow.posterior_id).where(*_alias_conditions(workspace, named))) or named


def key(workspace: str, name: str) -> str:
    """Return the key under which a process remembers the posterior of an alias; a name has no slash."""
    return f"{name}/{workspace}"


def look_up(workspace: str, named: str) -> str:
    with transaction() as session:
        return real_id(session, workspace, named)


def listing(workspace: str, limit: int, cursor: str | None) -> tuple[list[sa.Row[Any]], str | None]:
    with transaction() as session:
        return page(session, AliasRow, workspace, limit, cursor, _ITS_POSTERIOR, columns=_COLUMNS)


def get(workspace: str, name: str) -> sa.Row[Any]:
    with transaction() as session:
        row = session.execute(
            sa.select(*_COLUMNS).where(*_alias_conditions(workspace, name), _ITS_POSTERIOR)
        ).one_or_none()
    if row is None:
        raise NotFoundError(MISSING)
    return row


def moves(workspace: str, name: str, limit: int, before: int | None) -> tuple[list[AliasMoveRow], int | None]:
    """Return the moves of an alias before a revision, newest first, and the revision where the next page begins."""
    moved = AliasMoveRow
    query = sa.select(moved).where(moved.workspace == workspace, moved.name == name)
    if before is not None:
        query = query.where(moved.revision < before)
    with transaction() as session:
        rows = list(session.scalars(query.order_by(moved.revision.desc()).limit(limit + 1)))
    if not rows and before is None:
        raise NotFoundError(MISSING)
    return rows[:limit], rows[limit - 1].revision if len(rows) > limit else None


def put(workspace: str, name: str, target: AliasTarget, by: str | None) -> None:
    """Create or move an alias, if it still names the posterior that the caller expects."""
    with transaction() as session:
        row = lock_alias(session, workspace, name)
        if target.is_guarded:
            _check_expected(row, target.if_posterior_id)
        posterior = find(session, PosteriorRow, workspace, real_id(session, workspace, target.posterior_id))
        if posterior is None:
            raise InvalidRequest.at(("posterior_id",), NO_POSTERIOR)
        try:
            move(session, workspace, name, row, posterior.id, by)
        except sa.exc.IntegrityError:
            raise ConflictError(_GONE) from None


def _check_expected(row: AliasRow | None, expected: str | None) -> None:
    names = None if row is None else row.posterior_id
    if names != expected:
        now_names = f"it names {names} now" if names else "there is no such alias"
        raise ConflictError(
            f"the alias does not name the posterior of if_posterior_id: {now_names}; read it and decide again"
        )


def lock_alias(session: Session, workspace: str, name: str) -> AliasRow | None:
    """Return the alias, locked against other moves until the transaction ends."""
    # An update takes the lock on both databases; a read would not on SQLite.
    affected_rows(
        session, sa.update(AliasRow).where(*_alias_conditions(workspace, name)).values(revision=AliasRow.revision)
    )
    query = sa.select(AliasRow).where(*_alias_conditions(workspace, name))
    return session.scalar(query.execution_options(populate_existing=True))


def move(
    session: Session, workspace: str, name: str, row: AliasRow | None, to: str, by: str | None, reason: str = ""
) -> None:
    """Move a locked alias, or create one; an alias that names the posterior already stays."""
    if row is not None and row.posterior_id == to:
        return
    before = None if row is None else row.posterior_id
    revision = _record_move(session, workspace, name, before, to, by, reason)
    if row is None:
        row = AliasRow(id=new_id("alias"), workspace=workspace, name=name)
        session.add(row)
    row.posterior_id, row.revision, row.moved_at, row.moved_by = to, revision, now(), by
    session.flush()


def delete(workspace: str, name: str, by: str | None) -> None:
    with transaction() as session:
        row = lock_alias(session, workspace, name)
        if row is None:
            raise NotFoundError(MISSING)
        _record_move(session, workspace, name, row.posterior_id, None, by, "")
        session.delete(row)


def aliases_of_posterior(session: Session, posterior_id: str) -> list[str]:
    """Return the aliases of a posterior."""
    return aliases_by_posterior(session, [posterior_id]).get(posterior_id, [])


def aliases_by_posterior(session: Session, posterior_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the aliases of posteriors, by id; posteriors without any are left out."""
    query = sa.select(AliasRow.posterior_id, AliasRow.name).where(AliasRow.posterior_id.in_(list(posterior_ids)))
    names: dict[str, list[str]] = {}
    for posterior_id, name in session.execute(query.order_by(AliasRow.name)):
        names.setdefault(posterior_id, []).append(name)
    return names


def _record_move(
    session: Session, workspace: str, name: str, before: str | None, after: str | None, by: str | None, reason: str
) -> int:
    moved = AliasMoveRow
    last = sa.select(sa.func.max(moved.revision)).where(moved.workspace == workspace, moved.name == name)
    revision = (session.scalar(last) or 0) + 1
    session.add(
        AliasMoveRow(
            workspace=workspace,
            name=name,
            revision=revision,
            by=by,
            from_posterior_id=before,
            to_posterior_id=after,
            reason=reason,
        )
    )
    return revision


def _alias_conditions(workspace: str, name: str) -> tuple[sa.ColumnElement[bool], ...]:
    return AliasRow.workspace == workspace, AliasRow.name == name


_ITS_POSTERIOR = AliasRow.posterior_id == PosteriorRow.id
_COLUMNS: list[Any] = [
    AliasRow.id,
    AliasRow.name,
    AliasRow.posterior_id,
    PosteriorRow.digest,
    AliasRow.revision,
    AliasRow.created_at,
    AliasRow.moved_at,
    AliasRow.moved_by,
]
