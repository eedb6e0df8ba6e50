"""Settings: documentation, environment variables, and commands that need no service."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.commands import cli
from app.settings import Settings, get_settings
from tests.support.in_process import forget_caches

FIELDS = Settings.model_fields


@pytest.fixture(autouse=True)
def _fresh_settings() -> Iterator[None]:
    forget_caches()
    yield
    forget_caches()


def variable(name: str) -> str:
    return f"BCO_{name.upper()}"


def words(text: str) -> str:
    """Return `text` without line breaks and rich's frames."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


# documentation


@pytest.fixture(scope="module")
def help_text() -> str:
    result = CliRunner().invoke(cli.app, ["--help"], env={"COLUMNS": "100", "NO_COLOR": "1"})
    assert result.exit_code == 0
    return words(result.output)


@pytest.mark.parametrize("name", FIELDS)
def test_help_documents_every_setting_with_its_default_and_meaning(help_text: str, name: str) -> None:
    assert words(f"{variable(name)}={FIELDS[name].default} {FIELDS[name].description}") in help_text


@pytest.mark.parametrize("name", FIELDS)
def test_the_docs_document_every_setting_with_its_default_and_meaning(repository: Path, name: str) -> None:
    field = FIELDS[name]
    page = (repository / "docs" / "operations.md").read_text()
    assert f"| `{variable(name)}` | `{field.default}` | {field.description} |" in page


def test_help_and_docs_name_no_unknown_setting(repository: Path, help_text: str) -> None:
    known = {variable(name) for name in FIELDS}
    for text in (help_text, (repository / "docs" / "operations.md").read_text()):
        assert set(re.findall(r"BCO_[A-Z_]+[A-Z]", text)) == known


def test_help_names_every_command(help_text: str) -> None:
    for command in ("serve", "api", "worker", "migrate", "sample", "demo", "bench"):
        assert f" {command} " in help_text


# values

OTHER_VALUES = {
    "database_url": ("sqlite:////tmp/other.db", "sqlite:////tmp/other.db"),
    "host": ("0.0.0.0", "0.0.0.0"),  # noqa: S104
    "worker_deadline_seconds": ("2.5", 2.5),
    "allow_anonymous": ("true", True),
    "log_prescriptions": ("false", False),
    "log_level": ("DEBUG", "DEBUG"),
    "log_format": ("json", "json"),
    "workspace_weights": ("planning=3", "planning=3"),
    "webhook_hosts": ("hooks.example", "hooks.example"),
    "webhook_networks": ("10.1.0.0/16", "10.1.0.0/16"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_can_be_changed_by_its_variable(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text, expected = OTHER_VALUES.get(name, ("17", 17))
    assert getattr(get_settings(), name) != expected
    monkeypatch.setenv(variable(name), text)
    get_settings.cache_clear()
    assert getattr(get_settings(), name) == expected


@pytest.mark.parametrize(
    ("given", "driven"),
    [
        ("postgresql://u:p@host/bco", "postgresql+psycopg://u:p@host/bco"),
        ("postgres://u:p@host/bco", "postgresql+psycopg://u:p@host/bco"),
        ("postgresql+psycopg://u:p@host/bco", "postgresql+psycopg://u:p@host/bco"),
        ("sqlite:///var/bco.db", "sqlite:///var/bco.db"),
    ],
)
def test_a_database_url_needs_no_driver_name(given: str, driven: str) -> None:
    assert Settings(database_url=given).sqlalchemy_url == driven


def test_variables_without_the_prefix_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "1")
    monkeypatch.setenv("BCO_NOT_A_SETTING", "1")
    assert Settings().port == FIELDS["port"].default


WRONG = {
    "text for a number": ("BCO_PORT", "eight thousand"),
    "a port that is none": ("BCO_PORT", "70000"),
    "no workers": ("BCO_WORKERS", "0"),
    "a deadline too short": ("BCO_WORKER_DEADLINE_SECONDS", "0.1"),
    "a negative limit": ("BCO_MAX_ROWS", "-5"),
    "half a megabyte": ("BCO_MAX_BODY_MB", "0.5"),
    "an unknown log level": ("BCO_LOG_LEVEL", "LOUD"),
    "no database URL": ("BCO_DATABASE_URL", "bakery"),
    "a database we do not know": ("BCO_DATABASE_URL", "mysql://host/bco"),
    "a weight that is no number": ("BCO_WORKSPACE_WEIGHTS", "planning=much"),
}


@pytest.mark.parametrize(("name", "value"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_value_ends_the_command_with_a_message_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, name: str, value: str
) -> None:
    monkeypatch.setenv("BCO_DATABASE_URL", f"sqlite:///{tmp_path / 'never.db'}")
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["bco", "migrate"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code not in (0, None)
    output = "".join(capfd.readouterr()) + (ended.value.code if isinstance(ended.value.code, str) else "")
    assert name in output
    assert "Traceback" not in output
    assert not (tmp_path / "never.db").exists()


# commands that need no service


def test_the_sample_command_writes_the_demos_history(tmp_path: Path) -> None:
    path = tmp_path / "bakery.csv"
    result = CliRunner().invoke(cli.app, ["sample", str(path)])
    assert result.exit_code == 0
    lines = path.read_text().splitlines()
    assert lines[0] == "weekday,temperature,rain,promotion,holiday,croissants,loaves"
    assert len(lines) == 1101


def test_the_migrate_command_creates_the_database_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'new' / 'bco.db'}"
    monkeypatch.setenv("BCO_DATABASE_URL", url)
    for _ in range(2):
        result = CliRunner().invoke(cli.app, ["migrate"])
        assert (result.exit_code, result.output) == (0, "The database is up to date.\n")
    assert (tmp_path / "new" / "bco.db").exists()


def test_serving_on_a_used_port_fails_with_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import socket

    monkeypatch.setenv("BCO_DATABASE_URL", f"sqlite:///{tmp_path / 'bco.db'}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(cli.app, ["serve", "--port", str(port)])
    assert result.exit_code == 1
    assert f"Port {port} is taken" in result.output
    assert not (tmp_path / "bco.db").exists()
