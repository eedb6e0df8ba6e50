"""Page assets: vendored files match VENDOR.md, templates hold no inline code, and pages stay small."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from starlette.testclient import TestClient

from app.pages.render import ASSETS, asset

VENDOR = ASSETS / "vendor"
TEMPLATES = ASSETS.with_name("templates")


def test_vendored_files_are_listed_with_version_licence_and_checksum(repository: Path) -> None:
    listed = {}
    for line in (repository / "VENDOR.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if len(cells) == 4 and (VENDOR / cells[0]).is_file():
            assert re.search(r" \d+\.\d+\.\d+", cells[1]), line
            licences = re.findall(r"\]\((.*?)\)", cells[2])
            assert licences
            assert all((repository / text).is_file() for text in licences)
            listed[cells[0]] = cells[3]
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    assert listed == {name: sha for name, sha in found.items() if not name.endswith("LICENSE")}


def test_templates_have_no_inline_scripts_styles_or_event_handlers() -> None:
    for path in TEMPLATES.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        for script in re.findall(r"<script\b[^>]*>", text):
            assert "src=" in script or 'type="application/json"' in script, f"{path.name}: {script}"
        assert not re.search(r"<style\b|\sstyle=|\son[a-z]+=|hx-on|javascript:", text), path.name
        assert not re.search(r"""(src|href|action)=["']?(https?:)?//""", text), path.name


def test_assets_are_cached_as_immutable_and_unknown_paths_answer_404(client: TestClient) -> None:
    answer = client.get(asset("app.css"))
    assert answer.status_code == 200
    assert "immutable" in answer.headers["cache-control"]
    assert client.get("/assets/../render.py").status_code == 404
    assert client.get("/assets/nothing.js").status_code == 404


def test_a_page_loads_less_than_260_kb() -> None:
    own = sum(path.stat().st_size for path in ASSETS.glob("*") if path.is_file())
    vendored = sum((VENDOR / name).stat().st_size for name in ("htmx.min.js", "uPlot.min.js", "uPlot.min.css"))
    assert own + vendored < 260_000
