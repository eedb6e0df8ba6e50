"""Two-stage problems over HTTP, from a specification to decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import PosteriorRow
from bco_core import build_problem
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.status import Gap
from tests.support.journey import QUICK, Json, check_json, create_dataset, learn_posterior

SPEC: Json = {
    "kind": "two_stage_linear",
    "decisions": [
        {"name": "small", "cost": 4, "maximum": 20, "integer": True},
        {"name": "large", "cost": 9, "maximum": 12, "integer": True},
    ],
    "outcomes": [{"name": "load", "minimum": 0}],
    "recourse": [{"name": "courier", "cost": 3}],
    "rows": [
        {"recourse": {"courier": 1}, "decisions": {"small": 2, "large": 5}, "sense": ">=", "outcomes": {"load": 1}}
    ],
}
SHIPMENT: Json = {
    "kind": "shipment",
    "sources": [
        {"name": "north", "order_cost": 5, "emergency_cost": 100},
        {"name": "south", "order_cost": 6, "emergency_cost": 90},
    ],
    "destinations": ["port", "mill"],
    "transport_costs": [[1, 4], [3, 1.5]],
}
RNG = np.random.default_rng(0)
DAYS = [
    {
        "rain": float(rain),
        "load": float(30 + 5 * rain + RNG.gamma(2, 4)),
        "port": float(10 + rain + RNG.gamma(2, 2)),
        "mill": float(20 - rain + RNG.gamma(2, 2)),
    }
    for rain in RNG.uniform(0, 5, 60)
]


def posterior_for(client: TestClient, spec: Json, outcomes: list[str], **changes: Any) -> Json:
    problem = check_json(client.post("/v1/problems", json={"name": "planner", "spec": spec}), 201)
    rows = [{name: day[name] for name in ("rain", *outcomes)} for day in DAYS]
    dataset = create_dataset(client, outcomes=outcomes, rows=rows)
    return learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"], inference=QUICK, **changes)


@pytest.fixture(scope="module")
def trucks(client: TestClient) -> Json:
    return posterior_for(client, SPEC, ["load"])


@pytest.fixture(scope="module")
def shipment(client: TestClient) -> Json:
    return posterior_for(client, SHIPMENT, ["port", "mill"])


def prescribe(client: TestClient, made: Json, **changes: Any) -> list[Json]:
    body = {"contexts": [{"rain": 1.0}, {"rain": 4.0}], "scenarios": 20} | changes
    found: list[Json] = check_json(client.post(f"/v1/posteriors/{made['id']}/prescribe", json=body))["prescriptions"]
    return found


@pytest.mark.parametrize("policy", ["averaged", "bcp", "blended", "map", "thompson"])
def test_every_policy_gives_integer_decisions(client: TestClient, trucks: Json, policy: str) -> None:
    for found in prescribe(client, trucks, policy=policy):
        assert (found["status"], found["solver"], found["reason"]) == ("optimal", "HiGHS", "")
        assert all(value == round(value) for value in found["decision"].values())
        assert all(value == round(value) for value in found["map"]["decision"].values())
        carried = 2 * found["decision"]["small"] + 5 * found["decision"]["large"]
        assert 20 < carried < 80
        assert found["expected_cost"] > 0


def test_a_shipment_is_solved_by_cutting_planes(client: TestClient, shipment: Json) -> None:
    for found in prescribe(client, shipment, policy="bcp", costs_over="posterior"):
        assert (found["status"], found["solver"]) == ("optimal", "cutting planes")
        assert list(found["decision"]) == ["north", "south"]
        assert found["hedging_gain"] >= -1e-9
        assert 0 <= found["gap"] <= 1e-6
    for found in prescribe(client, shipment, policy="averaged"):
        assert (found["status"], found["gap"]) == ("optimal", None)
        assert min(found["decision"].values()) >= 0


def test_risk_aversion_raises_the_mean_cost_and_lowers_the_tail_cost(client: TestClient, shipment: Json) -> None:
    neutral, averse = (
        prescribe(client, shipment, risk={"cvar_weight": weight, "cvar_level": 0.95}) for weight in (0.0, 1.0)
    )
    for mean, tail in zip(neutral, averse, strict=True):
        assert tail["status"] == "optimal"
        assert mean["expected_cost"] <= tail["expected_cost"] + 1e-6
        assert tail["cvar_95"] <= mean["cvar_95"] + 1e-6
    between = prescribe(client, shipment, risk={"cvar_weight": 0.5, "cvar_level": 0.95})
    for low, mixed, high in zip(neutral, between, averse, strict=True):
        assert low["expected_cost"] - 1e-6 <= mixed["expected_cost"] <= high["expected_cost"] + 1e-6


def test_a_risk_measure_over_miscalibrated_costs_gives_a_warning(client: TestClient, shipment: Json) -> None:
    doubt = "predicted costs are miscalibrated: 1.70 times the realised costs on held-out rows"
    body = {"contexts": [{"rain": 1.0}], "risk": {"cvar_weight": 1.0, "cvar_level": 0.9}}

    def warnings(warning_text: str, **changes: Any) -> list[str]:
        with transaction() as session:
            row = session.get_one(PosteriorRow, shipment["id"])
            row.diagnostics = row.diagnostics | {"promise_warning": warning_text}
        # Rows change only in tests, so they are cached.
        client.app.state.posteriors.forget(shipment["id"])
        path = f"/v1/posteriors/{shipment['id']}/prescribe"
        found: list[str] = check_json(client.post(path, json=body | changes))["warnings"]
        return found

    warning = f"a risk is judged over predictive scenarios, and {doubt}"
    assert warning in warnings(doubt)
    assert warning not in warnings(doubt, risk=None)
    assert not any("a risk is judged" in warning_text for warning_text in warnings(""))


def test_the_optimality_gaps_are_part_of_the_problem(client: TestClient) -> None:
    stated = SPEC | {"relative_gap": 0.25, "absolute_gap": 3.0}
    kept = check_json(client.post("/v1/problems", json={"name": "roughly", "spec": stated}), 201)["spec"]
    problem = build_problem(kept)
    assert isinstance(problem, TwoStageLinear)
    assert problem.gap == Gap(0.25, 3.0)
    for name in ("relative_gap", "absolute_gap"):
        refused = client.post("/v1/problems", json={"name": "no", "spec": SPEC | {name: -0.1}})
        assert refused.status_code == 422
        assert name in refused.text


def test_a_risk_measure_works_with_integer_decisions(client: TestClient, trucks: Json) -> None:
    for found in prescribe(client, trucks, risk={"cvar_weight": 1.0, "cvar_level": 0.8}):
        assert (found["status"], found["solver"]) == ("optimal", "HiGHS")
        assert 0 <= found["gap"] <= 1e-6
        assert all(value == round(value) for value in found["decision"].values())


@pytest.mark.parametrize("policy", ["averaged", "map", "thompson"])
def test_a_risk_measure_needs_a_policy_that_minimises_it(client: TestClient, shipment: Json, policy: str) -> None:
    body = {"contexts": [{"rain": 1.0}], "policy": policy, "risk": {"cvar_weight": 1.0}}
    response = client.post(f"/v1/posteriors/{shipment['id']}/prescribe", json=body)
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "#/policy"
    assert "bcp" in response.json()["detail"]


def test_a_time_limit_that_is_too_short_gives_the_status_time_limit(client: TestClient, shipment: Json) -> None:
    for found in prescribe(client, shipment, policy="bcp", time_limit_seconds=1e-9):
        assert found["status"] == "time_limit"
        assert "mean outcome" in found["reason"]
        assert min(found["decision"].values()) >= 0


def spec_with(**changes: Any) -> Json:
    return SPEC | changes


ROW: Json = SPEC["rows"][0]
BAD: dict[str, tuple[Json, str, str]] = {
    "unknown name": (spec_with(rows=[ROW | {"outcomes": {"loads": 1}}]), "#/spec/rows/0/outcomes/loads", "this name"),
    "same name": (spec_with(outcomes=[{"name": "load"}] * 2), "#/spec/outcomes/1/name", "unique"),
    "sense": (spec_with(rows=[ROW | {"sense": "<"}]), "#/spec/rows/0/sense", "<="),
    "bounds": (
        spec_with(decisions=[{"name": "small", "cost": 1, "minimum": 3, "maximum": 2}], rows=[ROW | {"decisions": {}}]),
        "#/spec/decisions/0/minimum",
        "above",
    ),
    "no recourse": (
        spec_with(recourse=[{"name": "courier", "cost": 3, "maximum": 5}]),
        "#/spec/rows/0",
        "not always a recourse",
    ),
    "unbounded": (spec_with(recourse=[{"name": "courier", "cost": -3}]), "#/spec/recourse", "without limit"),
    "uncertain cost": (
        spec_with(recourse=[{"name": "courier", "cost": 3, "cost_outcomes": {"load": 1}}]),
        "#/spec/recourse/0",
        "not supported",
    ),
    "transport costs": (SHIPMENT | {"transport_costs": [[1, 4]]}, "#/spec/transport_costs", "2 sources"),
    "transport cost": (SHIPMENT | {"transport_costs": [[1, 4], [3, -1]]}, "#/spec/transport_costs/1/1", "0"),
}


@pytest.mark.parametrize(("spec", "pointer", "says"), BAD.values(), ids=list(BAD))
def test_an_invalid_problem_is_refused_with_a_pointer(client: TestClient, spec: Json, pointer: str, says: str) -> None:
    response = client.post("/v1/problems", json={"name": "bad", "spec": spec})
    assert response.status_code == 422
    body = response.json()
    assert body["type"] == "urn:bco:error:invalid-input"
    assert pointer in [error["pointer"] for error in body["errors"]]
    assert says in str([error["detail"] for error in body["errors"]])
