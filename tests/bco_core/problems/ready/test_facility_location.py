"""Facility location against enumeration of all open sets, each with its own transport problem."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from bco_core.errors import InvalidInput
from bco_core.problems.ready.kinds import compile_ready
from tests.support.linear_reference import Outcome, draw_outcomes, solve

Spec = dict[str, Any]


def market(random: np.random.Generator) -> Spec:
    places, customers = int(random.integers(1, 4)), int(random.integers(1, 4))
    costs = random.uniform(0, 6, (places, customers)).tolist()
    costs[0][-1] = None
    return {
        "kind": "facility_location",
        "facilities": [
            {
                "name": f"f{i}",
                "opening_cost": float(random.uniform(0, 30)),
                "capacity": float(random.choice([0.0, 5.0, 20.0])),
                "unit_cost": float(random.uniform(0, 2)),
            }
            for i in range(places)
        ],
        "customers": [{"name": f"c{j}"} for j in range(customers - 1)]
        + [{"name": "last", "shortage_cost": 3.0, "demand": {"constant": 2.0, "outcomes": {"c0": 0.5}}}],
        "transport_costs": costs,
        "shortage_cost": 12.0,
    }


def transport_cost(spec: Spec, opened: tuple[int, ...], demand: list[float]) -> float:
    """Return the least cost of serving a demand from the open facilities."""
    places, customers = spec["facilities"], spec["customers"]
    cost = [
        [1e5 if price is None else price + place["unit_cost"] for price in row]
        for place, row in zip(places, spec["transport_costs"], strict=True)
    ]
    # Shortage is a facility that can ship anything, at its own price.
    cost.append([customer.get("shortage_cost", spec["shortage_cost"]) for customer in customers])
    supply = [place["capacity"] * is_open for place, is_open in zip(places, opened, strict=True)] + [sum(demand) + 1]
    n, m = len(cost), len(customers)
    ships = np.kron(np.eye(n), np.ones(m))
    gets = np.kron(np.ones(n), np.eye(m))
    return float(linprog(np.ravel(cost), A_ub=ships, b_ub=supply, A_eq=gets, b_eq=demand).fun)


def demands(spec: Spec, outcome: Outcome) -> list[float]:
    return [outcome[f"c{j}"] for j in range(len(spec["customers"]) - 1)] + [2.0 + 0.5 * outcome["c0"]]


@pytest.mark.parametrize("most", [None, 1])
@pytest.mark.parametrize("seed", range(12))
def test_the_optimal_cost_matches_enumeration_of_open_sets(seed: int, most: int | None) -> None:
    random = np.random.default_rng(seed)
    spec = market(random) | {"maximum_open": most}
    model = compile_ready(spec)
    outcomes = draw_outcomes(model, 3, random)
    found = solve(model, outcomes)
    assert found is not None
    expected = min(
        sum(place["opening_cost"] * is_open for place, is_open in zip(spec["facilities"], opened, strict=True))
        + float(np.mean([transport_cost(spec, opened, demands(spec, outcome)) for outcome in outcomes]))
        for opened in product((0, 1), repeat=len(spec["facilities"]))
        if most is None or sum(opened) <= most
    )
    assert found.value == pytest.approx(expected, rel=1e-6)


def test_decisions_rows_and_recourse_are_named_by_facility_and_customer() -> None:
    spec = {
        "kind": "facility_location",
        "facilities": [{"name": "north", "opening_cost": 4, "capacity": 9}],
        "customers": [{"name": "city", "demand": "city orders"}],
        "transport_costs": [[1]],
        "shortage_cost": 5,
    }
    model = compile_ready(spec)
    assert [entry["name"] for entry in model["decisions"]] == ["open north"]
    assert [entry["name"] for entry in model["recourse"]] == ["north to city", "shortage at city"]
    assert model["outcomes"] == [{"name": "city orders", "minimum": 0.0}]
    assert [row["name"] for row in model["rows"]] == ["capacity of north", "demand of city"]


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"facilities": []}, ("facilities",), "at least one facility"),
        ({"customers": [{"name": "x"}, {"name": "x"}]}, ("customers", 1, "name"), "twice"),
        ({"transport_costs": [[1.0, 2.0]]}, ("transport_costs",), "each of the 1 customers"),
        ({"transport_costs": [[-1.0]]}, ("transport_costs", 0, 0), "at least 0"),
        ({"shortage_cost": None}, ("customers", 0, "shortage_cost"), "finite number"),
        ({"maximum_open": -1}, ("maximum_open",), "at least 0"),
        (
            {"facilities": [{"name": "f", "opening_cost": 1, "capacity": -3}]},
            ("facilities", 0, "capacity"),
            "at least 0",
        ),
        ({"customers": [{"name": "x", "demand": 4}]}, (), "nothing here is uncertain"),
    ],
)
def test_an_invalid_facility_location_is_refused_at_its_field(
    changes: Spec, where: tuple[Any, ...], words: str
) -> None:
    spec = {
        "kind": "facility_location",
        "facilities": [{"name": "f", "opening_cost": 1, "capacity": 3}],
        "customers": [{"name": "c"}],
        "transport_costs": [[1.0]],
        "shortage_cost": 9,
    }
    with pytest.raises(InvalidInput, match=words) as refused:
        compile_ready(spec | changes)
    assert refused.value.where == where
