"""Time of a prescribe call with all includes for one context, compared with the same call without them."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

import httpx

from app.commands.serve import LocalService
from app.demo import MORNINGS
from app.prescriptions.schemas import Include
from benchmarks.bench.planner.bakery import learn_posterior

CALLS = 60


def prescribe_full(calls: int = CALLS) -> dict[str, float]:
    """Return ``prescribe_full_p50_ms``, with every include, and ``full_over_plain``, its ratio to the time without any.

    The two calls take turns on the bakery's posterior, with 200 scenarios each, after five warm-up calls.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalService(BCO_DATABASE_URL=f"sqlite:///{Path(folder) / 'bench.db'}") as service,
        httpx.Client(base_url=service.url, timeout=120) as client,
    ):
        posterior = learn_posterior(client)
        took: dict[bool, list[float]] = {True: [], False: []}
        for number in range(5 + calls):
            for full in (True, False):
                context = MORNINGS[number % len(MORNINGS)]
                asked: dict[str, Any] = {"contexts": [context], "include": list(get_args(Include)) if full else []}
                began = time.perf_counter()
                client.post(f"/v1/posteriors/{posterior}/prescribe", json=asked).raise_for_status()
                took[full].append(time.perf_counter() - began)
    opened, plain = (statistics.median(took[which][5:]) for which in (True, False))
    return {"prescribe_full_p50_ms": round(1000 * opened, 1), "full_over_plain": round(opened / plain, 1)}
