from __future__ import annotations

import pytest
import torch

from bco_core.problems.newsvendor import Newsvendor
from bco_core.scenarios import History, Scenarios, cost_distribution, expected_cost, predictive_scenarios

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})
# Ordering 2 costs 1 and 6 with outcomes 1 and 4; ordering 5 costs 4 and 1.
SCENARIOS = Scenarios(
    outcomes=torch.tensor([[[1.0], [4.0]], [[1.0], [4.0]]], dtype=torch.float64),
    weights=torch.tensor([0.75, 0.25], dtype=torch.float64),
    mode=torch.tensor([[1.0], [1.0]], dtype=torch.float64),
)
ORDERS = torch.tensor([[2.0], [5.0]], dtype=torch.float64)


def test_expected_cost_weighs_each_scenario() -> None:
    expected = [0.75 * 1 + 0.25 * 6, 0.75 * 4 + 0.25 * 1]
    assert expected_cost(PROBLEM, ORDERS, SCENARIOS).tolist() == pytest.approx(expected)


def test_the_cost_distribution_states_mean_quantiles_and_tail_of_each_decision() -> None:
    levels = torch.tensor([0.2, 0.7, 0.9], dtype=torch.float64)
    distribution = cost_distribution(PROBLEM, ORDERS, SCENARIOS, levels, cvar_level=0.5)
    assert distribution.mean.tolist() == pytest.approx([2.25, 3.25])
    assert distribution.quantiles.tolist() == [[1, 1, 6], [1, 4, 4]]
    assert distribution.cvar.tolist() == pytest.approx([(0.25 * 6 + 0.25 * 1) / 0.5, 4])


def _history(rows: int = 400, scales: bool = True) -> tuple[History, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    level = 20 + 60 * torch.rand(rows, 1, generator=draw, dtype=torch.float64)
    noise = 1 + 0.2 * torch.randn(rows, 1, generator=draw, dtype=torch.float64).clamp(-3, 3)
    outcomes = level * noise if scales else level * noise - 30
    return History.of(level, outcomes, outcomes.std(dim=0)), level


def test_predictive_scenarios_recover_the_conditional_distribution_of_similar_rows() -> None:
    history, _ = _history()
    scenarios = predictive_scenarios(history, torch.tensor([[30.0], [70.0]], dtype=torch.float64), 300)
    assert scenarios.outcomes.shape == (2, 300, 1)
    means, spreads = scenarios.outcomes.mean(dim=1).flatten(), scenarios.outcomes.std(dim=1).flatten()
    assert means.tolist() == pytest.approx([30, 70], rel=0.06)
    assert spreads.tolist() == pytest.approx([6, 14], rel=0.3)


def test_outcomes_that_may_be_negative_are_not_carried_over_in_proportion() -> None:
    history, _ = _history(scales=False)
    assert not history.scales
    atoms = predictive_scenarios(history, torch.tensor([[50.0]], dtype=torch.float64), 100).outcomes.flatten()
    assert all(any(atom == seen for seen in history.outcomes.flatten().tolist()) for atom in atoms.tolist())


def test_a_prediction_far_from_the_history_takes_its_nearest_rows() -> None:
    history, level = _history(scales=False)
    atoms = predictive_scenarios(history, torch.tensor([[1e6]], dtype=torch.float64), 50).outcomes.flatten()
    nearest = history.outcomes[level.flatten().topk(40).indices].flatten().tolist()
    assert torch.isfinite(atoms).all()
    assert sum(atom in nearest for atom in atoms.tolist()) >= 25


def test_one_row_of_history_is_enough() -> None:
    one = torch.tensor([[7.0]], dtype=torch.float64)
    history = History.of(one, one, torch.ones(1, dtype=torch.float64))
    assert predictive_scenarios(history, one, 5).outcomes.flatten().tolist() == [7.0] * 5


def test_atoms_of_equal_weight_share_all_of_it_and_keep_their_mode() -> None:
    outcomes = torch.arange(12, dtype=torch.float64).view(2, 3, 2)
    scenarios = Scenarios.equal(outcomes, outcomes[:, 1])
    assert scenarios.weights.tolist() == pytest.approx([1 / 3] * 3)
    assert scenarios.weights.dtype == torch.float64
    assert torch.equal(scenarios.mode, outcomes[:, 1])
    assert scenarios.mean().flatten().tolist() == pytest.approx([2, 3, 8, 9])
