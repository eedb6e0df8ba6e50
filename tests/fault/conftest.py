"""A PostgreSQL that can be killed, and the service's parts as processes that can be, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest

with warnings.catch_warnings():
    # Starlette asks for httpx2, its own fork; the client works as well with the httpx we have.
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient`")
    from tests.support.fleet import Fleet, Postgres, new_fleets, new_postgres


@pytest.fixture(scope="module")
def mortal_postgres() -> Iterator[Postgres]:
    """A PostgreSQL of one's own: whoever kills it disturbs no other module."""
    with new_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def fleet_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Fleet]]:
    """Starts an API and workers on a database; they are gone when the module is."""
    with new_fleets(tmp_path_factory) as start:
        yield start
