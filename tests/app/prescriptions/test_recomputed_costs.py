"""Costs can be recomputed from the included parts of an answer and the specification alone."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
from starlette.testclient import TestClient

from app.demo import example_problem
from tests.support.journey import ASSETS, CONTEXTS, FUND, Json, learn_posterior, months
from tests.support.prescription_details import DAYS, STORES, atoms, learn_from_spec, prescribe_with_details

SHIPMENT: Json = {
    "kind": "shipment",
    "sources": [
        {"name": "north", "order_cost": 5, "emergency_cost": 100},
        {"name": "south", "order_cost": 6, "emergency_cost": 90, "maximum_order": 18},
    ],
    "destinations": ["port", "mill"],
    "transport_costs": [[1, 4], [3, 1.5]],
}
MEAN_VARIANCE: Json = {
    "kind": "mean_variance_portfolio",
    "assets": FUND["assets"],
    "covariance": FUND["covariance"],
    "risk_aversion": 3.0,
}


@pytest.fixture(scope="module")
def bakery(client: TestClient) -> Json:
    return learn_posterior(client)


def check_costs(found: Json, costs: list[float]) -> None:
    """Check that the recomputed costs equal those of the answer and average to its expected cost."""
    assert [reported for _, _, reported in atoms(found)] == pytest.approx(costs, rel=1e-6, abs=1e-9)
    expected = sum(weight * cost for (weight, _, _), cost in zip(atoms(found), costs, strict=True))
    assert found["expected_cost"] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_newsvendor_costs_can_be_recomputed_from_the_answer(client: TestClient, bakery: Json) -> None:
    found = prescribe_with_details(client, bakery, CONTEXTS[0])
    costs = []
    for _, outcomes, _ in atoms(found):
        cost = 0.0
        for item in example_problem()["spec"]["items"]:
            short = outcomes[item["name"]] - found["decision"][item["name"]]
            cost += max(item["underage_cost"] * short, -item["overage_cost"] * short)
        costs.append(cost)
    check_costs(found, costs)
    assert found["recourse"] is None
    for name, reported in found["outcomes"].items():
        values = np.array(found["scenarios"]["outcomes"][name])
        assert reported["mean"] == pytest.approx(values.mean())
        assert reported["standard_deviation"] == pytest.approx(values.std())
        assert reported["quantiles"]["0.25"] == pytest.approx(np.quantile(values, 0.25, method="inverted_cdf"))
        assert reported["service_level"] == pytest.approx((values <= found["decision"][name]).mean())


def recourse_cost(spec: Json, decision: Json, outcomes: Json) -> float:
    """Compute Q(z, y) of a two-stage specification with cvxpy."""
    x = {one["name"]: cvxpy.Variable(nonneg=True) for one in spec["recourse"]}
    rules = []
    for row in spec["rows"]:
        left = sum(value * x[name] for name, value in row["recourse"].items())
        left = left + sum(value * decision[name] for name, value in row["decisions"].items())
        rules.append(left >= sum(value * outcomes[name] for name, value in row["outcomes"].items()))
    program = cvxpy.Problem(cvxpy.Minimize(sum(one["cost"] * x[one["name"]] for one in spec["recourse"])), rules)
    return float(program.solve(solver=cvxpy.HIGHS))


def shipping_cost(spec: Json, decision: Json, outcomes: Json) -> float:
    sources, places = spec["sources"], spec["destinations"]
    sent, extra = cvxpy.Variable((len(sources), len(places)), nonneg=True), cvxpy.Variable(len(sources), nonneg=True)
    orders = np.array([decision[one["name"]] for one in sources])
    demand = np.maximum([outcomes[name] for name in places], 0)
    cost = cvxpy.sum(cvxpy.multiply(np.array(spec["transport_costs"]), sent))
    cost = cost + np.array([one["emergency_cost"] for one in sources], dtype=float) @ extra
    rules = [cvxpy.sum(sent, axis=0) >= demand, cvxpy.sum(sent, axis=1) <= orders + extra]
    return float(cvxpy.Problem(cvxpy.Minimize(cost), rules).solve(solver=cvxpy.HIGHS))


@pytest.mark.parametrize(("spec", "later"), [(STORES, recourse_cost), (SHIPMENT, shipping_cost)])
def test_two_stage_costs_can_be_recomputed_per_scenario(client: TestClient, spec: Json, later: Any) -> None:
    found = prescribe_with_details(
        client, learn_from_spec(client, spec, ["port", "mill"], DAYS), {"rain": 2.0}, policy="bcp"
    )
    parts = spec.get("decisions") or [one | {"cost": one["order_cost"]} for one in spec["sources"]]
    now = sum(one["cost"] * found["decision"][one["name"]] for one in parts)
    second = [later(spec, found["decision"], outcomes) for _, outcomes, _ in atoms(found)]
    check_costs(found, [now + cost for cost in second])
    reported = found["recourse"]
    assert reported["first_stage_cost"] == pytest.approx(now)
    assert reported["expected_cost"] == pytest.approx(np.mean(second), rel=1e-6)
    assert reported["plans"]["costs"] == pytest.approx(second, rel=1e-6, abs=1e-9)
    amounts = np.array(reported["plans"]["amounts"])
    for name, column in zip(reported["plans"]["names"], amounts.T, strict=True):
        assert reported["expected"][name]["amount"] == pytest.approx(column.mean())
        assert reported["expected"][name]["used_in"] == pytest.approx((column > 0).mean())
    assert sum(one["cost"] for one in reported["expected"].values()) == pytest.approx(reported["expected_cost"])
    first = next(row for row in reported["rows"] if "port" in row["name"])
    assert 0 < first["binding_in"] <= 1
    assert found["sensitivity"]["derivatives"]["rain"]["method"] == "difference"


@pytest.mark.parametrize("spec", [FUND | {"target_return": 0.08}, MEAN_VARIANCE])
def test_portfolio_costs_can_be_recomputed(client: TestClient, spec: Json) -> None:
    chains = {"method": "mh", "chains": 2, "steps": 60, "burn_in": 20, "particles": 40, "inverse_temperature": 100}
    changes = {"inference": chains} if spec["kind"] == FUND["kind"] else {}
    fund = learn_from_spec(client, spec, ASSETS, months(), **changes)
    found = prescribe_with_details(client, fund, {"mood": 0.5, "rates": 0.1})
    z = np.array([found["decision"][name] for name in ASSETS])
    variance = float(cvxpy.quad_form(z, np.array(spec["covariance"])).value)
    costs = []
    for _, outcomes, _ in atoms(found):
        returned = sum(found["decision"][name] * outcomes[name] for name in ASSETS)
        costs.append(variance if "target_return" in spec else 0.5 * spec["risk_aversion"] * variance - returned)
    check_costs(found, costs)
    assert found["recourse"] is None
    assert all(reported["service_level"] is None for reported in found["outcomes"].values())
