"""Portfolios with group limits, turnover and full investment, against cvxpy; infeasible rules."""

from __future__ import annotations

import copy
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from bco_core.errors import InvalidInput
from bco_core.problems.base import Status
from bco_core.problems.portfolio.mean_variance import MeanVariancePortfolio
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio
from bco_core.problems.portfolio.rules import Rules
from bco_core.solvers.dual_newton import Array

Spec = dict[str, Any]
NAMES = "abcdefgh"


def covariance(count: int, nasty: str = "", seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    root = random.normal(size=(count, 2 * count)) * 0.02
    if nasty == "nearly singular":
        root = np.hstack([random.normal(size=(count, 1)) * 0.05, 1e-5 * np.eye(count)])
    if nasty == "nearly parallel":
        root[1] = root[0] * (1 + 1e-4)
    matrix: Array = root @ root.T / 4
    if nasty == "nearly parallel":
        matrix += 1e-9 * np.eye(count)
    return matrix


RULES: dict[str, Spec] = {
    "fully invested": {"fully_invested": True},
    "groups": {"groups": [{"assets": ["a", "b"], "minimum": 0.3, "maximum": 0.5}, {"assets": ["c"], "maximum": 0.1}]},
    "turnover": {"current": {"a": 0.5, "d": 0.2}, "maximum_turnover": 0.4, "turnover_cost": 0.002},
    "no turnover": {"current": {"a": 0.5, "d": 0.2}, "maximum_turnover": 0.0},
    "hardly any": {"current": {"a": 0.5, "d": 0.2}, "maximum_turnover": 1e-6, "turnover_cost": 0.1},
    "dear turnover": {"current": {"a": 0.5, "d": 0.2}, "turnover_cost": 0.05},
    "all": {
        "fully_invested": True,
        "groups": [{"name": "home", "assets": ["a", "b"], "minimum": 0.3}, {"assets": ["b", "c"], "maximum": 0.4}],
        "current": {"a": 0.5, "b": 0.5},
        "turnover_cost": 0.004,
        "maximum_turnover": 0.7,
    },
}


def spec(rules: str, count: int = 5, scale: float = 1.0, nasty: str = "", **changes: Any) -> Spec:
    stated = dict(RULES[rules])
    if scale != 1.0:
        stated = scaled(stated, scale)
    assets = [{"name": name} for name in NAMES[:count]]
    return (
        {
            "assets": assets,
            "covariance": covariance(count, nasty).tolist(),
            "budget": scale,
            "target_return": 0.02 * scale,
            "risk_aversion": 10,
        }
        | stated
        | changes
    )


def scaled(stated: Spec, scale: float) -> Spec:
    """Return the same rules for ``scale`` times the money."""
    groups = [
        {key: value * scale if key in ("minimum", "maximum") else value for key, value in group.items()}
        for group in stated.get("groups", [])
    ]
    current = {name: scale * value for name, value in stated["current"].items()} if "current" in stated else None
    most = {"maximum_turnover": scale * stated["maximum_turnover"]} if "maximum_turnover" in stated else {}
    return stated | {"groups": groups, "current": current} | most


def returns(rows: int, count: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.02 + 0.03 * torch.randn(rows, count, generator=generator, dtype=torch.float64)


def stated(rules: Rules, z: cp.Variable) -> tuple[list[Any], Any]:
    """Return the rules in cvxpy, in units of the budget, and the cost of turnover."""
    size = rules.budget
    constraints = [z >= rules.lower / size]
    constraints += [z[j] <= high / size for j, high in enumerate(rules.upper) if np.isfinite(high)]
    constraints += [cp.sum(z) == 1] if rules.full else [cp.sum(z) <= 1]
    constraints += [group.members @ z >= group.minimum / size for group in rules.groups if np.isfinite(group.minimum)]
    constraints += [group.members @ z <= group.maximum / size for group in rules.groups if np.isfinite(group.maximum)]
    if rules.current is None:
        return constraints, 0.0
    moved = cp.norm1(z - rules.current / size)
    constraints += [] if rules.maximum_turnover is None else [moved <= rules.maximum_turnover / size]
    return constraints, rules.turnover_cost * moved


def solve_by_cvxpy(objective: Any, constraints: list[Any]) -> float:
    model = cp.Problem(cp.Minimize(objective), constraints)
    model.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return float(model.value)


NASTY = ["", "nearly singular", "nearly parallel"]


@pytest.mark.parametrize("nasty", NASTY)
@pytest.mark.parametrize("rules", RULES)
def test_mean_variance_with_rules_matches_the_full_model(rules: str, nasty: str) -> None:
    problem = MeanVariancePortfolio.from_spec(spec(rules, nasty=nasty))
    means = returns(6, 5)
    found = problem.prescribe(means[:, None], torch.ones(1, dtype=torch.float64))
    assert found.status == [Status.OPTIMAL] * 6, found.reasons
    assert problem.within(found.decisions).all()
    decisions = problem.decide(means)
    assert problem.within(decisions).all()
    root = np.linalg.cholesky(problem.portfolios.covariance.numpy()).T
    for mean, cost, quick in zip(
        means.numpy(), found.objective.tolist(), problem.cost(decisions, means).tolist(), strict=True
    ):
        z = cp.Variable(5)
        constraints, charge = stated(problem.portfolios.rules, z)
        least = solve_by_cvxpy(5 * cp.sum_squares(root @ z) - mean @ z + charge, constraints)
        assert cost == pytest.approx(least, abs=1e-8)
        # The relaxation used in learning is nearly as good.
        assert quick == pytest.approx(least, abs=1e-7)


@pytest.mark.parametrize("nasty", NASTY)
@pytest.mark.parametrize("level", [0.0, 0.8])
@pytest.mark.parametrize("rules", RULES)
def test_least_variance_with_rules_matches_the_full_model(rules: str, level: float, nasty: str) -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec(rules, nasty=nasty, target_return=-0.02, confidence=level))
    atoms, weights = returns(60, 5).view(2, 30, 5), torch.full((30,), 1 / 30, dtype=torch.float64)
    found = problem.prescribe(atoms, weights)
    root = np.linalg.cholesky(problem.portfolios.covariance.numpy()).T / 0.02
    for scenarios, status, cost, decision in zip(
        atoms.numpy(), found.status, found.objective.tolist(), found.decisions, strict=True
    ):
        z, eta, v = cp.Variable(5), cp.Variable(), cp.Variable(30, nonneg=True)
        constraints, charge = stated(problem.portfolios.rules, z)
        constraints += [eta - cp.sum(v) / 30 / (1 - level) - charge >= -0.02, v >= eta - scenarios @ z]
        least = solve_by_cvxpy(cp.sum_squares(root @ z), constraints)
        if not np.isfinite(least):
            assert status == Status.BEST_EFFORT
            continue
        assert status == Status.OPTIMAL
        assert cost / 0.02**2 == pytest.approx(least, rel=1e-6, abs=1e-8)
        assert problem.within(decision)
        tail = problem.facts(decision, torch.from_numpy(scenarios), weights).get("tail_return")
        assert tail is None or tail >= -0.02 - 1e-9


@pytest.mark.parametrize("rules", RULES)
def test_point_decisions_with_rules_have_least_variance_or_largest_return(rules: str) -> None:
    problem = ReturnConstrainedPortfolio.from_spec(spec(rules, target_return=0.03))
    means = returns(12, 5)
    decisions = problem.decide(means)
    assert problem.within(decisions).all()
    root = np.linalg.cholesky(problem.portfolios.covariance.numpy()).T / 0.02
    reached = 0
    for mean, decision, slack in zip(means.numpy(), decisions.numpy(), problem.slack(decisions, means), strict=True):
        z = cp.Variable(5)
        constraints, charge = stated(problem.portfolios.rules, z)
        most = -solve_by_cvxpy(charge - mean @ z, constraints)
        if most < 0.03:
            assert slack.item() == pytest.approx(most - 0.03, abs=1e-8)
            continue
        reached += 1
        least = solve_by_cvxpy(cp.sum_squares(root @ z), [*constraints, mean @ z - charge >= 0.03])
        assert slack >= -1e-9
        assert np.square(root @ decision).sum() == pytest.approx(least, rel=1e-5, abs=1e-8)
    assert reached or rules in ("no turnover", "hardly any")


@pytest.mark.parametrize("rules", RULES)
def test_portfolios_scale_with_the_budget(rules: str) -> None:
    small = ReturnConstrainedPortfolio.from_spec(spec(rules, target_return=-0.02, confidence=0.5))
    large = ReturnConstrainedPortfolio.from_spec(spec(rules, scale=1e6, target_return=-2e4, confidence=0.5))
    atoms, weights = returns(30, 5)[None], torch.full((30,), 1 / 30, dtype=torch.float64)
    one, other = small.prescribe(atoms, weights), large.prescribe(atoms, weights)
    assert one.status == other.status == [Status.OPTIMAL]
    torch.testing.assert_close(other.decisions / 1e6, one.decisions, atol=1e-6, rtol=0)


def test_one_asset_and_ties_are_solved() -> None:
    alone = MeanVariancePortfolio.from_spec(
        {"assets": [{"name": "a"}], "covariance": [[0.04]], "fully_invested": True, "current": {}, "turnover_cost": 0.1}
    )
    assert alone.decide(torch.tensor([[-5.0]], dtype=torch.float64)).item() == pytest.approx(1.0, abs=1e-12)
    same = {"assets": [{"name": x} for x in "abc"], "covariance": (0.04 * np.eye(3)).tolist(), "fully_invested": True}
    for kind in (MeanVariancePortfolio, ReturnConstrainedPortfolio):
        problem = kind.from_spec(same | {"groups": [{"assets": ["a", "b"], "maximum": 2 / 3}], "target_return": 0.0})
        decisions = problem.decide(torch.full((1, 3), 0.01, dtype=torch.float64))
        assert decisions[0].tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("rules", ["fully invested", "groups", "turnover", "dear turnover", "all"])
def test_the_gradient_matches_finite_differences(rules: str) -> None:
    problem = MeanVariancePortfolio.from_spec(spec(rules, risk_aversion=30))
    outcomes = returns(8, 5, seed=5)
    direction = returns(8, 5, seed=6)
    step = 1e-4
    # Finite differences use exact solutions.
    ahead, behind = (
        torch.from_numpy(problem.portfolios.mean_variance((outcomes + sign * step * direction).numpy(), 30.0, True)[0])
        for sign in (1, -1)
    )
    slope = ((ahead - behind) / (2 * step)).numpy()
    weights = returns(8, 5, seed=7)
    leaf = outcomes.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((problem.decide(leaf) * weights).sum(), leaf)
    expected = (torch.from_numpy(slope) * weights).sum(-1)
    moved = (gradient * direction).sum(-1)
    # A row in which a rule starts to bind within the step has no derivative.
    close = torch.isclose(moved, expected, rtol=1e-3, atol=1e-6)
    assert close.sum() >= 7
    assert moved.abs().max() > 1e-4


BAD: list[tuple[Spec, tuple[str | int, ...], str]] = [
    (
        {"fully_invested": True, "assets": [{"name": "a", "maximum": 0.2}, {"name": "b", "maximum": 0.3}]},
        ("fully_invested",),
        "sum to 0.5, so a budget of 1 cannot",
    ),
    ({"groups": [{"assets": ["x"], "maximum": 1}]}, ("groups", 0, "assets", 0), "no asset is called x"),
    ({"groups": [{"assets": [], "maximum": 1}]}, ("groups", 0, "assets"), "at least one asset"),
    ({"groups": [{"assets": ["a"]}]}, ("groups", 0), "needs a minimum or a maximum"),
    ({"groups": [{"assets": ["a"], "minimum": "x"}]}, ("groups", 0, "minimum"), "must be a number"),
    ({"groups": [{"assets": ["a"], "minimum": 2, "maximum": 1}]}, ("groups", 0, "minimum"), "above its maximum"),
    ({"groups": [{"name": "home", "assets": ["a"], "minimum": 1.5}]}, ("groups", 0, "minimum"), "at most 1 under"),
    (
        {"groups": [{"assets": ["a", "b"], "maximum": 0.5}], "fully_invested": True},
        ("groups", 0, "maximum"),
        "at least 1 under",
    ),
    (
        {"groups": [{"assets": ["a"], "minimum": 0.6}, {"assets": ["b"], "minimum": 0.6}]},
        ("groups", 1, "minimum"),
        "at most 0.4 under",
    ),
    ({"turnover_cost": 0.1}, ("turnover_cost",), "give current"),
    ({"maximum_turnover": 0.1}, ("maximum_turnover",), "give current"),
    ({"maximum_turnover": -1, "current": {}}, ("maximum_turnover",), "negative"),
    ({"current": {"x": 1.0}}, ("current", "x"), "no asset is called x"),
    ({"current": {"a": "much"}}, ("current", "a"), "must be a number"),
    ({"current": {"a": 0.0}, "maximum_turnover": 0.5, "fully_invested": True}, ("maximum_turnover",), "at least 1"),
    ({"fully_invested": True, "maximum_long": 0.5}, ("fully_invested",), "maximum_long and maximum_short"),
]


@pytest.mark.parametrize(("changes", "where", "words"), BAD, ids=lambda value: str(value)[:40])
def test_infeasible_rules_are_refused(changes: Spec, where: tuple[str | int, ...], words: str) -> None:
    base = {"assets": [{"name": "a"}, {"name": "b"}], "covariance": [[0.04, 0.0], [0.0, 0.04]], "target_return": 0.0}
    with pytest.raises(InvalidInput, match=words) as refused:
        ReturnConstrainedPortfolio.from_spec(base | changes)
    assert refused.value.where == where


def test_every_broken_rule_is_named_with_its_amount() -> None:
    problem = ReturnConstrainedPortfolio.from_spec(
        spec("all", assets=[{"name": name, "minimum": -0.2, "maximum": 0.8} for name in "abcde"], maximum_short=0.3)
    )
    broken = torch.tensor([-0.3, -0.1, 1.9, 0.0, 0.0], dtype=torch.float64)
    found = {breach.where: breach for breach in problem.breaches(broken)}
    assert {where: round(breach.by, 9) for where, breach in found.items()} == {
        ("assets", 0, "minimum"): 0.1,
        ("assets", 2, "maximum"): 1.1,
        ("budget",): 0.5,
        ("maximum_short",): 0.1,
        ("groups", 0, "minimum"): 0.7,
        ("groups", 1, "maximum"): 1.4,
        ("maximum_turnover",): 2.6,
    }
    assert found["groups", 0, "minimum"].sentence == (
        "the positions of group home sum to -0.4, and must be at least 0.3"
    )
    decision = problem.decide(returns(1, 5))[0]
    assert problem.breaches(decision) == []


# prices of rules


def relaxed(stated: Spec, where: tuple[str | int, ...], step: float) -> Spec:
    """Return the specification with one rule relaxed slightly."""
    changed = copy.deepcopy(stated)
    place: Any = changed
    for name in where[:-1]:
        place = place[name]
    last = where[-1]
    if last == "fully_invested":
        changed["budget"] = changed["budget"] - step
    else:
        place[last] = place[last] + (-step if last in ("minimum", "target_return") else step)
    return changed


def least(kind: Any, stated: Spec, atoms: torch.Tensor, weights: torch.Tensor) -> float:
    found = kind.from_spec(stated).prescribe(atoms[None], weights)
    assert found.status == [Status.OPTIMAL]
    return float(found.objective[0])


@pytest.mark.parametrize("rules", ["fully invested", "groups", "turnover", "all"])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (MeanVariancePortfolio, {}),
        (ReturnConstrainedPortfolio, {"target_return": 0.005, "confidence": 0.0}),
        (ReturnConstrainedPortfolio, {"target_return": -0.03, "confidence": 0.8}),
    ],
    ids=["mean-variance", "mean", "tail"],
)
def test_prices_match_the_saving_of_relaxing_a_rule(rules: str, kind: Any, changes: Spec) -> None:
    stated = spec(rules, **changes)
    stated["assets"] = [
        asset | {"minimum": 0.0, "maximum": 0.35 if rules != "turnover" else 1.0} for asset in stated["assets"]
    ]
    if rules == "all":
        stated["assets"] = [asset | {"maximum": 0.45} for asset in stated["assets"]]
    weights = torch.full((60,), 1 / 60, dtype=torch.float64)
    atoms = returns(60, 5, seed=3)
    problem = kind.from_spec(stated)
    found = problem.prescribe(atoms[None], weights)
    if found.status != [Status.OPTIMAL]:
        pytest.fail(found.reasons[0])
    prices = problem.prices(found.decisions[0], atoms, weights)
    assert prices
    base, step = float(found.objective[0]), 1e-4
    for price in prices:
        if price.where == ("budget",) and stated.get("fully_invested"):
            continue
        saved = (base - least(kind, relaxed(stated, price.where, step), atoms, weights)) / step
        more = (least(kind, relaxed(stated, price.where, -step), atoms, weights) - base) / step
        assert saved - 0.02 * abs(saved) - 1e-5 <= price.value <= more + 0.02 * abs(more) + 1e-5, price
    silent = {("assets", j, "maximum") for j in range(5)} - {price.where for price in prices}
    for where in silent:
        saved = base - least(kind, relaxed(stated, where, step), atoms, weights)
        assert abs(saved) <= 2e-2 * step * max(price.value for price in prices) + 1e-9
