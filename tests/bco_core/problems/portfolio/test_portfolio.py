"""Portfolio problems: specifications, decisions, prescriptions and unreachable targets."""

from __future__ import annotations

import random
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from bco_core.errors import InvalidInput
from bco_core.prescribe import check_constraints, feasibility
from bco_core.problems.base import Risk, Status
from bco_core.problems.portfolio.mean_variance import MeanVariancePortfolio
from bco_core.problems.portfolio.positions import Portfolios
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio, check_target
from bco_core.problems.registry import build_problem, check_problem, complete_spec
from bco_core.scenarios import Scenarios
from bco_core.solvers.cvar_cuts import point_portfolio
from bco_core.status import DENSE
from docs import history

Spec = dict[str, Any]


def spec(count: int = 5, **changes: Any) -> Spec:
    random = np.random.default_rng(0)
    factors = {
        "loadings": random.uniform(-0.01, 0.01, (count, 2)).tolist(),
        "residual_variances": random.uniform(1e-4, 4e-4, count).tolist(),
    }
    assets = [{"name": f"a{j}"} for j in range(count)]
    return {"assets": assets, "factors": factors, "target_return": 0.09, "risk_aversion": 20} | changes


def returns(rows: int, count: int = 5, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.1 + 0.02 * torch.randn(rows, count, generator=generator, dtype=torch.float64)


def full_rank(count: int) -> list[list[float]]:
    random = np.random.default_rng(3).normal(size=(count, 2 * count))
    matrix: list[list[float]] = (random @ random.T / 5000).tolist()
    return matrix


def test_factors_and_their_covariance_matrix_give_the_same_problem() -> None:
    by_factors = ReturnConstrainedPortfolio.from_spec(spec())
    matrix = by_factors.portfolios.covariance.tolist()
    by_matrix = ReturnConstrainedPortfolio.from_spec(spec(factors=None, covariance=matrix))
    outcomes = returns(40)
    torch.testing.assert_close(by_factors.decide(outcomes), by_matrix.decide(outcomes), rtol=1e-8, atol=1e-10)


def test_the_dense_solver_handles_many_factors_and_agrees() -> None:
    dense = ReturnConstrainedPortfolio.from_spec(spec(50, factors=None, covariance=full_rank(50)))
    assert not dense.portfolios.has_fast_kernel
    limited = ReturnConstrainedPortfolio.from_spec(spec(maximum_long=10.0))
    assert not limited.portfolios.has_fast_kernel
    free = ReturnConstrainedPortfolio.from_spec(spec())
    assert free.portfolios.has_fast_kernel
    outcomes = returns(30)
    torch.testing.assert_close(limited.decide(outcomes), free.decide(outcomes), rtol=1e-6, atol=1e-8)
    outcomes = returns(30, 50)
    assert dense.feasible(dense.decide(outcomes), outcomes).all()


def test_a_feasible_prescription_costs_more_than_the_mean_decision() -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec(target_return=0.07))
    outcomes = returns(200).view(2, 100, 5)
    weights = torch.full((100,), 0.01, dtype=torch.float64)
    hedged = problem.prescribe(outcomes, weights)
    assert (hedged.objective > problem.cost(problem.decide(outcomes.mean(1)), outcomes[:, 0])).all()
    feasible_share = problem.feasible(hedged.decisions[:, None], outcomes).double().mean(dim=1)
    assert (feasible_share >= 0.95).all()


@pytest.mark.parametrize(("choice", "status"), [("best_effort", Status.BEST_EFFORT), ("error", Status.INFEASIBLE)])
def test_an_unreachable_target_is_reported_with_its_shortfall(choice: str, status: Status) -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec(infeasible=choice, confidence=0.9))
    outcomes = torch.stack([returns(50) + 0.05, returns(50) - 0.05])
    found = problem.prescribe(outcomes, torch.full((50,), 0.02, dtype=torch.float64))
    assert found.status == [Status.OPTIMAL, status]
    assert found.reasons[0] == ""
    assert found.reasons[1].startswith("no portfolio returns 0.09 in the worst 0.1 of the scenarios; the best one")
    assert torch.isfinite(found.decisions).all()


def test_an_unreachable_target_invests_in_the_best_asset() -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec())
    outcomes = torch.tensor([[0.01, 0.03, 0.02, -0.01, 0.0]], dtype=torch.float64)
    assert problem.decide(outcomes).tolist() == [[0.0, 1.0, 0.0, 0.0, 0.0]]
    assert not problem.feasible(problem.decide(outcomes), outcomes).any()
    assert problem.slack(problem.decide(outcomes), outcomes).item() == pytest.approx(0.03 - 0.09)


def test_the_mean_variance_decision_depends_on_the_scenario_mean_only() -> None:
    problem = MeanVariancePortfolio.from_spec(spec())
    outcomes = returns(60).view(3, 20, 5)
    weights = torch.full((20,), 0.05, dtype=torch.float64)
    torch.testing.assert_close(problem.prescribe(outcomes, weights).decisions, problem.decide(outcomes.mean(1)))


def test_the_mean_variance_gradient_is_finite_with_all_positions_at_bounds() -> None:
    problem = MeanVariancePortfolio.from_spec(spec(assets=[{"name": f"a{j}", "maximum": 0.2} for j in range(5)]))
    outcomes = (returns(4) + 5).requires_grad_()
    decisions = problem.decide(outcomes)
    assert torch.allclose(decisions, torch.full_like(decisions, 0.2))
    (gradient,) = torch.autograd.grad(decisions.square().sum(), outcomes)
    assert gradient.abs().max() == 0


@pytest.mark.parametrize("kind", [ReturnConstrainedPortfolio, MeanVariancePortfolio])
def test_a_risk_measure_of_the_cost_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidInput, match=r"certain|expected cost only"):
        kind.from_spec(spec()).prescribe(returns(3)[None], torch.ones(3) / 3, Risk(cvar_weight=0.5))


BAD: list[tuple[Spec, tuple[str | int, ...]]] = [
    ({"assets": []}, ("assets",)),
    ({"budget": 0}, ("budget",)),
    ({"budget": "much"}, ("budget",)),
    ({"target_return": None}, ("target_return",)),
    ({"confidence": 1.0}, ("confidence",)),
    ({"infeasible": "shrug"}, ("infeasible",)),
    ({"factors": None}, ("covariance",)),
    ({"covariance": full_rank(5)}, ("covariance",)),
    ({"factors": {"loadings": [[1.0]], "residual_variances": [1.0] * 5}}, ("factors", "loadings")),
    ({"factors": {"loadings": [[1.0], [2.0, 3.0]], "residual_variances": [1.0] * 5}}, ("factors", "loadings")),
    ({"factors": {"loadings": [[1.0]] * 5, "residual_variances": [1, 1, 1, 1, 0]}}, ("factors", "residual_variances")),
    ({"factors": None, "covariance": full_rank(4)}, ("covariance",)),
    ({"factors": None, "covariance": np.ones((5, 5)).tolist()}, ("covariance",)),
    ({"factors": None, "covariance": np.triu(full_rank(5)).tolist()}, ("covariance",)),
    ({"maximum_long": -1}, ("maximum_long",)),
    (
        {"assets": [{"name": "a", "minimum": 0.5}, *({"name": x} for x in "bcde")], "maximum_long": 0.1},
        ("maximum_long",),
    ),
    ({"assets": [{"name": x, "minimum": 0.3} for x in "abcde"]}, ("budget",)),
    ({"assets": [{"name": "a", "minimum": 2, "maximum": 1}, *({"name": x} for x in "bcde")]}, ("assets", 0, "minimum")),
]


@pytest.mark.parametrize(("changes", "where"), BAD, ids=lambda value: str(value)[:40])
def test_an_invalid_specification_is_refused_at_its_field(changes: Spec, where: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidInput) as error:
        ReturnConstrainedPortfolio.from_spec(spec(**changes))
    assert error.value.where == where


def cash_like(count: int = 4, variance: float = 1e-8) -> list[list[float]]:
    """Return a covariance with one almost riskless asset: positive definite and ill-conditioned."""
    matrix = np.array(full_rank(count))
    matrix[-1], matrix[:, -1] = 0.0, 0.0
    matrix[-1, -1] = variance
    return matrix.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("variance", [1e-5, 1e-7, 1e-8])
@pytest.mark.parametrize("aversion", [1.0, 20.0, 60.0])
def test_a_nearly_riskless_asset_keeps_mean_variance_proofs(variance: float, aversion: float) -> None:
    problem = MeanVariancePortfolio.from_spec(
        spec(4, factors=None, covariance=cash_like(variance=variance), risk_aversion=aversion)
    )
    means = torch.cat([returns(100, 3) - 0.08, torch.full((100, 1), 0.02, dtype=torch.float64)], dim=1)
    found = problem.prescribe(means[:, None], torch.ones(1, dtype=torch.float64))
    assert found.status == [Status.OPTIMAL] * 100
    assert found.bounds is not None
    for mean, z, bound in zip(means.numpy(), found.decisions.numpy(), found.bounds.tolist(), strict=True):
        cost = 0.5 * aversion * z @ problem.portfolios.covariance.numpy() @ z - mean @ z
        assert z.min() >= -1e-12
        assert z.sum() <= 1 + 1e-9
        x = cp.Variable(4)
        risk = cp.sum_squares(np.linalg.cholesky(problem.portfolios.covariance.numpy()).T @ x)
        reference = cp.Problem(cp.Minimize(0.5 * aversion * risk - mean @ x), [x >= 0, cp.sum(x) <= 1])
        reference.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        assert cost <= reference.value + 1e-9
        assert bound <= reference.value + 1e-9


def test_ordinary_returns_are_solved_at_any_risk_aversion() -> None:
    """Newton's method left some rows of this history open, and one of them made a whole batch fail."""
    draw = random.Random(2)
    rows = [history.returns(draw) for _ in range(200)]
    outcomes = torch.tensor([[row[name] for name in ("shares", "bonds", "gold")] for row in rows], dtype=torch.float64)
    assets = [{"name": "shares", "maximum": 0.6}, {"name": "bonds"}, {"name": "gold"}]
    covariance = [[0.0013, 0.0001, 0], [0.0001, 0.0002, 0], [0, 0, 0.0004]]
    for aversion in (20, 60):
        problem = MeanVariancePortfolio.from_spec(
            {"assets": assets, "covariance": covariance, "risk_aversion": aversion}
        )
        found = problem.prescribe(outcomes[:, None], torch.ones(1, dtype=torch.float64))
        assert found.status == [Status.OPTIMAL] * 200
        assert found.gaps is not None
        assert found.gaps.max() < 1e-6
        assert set(found.solvers) <= {"", DENSE}


def test_limits_unsupported_by_mean_variance_are_refused() -> None:
    for name in ("maximum_long", "maximum_short"):
        with pytest.raises(InvalidInput, match=name) as refused:
            MeanVariancePortfolio.from_spec(spec(**{name: 1.0}))
        assert refused.value.where == (name,)


def test_twenty_assets_with_full_covariance_use_the_fast_kernel() -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec(20, factors=None, covariance=full_rank(20)))
    assert problem.portfolios.has_fast_kernel
    outcomes = returns(30, 20)
    slow = [point_portfolio(problem.portfolios.dense, row, problem.target).portfolio for row in outcomes.numpy()]
    np.testing.assert_allclose(problem.decide(outcomes).numpy(), np.array(slow), atol=1e-9)


def test_a_risk_aversion_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="risk aversion"):
        MeanVariancePortfolio.from_spec(spec(risk_aversion=-1))


@pytest.mark.parametrize("changes", [{}, {"maximum_long": 0.7}, {"confidence": 0.0}, {"budget": 3.0}])
def test_the_least_variance_at_a_target_return_is_proven(changes: Spec) -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec(**({"target_return": 0.02, "confidence": 0.8} | changes)))
    found = problem.prescribe(returns(60).view(2, 30, 5), torch.full((30,), 1 / 30, dtype=torch.float64))
    assert found.status == [Status.OPTIMAL] * 2
    assert found.gaps is not None
    assert found.bounds is not None
    assert (found.gaps <= 1e-6).all()
    assert (found.bounds <= found.objective + 1e-15).all()


@pytest.mark.parametrize("limit", [None, 0.7])
def test_a_suboptimal_portfolio_is_not_called_optimal(limit: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec(target_return=0.02, confidence=0.8, maximum_long=limit))
    atoms, weights = returns(30)[None], torch.full((30,), 1 / 30, dtype=torch.float64)
    best, right = problem.prescribe(atoms, weights), Portfolios.keep_tail

    def return_scaled_portfolio(*arguments: Any) -> Any:
        found = right(*arguments)
        return found._replace(portfolio=1.01 * found.portfolio)

    monkeypatch.setattr(Portfolios, "keep_tail", return_scaled_portfolio)
    found = problem.prescribe(atoms, weights)
    assert found.status == [Status.BEST_EFFORT]
    assert "could not prove" in found.reasons[0]
    assert found.gaps is not None
    assert found.bounds is not None
    assert found.gaps.item() > 1e-3
    assert found.bounds.item() <= best.objective.item()


@pytest.mark.parametrize(("change", "status"), [(0.0, Status.OPTIMAL), (-1e-3, Status.BEST_EFFORT)])
def test_a_return_that_barely_holds_on_average_counts_as_met(change: float, status: Status) -> None:
    """At confidence 0 the best portfolio's mean return equals the target up to rounding."""
    problem = ReturnConstrainedPortfolio.from_spec(spec(target_return=0.05, confidence=0.0))
    atoms, weights = returns(600).view(20, 30, 5), torch.full((30,), 1 / 30, dtype=torch.float64)
    found = problem.prescribe(atoms, weights)
    assert found.status == [Status.OPTIMAL] * 20
    what = Scenarios(atoms + change, weights, atoms[:, 0])
    feasible_share = feasibility(problem, found.decisions, what)
    said, reasons = check_constraints(problem, found.status, ("",) * 20, feasible_share, found.decisions, what)
    assert said == [status] * 20
    assert all(("on average" in reason) == (status == Status.BEST_EFFORT) for reason in reasons)


@pytest.mark.parametrize("count", [4, 10, 40, 200, 2000])
@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95])
def test_optimal_implies_nearly_the_required_feasibility(count: int, confidence: float) -> None:
    """For any number of scenarios, and any true returns."""
    problem = ReturnConstrainedPortfolio.from_spec(spec(target_return=0.03, confidence=confidence))
    weights = torch.full((count,), 1 / count, dtype=torch.float64)
    generator = torch.Generator().manual_seed(4)
    assumed = 0.09 + 0.04 * torch.randn(30, count, 5, generator=generator, dtype=torch.float64)
    found = problem.prescribe(assumed, weights)
    # Fresh outcomes, each time lower than the scenarios hedged over.
    lower = torch.linspace(0, 0.06, 30, dtype=torch.float64)[:, None, None]
    fresh = 0.09 + 0.04 * torch.randn(30, count, 5, generator=generator, dtype=torch.float64) - lower
    what = Scenarios(fresh, weights, fresh[:, 0])
    feasible_share = feasibility(problem, found.decisions, what)
    said, reasons = check_constraints(problem, found.status, ("",) * 30, feasible_share, found.decisions, what)
    for status, reason, share in zip(said, reasons, feasible_share.tolist(), strict=True):
        assert status != Status.OPTIMAL or share >= confidence - 0.05
        assert (status == Status.OPTIMAL) == (reason == "") or status not in (Status.OPTIMAL, Status.BEST_EFFORT)
    assert Status.BEST_EFFORT in said
    assert Status.OPTIMAL in said or count < 40
    low = torch.tensor([status == Status.OPTIMAL for status in found.status]) & (feasible_share < confidence - 0.05)
    assert low.any()


@pytest.mark.parametrize("confidence", [None, 0.0])
def test_a_missed_mean_is_never_called_optimal(confidence: float | None) -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec(target_return=0.09, target_on="mean", confidence=confidence))
    assert problem.confidence == 0.0
    weights = torch.full((200,), 1 / 200, dtype=torch.float64)
    hoped = returns(200)[None] + 0.01
    found = problem.prescribe(hoped, weights)
    assert found.status == [Status.OPTIMAL]
    fresh = returns(200, seed=8)[None] - 0.03
    what = Scenarios(fresh, weights, fresh[:, 0])
    feasible_share = feasibility(problem, found.decisions, what)
    assert feasible_share.item() < 0.2
    said, reasons = check_constraints(problem, found.status, ("",), feasible_share, found.decisions, what)
    assert said == [Status.BEST_EFFORT]
    assert "on average" in reasons[0]


def test_an_omitted_covariance_is_estimated_from_returns() -> None:
    bare = {"kind": "mean_variance_portfolio", **spec(factors=None)}
    check_problem(bare)
    with pytest.raises(InvalidInput, match="the risk is unknown"):
        build_problem(bare)
    values = returns(300).numpy()
    for estimate, words in ((None, "Ledoit–Wolf"), ("shrinkage", "Ledoit–Wolf"), ("factors", "principal factor")):
        full = complete_spec(bare | {"estimate": estimate}, values)
        assert words in full["covariance_source"]
        problem = build_problem(full)
        assert isinstance(problem, MeanVariancePortfolio)
        matrix = problem.portfolios.covariance.numpy()
        np.testing.assert_allclose(matrix, np.cov(values.T), atol=1.2e-4)
        # An estimated covariance is not estimated again.
        assert complete_spec(full, values[:20]) == full
    many = complete_spec(
        {"assets": [{"name": str(j)} for j in range(60)], "kind": bare["kind"]}, returns(100, 60).numpy()
    )
    assert many["factors"] is not None
    assert build_problem(many).outcome_dim == 60
    with pytest.raises(InvalidInput, match="returns are constant"):
        complete_spec(bare, np.full((50, 5), 0.1))
    with pytest.raises(InvalidInput, match="at least two rows"):
        complete_spec(bare, values[:1])
    constant = values.copy()
    constant[:, 2], constant[:, 4] = 0.01, constant[:, 3]
    assert build_problem(complete_spec(bare, constant)).outcome_dim == 5
    assert build_problem(complete_spec(bare | {"estimate": "factors"}, constant)).outcome_dim == 5


def test_a_target_is_reachable_if_foresight_reaches_it() -> None:
    values = returns(200).numpy()
    foreseen = np.sort(values.max(axis=1))
    inside, outside = foreseen[8] - 1e-6, foreseen[40]
    assert "a constant portfolio" in check_target(spec(target_return=inside), values)[0]
    assert check_target(spec(target_return=0.03), values) == []
    with pytest.raises(InvalidInput, match=rf"in 80\.0% of the rows, .* is {foreseen[9]:.6g}"):
        check_target(spec(target_return=float(outside)), values)
    check_target(spec(target_return=float(values.max(axis=1).mean()), target_on="mean"), values)
    with pytest.raises(InvalidInput, match=r"on average, and 0\.13 is required"):
        check_target(spec(target_return=0.13, target_on="mean"), values)
    # Turnover costs reduce the reachable return.
    held = {"current": {}, "turnover_cost": 0.05}
    with pytest.raises(InvalidInput, match="out of reach"):
        check_target(spec(target_return=float(inside), **held), values)
