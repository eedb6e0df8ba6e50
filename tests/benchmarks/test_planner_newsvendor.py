"""The planner benchmark: budget search against a linear program."""

from __future__ import annotations

import pytest

from benchmarks.bench.planner.newsvendor import newsvendor_budget_vs_highs


@pytest.mark.slow
def test_searching_a_budget_costs_the_same_and_is_faster_than_a_program() -> None:
    # The benchmark compares costs itself. On idle cores it requires a factor of fifty.
    assert newsvendor_budget_vs_highs(3) > 10
