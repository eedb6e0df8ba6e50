"""Linear models with uncertain costs only: decisions, SPO+, prescriptions and reports."""

import itertools
import time
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.problems.base import Risk, Status
from bco_core.problems.linear.uncertain_cost import UncertainCostLinear
from bco_core.problems.registry import build_problem
from bco_core.problems.surrogate import Surrogate, loss_of
from bco_core.status import HIGHS, SIMPLEX
from benchmarks.experiments.contextual.data import knapsack, shortest_path

# Costs with constants and shared outcomes, a row of each sense, and a free variable bounded by rows.
BLEND: dict[str, Any] = {
    "kind": "linear",
    "decisions": [
        {"name": "a", "cost": {"constant": 1.0, "outcomes": {"oil": 2.0}}, "maximum": 4},
        {"name": "b", "cost": {"outcomes": {"oil": 1.0, "gas": 1.0}}, "maximum": 5},
        {"name": "c", "cost": 3.0, "maximum": 6},
        {"name": "d", "cost": {"constant": 0.5, "outcomes": {"gas": -1.0}}, "minimum": None},
    ],
    "outcomes": [{"name": "oil"}, {"name": "gas"}],
    "rows": [
        {"name": "mass", "decisions": {"a": 1, "b": 1, "c": 1}, "sense": "=", "limit": 7},
        {"name": "quality", "decisions": {"a": 2, "c": 1}, "sense": ">=", "limit": 4},
        {"name": "room", "decisions": {"d": 1, "b": 1}, "sense": "<=", "limit": 6},
        {"name": "floor", "decisions": {"d": 1}, "sense": ">=", "limit": -2},
    ],
}


def problem_of(spec: dict[str, Any]) -> UncertainCostLinear:
    problem = build_problem(spec)
    assert isinstance(problem, UncertainCostLinear)
    return problem


@pytest.fixture
def blend() -> UncertainCostLinear:
    return problem_of(BLEND)


def outcomes(count: int, dim: int = 2, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(1.0, 1.5, (count, dim)))


def minimum(problem: UncertainCostLinear, objective: Any) -> float:
    """Minimise objective(z) over the problem's rows and bounds with cvxpy."""
    model, z = problem.model, cp.Variable(problem.decision_dim)
    sums = model.technology.constant.toarray() @ z
    rules = [z[i] >= low for i, low in enumerate(model.lower) if np.isfinite(low)]
    rules += [z[i] <= high for i, high in enumerate(model.upper) if np.isfinite(high)]
    for i, sense in enumerate(model.senses):
        limit = model.limits.constant[i]
        rules.append(sums[i] == limit if sense == 0 else sums[i] >= limit if sense > 0 else sums[i] <= limit)
    program = cp.Problem(cp.Minimize(objective(z)), rules)
    return float(program.solve(solver=cp.CLARABEL))


def cost_at(problem: UncertainCostLinear, outcome: Tensor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = problem.model.cost.at(outcome.numpy()[None])[0]
    return found


def test_decisions_match_cvxpy(blend: UncertainCostLinear) -> None:
    y = outcomes(20)
    z = blend.decide(y)
    assert blend.within(z).all()
    for row, decision in zip(y, z, strict=True):
        cost = cost_at(blend, row)
        assert cost @ decision.numpy() == pytest.approx(minimum(blend, lambda v, c=cost: c @ v), abs=1e-6)
    torch.testing.assert_close(blend.cost(z, y), torch.einsum("nz,nz->n", z, torch.from_numpy(blend.model.cost.at(y))))


def test_spo_plus_matches_its_definition(blend: UncertainCostLinear) -> None:
    """max_z (c − 2ĉ)'z + 2ĉ'z*(c) − c'z*(c), row by row."""
    predictions, y = outcomes(12, seed=1), outcomes(12, seed=2)
    losses = blend.surrogate(predictions, y)
    best = blend.decide(y).numpy()
    for row, loss in enumerate(losses):
        c, guess = cost_at(blend, y[row]), cost_at(blend, predictions[row])
        furthest = -minimum(blend, lambda v, c=c, guess=guess: (2 * guess - c) @ v)
        assert loss.item() == pytest.approx(furthest + 2 * guess @ best[row] - c @ best[row], abs=1e-6)


def test_spo_plus_bounds_the_regret_is_convex_and_zero_at_the_truth(blend: UncertainCostLinear) -> None:
    first, second, y = outcomes(200, seed=3), outcomes(200, seed=4), outcomes(200, seed=5)
    at_first, at_second = blend.surrogate(first, y), blend.surrogate(second, y)
    regret = blend.cost(blend.decide(first), y) - blend.cost(blend.decide(y), y)
    assert (at_first >= regret - 1e-9).all()
    assert (at_first > 0.1).any()
    assert (blend.surrogate((first + second) / 2, y) <= (at_first + at_second) / 2 + 1e-9).all()
    torch.testing.assert_close(blend.surrogate(y, y), torch.zeros(200).double(), atol=1e-9, rtol=0)


def test_the_gradient_of_spo_plus_is_a_subgradient(
    blend: UncertainCostLinear,
) -> None:
    at, elsewhere, y = outcomes(100, seed=6).requires_grad_(), outcomes(100, seed=7), outcomes(100, seed=8)
    losses = blend.surrogate(at, y)
    (gradient,) = torch.autograd.grad(losses.sum(), at)
    line = losses.detach() + (gradient * (elsewhere - at.detach())).sum(1)
    assert (blend.surrogate(elsewhere, y) >= line - 1e-9).all()
    step = 1e-6 * torch.tensor([1.0, -0.7]).double()
    slope = (blend.surrogate(at.detach() + step, y) - blend.surrogate(at.detach() - step, y)) / 2
    smooth = (slope - gradient @ step).abs() < 1e-11
    assert smooth.double().mean() > 0.97


def test_the_loss_and_gradient_match_torch_and_respect_bounds(blend: UncertainCostLinear) -> None:
    bounded = problem_of(BLEND | {"outcomes": [{"name": "oil", "minimum": 0}, {"name": "gas", "maximum": 2}]})
    for problem in (blend, bounded):
        at, y = outcomes(50, seed=9).requires_grad_(), outcomes(50, seed=10)
        losses = problem.surrogate(at, y)
        (gradient,) = torch.autograd.grad(losses.sum(), at)
        plain = problem.loss_and_slope(at.detach().numpy(), y.numpy(), problem.hindsight(y))
        np.testing.assert_allclose(losses.detach(), plain[0])
        np.testing.assert_allclose(gradient, plain[1])
    regret = bounded.cost(bounded.decide(at.detach()), y) - bounded.cost(bounded.decide(y), y)
    assert (bounded.surrogate(at.detach(), y) >= regret - 1e-9).all()
    torch.testing.assert_close(bounded.decide(torch.tensor([[-5.0, 9.0]])), bounded.decide(torch.tensor([[0.0, 2.0]])))


def test_hindsight_decisions_broadcast_over_rows_and_shapes(blend: UncertainCostLinear) -> None:
    predictions, y = outcomes(24, seed=11).view(4, 6, 2), outcomes(6, seed=12)
    known = blend.hindsight(y)
    several = blend.surrogate(predictions, y, known)
    assert several.shape == (4, 6)
    torch.testing.assert_close(several[2], blend.surrogate(predictions[2], y))
    rows = torch.tensor([5, 0])
    torch.testing.assert_close(blend.surrogate(predictions[1, rows], y[rows], known.rows(rows)), several[1, rows])
    assert isinstance(blend, Surrogate)
    assert loss_of(blend) == "spo_plus"


def test_expected_cost_is_minimised_at_the_mean_with_a_bound(blend: UncertainCostLinear) -> None:
    atoms, weights = outcomes(3 * 40, seed=13).view(3, 40, 2), torch.rand(3, 40, dtype=torch.float64)
    weights = weights / weights.sum(1, keepdim=True)
    found = blend.prescribe(atoms, weights)
    expected = (blend.cost(found.decisions[:, None], atoms) * weights).sum(1)
    torch.testing.assert_close(found.objective, expected)
    for context in range(3):
        mean = weights[context].numpy() @ blend.model.cost.at(atoms[context].numpy())
        assert found.objective[context].item() == pytest.approx(minimum(blend, lambda v, c=mean: c @ v), abs=1e-6)
    assert found.status == [Status.OPTIMAL] * 3
    assert set(found.solvers) == {SIMPLEX}
    assert found.gaps is not None
    assert (found.gaps == 0).all()


@pytest.mark.parametrize("weight", [0.4, 1.0])
def test_cvar_is_minimised_over_scenarios(blend: UncertainCostLinear, weight: float) -> None:
    atoms, weights = outcomes(30, seed=14), torch.full((30,), 1 / 30, dtype=torch.float64)
    found = blend.prescribe(atoms[None], weights, Risk(weight, 0.8))
    costs = blend.model.cost.at(atoms.numpy())

    def risk(z: Any) -> Any:
        # Six of thirty scenarios are the worst fifth.
        return (1 - weight) * cp.sum(costs @ z) / 30 + weight * cp.sum_largest(costs @ z, 6) / 6

    assert found.objective.item() == pytest.approx(minimum(blend, risk), abs=1e-5)
    assert found.status == [Status.OPTIMAL]
    assert found.solvers == (HIGHS,)
    assert blend.within(found.decisions).all()


def test_integer_decisions_match_enumeration_with_bound_and_gap() -> None:
    instance = knapsack(4, 4, 3, items=10)
    problem = problem_of(instance.spec)
    y = torch.from_numpy(instance.outcomes)
    found = problem.prescribe(y[:, None], torch.ones(1).double())
    all_packs = torch.tensor(list(itertools.product([0.0, 1.0], repeat=10))).double()
    fits = all_packs[problem.within(all_packs)]
    best = problem.cost(fits[None], y[:, None]).amin(dim=1)
    torch.testing.assert_close(found.objective, best)
    assert found.status == [Status.OPTIMAL] * 4
    assert found.bounds is not None
    assert (found.bounds <= best + 1e-6).all()
    assert (found.decisions == found.decisions.round()).all()
    relaxed = problem.relaxation
    assert relaxed is not problem
    assert relaxed.relaxation is relaxed
    assert (relaxed.cost(problem.decide(y), y) <= best + 1e-9).all()
    value = problem.facts(found.decisions[0], y[:1], torch.ones(1).double())["expected_value"]
    assert value == pytest.approx(-best[0].item())
    tail = problem.prescribe(y[None], torch.full((4,), 0.25).double(), Risk(1.0, 0.75))
    worst = problem.cost(fits[:, None], y).amax(dim=1)
    assert tail.objective.item() == pytest.approx(worst.min().item())


def test_a_search_starts_from_the_best_incumbent_and_not_if_quick() -> None:
    instance = knapsack(3, 2, 5, items=12)
    problem = problem_of(instance.spec)
    y = torch.from_numpy(instance.outcomes)[:, None]
    with deadlines.until(time.monotonic() + 60, quick=True), pytest.raises(OutOfTime):
        problem.prescribe(y, torch.ones(1).double())
    found = problem.prescribe(y, torch.ones(1).double())
    start = problem.incumbents.best(cost_at(problem, y[0, 0]))
    assert start is not None
    np.testing.assert_array_equal(start, found.decisions[0])


def test_a_time_limit_is_kept_and_reported() -> None:
    instance = knapsack(3, 2, 6)
    problem = problem_of(instance.spec)
    found = problem.prescribe(
        torch.from_numpy(instance.outcomes)[:, None], torch.ones(1).double(), time_limit_seconds=0.0
    )
    assert set(found.status) == {Status.TIME_LIMIT}
    assert all(found.reasons)


def test_unbounded_problems_are_reported_or_refused() -> None:
    ray = {
        "kind": "linear",
        "decisions": [{"name": "sold", "cost": {"constant": -1, "outcomes": {"price": 1}}}],
        "outcomes": [{"name": "price"}],
    }
    problem = problem_of(ray)
    y = torch.tensor([[2.0], [0.5]]).double()
    decisions = problem.decide(y)
    assert decisions[0].item() == 0
    assert decisions[1].isnan().all()
    found = problem.prescribe(y[:, None], torch.ones(1).double())
    assert found.status == [Status.OPTIMAL, Status.UNBOUNDED]
    assert problem.surrogate(y[:1] * 0.6, y[:1]).item() == np.inf
    with pytest.raises(InvalidInput, match="row 1"):
        problem.hindsight(y)
    with pytest.raises(InvalidInput, match="whatever the outcome"):
        problem_of(ray | {"outcomes": [{"name": "price", "maximum": 0.9}]})
    with pytest.raises(InvalidInput) as empty:
        problem_of(BLEND | {"rows": [*BLEND["rows"], {"decisions": {"a": 1}, "sense": ">=", "limit": 5}]})
    assert empty.value.where == ("rows",)


def test_a_given_decision_is_evaluated_and_completed(blend: UncertainCostLinear) -> None:
    bad = torch.tensor([5.0, 3.0, 1.0, -3.0]).double()
    assert not blend.within(bad)
    assert {breach.where for breach in blend.breaches(bad)} == {
        ("decisions", 0, "maximum"),
        ("rows", 0),
        ("rows", 3),
    }
    fixed = blend.fixed(torch.tensor([torch.nan, 1.0, torch.nan, torch.nan]))
    decisions = fixed.decide(outcomes(5))
    assert (decisions[:, 1] == 1).all()
    assert blend.within(decisions).all()
    with pytest.raises(InvalidInput):
        blend.fixed(torch.tensor([4.0, 5.0, torch.nan, torch.nan]))


def test_prices_match_the_gain_of_relaxing_a_row(blend: UncertainCostLinear) -> None:
    y, weights = outcomes(25, seed=15), torch.full((25,), 1 / 25, dtype=torch.float64)
    found = blend.prescribe(y[None], weights)
    prices = {price.where: price.value for price in blend.prices(found.decisions[0], y, weights)}
    assert prices
    for where, value in prices.items():
        if where[0] == "rows":
            model, row = blend.model, int(where[1])
            limits = model.limits.constant.copy()
            slopes = []
            for side in (-1.0, 1.0):
                limits[row] = model.limits.constant[row] + 1e-4 * side
                moved = UncertainCostLinear.of(replace(model, limits=replace(model.limits, constant=limits)))
                change = moved.prescribe(y[None], weights).objective - found.objective
                slopes.append(abs(change.item()) / 1e-4)
            # At a kink the price lies between the gain of relaxing and the cost of tightening.
            assert min(slopes) - 1e-6 <= value <= max(slopes) + 1e-6


def test_a_grid_decision_is_a_path() -> None:
    instance = shortest_path(30, 4, 1)
    problem = problem_of(instance.spec)
    decisions = problem.decide(torch.from_numpy(instance.outcomes))
    assert ((decisions - decisions.round()).abs() < 1e-9).all()
    assert (decisions.sum(1) == 8).all()
