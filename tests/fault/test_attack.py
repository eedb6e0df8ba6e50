"""Whatever ill-meaning clients do, the process answers, others are served, and nothing is left behind."""

from __future__ import annotations

import pytest

from benchmarks.bench.attack import LIMITS, run
from benchmarks.bench.attacks import ATTACKS
from tests.support.polling import crowding


@pytest.mark.torture
def test_attacks_are_borne() -> None:
    figures = run(as_json=True)
    assert set(figures["attacks"]) == set(ATTACKS)
    assert all(sum(found["answers"].values()) for found in figures["attacks"].values())
    # A machine that is busy with other things answers later; memory, places and processes know no such excuse.
    assert figures["livez_worst_ms"] <= LIMITS["livez_worst_ms"] * crowding()
    for name in ("api_peak_mb", "places_leaked", "orphans"):
        assert figures[name] <= LIMITS[name], name
    assert {name: found["other_tenant_refused"] for name, found in figures["attacks"].items()} == dict.fromkeys(
        ATTACKS, 0
    )
