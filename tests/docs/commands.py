"""Check commands that a test cannot run: their program, sub-commands, options, files and addresses must exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import yaml
from typer.main import get_command

from app.commands import cli
from app.main import create_app
from app.settings import Settings
from tests.docs.pages import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
# The sub-commands that the pages use, and whether service names follow.
COMPOSE_COMMANDS = {"up": False, "exec": True, "stop": True, "start": True}


def commands(text: str) -> Iterator[list[str]]:
    """Yield each simple command of a block as a list of words, without redirections and comments."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        words = iter(lexer)
        for word in words:
            if word in ("&&", "|", ";"):
                yield command
                command = []
            elif word in ("<", ">"):
                next(words)
            else:
                command.append(word)
        if command:
            yield command


def check(command: list[str]) -> None:
    """Fail with a message if a command does not exist or does not take these arguments."""
    program, *words = command
    assert program in CHECKS, (
        f"no test knows the program {program}: mark the block 'run', or teach tests/docs/commands.py"
    )
    CHECKS[program](words)


def _bco(words: list[str]) -> None:
    command: Any = get_command(cli.app)
    context: Any = command.make_context("bco", [], resilient_parsing=True)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"bco has no command {words[0]}"
        command = command.commands[words[0]]
        context = command.make_context(words[0], [], parent=context, resilient_parsing=True)
        words = words[1:]
    context.resilient_parsing = False
    try:
        given, left, _ = command.make_parser(context).parse_args(list(words))
    except Exception as error:
        raise AssertionError(f"{command.name}: {error}") from error
    assert not left, f"{command.name} does not take {left}"
    for parameter in command.params:
        if parameter.required:
            assert given.get(parameter.name) is not None, f"{command.name} needs {parameter.name}"


def _make(words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        assert "=" in word or word in targets, f"the Makefile has no target {word}"


def _docker(words: list[str]) -> None:
    assert words[0] == "compose"
    assert words[1] in COMPOSE_COMMANDS, f"docker compose {words[1]} is used nowhere else in these pages"
    named = [word for word in words[2:] if not word.startswith("-")]
    if words[1] == "exec":
        assert named[0] in COMPOSE
        inside = words[words.index(named[0]) + 1 :]
        if inside[0] == "bco":
            check(inside)
    elif COMPOSE_COMMANDS[words[1]]:
        assert set(named) <= set(COMPOSE)
    else:
        assert {word.partition("=")[0] for word in named} <= set(COMPOSE)


def _export(words: list[str]) -> None:
    for word in words:
        name = word.partition("=")[0]
        assert not name.startswith("BCO_") or name.removeprefix("BCO_").lower() in Settings.model_fields, name


def _cp(words: list[str]) -> None:
    assert (ROOT / words[0]).exists(), words[0]


def _curl(words: list[str]) -> None:
    (address,) = [word for word in words if re.match(r"\$BCO|http://", word)]
    path = re.sub(r"^(\$BCO|http://[^/]+)|\?.*$", "", address)
    known = [re.sub(r"\{\w+\}", "[^/]+", template) for template in create_app().openapi()["paths"]]
    assert any(re.fullmatch(template, path) for template in known), f"the API has no address {path}"


def _python(words: list[str]) -> None:
    assert words[0] == "-m", words
    assert (ROOT / f"{words[1].replace('.', '/')}.py").exists() or words[1] == "pytest", words[1]
    if words[1] == "pytest":
        for word in words[2:]:
            assert word.startswith("-") or (ROOT / word).exists(), word


def _pip(words: list[str]) -> None:
    assert words[0] == "install", words
    for place in words[1:]:
        assert (ROOT / place / "pyproject.toml").exists(), place


def _any_arguments(words: list[str]) -> None:
    """Accept any arguments of a third-party program."""


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "bco": _bco,
    "make": _make,
    "docker": _docker,
    "export": _export,
    "cp": _cp,
    "curl": _curl,
    ".venv/bin/bco": _bco,
    ".venv/bin/python": _python,
    "pip": _pip,
    "sqlite3": _any_arguments,
}
