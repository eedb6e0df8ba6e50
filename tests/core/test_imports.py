from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import bco_core

ROOT = Path(bco_core.__file__).parent
FORBIDDEN = {
    "alembic",
    "app",
    "dbos",
    "fastapi",
    "httpx",
    "pydantic",
    "pydantic_settings",
    "rich",
    "sqlalchemy",
    "starlette",
    "typer",
    "uvicorn",
}


def imported_packages(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def modules() -> dict[str, Path]:
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


def test_the_core_names_no_web_validation_or_database_package() -> None:
    imports = {name: set(imported_packages(path.read_text())) for name, path in modules().items()}
    assert "torch" in imports["bco_core.families"]
    assert {name: packages & FORBIDDEN for name, packages in imports.items() if packages & FORBIDDEN} == {}


def test_loading_the_whole_core_loads_no_web_validation_or_database_package() -> None:
    script = f"import sys, {', '.join(modules())}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    packages = set(loaded.stdout.split())
    assert {"bco_core", "torch"} <= packages
    assert packages & FORBIDDEN == set()
