"""The portfolio kernel against cvxpy and daqp: random, tied, bounded, barely reachable and unreachable targets."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bco_core.solvers.dual_newton import BEST_EFFORT, OPTIMAL, Array, FactorQP, least_variance, mean_variance

ASSETS, RANK = 12, 3


def portfolios(seed: int, assets: int = ASSETS, **changes: Any) -> FactorQP:
    random = np.random.default_rng(seed)
    fields = {
        "loadings": random.uniform(-0.02, 0.02, (assets, RANK)),
        "deviations": random.uniform(0.01, 0.04, assets),
        "lower": np.zeros(assets),
        "upper": np.ones(assets),
        "budget": 1.0,
    }
    return FactorQP(**(fields | changes))


def covariance(qp: FactorQP) -> Array:
    return qp.loadings @ qp.loadings.T + np.diag(qp.deviations**2)


def reference(qp: FactorQP, returns: Array, target: float) -> float | None:
    """Return the least variance by cvxpy and Clarabel; None if infeasible."""
    z = cp.Variable(len(returns))
    scale = 1 / np.mean(qp.deviations**2)
    constraints = [returns @ z >= target, cp.sum(z) <= qp.budget, z >= qp.lower, z <= qp.upper]
    problem = cp.Problem(cp.Minimize(cp.quad_form(z, cp.psd_wrap(covariance(qp) * scale))), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-12, tol_feas=1e-12)
    return None if problem.status == cp.INFEASIBLE else float(problem.value) / scale


def check(qp: FactorQP, returns: Array, target: float) -> Array:
    """Solve, compare every row with the reference, and return the status codes."""
    found, codes = least_variance(qp, returns, target)
    for row, z, code in zip(returns, found, codes, strict=True):
        expected = reference(qp, row, target)
        assert z.min() >= qp.lower.min() - 1e-12
        assert z.sum() <= qp.budget + 1e-12
        if expected is None:
            assert code == BEST_EFFORT
            continue
        assert code == OPTIMAL
        assert row @ z >= target - 1e-12 * (1 + abs(target))
        assert z @ covariance(qp) @ z == pytest.approx(expected, rel=1e-8, abs=1e-14)
    return codes


@pytest.mark.parametrize("target", [0.05, 0.09, 0.12])
def test_random_portfolios_match_the_reference(target: float) -> None:
    returns = 0.1 + 0.04 * np.random.default_rng(1).normal(size=(30, ASSETS))
    codes = check(portfolios(0), returns, target)
    assert (codes == OPTIMAL).sum() > 20


def test_bounds_and_short_positions_are_respected() -> None:
    qp = portfolios(2, lower=np.linspace(-0.3, 0.05, ASSETS), upper=np.linspace(0.1, 0.4, ASSETS), budget=0.7)
    check(qp, 0.1 + 0.05 * np.random.default_rng(3).normal(size=(30, ASSETS)), 0.1)


def test_a_target_below_zero_is_met_by_holding_nothing() -> None:
    found, codes = least_variance(portfolios(4), np.random.default_rng(5).normal(size=(5, ASSETS)), -0.1)
    assert (codes == OPTIMAL).all()
    assert np.abs(found).max() == 0


def test_tied_returns_and_equal_assets_have_equal_positions() -> None:
    qp = portfolios(6, loadings=np.zeros((ASSETS, RANK)), deviations=np.full(ASSETS, 0.02))
    returns = np.full((2, ASSETS), 0.1)
    returns[1, 6:] = 0.05
    check(qp, returns, 0.09)
    found, _ = least_variance(qp, returns, 0.09)
    np.testing.assert_allclose(found[0], 0.09 / 0.1 / ASSETS, rtol=1e-12)
    assert np.ptp(found[1, :6]) < 1e-12
    assert np.ptp(found[1, 6:]) < 1e-12


@pytest.mark.parametrize("below", [0.0, 1e-14, 1e-12, 1e-9, 1e-6, 1e-3])
def test_a_barely_reachable_target_is_reached(below: float) -> None:
    returns = 0.05 + 0.03 * np.random.default_rng(7).random(size=(40, ASSETS))
    for row in returns:
        target = row.max() * (1 - below)
        found, codes = least_variance(portfolios(8), row[None], target)
        # A degenerate row that is not solved is never reported as optimal.
        if codes[0] == OPTIMAL:
            assert row @ found[0] >= target - 1e-10
            assert found[0].sum() <= 1 + 1e-10
            best = found[0] @ covariance(portfolios(8)) @ found[0]
            alone = covariance(portfolios(8)).diagonal()[row.argmax()]
            assert best <= alone * (1 + 1e-9)
        else:
            assert below < 1e-6


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-0.1, 0.3), (0.02, 0.2)])
def test_the_best_effort_for_an_unreachable_target_has_the_largest_return(bounds: tuple[float, float]) -> None:
    qp = portfolios(9, lower=np.full(ASSETS, bounds[0]), upper=np.full(ASSETS, bounds[1]))
    returns = 0.05 * np.random.default_rng(10).normal(size=(20, ASSETS))
    found, codes = least_variance(qp, returns, 1.0)
    assert (codes == BEST_EFFORT).all()
    for row, z in zip(returns, found, strict=True):
        best = cp.Variable(ASSETS)
        linear = cp.Problem(cp.Maximize(row @ best), [cp.sum(best) <= 1, best >= bounds[0], best <= bounds[1]])
        linear.solve(solver=cp.HIGHS)
        assert row @ z == pytest.approx(linear.value, abs=1e-12)
        assert z.sum() <= 1 + 1e-12
        assert ((z >= bounds[0]) & (z <= bounds[1] + 1e-15)).all()


def test_a_row_is_solved_the_same_in_any_batch() -> None:
    returns = 0.1 + 0.05 * np.random.default_rng(11).normal(size=(50, ASSETS))
    together, _ = least_variance(portfolios(12), returns, 0.1)
    alone = np.concatenate([least_variance(portfolios(12), row[None], 0.1)[0] for row in returns])
    assert np.array_equal(together, alone)


def test_a_covariance_matrix_round_trips_through_few_factors() -> None:
    qp = portfolios(13, deviations=np.full(ASSETS, 0.02))
    split = FactorQP.of(covariance(qp), qp.lower, qp.upper, qp.budget)
    assert split.rank == RANK
    np.testing.assert_allclose(covariance(split), covariance(qp), atol=1e-16)
    random = np.random.default_rng(14).normal(size=(ASSETS, 40))
    full = FactorQP.of(random @ random.T / 40, qp.lower, qp.upper, qp.budget)
    np.testing.assert_allclose(covariance(full), random @ random.T / 40, atol=1e-12)
    check(full, 0.1 + 0.04 * np.random.default_rng(15).normal(size=(10, ASSETS)), 0.1)


@given(seed=st.integers(0, 10_000), target=st.floats(-0.05, 0.3), budget=st.floats(0.2, 3.0))
def test_optimality_conditions_hold_on_arbitrary_instances(seed: int, target: float, budget: float) -> None:
    random = np.random.default_rng(seed)
    lower = np.where(random.random(ASSETS) < 0.3, -random.random(ASSETS) * 0.2, 0.0)
    upper = lower + random.choice([0.0, 0.1, 1.0, np.inf], ASSETS)
    qp = portfolios(seed, lower=lower, upper=upper, budget=budget)
    returns = random.choice([0.0, 0.1, 0.2], (4, ASSETS)) + 0.05 * random.normal(size=(4, ASSETS))
    found, codes = least_variance(qp, returns, target)
    for row, z, code in zip(returns, found, codes, strict=True):
        assert (z >= lower - 1e-12).all()
        assert (z <= upper + 1e-12).all()
        assert z.sum() <= budget + 1e-10
        if code != OPTIMAL:
            continue
        assert row @ z >= target - 1e-10
        # No feasible direction lowers the variance: multipliers solve min ‖Σz − λy + μ1 + bounds‖ with the right signs.
        gradient = covariance(qp) @ z
        price, spent = cp.Variable(nonneg=True), cp.Variable(nonneg=True)
        at_low, at_high = cp.Variable(ASSETS, nonneg=True), cp.Variable(ASSETS, nonneg=True)
        constraints = [at_low[z > lower + 1e-9] == 0, at_high[z < upper - 1e-9] == 0]
        constraints += [price == 0] if row @ z > target + 1e-9 else []
        constraints += [spent == 0] if z.sum() < budget - 1e-9 else []
        scale = 1e4
        residual = scale * gradient - price * row + spent - at_low + at_high
        problem = cp.Problem(cp.Minimize(cp.norm_inf(residual)), constraints)
        problem.solve(solver=cp.CLARABEL)
        assert problem.value <= 1e-6


@pytest.mark.parametrize("aversion", [0.5, 5.0, 50.0])
def test_mean_variance_portfolios_match_the_reference(aversion: float) -> None:
    qp = portfolios(16, lower=np.full(ASSETS, -0.1), upper=np.linspace(0.05, 0.6, ASSETS), budget=0.8)
    returns = 0.02 * np.random.default_rng(17).normal(size=(15, ASSETS))
    found, codes = mean_variance(qp, returns / aversion)
    assert (codes == OPTIMAL).all()
    for row, z in zip(returns, found, strict=True):
        x = cp.Variable(ASSETS)
        cost = 0.5 * cp.quad_form(x, cp.psd_wrap(covariance(qp) * 1000)) - row @ x * (1000 / aversion)
        limits = [cp.sum(x) <= qp.budget, x >= qp.lower, x <= qp.upper]
        cp.Problem(cp.Minimize(cost), limits).solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
        )
        ours = 500 * z @ covariance(qp) @ z - row @ z * (1000 / aversion)
        assert ours == pytest.approx(float(cost.value), rel=1e-8, abs=1e-9)
        assert z.sum() <= qp.budget + 1e-12
