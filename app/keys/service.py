"""Making, listing, revoking and recognising API keys.

A key reads ``bco_<which>_<secret>``: the first part finds its row, and the sha256 of the whole is compared with the one
kept there. The secret has 256 random bits, so a plain hash is as good as a slow one.
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
    """A key cannot be as it was asked for; the message says what would be right."""


def create(name: str, workspace: str, scopes: list[str], days: float | None) -> tuple[KeyRow, str]:
    """A new key, and the text that is shown this once."""
    if not _WORKSPACE.fullmatch(workspace):
        raise InvalidKey("a workspace's name is up to 63 small letters, digits and hyphens, such as 'planning'")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise InvalidKey(f"the scopes of a key are one or more of {', '.join(SCOPES)}")
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
    """All keys, oldest first, revoked and expired ones too."""
    with transaction() as session:
        return list(session.scalars(sa.select(KeyRow).order_by(KeyRow.id)))


def revoke(key_id: str) -> KeyRow | None:
    """End a key; None if there is none. One that is revoked already stays as it is."""
    with transaction() as session:
        row = session.get(KeyRow, key_id)
        if row is not None and row.revoked_at is None:
            row.revoked_at = now()
    return row


def recognise(text: str) -> KeyRow | None:
    """The live key that this text is, or None; how long the comparison takes says nothing about the secret."""
    key_id = sibling_id("_".join(text.split("_", 2)[:2]), "key")
    if not text.startswith("bco_") or not is_id(key_id):
        return None
    with transaction() as session:
        row = session.get(KeyRow, key_id)
    known = row is not None and hmac.compare_digest(row.sha256, _hash(text))
    return row if row is not None and known and is_live(row, now()) else None


def any_made() -> bool:
    """Whether there has ever been a key, revoked and expired ones too; from then on every request needs one."""
    with transaction() as session:
        return session.scalar(sa.select(sa.exists(sa.select(KeyRow.id)))) is True


def is_live(row: KeyRow, when: datetime) -> bool:
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > when)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
