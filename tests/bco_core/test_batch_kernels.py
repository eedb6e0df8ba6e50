"""Batch kernels: a context gets the same bits alone and in a batch."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bco_core.batch_kernels import exp_affine, mean_of_atoms, product, sample_near, sum_of_rows
from bco_core.data import Standardizer
from bco_core.distributions import FAMILIES, Mixture
from bco_core.features.standardized import StandardizedFeatures
from bco_core.policies import POLICIES
from bco_core.posterior import Posterior
from bco_core.predictive import Carrier, History
from bco_core.predictors.base import WIDEST, Predictor
from bco_core.predictors.registry import PREDICTORS
from bco_core.prescribe import PrescribeOptions, PrescribeResult, decides_alone, prescribe
from bco_core.problems.newsvendor import Newsvendor
from bco_core.problems.portfolio.mean_variance import MeanVariancePortfolio

CONTEXTS = 23


def predictor_of(kind: str, width: int = 5, outcomes: int = 2, hidden: tuple[int, ...] = (19, 7)) -> Predictor:
    generator = torch.Generator().manual_seed(1)
    widths = (width, *(hidden if PREDICTORS[kind].is_network else ()), outcomes)
    units = [torch.rand(size, generator=generator, dtype=torch.float64) + 0.5 for size in (width, width)]
    outcome = [torch.rand(outcomes, generator=generator, dtype=torch.float64) * 10 + 5 for _ in range(2)]
    return PREDICTORS[kind](widths, StandardizedFeatures(Standardizer(*units)), Standardizer(*outcome))


def posterior_of(kind: str, carry: str = "shift", bandwidth: float | None = None, outcomes: int = 2) -> Posterior:
    predictor, generator = predictor_of(kind, outcomes=outcomes), torch.Generator().manual_seed(2)
    loc = torch.randn(3, predictor.dim, generator=generator) * 0.3
    mixture = Mixture(FAMILIES["laplace"], torch.full((3,), 1 / 3), loc, torch.full_like(loc, 0.05))
    rows = torch.rand(2, 40, outcomes, generator=generator, dtype=torch.float64) * 10 + 5
    slopes = torch.randn(6, outcomes, generator=generator, dtype=torch.float64) * 0.1 if carry == "scaled" else None
    scales = torch.rand(40, outcomes, generator=generator, dtype=torch.float64) + 0.5 if carry == "scaled" else None
    carrier = Carrier(carry, bandwidth, torch.full((outcomes,), 0.9, dtype=torch.float64), slopes)
    history = History(rows[0], rows[1], predictor.outcomes.scale, carrier, scales)
    return Posterior(predictor, mixture, mixture.sample(60, torch.Generator().manual_seed(3)), 3, history)


def contexts_of(count: int = CONTEXTS, width: int = 5) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def newsvendor(items: int = 2) -> Newsvendor:
    spec = [{"underage_cost": 3 + 0.1 * item, "overage_cost": 1.3, "minimum_order": 0} for item in range(items)]
    return Newsvendor.from_spec({"items": spec})


def digits(found: PrescribeResult, row: int) -> list[bytes]:
    """Return every number of one context as bytes."""
    costs = found.costs
    numbers = (found.decisions, costs.mean, costs.quantiles, costs.cvar, found.map_decisions, found.map_costs)
    return [values[row].numpy().tobytes() for values in (*numbers, found.hedging_gain, found.gaps)]


@pytest.mark.parametrize("kind", sorted(PREDICTORS))
def test_one_pass_over_parameters_equals_the_layers_in_turn(kind: str) -> None:
    predictor = predictor_of(kind)
    theta = predictor.initial(9, torch.Generator().manual_seed(5)) + 0.01
    found = predictor.predict_each(theta, contexts_of())
    expected = predictor.predict(theta.double(), contexts_of()).transpose(0, 1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(predictor.predict_each(theta.double(), contexts_of()), expected, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("kind", sorted(PREDICTORS))
@pytest.mark.parametrize("count", [1, 2, 4, 7, 16])
def test_a_prediction_does_not_depend_on_other_contexts_in_the_batch(kind: str, count: int) -> None:
    predictor = predictor_of(kind, hidden=(128, 33))
    theta = predictor.initial(9, torch.Generator().manual_seed(5)) + 0.01
    together = predictor.predict_each(theta, contexts_of())
    for rows in torch.randperm(CONTEXTS, generator=torch.Generator().manual_seed(count)).split(count):
        assert torch.equal(predictor.predict_each(theta, contexts_of()[rows]), together[rows])


def test_a_non_finite_prediction_stays_non_finite() -> None:
    predictor = predictor_of("mlp")
    theta = predictor.initial(2, torch.Generator().manual_seed(5))
    theta[1, 3] = math.nan
    found = predictor.predict_each(theta, contexts_of(3))
    assert found[:, 0].isfinite().all()
    assert found[:, 1].isnan().all()


def test_layers_too_wide_for_the_kernel_use_the_ordinary_path() -> None:
    predictor = predictor_of("mlp", hidden=(WIDEST + 1,))
    theta = predictor.initial(2, torch.Generator().manual_seed(5))
    assert not predictor.predicts_alone
    assert torch.equal(
        predictor.predict_each(theta, contexts_of()), predictor.predict(theta, contexts_of()).transpose(0, 1)
    )


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("costs_over", ["predictive", "posterior"])
@pytest.mark.parametrize("way", [("shift", None), ("scaled", None), ("stretch", 0.2), ("keep", 0.5)])
def test_batched_decisions_have_the_same_bits_as_single_ones(
    policy: str, costs_over: str, way: tuple[str, float | None]
) -> None:
    posterior, problem = posterior_of("skip_mlp", *way), newsvendor()
    alpha = 0.3 if policy == "blended" else None
    options = PrescribeOptions(policy, alpha=alpha, scenarios=50, costs_over=costs_over)
    if not decides_alone(posterior, problem, options):
        assert policy == "thompson"
        return
    together = prescribe(posterior, problem, contexts_of(), options)
    for rows in torch.randperm(CONTEXTS).split(5):
        alone = prescribe(posterior, problem, contexts_of()[rows], options)
        for place, row in enumerate(rows.tolist()):
            assert digits(alone, place) == digits(together, row)


@pytest.mark.parametrize("items", [1, 3, 40])
@pytest.mark.parametrize("scenarios", [1, 60, 333])
def test_batched_decisions_have_the_same_bits_for_any_items_and_scenarios(items: int, scenarios: int) -> None:
    posterior, problem = posterior_of("linear", "stretch", 0.3, outcomes=items), newsvendor(items)
    options = PrescribeOptions("averaged", scenarios=scenarios)
    assert decides_alone(posterior, problem, options)
    together = prescribe(posterior, problem, contexts_of(), options)
    for row in range(CONTEXTS):
        assert digits(prescribe(posterior, problem, contexts_of()[row : row + 1], options), 0) == digits(together, row)


def mean_variance(assets: int) -> MeanVariancePortfolio:
    drawn = torch.Generator().manual_seed(6)
    loadings = torch.randn(assets, min(assets, 7), generator=drawn, dtype=torch.float64)
    factors = {"loadings": loadings.tolist(), "residual_variances": [0.2 + 0.01 * one for one in range(assets)]}
    positions = [{"name": str(one), "minimum": -2.0, "maximum": 3.0} for one in range(assets)]
    return MeanVariancePortfolio.from_spec(
        {"assets": positions, "factors": factors, "risk_aversion": 40.0, "budget": 2.0}
    )


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("assets", [2, 11, 40])
def test_batched_portfolios_have_the_same_bits_as_single_ones(policy: str, assets: int) -> None:
    posterior, problem = posterior_of("linear", outcomes=assets), mean_variance(assets)
    options = PrescribeOptions(policy, scenarios=50)
    if not decides_alone(posterior, problem, options):
        assert policy == "thompson"
        return
    together = prescribe(posterior, problem, contexts_of(), options)
    assert len(together.decisions.unique(dim=0)) > CONTEXTS / 2
    for row in range(CONTEXTS):
        assert digits(prescribe(posterior, problem, contexts_of()[row : row + 1], options), 0) == digits(together, row)


def test_row_products_match_the_matrix_product() -> None:
    rows, matrix = torch.rand(4, 3, 5, dtype=torch.float64), torch.rand(5, 2, dtype=torch.float64)
    torch.testing.assert_close(product(rows, matrix), rows @ matrix)
    torch.testing.assert_close(product(rows[0].mT[:, :1].mT, matrix), rows[0, :1] @ matrix)
    assert product(rows[:0], matrix).shape == (0, 3, 2)


def test_sums_over_atoms_match_their_definition() -> None:
    values = torch.rand(4, 30, 3, dtype=torch.float64)
    weights = torch.rand(30, dtype=torch.float64)
    torch.testing.assert_close(mean_of_atoms(values, weights), torch.einsum("bkm,k->bm", values, weights))
    torch.testing.assert_close(mean_of_atoms(values[..., 0], weights), values[..., 0] @ weights)
    torch.testing.assert_close(sum_of_rows(values), values.sum(-1))
    torch.testing.assert_close(exp_affine(values[0], values[1, :4]), (values[0] @ values[1, :3] + values[1, 3]).exp())
    assert mean_of_atoms(values[:0], weights).shape == (0, 3)


def test_sampling_near_a_prediction_follows_the_row_weights() -> None:
    here, there = torch.tensor([[0.0], [3.0]]).double(), torch.tensor([[0.0], [1.0], [2.5]]).double()
    count = 1000
    found = sample_near(here, there, 0.7, count)
    weights = (-(here - there.T).abs() / 0.7).exp()
    expected = weights / weights.sum(dim=1, keepdim=True)
    for row in range(2):
        share = torch.bincount(found[row], minlength=3) / count
        torch.testing.assert_close(share.double(), expected[row], rtol=0, atol=2 / count)
