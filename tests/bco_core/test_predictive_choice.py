"""Choice of the predictive carrier: CRPS and energy score against their definitions."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from scipy import integrate

from bco_core.calibration import calibrate
from bco_core.predictive import History, predictive_scenarios
from bco_core.predictive_choice import choose_carrier, crps, energy_score, score
from bco_core.problems.base import DecisionProblem
from tests.support.predictive_history import Array, leave_one_out, make_history


def weighted_atoms(seed: int, count: int) -> tuple[Array, Array, float]:
    rng = np.random.default_rng(seed)
    shares = rng.exponential(size=count) * (rng.random(count) < 0.8)
    shares[0] += 0.1
    return rng.normal(size=count).round(1), shares / shares.sum(), float(rng.normal(scale=2))


@pytest.mark.parametrize("count", [1, 2, 7, 40])
@pytest.mark.parametrize("seed", range(5))
def test_crps_is_the_integral_of_the_squared_distance_between_distributions(seed: int, count: int) -> None:
    atoms, shares, truth = weighted_atoms(seed, count)

    def squared(t: float) -> float:
        return float((shares[atoms <= t].sum() - (truth <= t)) ** 2)

    edges = sorted({*atoms.tolist(), truth})
    expected = sum(integrate.quad(squared, left, right, limit=10)[0] for left, right in pairwise(edges))
    found = crps(*(torch.from_numpy(np.array([values])) for values in (atoms, shares)), torch.tensor([truth]).double())
    assert found.item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_crps_of_many_rows_equals_each_rows_crps(seed: int) -> None:
    rows = [weighted_atoms(10 * seed + number, 9) for number in range(4)]
    atoms, shares, truth = (torch.from_numpy(np.array(part)) for part in zip(*rows, strict=True))
    each = [crps(atoms[i : i + 1], shares[i : i + 1], truth[i : i + 1]).item() for i in range(4)]
    assert crps(atoms, shares, truth).tolist() == pytest.approx(each)


@pytest.mark.parametrize(("count", "items"), [(1, 2), (2, 1), (12, 3)])
def test_the_energy_score_equals_its_double_loop(count: int, items: int) -> None:
    rng = np.random.default_rng(count)
    atoms, truth = rng.normal(size=(4, count, items)), rng.normal(size=(4, items))
    expected = []
    for points, outcome in zip(atoms, truth, strict=True):
        near = sum(math.dist(point, outcome) for point in points) / count
        # Only pairs of different atoms, so that the score is unbiased for few atoms.
        between = [math.dist(points[i], points[j]) for i in range(count) for j in range(count) if i != j]
        expected.append(near - 0.5 * (sum(between) / len(between) if between else 0.0))
    found = energy_score(torch.from_numpy(atoms), torch.from_numpy(truth))
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("carry", "bandwidth"), [("shift", None), ("shift", 0.3), ("keep", 0.2)])
def test_a_rows_score_is_the_crps_of_its_leave_one_out_scenarios(carry: str, bandwidth: float | None) -> None:
    history, features = make_history(1, carry, bandwidth)
    expected = []
    for row in range(len(history)):
        atoms, shares = leave_one_out(history, row)
        truth, flat = history.outcomes[row, 0].item(), atoms[:, 0]
        pairs = np.abs(flat[:, None] - flat[None]) * shares[:, None] * shares[None]
        expected.append(((np.abs(flat - truth) * shares).sum() - 0.5 * pairs.sum()) / history.spread.item())
    found = score(history, torch.arange(len(history)), features)
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    assert calibrate(history, features).score == pytest.approx(float(np.mean(expected)))


# the chosen carrier


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("noise", "carry"), [("by level", "stretch"), ("by context", "scaled"), ("unpredicted", "keep")]
)
def test_the_carrier_that_fits_the_noise_is_chosen(noise: str, carry: str, seed: int) -> None:
    features, xi = normal(600, 2, seed=seed), normal(600, 1, seed=seed + 50)
    level = 100 + 30 * features[:, :1].clamp(-2.5, 2.5)
    outcomes = {
        "by level": level * (1 + 0.2 * xi.clamp(-3, 3)),
        "by context": level + 5 * (features[:, 1:]).exp() * xi,
        # Two modes: the prediction determines their shares, not their locations.
        "unpredicted": torch.where(xi < 0.5 * features[:, :1], 160.0, 40.0).double(),
    }[noise]
    unit = torch.ones(1, dtype=torch.float64)
    # The features do not determine the level, so a spread that grows with the level does not grow with them.
    chosen = choose_carrier(level, outcomes, outcomes.std(dim=0), features[:, 1:], unit)
    assert chosen.history.carrier.carry == carry
    assert [row["carry"] for row in chosen.table if row["chosen"]] == [carry]


@pytest.mark.parametrize("seed", range(4))
def test_homoscedastic_noise_gives_homoscedastic_scenarios(seed: int) -> None:
    features, xi = normal(600, 2, seed=seed), normal(600, 1, seed=seed + 50)
    level = 100 + 30 * features[:, :1].clamp(-2.5, 2.5)
    outcomes = level + 10 * xi
    unit = torch.ones(1, dtype=torch.float64)
    chosen = choose_carrier(level, outcomes, outcomes.std(dim=0), features, unit).history
    places = torch.tensor([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    atoms = predictive_scenarios(chosen, 100 + 30 * places[:, :1], 300, places).outcomes[:, :, 0]
    assert atoms.std(dim=1).tolist() == pytest.approx([10.0] * 3, rel=0.15)


def test_history_rows_keep_their_own_predictions_in_order() -> None:
    features, predictions = normal(80, 2), normal(80, 2, seed=1)
    outcomes = predictions + normal(80, 2, seed=2)
    shrink = torch.tensor([0.8, 0.7], dtype=torch.float64)
    chosen = choose_carrier(predictions, outcomes, outcomes.std(dim=0), features, shrink)
    assert chosen.order.sort().values.tolist() == list(range(80))
    assert torch.equal(chosen.history.outcomes, outcomes[chosen.order])
    assert torch.equal(chosen.history.predictions, predictions[chosen.order])
    assert torch.equal(chosen.history.carrier.shrink, shrink)


def test_a_rows_score_uses_only_the_other_rows_as_scenarios() -> None:
    history, features = make_history(1, "keep", 0.3)
    rows = torch.tensor([5])
    outcomes = history.outcomes.clone()
    outcomes[5] += 1e6
    apart = History(history.predictions, outcomes, history.spread, history.carrier)
    far, near = (score(one, rows, features).item() * history.spread.item() for one in (apart, history))
    assert far == pytest.approx(1e6, rel=1e-4)
    assert near < 10


def test_few_rows_of_homoscedastic_noise_seldom_choose_another_carrier() -> None:
    """On some sixty rows, an improvement of one standard error is usually chance."""
    plain = 0
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        features = torch.randn(60, 4, generator=draw, dtype=torch.float64)
        predictions = 50 + features @ torch.tensor([[3.0], [2.0], [0.0], [0.0]], dtype=torch.float64)
        outcomes = predictions + 2 * torch.randn(60, 1, generator=draw, dtype=torch.float64)
        ones = torch.ones(1, dtype=torch.float64)
        chosen = choose_carrier(predictions, outcomes, outcomes.std(dim=0), features, ones).history.carrier
        plain += chosen.carry == "shift" and chosen.bandwidth is None
    assert plain >= 15


def test_the_choice_favours_the_outcome_that_decides_the_cost() -> None:
    """Eleven outcomes are noise. The cost depends only on the last, whose spread depends on its prediction."""
    draw = torch.Generator().manual_seed(5)
    level = torch.rand(400, 1, dtype=torch.float64, generator=draw)
    noise = torch.randn(400, 11, dtype=torch.float64, generator=draw)
    wild = torch.where(level > 0.5, 5.0, 0.05) * torch.randn(400, 1, dtype=torch.float64, generator=draw)
    predictions, outcomes = torch.cat([0 * noise, level], dim=1), torch.cat([noise, level + wild], dim=1)
    unit, features = torch.ones(12, dtype=torch.float64), torch.zeros(400, 1, dtype=torch.float64)
    problem = SimpleNamespace(decide=lambda y: y[..., -1:], cost=lambda z, y: (y[..., -1:] - z).abs().sum(-1))
    calm = torch.cat([torch.zeros(1, 11), torch.full((1, 1), 0.1)], dim=1).double()
    spreads = []
    for scored in (None, cast(DecisionProblem, problem)):
        chosen = choose_carrier(predictions, outcomes, unit, features, unit, scored)
        spreads.append(predictive_scenarios(chosen.history, calm, 200, features[:1]).outcomes[0, :, -1].std().item())
    assert spreads[1] < 0.5 * spreads[0]
    one = SimpleNamespace(decide=None)
    few = outcomes[:, -1:], unit[:1]
    choose_carrier(predictions[:, -1:], few[0], few[1], features, few[1], cast(DecisionProblem, one))


def test_constant_costs_do_not_affect_the_choice() -> None:
    draw = torch.Generator().manual_seed(6)
    predictions, noise = torch.randn(2, 80, 2, dtype=torch.float64, generator=draw)
    unit = torch.ones(2, dtype=torch.float64)
    fixed = SimpleNamespace(decide=lambda y: y[..., :1], cost=lambda z, y: z.sum(-1) + 0 * y.sum(-1))
    found = [
        choose_carrier(predictions, predictions + noise, unit, predictions, unit, problem).table
        for problem in (None, cast(DecisionProblem, fixed))
    ]
    assert found[0] == found[1]


def test_averaging_predictions_sharpens_the_bandwidth() -> None:
    """Half of the squared distance between two noisy predictions is the query's; averaging leaves shrink² of it."""
    draw = torch.Generator().manual_seed(5)
    level = torch.rand(300, 1, dtype=torch.float64, generator=draw)
    outcomes = torch.where(level > 0.5, 10.0, 1.0) * torch.randn(300, 1, dtype=torch.float64, generator=draw).abs()
    unit, features = torch.ones(1, dtype=torch.float64), torch.zeros(300, 1, dtype=torch.float64)
    widths = [choose_carrier(level, outcomes, unit, features, g * unit).history.carrier.bandwidth for g in (1.0, 0.6)]
    assert widths[0] is not None
    assert widths[1] == pytest.approx(widths[0] * math.sqrt((1 + 0.36) / 2))
