"""Time of evaluating a planner's own decisions over HTTP, compared with a prescribe call."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from app.commands.serve import LocalService
from app.demo import MORNINGS
from benchmarks.bench.planner.bakery import learn_posterior

CALLS, _WARM = 200, 10
# The usual order, a tenth more, and one item left to the service.
_ALTERNATIVES = [
    {"name": "as always", "decision": {"croissants": 100, "loaves": 60}},
    {"name": "a tenth more", "decision": {"croissants": 110, "loaves": 66}},
    {"name": "loaves as you like", "decision": {"croissants": 100, "loaves": None}},
]
_PATCH = {"items": {"croissants": {"underage_cost": 2.2}}}


def evaluate_p50_ms(calls: int = CALLS) -> dict[str, float]:
    """Return the median milliseconds of three kinds of calls.

    They evaluate three alternatives in one context (``evaluate_p50_ms``), do the same with a patched problem, and
    prescribe. The calls take turns on the bakery's posterior, with 200 scenarios each.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalService(BCO_DATABASE_URL=f"sqlite:///{Path(folder) / 'bench.db'}") as service,
        httpx.Client(base_url=service.url, timeout=120) as client,
    ):
        posterior = learn_posterior(client)
        kinds: dict[str, tuple[str, dict[str, Any]]] = {
            "evaluate_p50_ms": ("evaluate", {"alternatives": _ALTERNATIVES}),
            "evaluate_patched_p50_ms": ("evaluate", {"alternatives": _ALTERNATIVES, "problem_patch": _PATCH}),
            "prescribe_p50_ms": ("prescribe", {}),
        }
        took: dict[str, list[float]] = {name: [] for name in kinds}
        for morning in itertools.islice(itertools.cycle(MORNINGS), calls + _WARM):
            for name, (call, body) in kinds.items():
                began = time.perf_counter()
                client.post(
                    f"/v1/posteriors/{posterior}/{call}", json=body | {"contexts": [morning]}
                ).raise_for_status()
                took[name].append(time.perf_counter() - began)
    return {name: round(1000 * statistics.median(each[_WARM:]), 2) for name, each in took.items()}
