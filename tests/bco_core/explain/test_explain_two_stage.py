"""Second-stage plans and prices of rules, against cvxpy and perturbed right-hand sides."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
import torch

from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.registry import build_problem
from tests.support.programs import random_two_stage
from tests.support.seeds import seeded

SHIPMENT: dict[str, Any] = {
    "kind": "shipment",
    "sources": [
        {"name": "north", "order_cost": 5.0, "emergency_cost": 100.0},
        {"name": "south", "order_cost": 6.0, "emergency_cost": 90.0, "maximum_order": 60.0},
    ],
    "destinations": ["a", "b"],
    "transport_costs": [[1.0, 4.0], [3.0, 1.5]],
}


def least_cost(spec: dict[str, Any], outcomes: np.ndarray[Any, Any], room: dict[Any, float] | None = None) -> float:
    """Return the least expected cost over equally likely outcomes (K, d_y), by cvxpy from the specification, with some
    rules relaxed."""
    room = room or {}
    names = [decision["name"] for decision in spec["decisions"]]
    z = {name: cvxpy.Variable() for name in names}
    rules, cost = [], sum(one.get("cost", 0.0) * z[one["name"]] for one in spec["decisions"])

    def add_bounds(variable: Any, one: dict[str, Any], place: tuple[Any, ...]) -> None:
        low, high = one.get("minimum", 0.0), one.get("maximum")
        if low is not None:
            rules.append(variable >= low - room.get((*place, "minimum"), 0.0))
        if high is not None:
            rules.append(variable <= high + room.get((*place, "maximum"), 0.0))

    def row(left: Any, sense: str, right: Any, more: float) -> None:
        if sense in ("<=", "="):
            rules.append(left <= right + more)
        if sense in (">=", "="):
            rules.append(left >= right - more)

    for j, one in enumerate(spec["decisions"]):
        add_bounds(z[one["name"]], one, ("decisions", j))
    for i, one in enumerate(spec.get("decision_rows", [])):
        left = sum(value * z[name] for name, value in one["coefficients"].items())
        row(left, one["sense"], one["limit"], room.get(("decision_rows", i), 0.0))
    for outcome in outcomes:
        y = dict(zip([one["name"] for one in spec["outcomes"]], outcome, strict=True))
        x = {one["name"]: cvxpy.Variable() for one in spec["recourse"]}
        for j, one in enumerate(spec["recourse"]):
            add_bounds(x[one["name"]], one, ("recourse", j))
        for i, one in enumerate(spec["rows"]):
            left = sum(value * x[name] for name, value in one.get("recourse", {}).items())
            left = left + sum(value * z[name] for name, value in one.get("decisions", {}).items())
            right = one.get("constant", 0.0) + sum(value * y[name] for name, value in one.get("outcomes", {}).items())
            row(left, one["sense"], right, room.get(("rows", i), 0.0))
        cost = cost + sum(one.get("cost", 0.0) * x[one["name"]] for one in spec["recourse"]) / len(outcomes)
    problem = cvxpy.Problem(cvxpy.Minimize(cost), rules)
    problem.solve(solver=cvxpy.HIGHS)
    return float(problem.value)


STORES: dict[str, Any] = {
    "kind": "two_stage_linear",
    "decisions": [
        {"name": "near", "cost": 2.0, "maximum": 12.0},
        {"name": "far", "cost": 1.0, "minimum": 3.0},
    ],
    "decision_rows": [{"name": "budget", "coefficients": {"near": 2, "far": 1}, "sense": "<=", "limit": 26}],
    "outcomes": [{"name": "a", "minimum": 0}, {"name": "b", "minimum": 0}],
    "recourse": [
        {"name": "lost a", "cost": 9.0},
        {"name": "lost b", "cost": 7.0},
        {"name": "hired", "cost": 4.0, "maximum": 2.0},
    ],
    "rows": [
        {"name": "serve a", "recourse": {"lost a": 1, "hired": 1}, "decisions": {"near": 1}, "sense": ">=",
         "outcomes": {"a": 1}},
        {"name": "serve b", "recourse": {"lost b": 1}, "decisions": {"far": 1}, "sense": ">=", "outcomes": {"b": 1}},
    ],
}  # fmt: skip


def test_prices_match_the_gain_of_relaxing_a_rule() -> None:
    outcomes = 8 + 4 * torch.rand(7, 2, generator=seeded(3), dtype=torch.float64)
    problem = build_problem(STORES)
    assert isinstance(problem, TwoStageLinear)
    weights = torch.full((7,), 1 / 7, dtype=torch.float64)
    decision = problem.prescribe(outcomes[None], weights).decisions[0]
    found = {price.where: price.value for price in problem.prices(decision, outcomes, weights)}
    assert {("decision_rows", 0), ("rows", 0), ("rows", 1), ("recourse", 2, "maximum")} <= set(found)
    step, least = 1e-4, least_cost(STORES, outcomes.numpy())
    for where, value in found.items():
        gained = (least - least_cost(STORES, outcomes.numpy(), {where: step})) / step
        paid = (least_cost(STORES, outcomes.numpy(), {where: -step}) - least) / step
        assert gained - 1e-5 <= value <= paid + 1e-5, where
    assert all(value > 0 for value in found.values())


def test_a_shipment_prices_its_demand_and_order_bounds() -> None:
    spec = SHIPMENT | {"sources": [one | {"maximum_order": 9.0} for one in SHIPMENT["sources"]]}
    problem = build_problem(spec)
    assert isinstance(problem, TwoStageLinear)
    outcomes = 8 + 4 * torch.rand(9, 2, generator=seeded(3), dtype=torch.float64)
    weights = torch.full((9,), 1 / 9, dtype=torch.float64)
    found = {price.where: price.value for price in problem.prices(torch.tensor([9.0, 9.0]), outcomes, weights)}
    assert set(found) <= {("destinations", 0), ("destinations", 1)} | {("sources", i, "maximum_order") for i in (0, 1)}
    step = 1e-4
    least = float(problem.prescribe(outcomes[None], weights).objective)
    for i in (0, 1):
        more = {"sources": [one | {"maximum_order": 9.0 + step * (i == j)} for j, one in enumerate(spec["sources"])]}
        gained = (least - float(build_problem(spec | more).prescribe(outcomes[None], weights).objective)) / step
        assert found[("sources", i, "maximum_order")] == pytest.approx(gained, rel=1e-3)
        fewer = outcomes.clone()
        fewer[:, i] -= step
        gained = (least - float(problem.prescribe(fewer[None], weights).objective)) / step
        assert found[("destinations", i)] == pytest.approx(gained, rel=1e-3)


def test_prices_of_integer_problems_keep_the_integers_fixed() -> None:
    spec = STORES | {"decisions": [one | {"integer": True} for one in STORES["decisions"]]}
    problem = build_problem(spec)
    assert isinstance(problem, TwoStageLinear)
    outcomes = 8 + 4 * torch.rand(7, 2, generator=seeded(3), dtype=torch.float64)
    weights = torch.full((7,), 1 / 7, dtype=torch.float64)
    found = {price.where: price.value for price in problem.prices(torch.tensor([9.0, 8.0]), outcomes, weights)}
    assert not any(where[0] in ("decisions", "decision_rows") for where in found)
    short = outcomes - torch.tensor([9.0, 8.0])
    assert found[("recourse", 2, "maximum")] == pytest.approx(5 * float((short[:, 0] > 2).double().mean()))
    assert found[("rows", 1)] == pytest.approx(7 * float((short[:, 1] > 0).double().mean()))


@pytest.mark.parametrize("seed", range(6))
def test_plans_satisfy_all_rows_and_cost_the_stated_cost(seed: int) -> None:
    problem = TwoStageLinear.from_spec(random_two_stage(np.random.default_rng(seed)))
    stages = problem.stages
    outcomes = 3 * torch.randn(20, problem.outcome_dim, generator=seeded(seed), dtype=torch.float64)
    decision = problem.decide(outcomes.mean(dim=0))
    plan = problem.recourse_plan(decision, outcomes)
    wanted = problem.cost(decision, outcomes)
    mended = wanted.isfinite()
    first = decision @ torch.from_numpy(stages.first_program.cost)
    assert mended.any()
    assert torch.equal(plan.costs.isfinite(), mended)
    assert torch.allclose((plan.costs + first)[mended], wanted[mended], rtol=1e-7, atol=1e-7)
    amounts = plan.amounts[mended].numpy()
    assert (amounts >= stages.recourse_program.lower).all()
    assert (amounts <= stages.recourse_program.upper).all()
    clipped = outcomes.clamp(*problem.counted_within)[mended].numpy()
    gap = (
        amounts @ stages.recourse_program.matrix.T
        + stages.by_decision @ decision.numpy()
        - (stages.second.limits.constant + clipped @ stages.by_outcome.T)
    )
    senses = stages.recourse_program.senses
    assert (gap[:, senses >= 0] > -1e-6).all()
    assert (gap[:, senses <= 0] < 1e-6).all()
    assert np.allclose(plan.slack[mended], np.abs(gap), atol=1e-6)
    assert plan.amounts.shape[1] == len(problem.recourse_names)
    assert plan.slack.shape[1] == len(problem.row_names)


def test_a_shipments_plan_names_its_locations() -> None:
    problem = build_problem(SHIPMENT)
    assert isinstance(problem, TwoStageLinear)
    assert problem.recourse_names[:3] == ("emergency north", "emergency south", "north to a")
    assert problem.row_names[0] == "demand of a"
