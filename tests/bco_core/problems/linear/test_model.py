"""Reading linear models: matrices, cases, and errors at their field."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from bco_core.errors import InvalidInput
from bco_core.problems.base import Risk
from bco_core.problems.linear.model import case_of, read_model
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.linear.two_stage_spec import shipment_as_linear, two_stage_as_linear
from bco_core.problems.registry import PROBLEMS, build_problem
from tests.support.programs import random_two_stage

MODEL: dict[str, Any] = {
    "kind": "linear",
    "decisions": [{"name": "order", "cost": 5}, {"name": "hire", "cost": {"outcomes": {"wage": 2}}, "integer": True}],
    "recourse": [{"name": "express", "cost": {"constant": 8, "outcomes": {"fuel": 0.5, "wage": -0.25}}}],
    "outcomes": [{"name": "demand", "minimum": 0}, {"name": "fuel"}, {"name": "wage", "maximum": 9}],
    "rows": [
        {"decisions": {"order": 1, "hire": 0}, "sense": "<=", "limit": 50},
        {
            "name": "demand",
            "decisions": {"hire": {"constant": 1, "outcomes": {"wage": 0.1, "fuel": 0}}, "order": 1},
            "recourse": {"express": {"outcomes": {"fuel": 1}}},
            "sense": ">=",
            "limit": {"constant": 1, "outcomes": {"demand": 1}},
        },
    ],
}


def with_changes(**parts: Any) -> dict[str, Any]:
    return copy.deepcopy(MODEL) | parts


def test_numbers_are_a_constant_plus_terms_in_outcomes() -> None:
    model = read_model(MODEL)
    outcome = np.array([30.0, 2.0, 4.0])
    np.testing.assert_allclose(model.cost.at(outcome[None]), [[5, 8]])
    np.testing.assert_allclose(model.recourse_cost.at(outcome[None]), [[8]])
    np.testing.assert_allclose(model.technology.at(outcome).toarray(), [[1, 0], [1, 1.4]])
    np.testing.assert_allclose(model.recourse.at(outcome).toarray(), [[0], [2]])
    np.testing.assert_allclose(model.limits.at(np.stack([outcome, 0 * outcome])), [[50, 31], [50, 1]])
    assert model.technology.places.tolist() == [[1, 1]]
    assert model.row_names == ("row 1", "demand")
    assert model.second_stage.tolist() == [False, True]
    assert model.uncertain_rows.tolist() == [False, True]
    assert (model.lower.tolist(), model.upper.tolist(), model.integer.tolist()) == ([0, 0], [math.inf] * 2, [0, 1])


def test_a_maximised_objective_is_stored_negated() -> None:
    least, most = read_model(MODEL), read_model(with_changes(sense="maximize"))
    outcomes = np.random.default_rng(1).normal(size=(4, 3))
    np.testing.assert_array_equal(most.cost.at(outcomes), -least.cost.at(outcomes))
    np.testing.assert_array_equal(most.recourse_cost.at(outcomes), -least.recourse_cost.at(outcomes))
    np.testing.assert_array_equal(most.limits.at(outcomes), least.limits.at(outcomes))
    assert (least.maximize, most.maximize) == (False, True)


def test_rows_of_a_matrix_keep_their_uncertain_entries() -> None:
    model = read_model(MODEL)
    outcome = np.array([1.0, -3.0, 2.5])
    kept = model.technology.rows(np.array([1, 0]))
    np.testing.assert_allclose(kept.at(outcome).toarray(), model.technology.at(outcome).toarray()[[1, 0]])


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, "general"),
        ({"recourse": [], "rows": MODEL["rows"][:1]}, "objective"),
        (
            {
                "decisions": [{"name": "order", "cost": 5}, {"name": "hire"}],
                "recourse": [{"name": "express", "cost": 8}],
                "rows": [
                    MODEL["rows"][0],
                    {
                        "decisions": {"order": 1},
                        "recourse": {"express": 1},
                        "sense": ">=",
                        "limit": MODEL["rows"][1]["limit"],
                    },
                ],
            },
            "right_hand_side",
        ),
    ],
)
def test_the_case_of_a_model_follows_from_its_uncertain_numbers(parts: dict[str, Any], expected: str) -> None:
    assert case_of(read_model(with_changes(**parts))) == expected


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("sense",), "least", ("sense",)),
        (("decisions",), [], ("decisions",)),
        (("outcomes",), [], ("outcomes",)),
        (("decisions", 1, "name"), "order", ("decisions", 1, "name")),
        (("recourse", 0, "name"), "", ("recourse", 0, "name")),
        (("decisions", 0, "cost"), math.nan, ("decisions", 0, "cost")),
        (("decisions", 0, "cost"), "5", ("decisions", 0, "cost")),
        (("decisions", 0, "cost"), True, ("decisions", 0, "cost")),
        (("decisions", 0, "cost"), {"outcomes": {"rain": 1}}, ("decisions", 0, "cost", "outcomes", "rain")),
        (("decisions", 0, "cost"), {"outcomes": {"fuel": math.inf}}, ("decisions", 0, "cost", "outcomes", "fuel")),
        (("decisions", 0, "cost"), {"outcomes": ["fuel"]}, ("decisions", 0, "cost", "outcomes")),
        (("decisions", 0, "cost"), {"constant": "x"}, ("decisions", 0, "cost", "constant")),
        (("decisions", 0, "cost"), {"slope": 1}, ("decisions", 0, "cost", "slope")),
        (("decisions", 0, "minimum"), math.inf, ("decisions", 0, "minimum")),
        (("decisions", 0, "maximum"), -1, ("decisions", 0, "minimum")),
        (("decisions", 0, "integer"), 1.5, ("decisions", 0, "integer")),
        (("outcomes", 0, "maximum"), -1, ("outcomes", 0, "minimum")),
        (("rows", 0, "sense"), "<", ("rows", 0, "sense")),
        (("rows", 0, "limit"), None, ("rows", 0, "limit")),
        (("rows", 1, "limit"), 1e300, ("rows", 1, "limit")),
        (("rows", 0, "name"), "demand", ("rows", 1, "name")),
        (("rows", 1, "recourse"), {"train": 1}, ("rows", 1, "recourse", "train")),
        (("rows", 1, "decisions"), {"order": None}, ("rows", 1, "decisions", "order")),
        (("rows", 1, "decisions"), ["order"], ("rows", 1, "decisions")),
        (("rows", 1), "row", ("rows", 1)),
        (("rows",), {"a": 1}, ("rows",)),
        (("relative_gap",), -1, ("relative_gap",)),
    ],
)
def test_an_invalid_model_is_refused_at_its_field(path: tuple[Any, ...], value: Any, where: tuple[Any, ...]) -> None:
    spec = with_changes()
    part: Any = spec
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(InvalidInput) as refused:
        read_model(spec)
    assert refused.value.where == where


# two-stage problems as linear ones


@pytest.mark.parametrize("seed", range(4))
def test_a_two_stage_problem_as_linear_model_gives_identical_results(seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = random_two_stage(rng, plain=bool(seed % 2)) | {"kind": "two_stage_linear"}
    linear = two_stage_as_linear(spec)
    ours, theirs = build_problem(linear), build_problem(spec)
    assert isinstance(ours, TwoStageLinear)
    outcomes = torch.from_numpy(rng.normal(size=(2, 7, 2)))
    weights = torch.full((7,), 1 / 7, dtype=torch.float64)
    assert torch.equal(ours.decide(outcomes), theirs.decide(outcomes))
    for risk in (Risk(), Risk(0.5, 0.8)):
        one, other = ours.prescribe(outcomes, weights, risk), theirs.prescribe(outcomes, weights, risk)
        assert torch.equal(one.decisions, other.decisions)
        assert torch.equal(one.objective, other.objective)
        assert one.status == other.status
    assert PROBLEMS["two_stage_linear"].compiled is two_stage_as_linear


def test_a_shipment_as_linear_model_gives_identical_results() -> None:
    spec = {
        "kind": "shipment",
        "sources": [
            {"name": "north", "order_cost": 5.0, "emergency_cost": 100.0},
            {"name": "south", "order_cost": 6.0, "emergency_cost": 90.0, "maximum_order": 25.0},
        ],
        "destinations": ["a", "b", "c"],
        "transport_costs": [[1.0, 4.0, 2.5], [3.0, 1.5, 7.0]],
    }
    ours, theirs = build_problem(shipment_as_linear(spec)), build_problem(spec)
    outcomes = torch.rand(3, 9, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 20
    weights = torch.full((9,), 1 / 9, dtype=torch.float64)
    one, other = ours.prescribe(outcomes, weights), theirs.prescribe(outcomes, weights)
    assert torch.equal(one.decisions, other.decisions)
    assert torch.equal(one.objective, other.objective)


def test_breaches_and_prices_point_into_the_linear_specification() -> None:
    spec = with_changes(
        decisions=[{"name": "order", "cost": 5}, {"name": "hire", "cost": 1}],
        recourse=[{"name": "express", "cost": 8}],
    )
    spec["rows"][1] |= {"decisions": {"order": 1}, "recourse": {"express": 1}}
    spec["rows"].append({"name": "room", "decisions": {"order": 1, "hire": 1}, "sense": "<=", "limit": 20})
    problem = build_problem(spec)
    assert isinstance(problem, TwoStageLinear)
    broken = problem.breaches(torch.tensor([30.0, 25.0], dtype=torch.float64))
    assert [(one.where, one.by) for one in broken] == [(("rows", 2), 35)]
    outcomes = torch.tensor([[40.0, 0.0, 0.0]], dtype=torch.float64)
    weight = torch.ones(1, dtype=torch.float64)
    found = problem.prescribe(outcomes[None], weight)
    prices = {one.where: one.value for one in problem.prices(found.decisions[0], outcomes, weight)}
    assert prices == pytest.approx({("rows", 2): 3.0, ("rows", 1): 8.0})
    spec["rows"][2]["limit"] = -1
    with pytest.raises(InvalidInput, match="no decision") as refused:
        build_problem(spec)
    assert refused.value.where == ("rows",)
