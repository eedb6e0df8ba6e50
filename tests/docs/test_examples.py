"""Every command, JSON value and program in README and docs works; ``pages.py`` says how a block is marked."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from app.commands.serve import LocalService
from app.demo import as_csv, bakery_rows
from app.jobs.kinds.learn_on import LearnOnOptions
from app.model_files.schemas import ImportDescription
from app.posteriors.history import Features
from app.posteriors.options import InferenceSpec, PredictorSpec
from app.prescriptions.schemas import RiskMeasure
from app.problems.schemas import NewProblem
from tests.docs.commands import check, commands
from tests.docs.pages import NAMES, ROOT, Block, all_blocks, blocks, prose, read

MODELS: dict[str, TypeAdapter[Any]] = {
    "ImportDescription": TypeAdapter(ImportDescription),
    "Features": TypeAdapter(Features),
    "LearnOnOptions": TypeAdapter(LearnOnOptions),
    "NewProblem": TypeAdapter(NewProblem),
    "InferenceSpec": TypeAdapter(InferenceSpec),
    "PredictorSpec": TypeAdapter(PredictorSpec),
    "RiskMeasure": TypeAdapter(RiskMeasure),
}
# Only a hanging run takes this long.
LONGEST_SECONDS = 1800
# Record each request that the service refuses, wherever in a pipe it is.
CURL = """
curl() {
  local code=0
  command curl --fail-with-body "$@" || code=$?
  if [ $code -eq 22 ]; then printf '%s\\n' "$*" >> "$REFUSED"; fi
  return $code
}
"""


def readme_first(pages: list[str]) -> list[Any]:
    """Put the README in the first tier and other pages in the second."""
    return [pytest.param(page, marks=() if page == "README.md" else pytest.mark.slow) for page in pages]


def is_known(block: Block) -> bool:
    if block.language == "bash":
        return block.mark in ("run", "refused", "check")
    if block.language == "json":
        return block.mark in MODELS or block.mark.endswith(".json")
    if block.language == "python":
        return block.mark in ("", "run")
    return block.language == "text" and not block.mark


@pytest.mark.parametrize("page", NAMES)
def test_every_block_says_how_it_is_tested(page: str) -> None:
    assert [block.name for block in blocks(page) if not is_known(block)] == []
    # An indented block would escape the tests.
    assert [line for line in prose(page).splitlines() if line.startswith("    ")] == []
    assert "```" not in prose(page)


# commands


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    database = f"sqlite:///{tmp_path_factory.mktemp('docs') / 'bco.db'}"
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("BCO_")]:
            patch.delenv(name)
        with LocalService(BCO_DATABASE_URL=database, PYTHONPATH=str(ROOT)) as service:
            yield service


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Create a folder that looks like a checkout to the commands of a page."""
    place = tmp_path / "checkout"
    programs = place / ".venv" / "bin"
    programs.mkdir(parents=True)
    (place / "docs").symlink_to(ROOT / "docs")
    bco = programs / "bco"
    bco.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m app.commands.cli "$@"\n')
    bco.chmod(0o755)
    return place


def script(page: str, port: int) -> str:
    """Join the page's commands into one script, which exits with 3 if a request is refused in the wrong place."""
    parts = [CURL]
    for block in blocks(page, "bash", "run", "refused"):
        text = block.text.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
        if block.mark == "run":
            parts.append(f'{text}\n[ ! -s "$REFUSED" ] || exit 3')
        else:
            parts.append(f'set +e\n{text}\nset -e\n[ -s "$REFUSED" ] || exit 3\nrm "$REFUSED"')
    return "\n".join(parts)


@pytest.mark.parametrize("page", readme_first([name for name in NAMES if blocks(name, "bash", "run")]))
def test_the_commands_of_a_page_run_and_give_the_shown_answers(
    page: str, service: LocalService, checkout: Path
) -> None:
    refused = checkout.parent / "refused"
    paths = [str(checkout / ".venv" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    ended = subprocess.run(
        ["bash", "-e", "-c", script(page, service.port)],
        cwd=checkout,
        env=os.environ | {"PATH": ":".join(paths), "REFUSED": str(refused)},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    refusals = refused.read_text() if refused.exists() else ""
    assert ended.returncode == 0, f"{refusals}\n{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    for block in blocks(page, "json"):
        if block.mark.endswith(".json"):
            assert_shown(json.loads(block.text), json.loads((checkout / block.mark).read_text()), block.name)


def assert_shown(shown: Any, answered: Any, path: str) -> None:
    """Check that the shown value is a part of the answer; texts may be cut short with ….

    A number may differ by a tenth of the largest number in its object, since machines round differently.
    """
    if isinstance(shown, dict):
        scale = max((abs(value) for value in shown.values() if isinstance(value, float)), default=0.0)
        for name, value in shown.items():
            assert name in answered, f"{path}: no {name} in the answer"
            if isinstance(value, float):
                assert answered[name] == pytest.approx(value, abs=0.1 * scale), f"{path}/{name}"
            else:
                assert_shown(value, answered[name], f"{path}/{name}")
    elif isinstance(shown, list):
        assert len(shown) == len(answered), path
        for index, (one, other) in enumerate(zip(shown, answered, strict=True)):
            assert_shown(one, other, f"{path}/{index}")
    elif isinstance(shown, str) and shown.endswith("…"):
        assert answered.startswith(shown[:-1]), path
    else:
        assert shown == answered, path


@pytest.mark.parametrize("block", all_blocks("bash", "check"), ids=lambda block: block.name)
def test_commands_that_are_not_run_exist(block: Block) -> None:
    found = list(commands(block.text))
    assert found
    for command in found:
        check(command)


@pytest.mark.parametrize(
    "command",
    [
        "bco cook",
        "bco experiment newsvendor --nonsense 3",
        "bco export",
        "make dinner",
        "docker compose stop cook",
        "export BCO_DINNER=late",
        "cp dinner.md lunch.md",
        "curl http://127.0.0.1:8000/v1/dinners",
        "cook dinner",
        "pip install ./dinner",
    ],
)
def test_unknown_commands_are_detected(command: str) -> None:
    with pytest.raises(AssertionError):
        check(shlex.split(command))


# values and programs


@pytest.mark.parametrize("block", all_blocks("json", *MODELS), ids=lambda block: block.name)
def test_json_values_are_valid_for_their_models(block: Block) -> None:
    MODELS[block.mark].validate_python(json.loads(block.text))


@pytest.mark.parametrize("page", readme_first([name for name in NAMES if blocks(name, "python", "")]))
def test_the_programs_of_a_page_run(page: str, tmp_path: Path) -> None:
    """Run them in their own process, as a reader would."""
    program = tmp_path / "program.py"
    program.write_text("\n".join(block.text for block in blocks(page, "python", "")))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("ok ")


@pytest.mark.slow
@pytest.mark.parametrize("page", [name for name in NAMES if blocks(name, "python", "run")])
def test_the_programs_of_a_page_run_with_a_service(page: str, service: LocalService, tmp_path: Path) -> None:
    text = "\n".join(block.text for block in blocks(page, "python", "run"))
    assert "http://127.0.0.1:8000" in text
    (tmp_path / "bakery.csv").write_text(as_csv(bakery_rows()))
    program = tmp_path / "program.py"
    program.write_text(text.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}"))
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


# text


def test_the_settings_table_is_up_to_date() -> None:
    renew = runpy.run_path(str(ROOT / "docs" / "settings.py"))["renew"]
    page = read("docs/operations.md")
    assert renew(page) == page, "run `make docs`: it writes the table of docs/operations.md anew"


@pytest.mark.parametrize("page", NAMES)
def test_links_point_to_existing_files_and_headings(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        path, _, heading = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in anchors, target


@pytest.mark.parametrize("page", NAMES)
def test_files_named_on_a_page_exist(page: str) -> None:
    named = re.findall(r"`((?:app|bco_core|benchmarks|docs|migrations|tests)/[\w./\-]*)`", prose(page))
    assert [path for path in named if not (ROOT / path).exists()] == []
