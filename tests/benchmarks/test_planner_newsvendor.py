from __future__ import annotations

from benchmarks.bench.planner.newsvendor import newsvendor_budget_vs_highs


def test_a_budget_is_searched_at_the_same_cost_in_a_fraction_of_the_time_that_programs_take() -> None:
    # The bench compares costs by itself. Fifty is asked of it on idle cores.
    assert newsvendor_budget_vs_highs(3) > 10
