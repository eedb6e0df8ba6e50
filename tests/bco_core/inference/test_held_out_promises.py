"""Promises on fresh rows: expected costs, ranges, dependence, returns, and the verdict ``ok``."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.inference.learn import learn
from bco_core.inference.method import Learned
from bco_core.inference.mh.temperature import LADDER
from bco_core.inference.options import make_options
from bco_core.posterior import Posterior
from bco_core.prescribe import PrescribeOptions, decisions, prescribe
from bco_core.problems.newsvendor import Newsvendor
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio
from tests.support.linear_demand import Stepwise

# Orders may be negative, like outcomes.
ITEM = {"underage_cost": 3, "overage_cost": 1, "minimum_order": None}
ONE = Newsvendor.from_spec({"items": [ITEM]})
TWO = Newsvendor.from_spec({"items": [ITEM, ITEM]})
SLOPES = torch.tensor([[3.0], [-2.0], [1.0]], dtype=torch.float64)


def normal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def demand(kind: str, rows: int, seed: int) -> Sample:
    contexts, noise = normal(rows, 3, seed), normal(rows, 1, seed + 1000)
    signal = contexts @ SLOPES
    outcomes = {
        # Of both signs, with R² = 0.99.
        "signed": 10 * signal + 3.7 * noise,
        "around 15": 15 + 3 * signal + 4 * noise,
        "multiplicative": (60 + 5 * signal) * (1 + 0.2 * noise.clamp(-3, 3)),
        "spread by context": 100 + 10 * signal + 5 * (0.7 * contexts[:, :1]).exp() * noise,
    }[kind]
    return Sample(contexts, outcomes)


def learn_quickly(problem: Newsvendor, sample: Sample, seed: int, epochs: int = 30) -> Learned:
    return learn(problem, sample, make_options(predictor="linear", epochs=epochs, seed=seed))


def atoms_at(posterior: Posterior, contexts: Tensor, count: int = 200) -> Tensor:
    mean = posterior.scenarios(contexts, posterior.draws(count)).mean()
    found = posterior.predictive(contexts, mean, count)
    assert found is not None
    return found.outcomes


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["signed", "around 15", "multiplicative", "spread by context"])
def test_realised_costs_match_expected_costs_and_ranges_have_their_coverage(kind: str, seed: int) -> None:
    found = learn_quickly(ONE, demand(kind, 400, seed), seed)
    fresh = demand(kind, 3000, seed + 100)
    for policy in (found.diagnostics.policy, "averaged", "predictive"):
        answer = prescribe(found.posterior, ONE, fresh.contexts, PrescribeOptions(policy))
        realised = ONE.cost(answer.decisions, fresh.outcomes).mean().item()
        assert 0.85 < answer.costs.mean.mean().item() / realised < 1.15
    place = (atoms_at(found.posterior, fresh.contexts)[..., 0] < fresh.outcomes).double().mean(dim=1)
    assert 0.84 < ((place - 0.5).abs() <= 0.45).double().mean().item() < 0.95
    diagnostics = found.diagnostics
    assert diagnostics.promise_warning == ""
    assert diagnostics.promise.ratio == pytest.approx(
        diagnostics.promise.expected.mean / diagnostics.promise.realised.mean
    )
    assert 0.85 < diagnostics.promise.ratio < 1.15
    assert diagnostics.calibration.score < diagnostics.calibration.constant_score


def test_predicted_spread_follows_the_context() -> None:
    found = learn_quickly(ONE, demand("spread by context", 400, 0), 0)
    contexts = torch.tensor([[-1.5, 0.0, 0.0], [0.0, 0.0, 0.0], [1.5, 0.0, 0.0]], dtype=torch.float64)
    spread = atoms_at(found.posterior, contexts)[..., 0].std(dim=1)
    truth = [5 * math.exp(0.7 * one) for one in (-1.5, 0.0, 1.5)]
    assert spread.tolist() == pytest.approx(truth, rel=0.35)


@pytest.mark.parametrize(("seed", "correlation"), [(0, 0.8), (1, -0.7)])
def test_correlated_outcomes_are_predicted_as_correlated(seed: int, correlation: float) -> None:
    contexts, noise = normal(400, 3, seed), normal(400, 2, seed + 1000)
    noise[:, 1] = correlation * noise[:, 0] + math.sqrt(1 - correlation**2) * noise[:, 1]
    outcomes = torch.cat([50 + 5 * contexts @ SLOPES, 20 - 3 * contexts @ SLOPES], dim=1) + 4 * noise
    found = learn_quickly(TWO, Sample(contexts, outcomes), seed)
    atoms = atoms_at(found.posterior, normal(30, 3, seed + 100))
    assert np.mean([np.corrcoef(one.numpy().T)[0, 1] for one in atoms]) == pytest.approx(correlation, abs=0.15)


# fixed costs


class Rented(Stepwise):
    """A newsvendor with a fixed rent, whatever it orders; a negative one makes every cost a gain."""

    rent: float = 0.0

    @property
    def cost_floor(self) -> float:
        return self.rent

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return super().cost(decisions, outcomes) + self.rent


def newsvendor_with_rent(rent: float) -> Rented:
    problem = Rented(**{field.name: getattr(ONE, field.name) for field in fields(ONE)})
    problem.rent = rent
    return problem


@pytest.mark.slow
@pytest.mark.parametrize("rent", [1e4, -1e4, -10.0])
def test_chains_find_the_same_temperature_at_any_fixed_cost(rent: float) -> None:
    sample = demand("around 15", 60, 0)
    options = make_options(method="mh", predictor="linear", chains=2, steps=60, burn_in=30, particles=20)
    plain, fixed = (learn(newsvendor_with_rent(one), sample, options) for one in (0.0, rent))
    first, second = plain.diagnostics, fixed.diagnostics
    assert second.inverse_temperature == first.inverse_temperature < LADDER[-1]
    assert second.cost_scale == pytest.approx(first.cost_scale, rel=1e-6)
    torch.testing.assert_close(fixed.posterior.particles, plain.posterior.particles)
    assert second.judged_cost.mean == pytest.approx(first.judged_cost.mean + rent)
    assert second.gain_over_constant.mean == pytest.approx(first.gain_over_constant.mean, rel=1e-4)


# returns


def portfolio(confidence: float, assets: int = 6) -> ReturnConstrainedPortfolio:
    return ReturnConstrainedPortfolio.from_spec(
        {
            "assets": [{"name": f"a{j}"} for j in range(assets)],
            "factors": {"loadings": [[0.005]] * assets, "residual_variances": [4e-4] * assets},
            "target_return": 0.08,
            "confidence": confidence,
        }
    )


def returns(rows: int, seed: int, assets: int = 6) -> Sample:
    contexts, slopes = normal(rows, 2, seed), 0.02 * normal(2, assets, 9)
    return Sample(contexts, 0.1 + contexts @ slopes + 0.02 * normal(rows, assets, seed + 1000))


@pytest.mark.slow
@pytest.mark.parametrize("confidence", [0.0, 0.5])
def test_chains_with_low_confidence_do_not_inflate_predictions(confidence: float) -> None:
    problem, fresh = portfolio(confidence), returns(600, 5)
    options = make_options(
        method="mh",
        predictor="linear",
        chains=2,
        steps=600,
        burn_in=300,
        particles=50,
        inverse_temperature=2000.0,
    )
    found = learn(problem, returns(200, 0), options)
    chosen = decisions(found.posterior, problem, fresh.contexts, PrescribeOptions("bcp"))
    earned = (chosen * fresh.outcomes).sum(dim=1).mean().item()
    assert earned >= 0.8 * problem.target
    assert chosen.sum(dim=1).mean() > 0.5


# the verdict ok


def plain_rows(signal: float, rows: int, seed: int) -> Sample:
    """Three columns, of which the first two are informative about the outcome with strength ``signal``."""
    contexts = normal(rows, 3, 7 * seed + 1)
    return Sample(contexts, 100 + 10 * (signal * (contexts[:, :1] + contexts[:, 1:2]) + normal(rows, 1, 7 * seed + 3)))


def called_ok(signal: float, rows: int, seeds: range, epochs: int) -> tuple[float, float]:
    """Return the share of posteriors with verdict ok, and of those that are ok but worse than the best constant."""
    ok, false = 0, 0
    for seed in seeds:
        sample, fresh = plain_rows(signal, rows, seed), plain_rows(signal, 4000, seed + 10_000)
        found = learn_quickly(ONE, sample, seed, epochs)
        if found.diagnostics.quality == "ok":
            ok += 1
            options = PrescribeOptions(found.diagnostics.policy)
            chosen = decisions(found.posterior, ONE, fresh.contexts, options)
            constant = np.quantile(sample.outcomes.numpy(), 0.75, method="inverted_cdf")
            ours = ONE.cost(chosen, fresh.outcomes).mean()
            false += int(ours > ONE.cost(torch.full_like(chosen, constant), fresh.outcomes).mean())
    return ok / len(seeds), false / len(seeds)


@pytest.mark.slow
def test_noise_is_rarely_ok_and_a_strong_signal_nearly_always() -> None:
    assert called_ok(0.0, 100, range(12), 200)[0] <= 2 / 12
    assert called_ok(1.5, 100, range(6), 200)[0] >= 5 / 6


@pytest.mark.torture
@pytest.mark.parametrize("rows", [100, 300, 1000])
def test_at_most_5_percent_of_noise_samples_are_ok(rows: int) -> None:
    ok, false = called_ok(0.0, rows, range(100), 300)
    assert ok <= 0.05
    assert false <= 0.05


@pytest.mark.torture
@pytest.mark.parametrize("rows", [100, 300, 1000])
def test_at_most_5_percent_of_weak_signal_samples_are_wrongly_ok(rows: int) -> None:
    assert called_ok(0.15, rows, range(100), 300)[1] <= 0.05


@pytest.mark.torture
@pytest.mark.parametrize("rows", [100, 300, 1000])
def test_at_least_95_percent_of_strong_signal_samples_are_ok(rows: int) -> None:
    assert called_ok(1.5, rows, range(100), 300)[0] >= 0.95
