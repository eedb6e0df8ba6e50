"""Run the service in this process on one fresh database per module: SQLite, and PostgreSQL in the second tier."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from app.main import create_app
from tests.support.in_process import DATABASES, read_settings, service_on

MakeDatabase = Callable[[str], str]


@pytest.fixture(scope="module", params=DATABASES)
def database_url(request: pytest.FixtureRequest, migrated_database: MakeDatabase) -> Iterator[str]:
    """A migrated database that the application in this process uses."""
    url = migrated_database(request.param)
    with service_on(url):
        yield url


@pytest.fixture(scope="module")
def client(database_url: str) -> Iterator[TestClient]:
    """HTTP client of the application; a server error is a response, as for a real caller."""
    with TestClient(create_app(), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Change settings for one test: ``settings(max_rows=10)``."""

    def change(**values: object) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"BCO_{name.upper()}", str(value))
        read_settings()

    yield change
    monkeypatch.undo()
    read_settings()
