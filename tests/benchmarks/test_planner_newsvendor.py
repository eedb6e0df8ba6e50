from __future__ import annotations

import pytest

from benchmarks.bench.planner.newsvendor import newsvendor_budget_vs_highs


@pytest.mark.slow
def test_searching_a_budget_costs_the_same_and_is_faster_than_a_program() -> None:
    # The bench compares costs by itself. Fifty is asked of it on idle cores.
    assert newsvendor_budget_vs_highs(3) > 10
