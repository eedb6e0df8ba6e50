"""The notebook: it runs from the first cell to the last and is stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.commands.serve import LocalService
from app.demo import as_csv, bakery_rows

PATH = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    book = json.loads(PATH.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    found: list[dict[str, Any]] = book["cells"]
    return found


@pytest.mark.slow
def test_the_cells_are_stored_without_outputs(cells: list[dict[str, Any]]) -> None:
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert {cell["cell_type"] for cell in cells} == {"code", "markdown"}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]


@pytest.mark.slow
def test_the_cells_run_in_order(
    cells: list[dict[str, Any]], service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bakery.csv").write_text(as_csv(bakery_rows()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BCO_URL", service.url)
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            program = compile("".join(cell["source"]), f"{PATH.name}:{cell['id']}", "exec")
            exec(program, names)  # noqa: S102
    assert names["learned"].quality in ("ok", "warn", "bad")
