"""The command line as an operator meets it: one sentence and an exit status for what goes wrong, no process left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from app.commands import cli
from app.commands.serve import free_port, url
from tests.support.in_process import service_on
from tests.support.polling import wait_until, within
from tests.support.processes import BCO, ROOT, Part, alive, descendants, is_ready, kill

NOBODY = "postgresql://bco:sesame-4711@127.0.0.1:1/nowhere"
POSTERIOR = "post_01JCXV7Q0GZ3M5W8K2T4N6P9RS"
ON_THE_DATABASE = (
    ("migrate",),
    ("serve",),
    ("keys", "list"),
    ("keys", "create", "planning"),
    ("export", POSTERIOR, "x.bco"),
)


def bco(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as a process of its own."""
    given = os.environ | {"PYTHONPATH": ROOT, "COLUMNS": "200", "BCO_PORT": str(free_port())} | environment
    return subprocess.run([*BCO, *arguments], cwd=folder, env=given, capture_output=True, text=True, timeout=600)


def invoked(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process, which is quicker."""
    # Whatever else runs on this machine may have the usual port.
    with service_on(url, BCO_PORT=str(free_port())):
        result = CliRunner().invoke(cli.app, arguments)
    said = result.stderr if result.exception is None or result.exit_code == 2 else repr(result.exception)
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, said)


def assert_one_sentence(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr


# the database


@pytest.mark.parametrize("command", ON_THE_DATABASE, ids=" ".join)
def test_a_database_that_cannot_be_reached_is_one_sentence(command: tuple[str, ...]) -> None:
    result = invoked(NOBODY, *command)
    assert_one_sentence(result, "127.0.0.1", "BCO_DATABASE_URL", "refused")
    assert "sesame" not in result.stderr


@pytest.mark.parametrize("command", ON_THE_DATABASE, ids=" ".join)
def test_a_database_file_that_cannot_be_made_is_one_sentence(tmp_path: Path, command: tuple[str, ...]) -> None:
    """A file where there should be a folder: nobody may write there, the superuser included."""
    (tmp_path / "file").touch()
    result = invoked(f"sqlite:///{tmp_path / 'file' / 'below' / 'bco.db'}", *command)
    assert_one_sentence(result, str(tmp_path / "file"), "Not a directory")


@pytest.mark.parametrize("command", ["migrate", "api", "worker"])
def test_a_database_file_that_cannot_be_opened_is_one_sentence(tmp_path: Path, command: str) -> None:
    (tmp_path / "bco.db").mkdir()
    result = bco(tmp_path, command, BCO_DATABASE_URL=f"sqlite:///{tmp_path / 'bco.db'}")
    assert_one_sentence(result, str(tmp_path / "bco.db"), "unable to open database file")


@pytest.mark.slow
def test_the_demo_without_a_database_says_so_and_ends(tmp_path: Path) -> None:
    result = bco(tmp_path, "demo", BCO_DATABASE_URL=NOBODY)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "BCO_DATABASE_URL" in result.stderr


# addresses


@pytest.mark.parametrize("command", ["serve", "api"])
@pytest.mark.parametrize("port", ["99999", "0"])
def test_a_port_that_is_none_is_refused(command: str, port: str) -> None:
    result = CliRunner().invoke(cli.app, [command, "--port", port], env={"NO_COLOR": "1", "COLUMNS": "200"})
    assert result.exit_code == 2
    assert "Invalid value for '--port'" in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_an_address_that_is_not_of_this_machine_is_not_called_a_taken_port(tmp_path: Path) -> None:
    environment = {"BCO_DATABASE_URL": f"sqlite:///{tmp_path / 'bco.db'}"}
    for command in ("serve", "api"):
        result = bco(tmp_path, command, "--host", "203.0.113.7", **environment)
        assert_one_sentence(result, "203.0.113.7", "cannot be listened on")


@pytest.mark.slow
def test_the_api_on_a_taken_port_says_so(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = bco(tmp_path, "api", "--port", port, BCO_DATABASE_URL=f"sqlite:///{tmp_path / 'bco.db'}")
    assert result.returncode == 1
    assert result.stderr == f"Port {port} is taken; choose another with --port or BCO_PORT.\n"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://localhost:8000"),  # noqa: S104
        ("::1", "http://[::1]:8000"),
        ("::", "http://localhost:8000"),
        ("planning.example", "http://planning.example:8000"),
    ],
)
def test_an_address_is_shown_as_a_browser_takes_it(host: str, expected: str) -> None:
    assert url(host, 8000) == expected


@contextmanager
def running(folder: Path, *command: str) -> Iterator[tuple[Part, httpx.Client]]:
    """A service by options alone, once it answers."""
    port = free_port()
    environment = {"BCO_DATABASE_URL": f"sqlite:///{folder / 'bco.db'}"}
    with (
        Part(folder, "service", *command, "--port", str(port), **environment) as part,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        wait_until("it is ready", lambda: part.process.poll() is not None or is_ready(client))
        assert part.process.poll() is None, part.messages()
        yield part, client


@pytest.mark.slow
def test_serve_says_in_one_line_where_it_is_and_where_the_docs_are(tmp_path: Path) -> None:
    with running(tmp_path, "serve") as (part, client):
        address = str(client.base_url).rstrip("/")
        said = [line for line in part.messages().splitlines() if address in line]
        assert len(said) == 1
        assert f"{address}/docs" in said[0]
        assert client.get("/docs").status_code == 200
        assert part.stop(60) == 0


@pytest.mark.slow
def test_an_api_told_by_option_to_listen_beyond_this_machine_needs_a_key(tmp_path: Path) -> None:
    assert bco(tmp_path, "migrate", BCO_DATABASE_URL=f"sqlite:///{tmp_path / 'bco.db'}").returncode == 0
    with running(tmp_path, "api", "--host", "0.0.0.0") as (part, client):  # noqa: S104
        assert client.get("/v1/problems").status_code == 401
        assert f"http://localhost:{client.base_url.port}/docs" in part.messages()


# version and sample


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"bco {version('bco-service')}\n")
    assert re.search(r"\d+\.\d+", result.output)


def test_a_sample_is_not_written_where_there_is_no_folder(tmp_path: Path) -> None:
    path = str(tmp_path / "nodir" / "x.csv")
    assert_one_sentence(invoked(f"sqlite:///{tmp_path / 'bco.db'}", "sample", path), path, "No such file or directory")


def test_a_sample_overwrites_nothing_unless_told_to(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("years of work\n")
    refused = CliRunner().invoke(cli.app, ["sample", str(path)])
    assert (refused.exit_code, path.read_text()) == (2, "years of work\n")
    assert "--force" in refused.output
    assert CliRunner().invoke(cli.app, ["sample", str(path), "--force"]).exit_code == 0
    assert path.read_text().startswith("weekday,")


# stopping


def is_ours(process: psutil.Process) -> bool:
    """Libraries start short-lived processes of their own while they are imported."""
    try:
        return process.name().startswith("python")
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Part]:
    environment = {"BCO_DATABASE_URL": f"sqlite:///{tmp_path / 'bco.db'}", "BCO_PORT": str(free_port())}
    with Part(tmp_path, "demo", "demo", **environment) as part:
        yield part


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 5], ids=["while the service starts", "while it runs"])
def test_a_demo_that_is_told_to_stop_leaves_no_process(demo: Part, processes: int) -> None:
    """One process below the demo is ``bco serve`` itself; later there are the API, the worker and its own."""
    everyone: set[psutil.Process] = set()

    def is_so_far() -> bool:
        nonlocal everyone
        everyone |= {process for process in descendants(demo.process.pid) if is_ours(process)}
        return len(alive(everyone)) >= processes

    wait_until("the demo has come so far", is_so_far)
    everyone |= descendants(demo.process.pid)
    try:
        demo.process.terminate()
        within("the demo is gone", lambda: demo.process.poll() is not None, 60)
        within("everything it has started is gone", lambda: not alive(everyone), 10)
    finally:
        kill(everyone)
    assert demo.process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in demo.messages(), demo.messages()


def test_the_command_line_starts_without_the_numerics() -> None:
    script = "import sys, app.commands.cli, app.keys.service; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "sqlalchemy" in found.stdout.split()
    assert "torch" not in found.stdout.split()
