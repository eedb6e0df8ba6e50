"""Import layers: the core imports no web packages, and no part imports upward or in a cycle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

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

# Low to high. A part is a folder or module directly below the package; the package's ``__init__`` is listed by the
# package's name. A part may import parts of its own layer and of lower layers. Every new part must be added.
LAYERS: dict[str, list[set[str]]] = {
    "bco_core": [
        {
            "arrays",
            "batch_kernels",
            "data",
            "deadlines",
            "errors",
            "progress",
            "regression",
            "seeds",
            "status",
            "timeline",
        },
        {"weighted_stats"},
        {"solvers"},
        {"problems"},
        {"predictors", "features"},
        {"distributions", "drift", "estimates", "gibbs", "scenarios"},
        {"policies", "predictive", "select"},
        {"calibration", "certificates", "posterior", "predictive_choice"},
        {"evaluate", "prescribe"},
        {"explain", "inference"},
        {"baselines"},
        {"backtest"},
        {"bco_core"},
        {"compile_kernels"},
    ],
    "app": [
        {"app", "child_processes", "ids", "logs", "settings", "tracing"},
        {"db"},
        {"keys", "metrics"},
        {"http"},
        {"solving"},
        {"aliases", "datasets", "problems", "webhooks"},
        {"demo", "model_files", "posteriors"},
        {"prescriptions"},
        {"log"},
        {"backtests", "jobs"},
        {"commands", "main", "pages"},
    ],
    "bco_client": [
        {"errors", "options", "to_json"},
        {"records", "webhooks"},
        {"job_errors", "models", "progress", "retries", "steps", "tables"},
        {"operations"},
        {"base_client"},
        {"aio", "client"},
        {"bco_client"},
    ],
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


def test_the_core_imports_no_web_validation_or_database_package() -> None:
    imports = {name: set(imported_packages(path.read_text())) for name, path in modules().items()}
    assert "torch" in imports["bco_core.distributions"]
    assert {name: packages & FORBIDDEN for name, packages in imports.items() if packages & FORBIDDEN} == {}


def test_loading_the_whole_core_loads_no_web_validation_or_database_package() -> None:
    script = f"import sys, {', '.join(modules())}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    packages = set(loaded.stdout.split())
    assert {"bco_core", "torch"} <= packages
    assert packages & FORBIDDEN == set()


# layers


def parts_imported(package: str, path: Path, part: str) -> Iterator[str]:
    """Return the parts of a package that one of its files imports, also in functions and for type checking."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            # ``from app import logs`` imports a part; ``from app.db import tables`` imports from one.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *below = name.split(".")
            if first == package:
                known = bool(below) and (
                    (path_of(package) / below[0]).is_dir() or (path_of(package) / f"{below[0]}.py").exists()
                )
                found = below[0] if known else package
                if found != part:
                    yield found


def path_of(package: str) -> Path:
    return ROOT.parent / package


def imports_between_parts(package: str) -> dict[str, dict[str, set[str]]]:
    """Return, for each part of a package, the parts it imports and the importing files."""
    found: dict[str, dict[str, set[str]]] = {}
    for path in sorted(path_of(package).rglob("*.py")):
        inside = path.relative_to(path_of(package)).with_suffix("")
        part = package if inside.parts == ("__init__",) else inside.parts[0]
        imported = found.setdefault(part, {})
        for other in parts_imported(package, path, part):
            imported.setdefault(other, set()).add(str(inside))
    return found


@pytest.mark.parametrize("package", LAYERS)
def test_every_part_has_its_layer(package: str) -> None:
    placed = [part for layer in LAYERS[package] for part in layer]
    assert len(placed) == len(set(placed))
    missing = set(imports_between_parts(package)) - set(placed)
    assert missing == set(), f"put these parts of {package} into LAYERS"


@pytest.mark.parametrize("package", LAYERS)
def test_nothing_imports_upward(package: str) -> None:
    height = {part: number for number, layer in enumerate(LAYERS[package]) for part in layer}
    upward = [
        f"{part} imports {other} ({', '.join(sorted(files))})"
        for part, imported in imports_between_parts(package).items()
        for other, files in imported.items()
        if height.get(other, 0) > height.get(part, len(height))
    ]
    assert upward == []


@pytest.mark.parametrize("package", LAYERS)
def test_parts_have_no_import_cycles(package: str) -> None:
    graph = {part: set(imported) for part, imported in imports_between_parts(package).items()}
    assert len(graph) >= 10
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_imports_in_functions_and_for_type_checking_are_found() -> None:
    found = imports_between_parts("app")
    assert "commands/keys" in found["commands"]["keys"]
    assert "main" in found["commands"]
    assert {"commands/keys"} <= found["commands"]["db"]
