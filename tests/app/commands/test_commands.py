"""Command line: errors are one sentence with an exit status, and no process is left behind."""

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
    """Run a command to its end in its own process."""
    given = os.environ | {"PYTHONPATH": ROOT, "COLUMNS": "200", "BCO_PORT": str(free_port())} | environment
    return subprocess.run([*BCO, *arguments], cwd=folder, env=given, capture_output=True, text=True, timeout=600)


def invoke(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process, which is faster."""
    # Another program on this machine may use the default port.
    with service_on(url, BCO_PORT=str(free_port())):
        result = CliRunner().invoke(cli.app, arguments)
    lines = result.stderr if result.exception is None or result.exit_code == 2 else repr(result.exception)
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, lines)


def assert_one_sentence(result: subprocess.CompletedProcess[str], *words: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    for word in words:
        assert word in result.stderr


# the database


@pytest.mark.parametrize("command", ON_THE_DATABASE, ids=" ".join)
def test_an_unreachable_database_gives_one_sentence(command: tuple[str, ...]) -> None:
    result = invoke(NOBODY, *command)
    assert_one_sentence(result, "127.0.0.1", "BCO_DATABASE_URL", "refused")
    assert "sesame" not in result.stderr


@pytest.mark.parametrize("command", ON_THE_DATABASE, ids=" ".join)
def test_a_database_file_that_cannot_be_created_gives_one_sentence(tmp_path: Path, command: tuple[str, ...]) -> None:
    """A file in place of a folder: even the superuser cannot write there."""
    (tmp_path / "file").touch()
    result = invoke(f"sqlite:///{tmp_path / 'file' / 'below' / 'bco.db'}", *command)
    assert_one_sentence(result, str(tmp_path / "file"), "Not a directory")


@pytest.mark.parametrize("command", ["migrate", "api", "worker"])
def test_a_database_file_that_cannot_be_opened_gives_one_sentence(tmp_path: Path, command: str) -> None:
    (tmp_path / "bco.db").mkdir()
    result = bco(tmp_path, command, BCO_DATABASE_URL=f"sqlite:///{tmp_path / 'bco.db'}")
    assert_one_sentence(result, str(tmp_path / "bco.db"), "unable to open database file")


@pytest.mark.slow
def test_the_demo_without_a_database_fails_with_a_message(tmp_path: Path) -> None:
    result = bco(tmp_path, "demo", BCO_DATABASE_URL=NOBODY)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "BCO_DATABASE_URL" in result.stderr


# addresses


@pytest.mark.parametrize("command", ["serve", "api"])
@pytest.mark.parametrize("port", ["99999", "0"])
def test_an_invalid_port_is_refused(command: str, port: str) -> None:
    result = CliRunner().invoke(cli.app, [command, "--port", port], env={"NO_COLOR": "1", "COLUMNS": "200"})
    assert result.exit_code == 2
    assert "Invalid value for '--port'" in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_a_foreign_address_is_not_reported_as_a_used_port(tmp_path: Path) -> None:
    environment = {"BCO_DATABASE_URL": f"sqlite:///{tmp_path / 'bco.db'}"}
    for command in ("serve", "api"):
        result = bco(tmp_path, command, "--host", "203.0.113.7", **environment)
        assert_one_sentence(result, "203.0.113.7", "cannot be listened on")


@pytest.mark.slow
def test_the_api_on_a_used_port_fails_with_a_message(tmp_path: Path) -> None:
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
def test_the_url_shown_works_in_a_browser(host: str, expected: str) -> None:
    assert url(host, 8000) == expected


@contextmanager
def run_service(folder: Path, *command: str) -> Iterator[tuple[Part, httpx.Client]]:
    """Start a service with command-line options and wait until it is ready."""
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
def test_serve_prints_its_url_and_docs_in_one_line(tmp_path: Path) -> None:
    with run_service(tmp_path, "serve") as (part, client):
        address = str(client.base_url).rstrip("/")
        lines = [line for line in part.messages().splitlines() if address in line]
        assert len(lines) == 1
        assert f"{address}/docs" in lines[0]
        assert client.get("/docs").status_code == 200
        assert part.stop(60) == 0


@pytest.mark.slow
def test_an_api_with_a_public_host_option_needs_a_key(tmp_path: Path) -> None:
    assert bco(tmp_path, "migrate", BCO_DATABASE_URL=f"sqlite:///{tmp_path / 'bco.db'}").returncode == 0
    with run_service(tmp_path, "api", "--host", "0.0.0.0") as (part, client):  # noqa: S104
        assert client.get("/v1/problems").status_code == 401
        assert f"http://localhost:{client.base_url.port}/docs" in part.messages()


# version and sample


def test_the_version_option_prints_the_package_version() -> None:
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"bco {version('bco-service')}\n")
    assert re.search(r"\d+\.\d+", result.output)


def test_a_sample_needs_an_existing_folder(tmp_path: Path) -> None:
    path = str(tmp_path / "nodir" / "x.csv")
    assert_one_sentence(invoke(f"sqlite:///{tmp_path / 'bco.db'}", "sample", path), path, "No such file or directory")


def test_a_sample_overwrites_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("years of work\n")
    refused = CliRunner().invoke(cli.app, ["sample", str(path)])
    assert (refused.exit_code, path.read_text()) == (2, "years of work\n")
    assert "--force" in refused.output
    assert CliRunner().invoke(cli.app, ["sample", str(path), "--force"]).exit_code == 0
    assert path.read_text().startswith("weekday,")


# stopping


def is_ours(process: psutil.Process) -> bool:
    """Return whether a process is ours: imported libraries start short-lived ones too."""
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
def test_a_stopped_demo_leaves_no_process(demo: Part, processes: int) -> None:
    """The first child of the demo is ``bco serve``; later come the API, the worker and its children."""
    everyone: set[psutil.Process] = set()

    def has_started() -> bool:
        nonlocal everyone
        everyone |= {process for process in descendants(demo.process.pid) if is_ours(process)}
        return len(alive(everyone)) >= processes

    wait_until("the processes of the demo run", has_started)
    everyone |= descendants(demo.process.pid)
    try:
        demo.process.terminate()
        within("the demo is gone", lambda: demo.process.poll() is not None, 60)
        within("all its processes are gone", lambda: not alive(everyone), 10)
    finally:
        kill(everyone)
    assert demo.process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in demo.messages(), demo.messages()


def test_the_command_line_starts_without_importing_numerics() -> None:
    script = "import sys, app.commands.cli, app.keys.service; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "sqlalchemy" in found.stdout.split()
    assert "torch" not in found.stdout.split()
