"""PAC-Bayes bounds against independent formulas and simulated failure rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import rel_entr
from scipy.stats import binom

from bco_core.certificates import (
    BOUNDS,
    Moments,
    bernstein,
    bernstein_margin,
    divergence_of,
    kl,
    largest_average,
    largest_mean,
    lemma,
)

SHARES = st.floats(1e-6, 1 - 1e-6)
BUDGETS = st.floats(1e-6, 2.0)


def relative_entropy(q: float, p: float) -> float:
    return float(rel_entr([q, 1 - q], [p, 1 - p]).sum())


@given(SHARES, SHARES)
def test_the_divergence_is_the_binary_relative_entropy(q: float, p: float) -> None:
    assert divergence_of(q, p) == pytest.approx(relative_entropy(q, p), abs=1e-12)


def test_the_divergence_of_an_impossible_event_is_infinite() -> None:
    assert divergence_of(0.5, 1.0) == divergence_of(0.5, 0.0) == math.inf
    assert divergence_of(0.0, 0.0) == divergence_of(1.0, 1.0) == 0.0


@given(SHARES, BUDGETS)
def test_the_largest_mean_is_where_the_divergence_meets_its_budget(observed: float, budget: float) -> None:
    found = largest_mean(observed, budget)
    if relative_entropy(observed, 1 - 1e-12) <= budget:
        assert found == pytest.approx(1, abs=1e-9)
    else:
        truth = brentq(lambda p: relative_entropy(observed, p) - budget, observed, 1 - 1e-12, xtol=1e-14)
        assert found == pytest.approx(truth, abs=1e-9)


def test_the_largest_mean_at_zero_loss_has_a_closed_form() -> None:
    assert largest_mean(0.0, 0.3) == pytest.approx(1 - math.exp(-0.3))
    assert largest_mean(1.0, 0.3) == 1.0


@given(SHARES, st.integers(1, 500), st.floats(1e-3, 0.5))
def test_the_largest_average_is_where_the_divergence_meets_its_budget(mean: float, count: int, failure: float) -> None:
    found, budget = largest_average(mean, count, failure), math.log(1 / failure) / count
    if math.log(1 / mean) <= budget:
        assert found == 1.0
    else:
        truth = brentq(lambda q: relative_entropy(q, mean) - budget, mean, 1.0, xtol=1e-14)
        assert found == pytest.approx(truth, abs=1e-9)


@pytest.mark.parametrize("mean", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("count", [5, 50, 200])
def test_binomial_means_exceed_the_largest_average_at_the_stated_rate(mean: float, count: int) -> None:
    limit = largest_average(mean, count, 0.05)
    assert binom.sf(math.floor(limit * count + 1e-9), count, mean) <= 0.05
    # The bound is not loose: one standard deviation lower fails.
    lower = limit - 1.2 * math.sqrt(mean * (1 - mean) / count) - 1 / count
    assert binom.sf(math.floor(lower * count), count, mean) > 0.05


@given(SHARES, st.floats(0, 50), st.integers(10, 10_000), st.floats(1e-3, 0.2))
def test_the_bounds_match_the_papers(risk: float, divergence: float, rows: int, failure: float) -> None:
    found = Moments(risk, risk**2)
    complexity = divergence - math.log(failure)
    by_lemma = lemma(found, divergence, rows, failure)
    lam = by_lemma.inverse_temperature
    assert lam is not None
    assert by_lemma.value == pytest.approx(risk + (complexity + math.log(33)) / (lam * rows) + lam / 8)
    by_bernstein = bernstein(found, divergence, rows, failure)
    lam = by_bernstein.inverse_temperature
    assert lam is not None
    assert 0 < lam < 1
    by_square = -math.log(1 - lam) / lam - 1
    assert by_bernstein.value == pytest.approx(risk + (complexity + math.log(12)) / (lam * rows) + by_square * risk**2)
    budget = (complexity + math.log(2) + math.log(rows) / 2) / rows
    assert kl(found, divergence, rows, failure).value == pytest.approx(largest_mean(risk, budget))


def test_lambda_is_optimal_on_its_grid() -> None:
    found = Moments(0.03, 0.002)
    for rows in (100, 1000, 100_000):
        for grid, bound, by_variance in (
            (np.logspace(-3, 1, 33), lemma, lambda lam: lam / 8),
            (np.logspace(-2, np.log10(0.95), 12), bernstein, lambda lam: 0.002 * (-np.log(1 - lam) / lam - 1)),
        ):
            values = [0.03 + (7 + math.log(len(grid) / 0.02)) / (lam * rows) + by_variance(lam) for lam in grid]
            assert bound(found, 7.0, rows, 0.02).value == pytest.approx(min(values))


def test_the_inequality_behind_the_bernstein_bound_holds() -> None:
    """exp(−λℓ + (λ + ln(1 − λ)) ℓ²) ≤ 1 − λℓ for every loss in [0, 1] and λ in (0, 1)."""
    losses, lam = np.linspace(0, 1, 401)[:, None], np.linspace(0.001, 0.999, 500)
    assert (np.exp(-lam * losses + (lam + np.log(1 - lam)) * losses**2) <= 1 - lam * losses + 1e-12).all()


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_grows_with_risk_and_kl_and_shrinks_with_rows_and_failure(name: str) -> None:
    bound = BOUNDS[name]

    def value(risk: float = 0.1, divergence: float = 5.0, rows: int = 500, failure: float = 0.05) -> float:
        return bound(Moments(risk, risk**2), divergence, rows, failure).value

    assert 0.1 < value() < value(risk=0.12)
    assert value() < value(divergence=6.0)
    assert value() < value(rows=400)
    assert value() < value(failure=0.04)


def test_bernstein_is_tightest_for_small_losses_and_kl_for_rare_large_ones() -> None:
    steady, rare = Moments(0.03, 0.001), Moments(0.03, 0.03)
    for found, best in ((steady, bernstein), (rare, kl)):
        values = {bound: bound(found, 10.0, 1500, 0.02).value for bound in BOUNDS.values()}
        assert min(values, key=lambda bound: values[bound]) is best


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("kind", ["coins", "small", "skewed"])
def test_the_bound_holds_for_the_model_selected_by_empirical_risk(name: str, kind: str) -> None:
    """The posterior is the model with the least empirical risk under a uniform prior, so KL is ln 20.

    All models have the same true risk: the selected one is best by chance, and its empirical risk is too low.
    """
    rng, rows, models, sets = np.random.default_rng(0), 40, 20, 1000
    shape = (sets, models, rows)
    losses, truth = {
        "coins": (rng.random(shape) < 0.3, 0.3),
        "small": (0.1 * rng.random(shape), 0.05),
        "skewed": (rng.beta(0.1, 0.9, shape), 0.1),
    }[kind]
    losses = losses.astype(float)
    best = losses.mean(axis=2).argmin(axis=1)
    chosen = losses[np.arange(sets), best]
    found = [Moments(row.mean(), np.square(row).mean()) for row in chosen]
    held = np.mean([truth <= BOUNDS[name](one, math.log(models), rows, 0.05).value for one in found])
    assert held >= 0.95
    if kind == "coins" and name == "kl":
        # Without the KL term the bound fails, so the test is sensitive to it.
        assert np.mean([truth <= largest_mean(one.risk, math.log(20) / rows) for one in found]) < 0.95


@pytest.mark.parametrize("failure", [0.3, 0.05, 0.001])
def test_the_margin_of_draws_is_empirical_bernstein(failure: float) -> None:
    values = np.random.default_rng(1).beta(2, 5, 300)
    log = math.log(2 / failure)
    expected = math.sqrt(2 * np.var(values, ddof=1) * log / 300) + 7 * log / (3 * 299)
    assert bernstein_margin(torch.from_numpy(values), failure) == pytest.approx(expected)


@pytest.mark.parametrize("share", [0.5, 0.002])
def test_the_mean_of_draws_is_within_the_margin_at_the_stated_rate(share: float) -> None:
    """A share of 0.002 seldom occurs in 100 draws: without the second term the margin would be zero then."""
    draws = torch.from_numpy((np.random.default_rng(2).random((2000, 100)) < share).astype(float))
    held = np.mean([share <= row.mean().item() + bernstein_margin(row, 0.1) for row in draws])
    assert held >= 0.9
