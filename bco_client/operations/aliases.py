"""Aliases: names of your own for posteriors."""

from __future__ import annotations

from typing import Final

from bco_client.records import AliasMoveRecord, AliasRecord
from bco_client.steps import Steps, delete, done, get, listed, put, record

WHATEVER: Final = "whatever it names"


def move(name: str, posterior_id: str, *, if_posterior_id: str | None = WHATEVER) -> Steps[AliasRecord]:
    """Create an alias of a posterior, or move it there.

    Raise Conflict if the alias does not name ``if_posterior_id`` now; None means that it must not exist yet.
    """
    guard = {} if if_posterior_id == WHATEVER else {"if_posterior_id": if_posterior_id}
    return record(AliasRecord, put("aliases", name, body={"posterior_id": posterior_id, **guard}))


def read(name: str) -> Steps[AliasRecord]:
    """Return the posterior that an alias names, and who moved it there."""
    return record(AliasRecord, get("aliases", name))


def list_all(*, limit: int | None = None) -> Steps[list[AliasRecord]]:
    return listed(AliasRecord, "aliases", limit=limit)


def moves(name: str, *, limit: int | None = None) -> Steps[list[AliasMoveRecord]]:
    """List the moves of an alias: who, when, from which posterior to which; newest first."""
    return listed(AliasMoveRecord, "aliases", name, "moves", limit=limit)


def remove(name: str) -> Steps[None]:
    """Delete an alias; the posterior stays."""
    return done(delete("aliases", name))
