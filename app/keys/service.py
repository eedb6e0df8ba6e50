"""Create, list, revoke and recognise API keys.

A key has the form ``bco_<id>_<secret>``: the id finds its row, and the sha256 of the whole key is compared with the
stored one. The secret has 256 random bits, so a plain hash is as good as a slow one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import datetime, timedelta

import sqlalchemy as sa

from app.db.base import now
from app.db.engine import transaction
from app.db.tables import KeyRow
from app.db.text import is_plain
from app.ids import is_id, new_id, sibling_id

SCOPES = ("read", "train", "admin")
_WORKSPACE = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


class InvalidKey(ValueError):
    """A key cannot be created with these values; the message says what would be right."""


def create(name: str, workspace: str, scopes: list[str], days: float | None) -> tuple[KeyRow, str]:
    """Create a key; return its row and its text, which is shown only once."""
    if not _WORKSPACE.fullmatch(workspace):
        raise InvalidKey("a workspace's name has up to 63 lower-case letters, digits and hyphens, such as 'planning'")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise InvalidKey(f"the scopes of a key must be one or more of {', '.join(SCOPES)}")
    if not is_plain(name) or not name.strip():
        raise InvalidKey("a key needs a name that says what it is for, without control or bidirectional characters")
    key_id = new_id("key")
    text = f"{sibling_id(key_id, 'bco')}_{secrets.token_urlsafe(32)}"
    row = KeyRow(
        id=key_id,
        workspace=workspace,
        name=name,
        scopes=[scope for scope in SCOPES if scope in scopes],
        sha256=_hash(text),
        expires_at=None if days is None else now() + timedelta(days=days),
    )
    with transaction() as session:
        session.add(row)
    return row, text


def listing() -> list[KeyRow]:
    """Return all keys, oldest first, including revoked and expired ones."""
    with transaction() as session:
        return list(session.scalars(sa.select(KeyRow).order_by(KeyRow.id)))


def revoke(key_id: str) -> KeyRow | None:
    """Revoke a key; return None if there is none."""
    with transaction() as session:
        row = session.get(KeyRow, key_id)
        if row is not None and row.revoked_at is None:
            row.revoked_at = now()
    return row


def recognise(text: str) -> KeyRow | None:
    """Return the live key with this text, or None; the comparison takes constant time."""
    key_id = sibling_id("_".join(text.split("_", 2)[:2]), "key")
    if not text.startswith("bco_") or not is_id(key_id):
        return None
    with transaction() as session:
        row = session.get(KeyRow, key_id)
    matches = row is not None and hmac.compare_digest(row.sha256, _hash(text))
    return row if row is not None and matches and is_live(row, now()) else None


def any_created() -> bool:
    """Return whether there has ever been a key; from then on every request needs one."""
    with transaction() as session:
        return session.scalar(sa.select(sa.exists(sa.select(KeyRow.id)))) is True


def is_live(row: KeyRow, when: datetime) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > when)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
