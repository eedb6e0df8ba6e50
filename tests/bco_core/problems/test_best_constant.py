"""The best constant decision of a history."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bco_core.problems.base import best_constant
from bco_core.problems.newsvendor import Newsvendor


@given(
    outcomes=st.lists(st.tuples(st.integers(-20, 20), st.integers(0, 1000)), min_size=1, max_size=30),
    underage=st.floats(0.1, 10),
    overage=st.floats(0.1, 10),
)
def test_no_observed_outcome_is_a_cheaper_constant_order(
    outcomes: list[tuple[int, int]], underage: float, overage: float
) -> None:
    problem = Newsvendor.from_spec({"items": [{"underage_cost": underage, "overage_cost": overage}] * 2})
    history = torch.tensor(outcomes, dtype=torch.float64)
    constant = best_constant(problem, history)
    assert constant.decisions.shape == (1, 2)
    cheapest = 0.0
    for column in zip(*outcomes, strict=True):
        costs = [sum(underage * max(y - z, 0) + overage * max(z - y, 0) for y in column) for z in column]
        cheapest += min(costs) / len(outcomes)
    assert constant.objective.item() == pytest.approx(cheapest, rel=1e-9, abs=1e-9)
    assert problem.cost(constant.decisions, history).mean().item() == pytest.approx(cheapest, rel=1e-9, abs=1e-9)


def test_the_best_constant_order_keeps_its_bounds() -> None:
    problem = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1, "maximum_order": 2.5}]})
    constant = best_constant(problem, torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64))
    assert constant.decisions.tolist() == [[2.5]]
