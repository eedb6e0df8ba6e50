"""Weighted SAA: kernel, neighbour and forest weights, and their selection."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bco_core.baselines import weighted_saa
from bco_core.baselines.weighted_saa import (
    fit_enw,
    fit_forest,
    fit_neighbours,
    forest_weights,
    kernel_weights,
    neighbour_weights,
)
from bco_core.data import Sample
from bco_core.problems.base import best_constant
from bco_core.problems.newsvendor import Newsvendor

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})


def make_sample(rows: int, seed: int) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    contexts = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    return Sample(contexts, 50 + 20 * contexts[:, :1] + noise)


MAKERS = {
    "kernel": lambda sample: kernel_weights(sample, 0.5),
    "neighbours": lambda sample: neighbour_weights(sample, 7),
    "forest": lambda sample: forest_weights(sample, 5),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_weights_are_a_distribution_over_the_history(make) -> None:  # type: ignore[no-untyped-def]
    sample = make_sample(60, 0)
    found = make(sample)(make_sample(9, 1).contexts)
    assert found.shape == (9, 60)
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(dim=1), torch.ones(9, dtype=torch.float64))


def test_kernel_weights_follow_their_formula() -> None:
    sample, contexts = make_sample(20, 0), make_sample(3, 1).contexts
    distance = (contexts[:, None] - sample.contexts).square().sum(-1).sqrt()
    expected = torch.exp(-distance / 0.7)
    torch.testing.assert_close(kernel_weights(sample, 0.7)(contexts), expected / expected.sum(dim=1, keepdim=True))


def test_neighbours_are_the_nearest_rows_and_at_most_all_rows() -> None:
    sample = make_sample(20, 0)
    own = neighbour_weights(sample, 1)(sample.contexts)
    assert torch.equal(own, torch.eye(20, dtype=torch.float64))
    assert torch.equal(
        neighbour_weights(sample, 99)(sample.contexts[:1]), torch.full((1, 20), 0.05, dtype=torch.float64)
    )


def test_forest_weights_of_one_leaf_are_equal() -> None:
    sample = make_sample(20, 0)
    torch.testing.assert_close(
        forest_weights(sample, 20)(sample.contexts), torch.full((20, 20), 0.05, dtype=torch.float64)
    )


@pytest.mark.parametrize("fit", [fit_enw, fit_neighbours, fit_forest])
def test_selection_takes_the_setting_of_least_validation_cost_and_beats_a_constant(fit) -> None:  # type: ignore[no-untyped-def]
    train, validation, test = make_sample(150, 0), make_sample(50, 1), make_sample(200, 2)
    fitted = fit(PROBLEM, train, validation)
    decisions = fitted.decisions(PROBLEM, test.contexts)
    constant = best_constant(PROBLEM, train.outcomes).decisions
    assert mean_cost(decisions, test) < 0.5 * mean_cost(constant.expand(200, -1), test)


def test_negligible_weights_do_not_change_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = make_sample(80, 0), make_sample(30, 2)
    history = weighted_saa.WeightedHistory(train, kernel_weights(train, 0.1), 0.1)
    pruned = history.decisions(PROBLEM, test.contexts)
    monkeypatch.setattr(weighted_saa, "_NEGLIGIBLE", 0.0)
    assert (pruned == history.decisions(PROBLEM, test.contexts)).all()


def mean_cost(decisions: Tensor, sample: Sample) -> float:
    return PROBLEM.cost(decisions, sample.outcomes).mean().item()
