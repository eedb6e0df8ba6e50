"""The service in this process, on a fresh SQLite file and on a fresh PostgreSQL database, a module at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.db.migrate import migrate
from app.main import create_app
from app.settings import get_settings
from tests.support.in_process import DATABASES, read_settings, service_on

MakeDatabase = Callable[[str], str]


@pytest.fixture(scope="module", params=DATABASES)
def database_url(request: pytest.FixtureRequest, empty_database: MakeDatabase) -> Iterator[str]:
    """A migrated database that the application in this process uses."""
    url = empty_database(request.param)
    with service_on(url):
        migrate(get_settings().sqlalchemy_url)
        yield url


@pytest.fixture(scope="module")
def client(database_url: str) -> Iterator[TestClient]:
    """The HTTP application; server errors are answers, as a caller sees them."""
    with TestClient(create_app(), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Changes settings for one test: ``settings(max_rows=10)``."""

    def change(**values: object) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"BCO_{name.upper()}", str(value))
        read_settings()

    yield change
    monkeypatch.undo()
    read_settings()


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[2]
