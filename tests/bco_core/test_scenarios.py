"""Scenarios: expected cost, cost distribution and weights."""

from __future__ import annotations

import pytest
import torch

from bco_core.problems.newsvendor import Newsvendor
from bco_core.scenarios import Scenarios, cost_distribution, expected_cost

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})
# Ordering 2 costs 1 and 6 with outcomes 1 and 4; ordering 5 costs 4 and 1.
SCENARIOS = Scenarios(
    outcomes=torch.tensor([[[1.0], [4.0]], [[1.0], [4.0]]], dtype=torch.float64),
    weights=torch.tensor([0.75, 0.25], dtype=torch.float64),
    mode=torch.tensor([[1.0], [1.0]], dtype=torch.float64),
)
ORDERS = torch.tensor([[2.0], [5.0]], dtype=torch.float64)


def test_expected_cost_weights_each_scenario() -> None:
    expected = [0.75 * 1 + 0.25 * 6, 0.75 * 4 + 0.25 * 1]
    assert expected_cost(PROBLEM, ORDERS, SCENARIOS).tolist() == pytest.approx(expected)


def test_the_cost_distribution_has_mean_quantiles_and_tail_per_decision() -> None:
    levels = torch.tensor([0.2, 0.7, 0.9], dtype=torch.float64)
    distribution = cost_distribution(PROBLEM, ORDERS, SCENARIOS, levels, cvar_level=0.5)
    assert distribution.mean.tolist() == pytest.approx([2.25, 3.25])
    assert distribution.quantiles.tolist() == [[1, 1, 6], [1, 4, 4]]
    assert distribution.cvar.tolist() == pytest.approx([(0.25 * 6 + 0.25 * 1) / 0.5, 4])


def test_equal_atoms_share_the_weight_and_keep_their_mode() -> None:
    outcomes = torch.arange(12, dtype=torch.float64).view(2, 3, 2)
    scenarios = Scenarios.equal(outcomes, outcomes[:, 1])
    assert scenarios.weights.tolist() == pytest.approx([1 / 3] * 3)
    assert scenarios.weights.dtype == torch.float64
    assert torch.equal(scenarios.mode, outcomes[:, 1])
    assert scenarios.mean().flatten().tolist() == pytest.approx([2, 3, 8, 9])
