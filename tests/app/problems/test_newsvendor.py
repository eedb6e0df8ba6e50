"""Newsvendor over HTTP with planning constraints: budget, pack sizes, stock, service level and tail risk."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.journey import Json, check_json, create_problem, learn_posterior, prescribe

SPEC: Json = {
    "kind": "newsvendor",
    "items": [
        {"name": "croissants", "price": 2.6, "unit_cost": 0.8, "salvage_value": 0.2, "pack_size": 12, "stock": 9},
        {"name": "loaves", "underage_cost": 2.4, "overage_cost": 1.2, "integer": True, "minimum_service_level": 0.8},
    ],
    "decision_rows": [{"name": "oven", "coefficients": {"croissants": 1, "loaves": 2.5}, "sense": "<=", "limit": 310}],
}


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> str:
    problem = create_problem(client, name="oven", spec=SPEC)
    return str(learn_posterior(client, problem_id=problem["id"])["id"])


def prescribe_oven(client: TestClient, posterior: str, **changes: Any) -> Json:
    found: Json = prescribe(client, posterior, scenarios=40, **changes)
    return found


def test_orders_are_whole_packs_within_the_budget_and_proven_optimal(client: TestClient, posterior: str) -> None:
    answer = prescribe_oven(client, posterior)
    assert answer["policy"] == "predictive"
    (one,) = answer["prescriptions"]
    croissants, loaves = one["decision"]["croissants"], one["decision"]["loaves"]
    assert croissants % 12 == 0
    assert loaves % 1 == 0
    assert croissants + 2.5 * loaves <= 310
    assert (one["status"], one["reason"], one["solver"]) == ("optimal", "", "HiGHS")
    assert one["gap"] <= 1e-6


def test_tail_risk_is_weighted_on_request(client: TestClient, posterior: str) -> None:
    mean, tail = (
        prescribe_oven(client, posterior),
        prescribe_oven(client, posterior, risk={"cvar_weight": 1, "cvar_level": 0.95}),
    )
    before, after = mean["prescriptions"][0], tail["prescriptions"][0]
    assert after["status"] == "optimal"
    assert after["cvar_95"] <= before["cvar_95"] + 1e-9
    assert after["expected_cost"] >= before["expected_cost"] - 1e-9


def test_an_unreachable_service_level_is_reported(client: TestClient) -> None:
    item = {"name": "croissants", "underage_cost": 1, "overage_cost": 1, "maximum_order": 3}
    other = {"name": "loaves", "underage_cost": 1, "overage_cost": 1}
    spec = {"kind": "newsvendor", "items": [item | {"minimum_service_level": 0.9}, other]}
    problem = create_problem(client, name="small", spec=spec)
    (one,) = prescribe_oven(client, learn_posterior(client, problem_id=problem["id"])["id"])["prescriptions"]
    assert one["status"] == "best_effort"
    assert one["reason"].startswith("croissants: demand is met in 0.0% of the scenarios")
    assert one["decision"]["croissants"] == 3


def test_a_problem_returns_its_constraints(client: TestClient) -> None:
    made = create_problem(client, name="oven", spec=SPEC)
    stored = check_json(client.get(f"/v1/problems/{made['id']}"))["spec"]
    assert stored["decision_rows"] == [dict(row) for row in SPEC["decision_rows"]]
    assert stored["items"][0]["pack_size"] == 12
