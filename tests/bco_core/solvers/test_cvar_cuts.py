"""CVaR portfolios by cutting planes against the full model in cvxpy."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from bco_core.solvers import cvar_cuts
from bco_core.solvers.cvar_cuts import DenseQP, cvar_portfolio, point_portfolio, tail_mean
from bco_core.solvers.dual_newton import OPTIMAL, UNSOLVED, Array, FactorQP, tail_portfolio, tail_rows

ASSETS = 10


def covariance(seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    loadings = random.uniform(-0.01, 0.01, (ASSETS, 3))
    matrix: Array = loadings @ loadings.T + np.diag(random.uniform(1e-4, 9e-4, ASSETS))
    return matrix


def scenarios(seed: int, count: int, level: float = 0.1, noise: float = 0.03) -> tuple[Array, Array]:
    random = np.random.default_rng(seed)
    weights = random.random(count) + 0.05
    return level + 0.02 * random.normal(size=ASSETS) + noise * random.normal(size=(count, ASSETS)), weights


def feasible_set(z: cp.Variable, longest: float | None, shortest: float | None, low: float, high: float) -> list:  # type: ignore[type-arg]
    constraints = [z >= low, z <= high, cp.sum(z) <= 1]
    constraints += [] if longest is None else [cp.sum(cp.pos(z)) <= longest]
    constraints += [] if shortest is None else [cp.sum(cp.neg(z)) <= shortest]
    return constraints


LIMITS = [(None, None, 0.0, 1.0), (0.9, None, -0.2, 0.5), (None, 0.3, -0.2, 0.5), (1.2, 0.3, -0.5, 0.5)]


@pytest.mark.parametrize(("longest", "shortest", "low", "high"), LIMITS)
@pytest.mark.parametrize(("count", "level"), [(1, 0.95), (30, 0.8), (200, 0.95), (200, 0.0)])
def test_a_portfolio_matches_the_full_model(
    longest: float | None, shortest: float | None, low: float, high: float, count: int, level: float
) -> None:
    sigma = covariance()
    qp = DenseQP.of(sigma, np.full(ASSETS, low), np.full(ASSETS, high), 1.0, longest, shortest)
    for seed in range(3):
        atoms, weights = scenarios(seed, count)
        target = 0.05 + 0.01 * seed
        z, eta, v = cp.Variable(ASSETS), cp.Variable(), cp.Variable(count, nonneg=True)
        tail = eta + (weights / weights.sum()) @ v / (1 - level) <= 0
        model = cp.Problem(
            cp.Minimize(cp.quad_form(z, cp.psd_wrap(sigma * 1e4))),
            [tail, v >= target - atoms @ z - eta, *feasible_set(z, longest, shortest, low, high)],
        )
        model.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        found = cvar_portfolio(qp, atoms, weights, level, target)
        assert (model.status, found.shortfall, found.verified) == (cp.OPTIMAL, 0.0, True)
        assert found.portfolio @ sigma @ found.portfolio * 1e4 == pytest.approx(model.value, rel=1e-7)
        assert tail_mean(atoms, weights / weights.sum(), level, found.portfolio) @ found.portfolio >= target - 1e-9


@pytest.mark.parametrize(("longest", "shortest", "low", "high"), LIMITS)
def test_a_best_effort_has_the_least_shortfall(
    longest: float | None, shortest: float | None, low: float, high: float
) -> None:
    qp = DenseQP.of(covariance(), np.full(ASSETS, low), np.full(ASSETS, high), 1.0, longest, shortest)
    for seed in range(3):
        atoms, weights = scenarios(seed, 60, level=0.03)
        z, eta, v = cp.Variable(ASSETS), cp.Variable(), cp.Variable(60, nonneg=True)
        tail = eta - (weights / weights.sum()) @ v / 0.1
        limits = feasible_set(z, longest, shortest, low, high)
        model = cp.Problem(cp.Maximize(tail), [v >= eta - atoms @ z, *limits])
        model.solve(solver=cp.HIGHS)
        found = cvar_portfolio(qp, atoms, weights, 0.9, 0.2)
        assert found.verified
        assert found.shortfall == pytest.approx(0.2 - model.value, abs=1e-7)
        assert found.portfolio.sum() <= 1 + 1e-9


@pytest.mark.parametrize("margin", [1e-3, 1e-6, 1e-9, 0.0, -1e-9, -1e-6])
def test_targets_just_within_reach_are_met_and_just_beyond_nearly_so(margin: float) -> None:
    qp = DenseQP.of(covariance(), np.zeros(ASSETS), np.ones(ASSETS), 1.0)
    atoms, weights = scenarios(5, 40)
    best = 1.0 - cvar_portfolio(qp, atoms, weights, 0.9, 1.0).shortfall
    found = cvar_portfolio(qp, atoms, weights, 0.9, best - margin)
    assert found.verified
    assert found.shortfall == pytest.approx(max(-margin, 0), abs=2e-7)
    assert found.portfolio.sum() <= 1 + 1e-9
    assert found.portfolio.min() >= 0


def factors(seed: int = 0) -> FactorQP:
    """Return the same covariance as a factor model."""
    random = np.random.default_rng(seed)
    loadings = random.uniform(-0.01, 0.01, (ASSETS, 3))
    return FactorQP(loadings, np.sqrt(random.uniform(1e-4, 9e-4, ASSETS)), np.zeros(ASSETS), np.ones(ASSETS), 1.0)


@pytest.mark.parametrize(("count", "level"), [(1, 0.95), (30, 0.8), (200, 0.95), (200, 0.0), (400, 0.99)])
def test_the_dual_newton_kernel_finds_the_same_tail_portfolios(count: int, level: float) -> None:
    qp = DenseQP.of(covariance(), np.zeros(ASSETS), np.ones(ASSETS), 1.0)
    found = 0
    for seed in range(20):
        atoms, weights = scenarios(seed, count)
        weights[seed % count] = 0.0 if count > 1 else 1.0
        weights /= weights.sum()
        target = 0.03 + 0.005 * seed
        expected = cvar_portfolio(qp, atoms, weights, level, target)
        portfolio, code, _ = tail_portfolio(factors(), atoms, weights, level, target)
        if expected.shortfall:
            assert code == UNSOLVED
            continue
        # The kernel may give up but must not be wrong.
        if code == OPTIMAL:
            found += 1
            ours, theirs = (z @ covariance() @ z for z in (portfolio, expected.portfolio))
            assert ours == pytest.approx(theirs, rel=1e-7)
            assert portfolio.min() >= 0
            assert portfolio.sum() <= 1 + 1e-10
            assert tail_mean(atoms, weights, level, portfolio) @ portfolio >= target - 1e-9
    assert found >= 4


def test_rows_found_by_the_kernel_change_no_best_effort() -> None:
    qp = DenseQP.of(covariance(), np.zeros(ASSETS), np.ones(ASSETS), 1.0)
    for seed in range(10):
        atoms, weights = scenarios(seed, 100, level=0.05)
        weights /= weights.sum()
        rows = tail_rows(factors(), atoms, weights, 0.9, 0.12)
        assert len(rows) > 0
        helped, alone = (
            cvar_portfolio(qp, atoms, weights, 0.9, 0.12, rows),
            cvar_portfolio(qp, atoms, weights, 0.9, 0.12),
        )
        assert helped.shortfall == pytest.approx(alone.shortfall, abs=1e-9)
        assert helped.shortfall > 0


def test_tied_scenarios_and_equal_assets_are_solved() -> None:
    qp = DenseQP.of(np.eye(4) * 0.04, np.zeros(4), np.ones(4), 1.0)
    atoms = np.full((50, 4), 0.1)
    found = cvar_portfolio(qp, atoms, np.ones(50), 0.95, 0.08)
    np.testing.assert_allclose(found.portfolio, 0.2, atol=1e-9)


def test_the_tail_mean_splits_the_scenario_at_the_edge() -> None:
    atoms, weights = np.array([[1.0], [2.0], [3.0], [4.0]]), np.full(4, 0.25)
    assert tail_mean(atoms, weights, 0.5, np.ones(1)) == pytest.approx(1.5)
    assert tail_mean(atoms, weights, 0.6, np.ones(1)) == pytest.approx((0.25 * 1 + 0.15 * 2) / 0.4)
    assert tail_mean(atoms, weights, 0.0, np.ones(1)) == pytest.approx(2.5)
    assert tail_mean(atoms, weights, 0.9, -np.ones(1)) == pytest.approx(4.0)
    # Scenarios without weight have no effect, even the worst ones.
    assert tail_mean(atoms, np.array([0.0, 0.5, 0.0, 0.5]), 0.25, np.ones(1)) == pytest.approx(
        (0.5 * 2 + 0.25 * 4) / 0.75
    )


def test_a_single_return_vector_has_no_tail() -> None:
    qp = DenseQP.of(covariance(), np.zeros(ASSETS), np.ones(ASSETS), 1.0)
    returns = 0.1 + 0.03 * np.random.default_rng(6).normal(size=ASSETS)
    found = point_portfolio(qp, returns, 0.09)
    assert returns @ found.portfolio == pytest.approx(0.09, abs=1e-9)
    assert found.shortfall == 0
    assert point_portfolio(qp, returns, 0.5).shortfall == pytest.approx(0.5 - returns.max(), abs=1e-7)


def test_a_best_effort_is_returned_even_if_the_solver_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    atoms, weights = scenarios(2, 60)
    qp = DenseQP.of(covariance(), np.zeros(ASSETS), np.ones(ASSETS), 1.0, None, None)
    whole = cvar_portfolio(qp, atoms, weights, 0.9, 1.0)
    assert whole.verified
    solve, calls = cvar_cuts.daqp.solve, []

    def give_up(hessian: Array, *rest: object, **options: object) -> tuple[Array, float, int, object]:
        soft = len(hessian) > ASSETS
        calls.append(soft)
        x, value, flag, info = solve(hessian, *rest, **options)
        return x, value, -2 if sum(calls) > 3 else flag, info

    monkeypatch.setattr(cvar_cuts.daqp, "solve", give_up)
    found = cvar_portfolio(qp, atoms, weights, 0.9, 1.0)
    assert not found.verified
    assert whole.shortfall <= found.shortfall < 1.5 * whole.shortfall
    assert found.portfolio.sum() <= 1 + 1e-9
