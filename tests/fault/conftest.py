"""Fixtures of the fault tests: a PostgreSQL server and service processes that can be killed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest

with warnings.catch_warnings():
    # Starlette asks for httpx2, its own fork; the client works as well with the httpx we have.
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient`")
    from tests.support.fleet import Fleet, Postgres, new_fleets, new_postgres


@pytest.fixture(scope="module")
def killable_postgres() -> Iterator[Postgres]:
    """Start a PostgreSQL server for one module, so that killing it disturbs no other tests."""
    with new_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def start_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Fleet]]:
    """Start an API and workers on a database; stop them after the module."""
    with new_fleets(tmp_path_factory) as start:
        yield start
