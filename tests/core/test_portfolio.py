"""Both portfolio problems: specifications, decisions, prescriptions, and targets out of reach."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bco_core.errors import InvalidInput
from bco_core.problems.base import Risk, Status
from bco_core.problems.portfolio.mean_variance import MeanVariancePortfolio
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio

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


def test_factors_and_their_covariance_matrix_are_the_same_problem() -> None:
    by_factors = ReturnConstrainedPortfolio.from_spec(spec())
    matrix = by_factors.portfolios.covariance.tolist()
    by_matrix = ReturnConstrainedPortfolio.from_spec(spec(factors=None, covariance=matrix))
    outcomes = returns(40)
    torch.testing.assert_close(by_factors.decide(outcomes), by_matrix.decide(outcomes), rtol=1e-8, atol=1e-10)


def test_the_dense_solver_takes_over_where_factors_are_many_and_agrees_with_the_kernel() -> None:
    dense = ReturnConstrainedPortfolio.from_spec(spec(20, factors=None, covariance=full_rank(20)))
    assert not dense.portfolios.has_fast_kernel
    limited = ReturnConstrainedPortfolio.from_spec(spec(maximum_long=10.0))
    assert not limited.portfolios.has_fast_kernel
    free = ReturnConstrainedPortfolio.from_spec(spec())
    assert free.portfolios.has_fast_kernel
    outcomes = returns(30)
    torch.testing.assert_close(limited.decide(outcomes), free.decide(outcomes), rtol=1e-6, atol=1e-8)
    outcomes = returns(30, 20)
    assert dense.feasible(dense.decide(outcomes), outcomes).all()


def test_a_prescription_in_the_tail_costs_more_than_the_decision_for_the_mean() -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec(target_return=0.07))
    outcomes = returns(200).view(2, 100, 5)
    weights = torch.full((100,), 0.01, dtype=torch.float64)
    hedged = problem.prescribe(outcomes, weights)
    assert (hedged.objective > problem.cost(problem.decide(outcomes.mean(1)), outcomes[:, 0])).all()
    kept = problem.feasible(hedged.decisions[:, None], outcomes).double().mean(dim=1)
    assert (kept >= 0.95).all()


@pytest.mark.parametrize(("choice", "status"), [("best_effort", Status.BEST_EFFORT), ("error", Status.INFEASIBLE)])
def test_a_target_out_of_reach_is_said_with_its_shortfall(choice: str, status: Status) -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec(infeasible=choice, confidence=0.9))
    outcomes = torch.stack([returns(50) + 0.05, returns(50) - 0.05])
    found = problem.prescribe(outcomes, torch.full((50,), 0.02, dtype=torch.float64))
    assert found.status == [Status.OPTIMAL, status]
    assert found.reasons[0] == ""
    assert found.reasons[1].startswith("no portfolio returns 0.09 in the worst 0.1 of the scenarios; the best there is")
    assert torch.isfinite(found.decisions).all()


def test_an_unreachable_prediction_is_decided_by_the_best_asset() -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec())
    outcomes = torch.tensor([[0.01, 0.03, 0.02, -0.01, 0.0]], dtype=torch.float64)
    assert problem.decide(outcomes).tolist() == [[0.0, 1.0, 0.0, 0.0, 0.0]]
    assert not problem.feasible(problem.decide(outcomes), outcomes).any()
    assert problem.slack(problem.decide(outcomes), outcomes).item() == pytest.approx(0.03 - 0.09)


def test_the_mean_variance_decision_over_scenarios_is_that_for_their_mean() -> None:
    problem = MeanVariancePortfolio.from_spec(spec())
    outcomes = returns(60).view(3, 20, 5)
    weights = torch.full((20,), 0.05, dtype=torch.float64)
    torch.testing.assert_close(problem.prescribe(outcomes, weights).decisions, problem.decide(outcomes.mean(1)))


def test_the_mean_variance_gradient_survives_positions_that_are_all_at_bounds() -> None:
    problem = MeanVariancePortfolio.from_spec(spec(assets=[{"name": f"a{j}", "maximum": 0.2} for j in range(5)]))
    outcomes = (returns(4) + 5).requires_grad_()
    decisions = problem.decide(outcomes)
    assert torch.allclose(decisions, torch.full_like(decisions, 0.2))
    (gradient,) = torch.autograd.grad(decisions.square().sum(), outcomes)
    assert gradient.abs().max() == 0


@pytest.mark.parametrize("kind", [ReturnConstrainedPortfolio, MeanVariancePortfolio])
def test_risk_over_scenarios_is_not_offered_for_the_cost(kind: Any) -> None:
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
def test_a_bad_specification_is_refused_where_it_is_wrong(changes: Spec, where: tuple[str | int, ...]) -> None:
    with pytest.raises(InvalidInput) as error:
        ReturnConstrainedPortfolio.from_spec(spec(**changes))
    assert error.value.where == where


def test_a_risk_aversion_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="risk aversion"):
        MeanVariancePortfolio.from_spec(spec(risk_aversion=-1))
