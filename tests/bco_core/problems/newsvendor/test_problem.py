"""The newsvendor: orders, costs, gradients and specifications, against linear programs in HiGHS."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.problems.base import Risk, Status
from bco_core.problems.newsvendor import Newsvendor


@dataclass(frozen=True)
class Instance:
    """A newsvendor with B sets of K weighted scenarios."""

    items: list[dict[str, float | None]]
    outcomes: Tensor
    weights: Tensor

    @property
    def problem(self) -> Newsvendor:
        return Newsvendor.from_spec({"items": self.items})


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """Draw outcomes on a coarse grid, so that ties are common; weights may be zero; orders may be bounded."""
    scale = draw(st.sampled_from([1.0, 1e9]))
    contexts, atoms, count = (draw(st.integers(1, top)) for top in (3, 7, 3))
    unit_cost = st.floats(0.01, 100)
    items = []
    for _ in range(count):
        low, high = sorted((draw(st.integers(-20, 20)), draw(st.integers(-20, 40))))
        items.append(
            {
                "underage_cost": draw(unit_cost),
                "overage_cost": draw(unit_cost),
                "minimum_order": draw(st.sampled_from([None, low * scale])),
                "maximum_order": draw(st.sampled_from([None, high * scale])),
            }
        )
    grid = st.lists(st.integers(-15, 30), min_size=contexts * atoms * count, max_size=contexts * atoms * count)
    parts = st.lists(st.integers(0, 4), min_size=atoms, max_size=atoms).filter(any)
    outcomes = scale * torch.tensor(draw(grid), dtype=torch.float64).view(contexts, atoms, count)
    weights = torch.tensor([draw(parts) for _ in range(contexts)], dtype=torch.float64)
    return Instance(items, outcomes, weights / weights.sum(1, keepdim=True))


def spec(**item: Any) -> dict[str, Any]:
    return {"items": [{"underage_cost": 3.0, "overage_cost": 1.0} | item]}


def plain_cost(items: list[dict[str, float | None]], decision: list[float], outcome: list[float]) -> float:
    total = 0.0
    for item, z, y in zip(items, decision, outcome, strict=True):
        total += item["underage_cost"] * max(y - z, 0) + item["overage_cost"] * max(z - y, 0)
    return total


def least_expected_cost(instance: Instance, context: int) -> float:
    """Return the optimum of the scenario problem for one context, by a linear program in HiGHS."""
    outcomes, weights = instance.outcomes[context].numpy(), instance.weights[context].numpy()
    order = cp.Variable(len(instance.items))
    short, left = cp.Variable(outcomes.shape, nonneg=True), cp.Variable(outcomes.shape, nonneg=True)
    constraints = [short >= outcomes - order[None, :], left >= order[None, :] - outcomes]
    for j, item in enumerate(instance.items):
        constraints += [order[j] >= item["minimum_order"]] * (item["minimum_order"] is not None)
        constraints += [order[j] <= item["maximum_order"]] * (item["maximum_order"] is not None)
    underage, overage = ([item[name] for item in instance.items] for name in ("underage_cost", "overage_cost"))
    program = cp.Problem(cp.Minimize(weights @ (short @ underage + left @ overage)), constraints)
    return program.solve(solver=cp.HIGHS)


@given(instances())
def test_prescribed_orders_reach_the_optimum_of_the_linear_program(instance: Instance) -> None:
    prescription = instance.problem.prescribe(instance.outcomes, instance.weights)
    magnitude = instance.outcomes.abs().max().item()
    for context, objective in enumerate(prescription.objective.tolist()):
        assert objective == pytest.approx(least_expected_cost(instance, context), rel=1e-8, abs=1e-11 * magnitude)


@given(instances())
def test_the_objective_is_the_weighted_cost_of_the_prescribed_orders(instance: Instance) -> None:
    prescription = instance.problem.prescribe(instance.outcomes, instance.weights)
    assert prescription.status == [Status.OPTIMAL] * len(instance.outcomes)
    assert instance.problem.feasible(prescription.decisions, instance.outcomes[:, 0]).all()
    for decision, outcomes, weights, objective in zip(
        prescription.decisions.tolist(),
        instance.outcomes.tolist(),
        instance.weights.tolist(),
        prescription.objective.tolist(),
        strict=True,
    ):
        costs = [plain_cost(instance.items, decision, outcome) for outcome in outcomes]
        expected = sum(w * c for w, c in zip(weights, costs, strict=True))
        assert objective == pytest.approx(expected, rel=1e-12, abs=1e-12)


@given(instances())
def test_cost_equals_plain_arithmetic(instance: Instance) -> None:
    decisions = instance.outcomes.roll(1, dims=1) + 0.5
    costs = instance.problem.cost(decisions, instance.outcomes)
    assert costs.shape == instance.outcomes.shape[:2]
    for decision, outcome, cost in zip(
        decisions.flatten(0, 1).tolist(),
        instance.outcomes.flatten(0, 1).tolist(),
        costs.flatten().tolist(),
        strict=True,
    ):
        assert cost == pytest.approx(plain_cost(instance.items, decision, outcome), rel=1e-12)


@given(instances())
def test_the_decision_for_a_point_prediction_is_the_cheapest_on_a_grid(instance: Instance) -> None:
    problem, predictions = instance.problem, instance.outcomes[:, 0]
    decisions = problem.decide(predictions)
    assert problem.feasible(decisions, predictions).all()
    reach = predictions.abs().max().item() + 50
    grid = torch.linspace(-reach, reach, 201, dtype=torch.float64)[:, None]
    for prediction, decision in zip(predictions, decisions, strict=True):
        alternatives = grid.expand(-1, len(prediction)).clamp(problem.minimum, problem.maximum)
        for j in range(len(prediction)):
            others = decision.repeat(len(grid), 1)
            others[:, j] = alternatives[:, j]
            best = problem.cost(others, prediction).min().item()
            assert problem.cost(decision, prediction).item() <= best * (1 + 1e-12)


@given(
    predictions=st.lists(st.integers(-10, 10), min_size=2, max_size=2),
    outcomes=st.lists(st.integers(-10, 10), min_size=2, max_size=2),
    low=st.integers(-8, 0),
    high=st.integers(0, 8),
)
def test_the_gradient_of_the_decisions_cost_agrees_with_finite_differences(
    predictions: list[int], outcomes: list[int], low: int, high: int
) -> None:
    items = [
        {"underage_cost": 3.0, "overage_cost": 1.0, "minimum_order": low - 0.5, "maximum_order": high + 0.5},
        {"underage_cost": 0.2, "overage_cost": 7.0, "minimum_order": None, "maximum_order": high + 0.5},
    ]
    problem = Newsvendor.from_spec({"items": items})
    outcome = torch.tensor(outcomes, dtype=torch.float64)
    away_from_kinks = torch.tensor(predictions, dtype=torch.float64) + 0.25

    def cost(prediction: Tensor) -> Tensor:
        return problem.cost(problem.decide(prediction), outcome)

    (gradient,) = torch.autograd.grad(cost(away_from_kinks.requires_grad_()), away_from_kinks)
    steps = 1e-3 * torch.eye(2, dtype=torch.float64)
    differences = [(cost(away_from_kinks + step) - cost(away_from_kinks - step)).item() / 2e-3 for step in steps]
    assert gradient.tolist() == pytest.approx(differences, abs=1e-9)


def test_shared_weights_equal_weights_repeated_per_context() -> None:
    problem = Newsvendor.from_spec(spec())
    outcomes = torch.tensor([[[1.0], [5.0], [9.0]], [[4.0], [2.0], [0.0]]], dtype=torch.float64)
    weights = torch.tensor([0.2, 0.1, 0.7], dtype=torch.float64)
    shared, repeated = problem.prescribe(outcomes, weights), problem.prescribe(outcomes, weights.repeat(2, 1))
    assert shared.decisions.tolist() == repeated.decisions.tolist() == [[9], [2]]
    assert shared.objective.tolist() == repeated.objective.tolist()


def test_a_single_scenario_is_ordered_exactly() -> None:
    problem = Newsvendor.from_spec(spec())
    prescription = problem.prescribe(
        torch.tensor([[[0.1]]], dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    )
    assert prescription.decisions.tolist() == [[0.1]]
    assert prescription.objective.tolist() == [0]


def test_scenarios_without_weight_do_not_affect_orders() -> None:
    problem = Newsvendor.from_spec(spec())
    outcomes = torch.tensor([[[-1e6], [3.0], [1e6]]], dtype=torch.float64)
    prescription = problem.prescribe(outcomes, torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    assert prescription.decisions.tolist() == [[3]]


def test_orders_are_feasible_within_their_bounds_and_at_them_but_not_beyond() -> None:
    problem = Newsvendor.from_spec(spec(minimum_order=1.0, maximum_order=4.0))
    decisions = torch.tensor([[0.999], [1.0], [2.5], [4.0], [4.001]], dtype=torch.float64)
    assert problem.feasible(decisions, torch.zeros(5, 1)).tolist() == [False, True, True, True, False]


def test_one_item_out_of_bounds_makes_the_whole_order_infeasible() -> None:
    problem = Newsvendor.from_spec({"items": [*spec(maximum_order=4.0)["items"], *spec()["items"]]})
    decisions = torch.tensor([[5.0, 1.0], [3.0, 99.0]], dtype=torch.float64)
    assert problem.feasible(decisions, torch.zeros(2, 2)).tolist() == [False, True]


def test_feasibility_is_stated_for_every_outcome() -> None:
    problem = Newsvendor.from_spec(spec(maximum_order=4.0))
    decisions = torch.tensor([[[5.0]], [[3.0]]], dtype=torch.float64)
    assert problem.feasible(decisions, torch.zeros(2, 3, 1)).tolist() == [[False] * 3, [True] * 3]


def test_dimensions_are_the_number_of_items() -> None:
    problem = Newsvendor.from_spec({"items": spec()["items"] * 3})
    assert (problem.outcome_dim, problem.decision_dim) == (3, 3)


@pytest.mark.parametrize(
    ("bad", "where", "message"),
    [
        ({}, ("items",), "a newsvendor needs at least one item"),
        ({"items": []}, ("items",), "a newsvendor needs at least one item"),
        (spec(underage_cost=0.0), ("items", 0, "underage_cost"), "a unit cost must be a positive number"),
        (spec(overage_cost=-1.0), ("items", 0, "overage_cost"), "a unit cost must be a positive number"),
        (spec(overage_cost=math.nan), ("items", 0, "overage_cost"), "a unit cost must be a positive number"),
        (spec(underage_cost=math.inf), ("items", 0, "underage_cost"), "a unit cost must be a positive number"),
        (
            {"items": [*spec()["items"], *spec(overage_cost=0.0)["items"]]},
            ("items", 1, "overage_cost"),
            "a unit cost must be a positive number",
        ),
        (
            spec(minimum_order=5.0, maximum_order=4.0),
            ("items", 0, "minimum_order"),
            "the minimum order is above the maximum order",
        ),
    ],
)
def test_a_wrong_specification_is_refused_at_the_field_that_is_wrong(
    bad: dict[str, Any], where: tuple[str | int, ...], message: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^{message}$") as refusal:
        Newsvendor.from_spec(bad)
    assert refusal.value.where == where


@pytest.mark.parametrize("name", ["underage_cost", "overage_cost"])
@pytest.mark.parametrize("value", [None, "cheap"])
def test_a_missing_or_textual_unit_cost_is_refused_at_its_field(name: str, value: str | None) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Newsvendor.from_spec(spec(**{name: value}))
    assert refusal.value.where == ("items", 0, name)


@pytest.mark.parametrize("name", ["minimum_order", "maximum_order"])
def test_an_order_bound_that_is_not_a_number_is_refused_at_its_field(name: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Newsvendor.from_spec(spec(**{name: math.nan}))
    assert refusal.value.where == ("items", 0, name)


def test_equal_bounds_fix_the_order() -> None:
    problem = Newsvendor.from_spec(spec(minimum_order=4.0, maximum_order=4.0))
    assert problem.decide(torch.tensor([[-9.0], [4.0], [9.0]], dtype=torch.float64)).tolist() == [[4], [4], [4]]


def test_an_absent_bound_does_not_bind() -> None:
    problem = Newsvendor.from_spec(spec(minimum_order=None))
    assert problem.decide(torch.tensor([[-1e12], [1e12]], dtype=torch.float64)).tolist() == [[-1e12], [1e12]]


def test_cvar_of_the_whole_tail_is_the_expected_cost() -> None:
    problem = Newsvendor.from_spec(spec())
    outcomes = torch.tensor([[[1.0], [5.0], [9.0]]], dtype=torch.float64)
    weights = torch.tensor([0.2, 0.1, 0.7], dtype=torch.float64)
    tail, mean = problem.prescribe(outcomes, weights, Risk(1.0, 0.0)), problem.prescribe(outcomes, weights)
    assert tail.objective.tolist() == pytest.approx(mean.objective.tolist())
