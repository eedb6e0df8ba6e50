"""Knapsack problems against enumeration."""

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


def sack(random: np.random.Generator, shares: bool = False) -> Spec:
    items = [
        {
            "name": f"item {i}",
            "weights": {"kg": float(random.integers(0, 6)), "litres": float(random.uniform(1, 5))},
            "copies": int(random.integers(0, 4)),
        }
        for i in range(int(random.integers(1, 6)))
    ]
    capacities = {"kg": float(random.integers(0, 12)), "litres": float(random.uniform(0, 15))}
    return {"kind": "knapsack", "items": items, "capacities": capacities, "shares": shares}


def best_of_all(spec: Spec, outcome: Outcome) -> float:
    items, limits = spec["items"], spec["capacities"]
    values = [
        sum(count * outcome[item["name"]] for count, item in zip(counts, items, strict=True))
        for counts in product(*(range(item["copies"] + 1) for item in items))
        if all(
            sum(count * item["weights"][name] for count, item in zip(counts, items, strict=True)) <= limit + 1e-9
            for name, limit in limits.items()
        )
    ]
    return max(values)


@pytest.mark.parametrize("seed", range(20))
def test_the_optimal_value_matches_enumeration(seed: int) -> None:
    random = np.random.default_rng(seed)
    spec = sack(random)
    model = compile_ready(spec)
    for outcome in draw_outcomes(model, 3, random, low=-3.0):
        found = solve(model, [outcome])
        assert found is not None
        assert found.value == pytest.approx(best_of_all(spec, outcome), abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_fractional_items_match_the_linear_program(seed: int) -> None:
    random = np.random.default_rng(seed)
    spec = sack(random, shares=True)
    model = compile_ready(spec)
    (outcome,) = draw_outcomes(model, 1, random, low=-3.0)
    direct = linprog(
        [-outcome[item["name"]] for item in spec["items"]],
        A_ub=[[item["weights"][name] for item in spec["items"]] for name in spec["capacities"]],
        b_ub=list(spec["capacities"].values()),
        bounds=[(0, item["copies"]) for item in spec["items"]],
    )
    found = solve(model, [outcome])
    assert found is not None
    assert found.value == pytest.approx(-direct.fun, abs=1e-6)


def test_nothing_fits_into_a_knapsack_of_capacity_zero() -> None:
    items = [{"name": "gold", "weights": {"kg": 1}}, {"name": "idea", "weights": {}}]
    found = solve(
        compile_ready({"kind": "knapsack", "items": items, "capacities": {"kg": 0}}), [{"gold": 9.0, "idea": 2.0}]
    )
    assert found is not None
    assert found.decision == pytest.approx({"gold": 0.0, "idea": 1.0})
    assert found.value == pytest.approx(2.0)


def test_copies_are_packed_up_to_the_capacity() -> None:
    items = [
        {"name": "tin", "weights": {"kg": 2}, "copies": None},
        {"name": "jar", "weights": {"kg": 3}, "copies": None},
    ]
    found = solve(
        compile_ready({"kind": "knapsack", "items": items, "capacities": {"kg": 11}}), [{"tin": 2.0, "jar": 3.5}]
    )
    assert found is not None
    assert found.decision == pytest.approx({"tin": 1.0, "jar": 3.0})


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        ({"items": []}, ("items",), "at least one item"),
        ({"capacities": {}}, ("capacities",), "at least one capacity"),
        ({"capacities": {"kg": -1}}, ("capacities", "kg"), "at least 0"),
        ({"items": [{"name": "a", "weights": {"lb": 1}}]}, ("items", 0, "weights", "lb"), "there are kg"),
        ({"items": [{"name": "a", "weights": {"kg": -1}}]}, ("items", 0, "weights", "kg"), "at least 0"),
        ({"items": [{"name": "a"}, {"name": "a"}]}, ("items", 1, "name"), "twice"),
        ({"items": [{"name": "a", "copies": None}]}, ("items", 0, "copies"), "weighs nothing"),
        ({"items": [{"name": "a", "copies": -1}]}, ("items", 0, "copies"), "at least 0"),
        ({"items": [{"name": "a", "value": 2}]}, (), "nothing here is uncertain"),
    ],
)
def test_an_invalid_knapsack_is_refused_at_its_field(changes: Spec, where: tuple[Any, ...], words: str) -> None:
    spec = {"kind": "knapsack", "items": [{"name": "a", "weights": {"kg": 1}}], "capacities": {"kg": 5}} | changes
    with pytest.raises(InvalidInput, match=words) as refused:
        compile_ready(spec)
    assert refused.value.where == where
