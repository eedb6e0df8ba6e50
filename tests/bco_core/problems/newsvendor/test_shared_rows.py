"""Newsvendors with shared rows, packs, service levels or CVaR, against cvxpy with HiGHS."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Prescription, Risk, Status
from bco_core.problems.newsvendor import Newsvendor
from tests.support.newsvendor_reference import Spec, random_items, random_scenarios, reference

SENSES = ("<=", ">=", "=")


def row_for(seed: int, items: list[dict[str, Any]], sense: str, scale: float = 1.0, alike: bool = False) -> Spec:
    """Return a row that binds sometimes, with zero and negative coefficients unless all are ``alike``."""
    generator = np.random.default_rng(seed + 2000)
    values = [1.0 if alike else float(generator.choice([0.0, 0.5, 1.0, 3.0, 3.0, -1.0])) for _ in items]
    least = sum(
        v * (item["minimum_order"] if v > 0 else item.get("maximum_order", 40.0 * scale))
        for v, item in zip(values, items, strict=True)
    )
    most = sum(
        v * (item.get("maximum_order", 40.0 * scale) if v > 0 else item["minimum_order"])
        for v, item in zip(values, items, strict=True)
    )
    limit = float(least + generator.choice([0.0, 0.2, 0.5, 0.8, 1.0]) * (most - least))
    return {
        "name": "shared",
        "coefficients": {item["name"]: v for v, item in zip(values, items, strict=True)},
        "sense": sense,
        "limit": math.floor(limit) if alike and sense == "<=" else limit,
    }


def check(
    spec: Spec, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, tolerance: float = 1e-7
) -> Prescription:
    """Prescribe, and check that optimal orders are optimal, keep all rules and cost the stated objective."""
    problem = Newsvendor.from_spec(spec)
    found = problem.prescribe(outcomes, weights, risk)
    size = outcomes.abs().max().item() * sum(
        max(i.get("underage_cost", 1), i.get("overage_cost", 1)) for i in spec["items"]
    )
    for b, status in enumerate(found.status):
        best = reference(spec, outcomes[b], weights[b], risk)
        if status is Status.BEST_EFFORT:
            assert best == math.inf, (found.reasons[b], best)
            assert found.reasons[b]
            continue
        assert status is Status.OPTIMAL, found.reasons[b]
        assert found.objective[b].item() == pytest.approx(best, rel=tolerance, abs=1e-9 * size)
        assert problem.within(found.decisions[b])
        assert found.gaps is not None
        assert found.gaps[b] <= 1e-6
        assert found.bounds is not None
        assert found.bounds[b].item() <= best + 1e-6 * abs(best) + 1e-9 * size
    return found


@pytest.mark.parametrize("sense", SENSES)
@pytest.mark.parametrize("seed", range(12))
def test_one_row_is_met_at_minimal_cost(seed: int, sense: str) -> None:
    scale, atoms, count = [1.0, 1e9, 1e-6][seed % 3], [1, 7, 12][seed % 3], 1 + seed % 4
    items = random_items(seed, count, scale)
    spec = {"items": items, "decision_rows": [row_for(seed, items, sense, scale)]}
    check(spec, *random_scenarios(seed, 4, atoms, count, scale))


@pytest.mark.parametrize("seed", range(8))
def test_several_rows_are_met_at_minimal_cost(seed: int) -> None:
    items = random_items(seed, 4)
    rows = [row_for(seed, items, "<="), row_for(seed + 50, items, "<=", alike=True)]
    try:
        Newsvendor.from_spec({"items": items, "decision_rows": rows})
    except InvalidInput:
        rows[0]["limit"] = 1e4
    check({"items": items, "decision_rows": rows}, *random_scenarios(seed, 3, 9, 4))


@pytest.mark.parametrize("packs", [{"integer": True}, {"pack_size": 2.5}, {"pack_size": 6, "integer": True}], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_packs_without_a_row_take_the_better_neighbour(seed: int, packs: Spec) -> None:
    spec = {"items": random_items(seed, 3, **packs)}
    check(spec, *random_scenarios(seed, 3, 7, 3))


@pytest.mark.parametrize("sense", ["<=", ">="])
@pytest.mark.parametrize("seed", range(8))
def test_packs_with_equal_row_use_need_no_branching(seed: int, sense: str) -> None:
    items = random_items(seed, 4, pack_size=3.0)
    spec = {"items": items, "decision_rows": [row_for(seed, items, sense, alike=True)]}
    found = check(spec, *random_scenarios(seed, 3, 9, 4))
    assert not any(found.solvers)


@pytest.mark.parametrize("seed", range(8))
def test_packs_with_different_row_use_fill_a_budget_at_minimal_cost(seed: int) -> None:
    items = random_items(seed, 4, integer=True)
    items[0] |= {"pack_size": 4}
    items[2] |= {"integer": False}
    row = row_for(seed, items, "<=")
    row["limit"] += 5
    found = check({"items": items, "decision_rows": [row]}, *random_scenarios(seed, 2, 9, 4))
    assert set(found.solvers) == {"HiGHS"}


@pytest.mark.parametrize("seed", range(6))
def test_item_service_levels_are_met_at_minimal_cost(seed: int) -> None:
    items = random_items(seed, 3, minimum_service_level=0.8, **({"integer": True} if seed % 2 else {}))
    outcomes, weights = random_scenarios(seed, 3, 9, 3)
    check({"items": items}, outcomes, weights)
    check({"items": items, "decision_rows": [row_for(seed, items, "<=")]}, outcomes, weights)


@pytest.mark.parametrize("seed", range(6))
def test_a_fill_rate_is_met_at_minimal_cost(seed: int) -> None:
    items = random_items(seed, 3, **({"pack_size": 2} if seed % 2 else {}))
    spec: Spec = {"items": items, "minimum_service_level": 0.9}
    if seed % 3 == 0:
        spec["decision_rows"] = [row_for(seed, items, "<=")]
    check(spec, *random_scenarios(seed, 3, 9, 3))


@pytest.mark.parametrize("seed", range(9))
def test_cvar_is_minimised_with_and_without_rows_and_packs(seed: int) -> None:
    items = random_items(seed, 3, **[{}, {"integer": True}, {"minimum_service_level": 0.7}][seed % 3])
    spec: Spec = {"items": items} | ({"decision_rows": [row_for(seed, items, "<=")]} if seed % 2 else {})
    risk = Risk([1.0, 0.5, 1.0][seed % 3], [0.9, 0.5, 0.0][seed // 3])
    check(spec, *random_scenarios(seed, 3, 9, 3), risk)


def random_rules(seed: int) -> tuple[Spec, Tensor, Tensor, Risk]:
    """Draw any mixture of rules, from one scenario to fifteen, at any scale."""
    generator = np.random.default_rng(seed)

    def one_of(*values: float) -> float:
        return float(generator.choice(values))

    count, scale = int(generator.integers(1, 5)), one_of(1, 1, 1e9, 1e-6, 1e4)
    items = random_items(seed, count, scale)
    for item in items:
        if "stock" not in item and generator.random() < 0.3:
            item["minimum_order"] = None
        if scale in (1, 1e4) and generator.random() < 0.3:
            item["pack_size"] = one_of(1, 2.5, 7) * scale
        elif scale == 1 and generator.random() < 0.2:
            item["integer"] = True
        if generator.random() < 0.3:
            item["minimum_service_level"] = one_of(0.5, 0.8, 0.95)
    rows = [
        {
            "coefficients": {item["name"]: one_of(0, 0.5, 1, 1, 3, -1) for item in items},
            "sense": str(generator.choice(["<=", "<=", ">=", "="])),
            "limit": float(generator.integers(0, 60)) * scale,
        }
        for _ in range(int(one_of(0, 1, 1, 2)))
    ]
    spec: Spec = {"items": items, "decision_rows": rows}
    if generator.random() < 0.3:
        spec["minimum_service_level"] = one_of(0.5, 0.9, 0.99)
    risk = Risk(one_of(0, 0, 0.5, 1), one_of(0, 0.5, 0.9))
    return spec, *random_scenarios(seed, 2, int(one_of(1, 2, 5, 15)), count, scale), risk


@pytest.mark.parametrize("seed", range(40))
def test_any_mixture_of_rules_is_solved_or_refused_as_infeasible(seed: int) -> None:
    spec, outcomes, weights, risk = random_rules(seed)
    try:
        Newsvendor.from_spec(spec)
    except InvalidInput:
        kept = [{name: v for name, v in item.items() if name != "minimum_service_level"} for item in spec["items"]]
        bare = spec | {"items": kept, "minimum_service_level": 0.0}
        assert reference(bare, outcomes[0], weights[0]) == math.inf
        return
    check(spec, outcomes, weights, risk, tolerance=1e-6)


def test_a_row_without_coefficients_holds_or_is_refused() -> None:
    items = random_items(1, 2)
    for sense, limit, possible in (("<=", 0.0, True), ("<=", -1.0, False), (">=", 1.0, False), ("=", 0.0, True)):
        spec: Spec = {"items": items, "decision_rows": [{"coefficients": {}, "sense": sense, "limit": limit}]}
        if possible:
            check(spec, *random_scenarios(1, 2, 5, 2))
        else:
            with pytest.raises(InvalidInput):
                Newsvendor.from_spec(spec)
