"""Aliases: names of your own for posteriors."""

from __future__ import annotations

from typing import Final

from bco_client.records import Alias, AliasMove
from bco_client.steps import Steps, delete, done, get, listed, put, record

WHATEVER: Final = "whatever it names"


def move(name: str, posterior_id: str, *, if_posterior_id: str | None = WHATEVER) -> Steps[Alias]:
    """Make an alias of a posterior, or move it there; if it names another than ``if_posterior_id`` now, Conflict.

    None: only if there is no such alias yet.
    """
    guard = {} if if_posterior_id == WHATEVER else {"if_posterior_id": if_posterior_id}
    return record(Alias, put("aliases", name, body={"posterior_id": posterior_id, **guard}))


def read(name: str) -> Steps[Alias]:
    """The posterior that an alias names, and who moved it there."""
    return record(Alias, get("aliases", name))


def list_all(*, limit: int | None = None) -> Steps[list[Alias]]:
    return listed(Alias, "aliases", limit=limit)


def moves(name: str, *, limit: int | None = None) -> Steps[list[AliasMove]]:
    """Who moved an alias, when, from which posterior to which; newest first."""
    return listed(AliasMove, "aliases", name, "moves", limit=limit)


def remove(name: str) -> Steps[None]:
    """Delete an alias; the posterior stays."""
    return done(delete("aliases", name))
