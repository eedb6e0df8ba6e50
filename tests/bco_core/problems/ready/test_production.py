"""Production and blending against direct models in cvxpy."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from bco_core.errors import InvalidInput
from bco_core.problems.ready.kinds import compile_ready
from tests.support.linear_reference import Outcome, draw_outcomes, solve

Spec = dict[str, Any]


def factory(random: np.random.Generator) -> Spec:
    """Draw plain products with shared resources; one has an uncertain price, one unlimited sales."""
    products: list[Spec] = [
        {
            "name": f"p{i}",
            "unit_cost": float(random.uniform(0, 4)),
            "uses": {"hours": float(random.uniform(0.2, 2)), "space": float(random.choice([0.0, 1.0]))},
            "price": float(random.uniform(2, 9)),
            "holding_cost": float(random.uniform(-0.5, 1)),
            "shortage_cost": float(random.uniform(0, 2)),
            "stock": float(random.choice([0.0, 2.0])),
            "minimum": 0.5,
        }
        for i in range(3)
    ]
    products[1]["price"] = {"constant": 1.0, "outcomes": {"market": 0.7}}
    products[2] |= {"unlimited_demand": True, "maximum": 6.0}
    resources = [{"name": "hours", "available": float(random.uniform(4, 20))}, {"name": "space", "available": 8.0}]
    return {"kind": "production", "products": products, "resources": resources}


def profit(spec: Spec, outcomes: list[Outcome]) -> float:
    """Return the mean profit of the best plan, modelled directly."""
    products = spec["products"]
    make = cp.Variable(len(products), nonneg=True)
    rules = [make >= 0.5, make[2] <= 6.0]
    for resource in spec["resources"]:
        rules.append(make @ np.array([one["uses"][resource["name"]] for one in products]) <= resource["available"])
    total = -make @ np.array([one["unit_cost"] for one in products])
    for outcome in outcomes:
        for i, one in enumerate(products):
            sell = cp.Variable(nonneg=True)
            left = make[i] + one["stock"] - sell
            price = 1.0 + 0.7 * outcome["market"] if i == 1 else one["price"]
            earned = price * sell - one["holding_cost"] * left
            rules.append(left >= 0)
            if i < 2:
                short = outcome[one["name"]] - sell
                rules.append(short >= 0)
                earned -= one["shortage_cost"] * short
            total += earned / len(outcomes)
    return float(cp.Problem(cp.Maximize(total), rules).solve(solver=cp.HIGHS))


@pytest.mark.parametrize("seed", range(12))
def test_the_profit_matches_the_direct_model(seed: int) -> None:
    random = np.random.default_rng(seed)
    spec = factory(random)
    model = compile_ready(spec)
    outcomes = draw_outcomes(model, 4, random)
    found = solve(model, outcomes)
    assert found is not None
    assert found.value == pytest.approx(profit(spec, outcomes), rel=1e-6, abs=1e-6)


FUEL: Spec = {
    "kind": "production",
    "products": [
        {
            "name": "regular",
            "blend_of": ["light", "heavy"],
            "qualities": {"octane": {"minimum": 87}, "sulphur": {"maximum": 1.5}},
            "price": 30,
            "shortage_cost": 4,
        },
        {
            "name": "premium",
            "blend_of": ["light", "heavy", "additive"],
            "qualities": {"octane": {"minimum": 92}},
            "price": 36,
        },
    ],
    "ingredients": [
        {"name": "light", "unit_cost": 22, "available": 60, "qualities": {"octane": 93, "sulphur": 0.5}},
        {"name": "heavy", "unit_cost": 15, "qualities": {"octane": 83, "sulphur": 2.5}},
        {"name": "additive", "unit_cost": 45, "available": 5, "qualities": {"octane": 110}},
    ],
}


@pytest.mark.parametrize("seed", range(6))
def test_a_blend_matches_the_direct_model(seed: int) -> None:
    random = np.random.default_rng(seed)
    model = compile_ready(FUEL)
    outcomes = draw_outcomes(model, 5, random, low=5.0, high=60.0)
    found = solve(model, outcomes)
    regular, premium = cp.Variable(2, nonneg=True), cp.Variable(3, nonneg=True)
    octane, sulphur, cost = np.array([93, 83, 110]), np.array([0.5, 2.5]), np.array([22, 15, 45])
    made = [cp.sum(regular), cp.sum(premium)]
    rules = [
        regular @ octane[:2] >= 87 * made[0],
        regular @ sulphur <= 1.5 * made[0],
        premium @ octane >= 92 * made[1],
        regular[0] + premium[0] <= 60,
        premium[2] <= 5,
    ]
    total = -regular @ cost[:2] - premium @ cost
    for outcome in outcomes:
        first = cp.minimum(made[0], outcome["regular"])
        second = cp.minimum(made[1], outcome["premium"])
        total += (30 * first - 4 * (outcome["regular"] - first) + 36 * second) / len(outcomes)
    direct = cp.Problem(cp.Maximize(total), rules).solve(solver=cp.HIGHS)
    assert found is not None
    assert found.value == pytest.approx(direct, rel=1e-6)
    assert found.decision["make regular"] == pytest.approx(
        found.decision["light in regular"] + found.decision["heavy in regular"], abs=1e-6
    )


def test_integer_products_are_made_in_whole_units() -> None:
    item = {"name": "boat", "integer": True, "unit_cost": 2, "price": 5, "uses": {"wood": 2}}
    spec = {"kind": "production", "products": [item], "resources": [{"name": "wood", "available": 7}]}
    found = solve(compile_ready(spec), [{"boat": 10.0}])
    assert found is not None
    assert (found.value, found.decision) == (pytest.approx(9.0), pytest.approx({"make boat": 3.0}))


@pytest.mark.parametrize(
    ("product", "others", "where", "words"),
    [
        ({"uses": {"steel": 1}}, {}, ("products", 0, "uses", "steel"), "no resource"),
        ({"blend_of": ["tar"]}, {}, ("products", 0, "blend_of", 0), "no ingredient"),
        ({"blend_of": ["oil", "oil"]}, {}, ("products", 0, "blend_of", 1), "twice"),
        ({"qualities": {"octane": {"minimum": 1}}}, {}, ("products", 0, "qualities"), "only a blend"),
        (
            {"blend_of": ["oil"], "qualities": {"octane": {"minimum": 1}}},
            {},
            ("ingredients", 0, "qualities"),
            "limits octane",
        ),
        ({"minimum": 4, "maximum": 3}, {}, ("products", 0, "maximum"), "below the minimum"),
        ({"unlimited_demand": True, "price": "spot"}, {}, ("products", 0, "unlimited_demand"), "nothing limits"),
        ({"unlimited_demand": True, "demand": "x", "maximum": 3}, {}, ("products", 0, "demand"), "leaves no room"),
        ({"demand": {"constant": 3, "outcomes": {"y": -1}}}, {}, ("products", 0, "demand"), "at least zero"),
        ({"shortage_cost": -1}, {}, ("products", 0, "shortage_cost"), "at least 0"),
        ({}, {"resources": [{"name": "oil", "available": 3}]}, ("ingredients",), "same name"),
        ({}, {"resources": [{"name": "hours", "available": -3}]}, ("resources", 0, "available"), "at least 0"),
        ({"demand": 5}, {}, (), "nothing here is uncertain"),
    ],
)
def test_an_invalid_production_problem_is_refused_at_its_field(
    product: Spec, others: Spec, where: tuple[Any, ...], words: str
) -> None:
    spec = {"kind": "production", "products": [{"name": "p"} | product], "ingredients": [{"name": "oil"}]} | others
    with pytest.raises(InvalidInput, match=words) as refused:
        compile_ready(spec)
    assert refused.value.where == where
