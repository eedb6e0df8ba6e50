"""Time of importing a sparse model of 10,000 rows over HTTP: read in another process, checked and stored."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from time import perf_counter

import httpx
import numpy as np

from app.commands.serve import LocalService

ROWS = 10_000
PLANTS = 100


def model() -> tuple[str, dict[str, object]]:
    """Return a model in MPS format and its description.

    Plants serve places within their capacity, and shortages are bought. A few demands are uncertain.
    """
    drawn = np.random.default_rng(0)
    lines = ["NAME places", "ROWS", " N cost", *(f" G meet{row}" for row in range(ROWS - PLANTS))]
    lines += [*(f" L room{plant}" for plant in range(PLANTS)), "COLUMNS"]
    for plant in range(PLANTS):
        lines.append(f" build{plant} cost {drawn.uniform(1, 3):.3f} room{plant} -1")
    for row in range(ROWS - PLANTS):
        lines.append(f" ship{row} cost {drawn.uniform(0, 2):.3f} meet{row} 1")
        lines.append(f" ship{row} room{row % PLANTS} 1")
        lines.append(f" buy{row} cost 10 meet{row} 1")
    lines += ["RHS", *(f" RHS meet{row} {drawn.uniform(1, 9):.3f}" for row in range(ROWS - PLANTS)), "ENDATA", ""]
    description: dict[str, object] = {
        "name": "places",
        "decisions": [f"build{plant}" for plant in range(PLANTS)],
        "outcomes": [{"name": f"demand {row}", "minimum": 0, "maximum": 10} for row in range(10)],
        "entries": [{"row": f"meet{row}", "column": None, "outcomes": {f"demand {row}": 1}} for row in range(10)],
    }
    return "\n".join(lines), description


def figures() -> dict[str, float]:
    """Return the seconds of an import over HTTP: the best of three, on a service that has finished starting."""
    text, description = model()
    root = str(Path(__file__).parents[3])
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder, 'bench.db')}"
        with LocalService(BCO_DATABASE_URL=database, PYTHONPATH=root) as service:
            seconds = [_import(service.url, text, description) for _ in range(3)]
    return {"import_10k_rows_s": min(seconds)}


def _import(url: str, text: str, description: dict[str, object]) -> float:
    began = perf_counter()
    answer = httpx.post(
        f"{url}/v1/problems/import",
        data={"description": json.dumps(description)},
        files={"file": ("model", text.encode())},
        timeout=300,
    )
    if answer.status_code == 503 and "starting" in answer.text:
        return float("inf")
    answer.raise_for_status()
    return perf_counter() - began
