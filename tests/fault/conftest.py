"""A PostgreSQL that can be killed, and the service's parts as processes that can be, too."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

with warnings.catch_warnings():
    # Starlette asks for httpx2, its own fork; the client works as well with the httpx we have.
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient`")
    from fleet import Fleet, Postgres


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    """What the shell that runs the tests has set must not change what they see."""
    for name in list(os.environ):
        if name.startswith("BCO_"):
            del os.environ[name]


@pytest.fixture(scope="module")
def mortal_postgres() -> Iterator[Postgres]:
    """A PostgreSQL of one's own: whoever kills it disturbs no other test."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        server = Postgres(Path(tempfile.mkdtemp(prefix="bco-mortal-")))
    yield server
    server.remove()


@pytest.fixture(scope="module")
def fleet_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Fleet]]:
    """Starts an API and workers on a database; they are gone when the module is."""
    fleets: list[Fleet] = []

    def start(url: str, workers: int = 2, **environment: str) -> Fleet:
        fleets.append(Fleet(tmp_path_factory.mktemp("fleet"), url, workers, **environment))
        return fleets[-1]

    yield start
    for fleet in fleets:
        fleet.remove()
