"""Predictive scenarios against their formulas in numpy: carried outcomes and row weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bco_core.predictive import CARRIES, Carrier, History, carry_outcomes, predictive_scenarios, row_weights
from bco_core.predictive_choice import choose_carrier
from tests.support.seeds import seeded

Array = np.ndarray[Any, Any]
ROWS, ITEMS, WIDTH = 50, 2, 3


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


SHRINK = torch.tensor([0.9, 0.6], dtype=torch.float64)
SLOPES = normal(WIDTH + 1, ITEMS, seed=1) / 2
FEATURES = normal(ROWS, WIDTH, seed=2)
PREDICTIONS = 20 + 3 * normal(ROWS, ITEMS, seed=3)
OUTCOMES = PREDICTIONS + 2 * normal(ROWS, ITEMS, seed=4)
SCALES = (FEATURES @ SLOPES[:-1] + SLOPES[-1]).exp()
SPREAD = torch.tensor([4.0, 2.0], dtype=torch.float64)
NEW = 20 + 3 * normal(5, ITEMS, seed=5)
NEW_FEATURES = normal(5, WIDTH, seed=6) / 2


def history(carry: str, bandwidth: float | None = None) -> History:
    scaled = carry == "scaled"
    carrier = Carrier(carry, bandwidth, SHRINK, SLOPES if scaled else None)
    return History(PREDICTIONS, OUTCOMES, SPREAD, carrier, SCALES if scaled else None)


def carry_by_formula(carry: str, row: int, place: int) -> Array:
    """Carry the outcome of a history row to a new prediction, by the formula in the module's docstring."""
    here, there, seen, shrink = (t.numpy() for t in (NEW[place], PREDICTIONS[row], OUTCOMES[row], SHRINK))
    if carry == "keep":
        return seen
    if carry == "shift":
        return here + shrink * (seen - there)
    if carry == "stretch":
        return here * (1 + shrink * (seen / there - 1))
    scales = SCALES.numpy()
    spread = np.exp(NEW_FEATURES[place].numpy() @ SLOPES[:-1].numpy() + SLOPES[-1].numpy())
    spread = np.clip(spread, scales.min(axis=0), scales.max(axis=0))
    return here + shrink * spread * (seen - there) / scales[row]


@pytest.mark.parametrize("carry", CARRIES)
def test_every_outcome_is_carried_by_its_formula(carry: str) -> None:
    past = history(carry)
    everything = torch.arange(ROWS).expand(len(NEW), -1)
    found = carry_outcomes(past, everything, NEW, past.scales_at(NEW_FEATURES)).numpy()
    expected = np.array([[carry_by_formula(carry, row, place) for row in range(ROWS)] for place in range(len(NEW))])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("carry", CARRIES)
def test_as_many_scenarios_as_equal_rows_use_every_row_once(carry: str) -> None:
    scenarios = predictive_scenarios(history(carry), NEW, ROWS, NEW_FEATURES)
    assert scenarios.weights.tolist() == pytest.approx([1 / ROWS] * ROWS)
    assert torch.equal(scenarios.mode, NEW)
    for place in range(len(NEW)):
        expected = sorted(carry_by_formula(carry, row, place).tolist() for row in range(ROWS))
        np.testing.assert_allclose(sorted(scenarios.outcomes[place].tolist()), expected, rtol=1e-12)


@pytest.mark.parametrize("bandwidth", [None, 0.05, 0.5, 3.0])
def test_row_weights_follow_the_similarity_of_predictions(bandwidth: float | None) -> None:
    found = row_weights(history("keep", bandwidth), NEW).numpy()
    far = np.linalg.norm((NEW[:, None] - PREDICTIONS[None]).numpy() / SPREAD.numpy(), axis=2)
    expected = np.ones_like(far) if bandwidth is None else np.exp(-far / bandwidth)
    shares = found / found.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, expected / expected.sum(axis=1, keepdims=True), rtol=1e-9, atol=1e-15)
    assert found.max(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize("bandwidth", [0.05, 0.5, 3.0])
def test_scenarios_hold_rows_in_proportion_to_their_weights(bandwidth: float) -> None:
    past, count = history("keep", bandwidth), 4000
    atoms = predictive_scenarios(past, NEW, count).outcomes
    shares = row_weights(past, NEW)
    shares = shares / shares.sum(dim=1, keepdim=True)
    for place in range(len(NEW)):
        held = (atoms[place][:, None] == OUTCOMES[None]).all(dim=2).double().mean(dim=0)
        # Systematic sampling is off by less than one atom.
        assert (held - shares[place]).abs().max() <= 1 / count


@pytest.mark.parametrize("carry", CARRIES)
@pytest.mark.parametrize("bandwidth", [None, 0.05, 1e-6])
def test_leave_one_out_scenarios_exclude_the_row_itself(carry: str, bandwidth: float | None) -> None:
    rows = torch.arange(ROWS)
    past = history(carry, bandwidth)
    found = predictive_scenarios(past, PREDICTIONS, 200, FEATURES, own=rows).outcomes
    own = carry_outcomes(past, rows[:, None], PREDICTIONS, past.scales_at(FEATURES))
    assert ((found - own).abs().amax(dim=2) > 1e-9).all()
    without = row_weights(past, PREDICTIONS, rows)
    assert (without.diagonal() == 0).all()
    assert torch.equal(row_weights(past, PREDICTIONS, torch.full((ROWS,), -1)), row_weights(past, PREDICTIONS))


@pytest.mark.parametrize("bandwidth", [0.01, 0.5])
def test_the_nearest_row_always_has_weight(bandwidth: float) -> None:
    far = torch.tensor([[1e6, 20.0], [-1e6, 20.0]], dtype=torch.float64)
    found = row_weights(history("shift", bandwidth), far)
    assert found.isfinite().all()
    nearest = [int(PREDICTIONS[:, 0].argmax()), int(PREDICTIONS[:, 0].argmin())]
    assert found.argmax(dim=1).tolist() == nearest
    assert found.amax(dim=1).tolist() == [1.0, 1.0]
    assert predictive_scenarios(history("shift", bandwidth), far, 20).outcomes.isfinite().all()


@pytest.mark.parametrize("chunk", [1, 120])
@pytest.mark.parametrize("carry", CARRIES)
def test_scenarios_do_not_depend_on_other_contexts_in_the_batch(
    carry: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    past, own = history(carry, 0.3), torch.tensor([3, -1, 7, 49, -1])
    whole = predictive_scenarios(past, NEW, 60, NEW_FEATURES, own).outcomes
    monkeypatch.setattr("bco_core.predictive._CHUNK_NUMBERS", chunk)
    assert torch.equal(predictive_scenarios(past, NEW, 60, NEW_FEATURES, own).outcomes, whole)


def test_residual_scales_at_far_contexts_stay_within_the_historys_scales() -> None:
    past = history("scaled")
    far = past.scales_at(100 * NEW_FEATURES)
    assert far is not None
    assert (far >= SCALES.amin(dim=0)).all()
    assert (far <= SCALES.amax(dim=0)).all()
    assert history("shift").scales_at(NEW_FEATURES) is None
    with pytest.raises(RuntimeError, match="features"):
        predictive_scenarios(past, NEW, 10)


@pytest.mark.parametrize("carry", CARRIES)
def test_a_history_round_trips_through_storage(carry: str) -> None:
    past = history(carry, 0.3)
    again = History.from_arrays(*past.to_arrays(), SPREAD)
    first, second = (predictive_scenarios(one, NEW, 30, NEW_FEATURES).outcomes for one in (past, again))
    assert torch.equal(first, second)


def test_one_row_of_history_suffices() -> None:
    one = torch.tensor([[7.0]], dtype=torch.float64)
    unit = torch.ones(1, dtype=torch.float64)
    past = choose_carrier(one, one, unit, one, unit).history
    assert predictive_scenarios(past, one, 5, one).outcomes.flatten().tolist() == [7.0] * 5


# recovery by the chosen carrier


def noisy_level(rows: int = 400, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    level = 20 + 60 * torch.rand(rows, 1, generator=seeded(1), dtype=torch.float64)
    noise = 1 + 0.2 * normal(rows, 1, seed=2).clamp(-3, 3)
    return level, level * noise - offset


def chosen_for(predictions: Tensor, outcomes: Tensor, features: Tensor | None = None) -> History:
    spread = outcomes.std(dim=0)
    unit = torch.ones_like(spread)
    return choose_carrier(predictions, outcomes, spread, predictions if features is None else features, unit).history


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_scenarios_recover_a_spread_that_grows_with_the_level(offset: float) -> None:
    level, outcomes = noisy_level(offset=offset)
    past = chosen_for(level - offset, outcomes, (level - 50) / 20)
    places = torch.tensor([[30.0], [70.0]], dtype=torch.float64)
    scenarios = predictive_scenarios(past, places - offset, 300, (places - 50) / 20)
    assert scenarios.outcomes.shape == (2, 300, 1)
    means, spreads = scenarios.outcomes.mean(dim=1).flatten(), scenarios.outcomes.std(dim=1).flatten()
    assert (means + offset).tolist() == pytest.approx([30, 70], rel=0.06)
    assert spreads.tolist() == pytest.approx([6, 14], rel=0.3)


def test_one_negative_outcome_does_not_change_expected_costs() -> None:
    level, outcomes = noisy_level()
    places = torch.tensor([[25.0], [50.0], [75.0]], dtype=torch.float64)
    promised = []
    for extra in ([], [-1.0]):
        there = torch.cat([level, torch.full((len(extra), 1), 30.0, dtype=torch.float64)])
        seen = torch.cat([outcomes, torch.tensor(extra, dtype=torch.float64).view(-1, 1)])
        past = chosen_for(there, seen, (there - 50) / 20)
        atoms = predictive_scenarios(past, places, 400, (places - 50) / 20).outcomes[:, :, 0]
        # Newsvendor costs of ordering the median, as reported to a planner.
        orders = places.flatten()[:, None]
        promised.append((3 * (atoms - orders).clamp_min(0) + (orders - atoms).clamp_min(0)).mean(dim=1))
    torch.testing.assert_close(promised[1], promised[0], rtol=0.05, atol=0.0)


def test_dependence_between_outcomes_is_preserved() -> None:
    for seed, correlation in ((0, 0.8), (1, -0.7)):
        contexts = normal(400, 2, seed=seed)
        noise = normal(400, 2, seed=seed + 10)
        noise[:, 1] = correlation * noise[:, 0] + math.sqrt(1 - correlation**2) * noise[:, 1]
        outcomes = contexts @ torch.tensor([[3.0, 1.0], [-1.0, 2.0]], dtype=torch.float64) + noise
        past = chosen_for(outcomes - noise, outcomes, contexts)
        atoms = predictive_scenarios(past, (outcomes - noise)[:20], 200, contexts[:20]).outcomes
        found = [np.corrcoef(one.numpy().T)[0, 1] for one in atoms]
        assert np.mean(found) == pytest.approx(correlation, abs=0.15)
