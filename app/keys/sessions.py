"""Browser sessions: a key is entered once, not with every page.

The browser keeps a random token in a cookie that scripts cannot read; the database keeps the token's sha256 and its
key. A session ends with its key, after BCO_SESSION_HOURS, or when its owner logs out.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

import sqlalchemy as sa

from app.db.base import now
from app.db.engine import transaction
from app.db.tables import KeyRow, SessionRow
from app.keys.service import is_live
from app.settings import get_settings


def new_token() -> str:
    return secrets.token_urlsafe(32)


def begin(key_id: str) -> str:
    """Start a session and return its token; remove expired sessions."""
    token, hours = new_token(), get_settings().session_hours
    with transaction() as session:
        session.execute(sa.delete(SessionRow).where(SessionRow.expires_at < now()))
        session.add(SessionRow(sha256=_hash(token), key_id=key_id, expires_at=now() + timedelta(hours=hours)))
    return token


def recognise(token: str) -> KeyRow | None:
    """Return the live key of a session token, or None."""
    with transaction() as session:
        browser = session.get(SessionRow, _hash(token))
        row = session.get(KeyRow, browser.key_id) if browser is not None and browser.expires_at > now() else None
    return row if row is not None and is_live(row, now()) else None


def end(token: str) -> None:
    with transaction() as session:
        session.execute(sa.delete(SessionRow).where(SessionRow.sha256 == _hash(token)))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
