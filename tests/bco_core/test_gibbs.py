"""The Gibbs target: scaled risk, prior, cost scale and temperature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from bco_core.data import Sample
from bco_core.distributions import FAMILIES
from bco_core.errors import InvalidInput
from bco_core.gibbs import REFERENCE_ROWS, GibbsTarget, make_target, perfect_cost, resolve_kl_weight
from bco_core.predictors.registry import build_predictor
from bco_core.problems.newsvendor import Newsvendor

SCIPY = {"gaussian": stats.norm, "laplace": stats.laplace}


def make_sample(rows: int = 15) -> Sample:
    rng = np.random.default_rng(0)
    contexts = rng.normal(5, 3, size=(rows, 2))
    outcomes = 20 + contexts @ np.array([[2.0, 0.0], [-1.0, 4.0]]) + rng.normal(size=(rows, 2))
    return Sample(torch.from_numpy(contexts), torch.from_numpy(outcomes))


def newsvendor(factor: float = 1.0) -> Newsvendor:
    costs = [(3.0, 1.0), (0.5, 2.0)]
    return Newsvendor.from_spec(
        {"items": [{"underage_cost": factor * under, "overage_cost": factor * over} for under, over in costs]}
    )


def make_linear_target(family: str = "gaussian", prior_scale: float = 1.0, factor: float = 1.0) -> GibbsTarget:
    sample = make_sample()
    return make_target(newsvendor(factor), build_predictor("linear", sample), sample, FAMILIES[family], prior_scale)


def plain_mean_cost(sample: Sample, theta: np.ndarray) -> float:
    """Return the mean newsvendor cost, in the user's units, of ordering an affine model's prediction with parameters
    (6,)."""
    x, y = sample.contexts.numpy(), sample.outcomes.numpy()
    unit = (x - x.mean(0)) / x.std(0) @ theta[:4].reshape(2, 2) + theta[4:]
    short = y - (y.mean(0) + y.std(0) * unit)
    return float((np.array([3.0, 0.5]) * short.clip(0) + np.array([1.0, 2.0]) * (-short).clip(0)).sum(1).mean())


@given(
    family=st.sampled_from(sorted(FAMILIES)),
    prior_scale=st.sampled_from([0.25, 1.0, 4.0]),
    inverse_temperature=st.floats(0.1, 1e4),
    seed=st.integers(0, 2**32 - 1),
)
def test_log_density_is_the_log_prior_less_the_weighted_risk(
    family: str, prior_scale: float, inverse_temperature: float, seed: int
) -> None:
    target = make_linear_target(family, prior_scale)
    theta = np.random.default_rng(seed).normal(size=(2, 6))
    first, second = target.log_density(torch.from_numpy(theta), inverse_temperature).tolist()
    risks = [plain_mean_cost(target.sample, t) / target.cost_scale for t in theta]
    priors = SCIPY[family](0, prior_scale).logpdf(theta).sum(1)
    expected = priors[1] - priors[0] - inverse_temperature * (risks[1] - risks[0])
    assert second - first == pytest.approx(expected, rel=1e-8, abs=1e-7)


@given(seed=st.integers(0, 2**32 - 1))
def test_empirical_risk_in_user_units_is_the_mean_cost_of_the_models_own_decisions(seed: int) -> None:
    target = make_linear_target()
    theta = np.random.default_rng(seed).normal(size=(3, 6))
    risks = target.empirical_risk(torch.from_numpy(theta)) * target.cost_scale
    assert risks.tolist() == pytest.approx([plain_mean_cost(target.sample, t) for t in theta], rel=1e-10)


def test_multiplying_unit_costs_leaves_the_scaled_risk_unchanged() -> None:
    theta = torch.randn(5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cheap, dear = make_linear_target(), make_linear_target(factor=1000)
    assert dear.cost_scale == pytest.approx(1000 * cheap.cost_scale, rel=1e-12)
    assert torch.allclose(dear.empirical_risk(theta), cheap.empirical_risk(theta), rtol=1e-12)


def test_the_cost_scale_is_the_best_constants_regret_against_foresight() -> None:
    target = make_linear_target()
    expected = 0.0
    # Foresight orders exactly the demand, at no cost.
    for column, (under, over) in zip(target.sample.outcomes.numpy().T, [(3.0, 1.0), (0.5, 2.0)], strict=True):
        short = column[:, None] - column[None, :]
        expected += (under * short.clip(0) + over * (-short).clip(0)).mean(0).min()
    assert target.cost_scale == pytest.approx(expected, rel=1e-12)


class Rented(Newsvendor):
    """A newsvendor with a fixed rent, whatever it orders; a negative rent is a grant."""

    rent: float = 0.0

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return super().cost(decisions, outcomes) + self.rent


def newsvendor_with_rent(rent: float) -> Rented:
    problem = Rented(**vars(newsvendor()))
    problem.rent = rent
    return problem


@pytest.mark.parametrize("rent", [1e5, -1e3, -20.0])
def test_a_fixed_cost_changes_neither_the_scale_nor_the_posterior(rent: float) -> None:
    sample = make_sample()
    predictor = build_predictor("linear", sample)
    plain, fixed = (
        make_target(newsvendor_with_rent(one), predictor, sample, FAMILIES["gaussian"]) for one in (0.0, rent)
    )
    assert fixed.cost_scale == pytest.approx(plain.cost_scale, rel=1e-9)
    theta = torch.randn(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = (target.log_density(theta, 500.0) for target in (plain, fixed))
    torch.testing.assert_close(second - second[0], first - first[0], rtol=1e-6, atol=1e-6)


def test_perfect_cost_is_the_mean_cost_with_perfect_foresight() -> None:
    sample = make_sample()
    assert perfect_cost(newsvendor(), sample.outcomes) == 0
    assert perfect_cost(newsvendor_with_rent(7.0), sample.outcomes) == pytest.approx(7.0)
    capped = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1, "maximum_order": 20}] * 2})
    short = (sample.outcomes.numpy() - 20).clip(0)
    assert perfect_cost(capped, sample.outcomes) == pytest.approx(3 * short.sum(axis=1).mean())


@pytest.mark.parametrize("value", [7.0, 0.1, 1 / 3])
def test_a_constant_outcome_keeps_the_users_cost_scale(value: float) -> None:
    outcomes = torch.full((11, 2), value, dtype=torch.float64)
    sample = Sample(make_sample(11).contexts, outcomes)
    target = make_target(newsvendor(), build_predictor("linear", sample), sample, FAMILIES["gaussian"])
    assert target.cost_scale == 1


def test_a_given_kl_weight_is_used_unchanged() -> None:
    assert resolve_kl_weight(100, 0.02, None, default=7.0) == 0.02


def test_the_kl_weight_is_one_over_the_inverse_temperature() -> None:
    assert resolve_kl_weight(100, None, 1000.0, default=7.0) == pytest.approx(1e-3)


@given(rows=st.integers(1, 10**6))
def test_the_default_kl_weight_falls_with_the_square_root_of_the_rows(rows: int) -> None:
    expected = 1e-4 * math.sqrt(REFERENCE_ROWS / rows)
    assert resolve_kl_weight(rows, None, None, default=1e-4) == pytest.approx(expected, rel=1e-12)


def test_a_kl_weight_and_an_inverse_temperature_together_are_refused() -> None:
    with pytest.raises(InvalidInput, match="give kl_weight or inverse_temperature, not both") as refusal:
        resolve_kl_weight(100, 0.01, 100.0, default=7.0)
    assert refusal.value.where == ("kl_weight",)
