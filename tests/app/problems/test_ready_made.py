"""Ready-made problems over HTTP: creation, compilation, learning, decisions and patches by the planner's names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.problems.ready import ReadyMadeSpec
from app.problems.schemas import NewProblem
from bco_core.problems.ready.kinds import READY, compile_ready
from tests.support.journey import QUICK, Json, await_solvers, check_json, create_dataset, learn_posterior
from tests.support.ready_specs import SPECS, history


def create(client: TestClient, spec: Json, status: int = 201) -> Json:
    return check_json(client.post("/v1/problems", json={"name": "ready", "spec": spec}), status)


class ProblemsByKind(dict[str, Json]):
    """Problems by kind, each created on first access."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def __missing__(self, kind: str) -> Json:
        self[kind] = create(self.client, SPECS[kind])
        return self[kind]


@pytest.fixture(scope="module")
def problems(client: TestClient) -> ProblemsByKind:
    # Checks that search for integer solutions run in solver processes.
    await_solvers(client)
    return ProblemsByKind(client)


def test_there_is_an_example_of_every_kind() -> None:
    assert set(SPECS) == set(READY)


@pytest.mark.parametrize("kind", SPECS)
def test_a_problem_compiles_to_a_linear_problem_with_the_same_names(
    client: TestClient, problems: ProblemsByKind, kind: str
) -> None:
    problem = problems[kind]
    answer = check_json(client.get(f"/v1/problems/{problem['id']}/compiled"))
    assert (answer["id"], answer["kind"], answer["spec"]["kind"]) == (problem["id"], kind, "linear")
    again = create(client, answer["spec"])
    assert (again["decisions"], again["outcomes"]) == (problem["decisions"], problem["outcomes"])
    other = check_json(client.get(f"/v1/problems/{again['id']}/compiled"))
    assert answer["spec"].items() <= without_defaults(other["spec"], answer["spec"]).items()


def without_defaults(spec: Json, like: Json) -> Json:
    """Remove the fields that reading a linear specification fills with defaults."""
    parts = ("decisions", "recourse", "outcomes", "rows")
    cut = {
        part: [
            {name: value for name, value in entry.items() if name in first}
            for entry, first in zip(spec[part], like[part], strict=True)
        ]
        for part in parts
    }
    return spec | cut


@pytest.mark.parametrize("kind", SPECS)
def test_a_stored_problem_compiles_like_the_posted_one(problems: ProblemsByKind, kind: str) -> None:
    assert compile_ready(problems[kind]["spec"]) == compile_ready(SPECS[kind])


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "newsvendor", "items": [{"name": "rolls", "underage_cost": 3, "overage_cost": 1}]},
        {"kind": "mean_variance_portfolio", "assets": [{"name": "gold"}], "covariance": [[0.1]]},
    ],
)
def test_a_non_linear_kind_has_no_compiled_model(client: TestClient, spec: Json) -> None:
    problem = create(client, spec)
    refused = check_json(client.get(f"/v1/problems/{problem['id']}/compiled"), 409)
    assert f"problems of kind {spec['kind']} are not linear models" in refused["detail"]


def test_two_stage_problems_compile_to_linear_ones(client: TestClient) -> None:
    spec = {
        "kind": "shipment",
        "sources": [{"name": "north", "order_cost": 5, "emergency_cost": 40}],
        "destinations": ["city"],
        "transport_costs": [[1]],
    }
    problem = create(client, spec)
    answer = check_json(client.get(f"/v1/problems/{problem['id']}/compiled"))
    assert answer["spec"]["kind"] == "linear"
    assert create(client, answer["spec"])["decisions"] == ["north"]


@pytest.mark.parametrize(
    ("kind", "changes", "pointer", "words"),
    [
        ("shortest_path", {"target": "moon"}, "#/spec/target", "there are home"),
        ("shortest_path", {"edges": [{"start": "home", "end": "office", "cost": [1]}]}, "#/spec/edges/0/cost", ""),
        ("assignment", {"forbidden": [["ann", "roof"], ["bob", "roof"]]}, "#/spec/forbidden", "1 of 2 tasks"),
        ("knapsack", {"capacities": {"kg": -1}}, "#/spec/capacities/kg", "greater than or equal to 0"),
        ("knapsack", {"capacities": {"kg": 5}}, "#/spec/items/0/weights/litres", "there are kg"),
        ("facility_location", {"transport_costs": [[1, 2]]}, "#/spec/transport_costs", "each of the 2 facilities"),
        ("production", {"resources": []}, "#/spec/products/0/uses/hours", "no resource"),
        ("unit_commitment", {"demand": [4.0]}, "#/spec/demand", "each of the 2 hours"),
        ("unit_commitment", {"demand": [4.0, 5.0]}, "#/spec", "nothing here is uncertain"),
    ],
)
def test_errors_point_into_the_ready_made_specification(
    client: TestClient, kind: str, changes: Json, pointer: str, words: str
) -> None:
    refused = create(client, SPECS[kind] | changes, 422)
    assert [error["pointer"] for error in refused["errors"]] == [pointer]
    assert words in refused["errors"][0]["detail"]


def test_infeasible_constraints_point_into_the_ready_made_specification(client: TestClient) -> None:
    greedy = SPECS["production"]["products"][0] | {"minimum": 100}
    refused = create(client, SPECS["production"] | {"products": [greedy, SPECS["production"]["products"][1]]}, 422)
    (error,) = refused["errors"]
    assert error["pointer"].startswith(("#/spec/resources/0", "#/spec/products/0")) or error["pointer"] == "#/spec"


def test_combined_names_may_be_long() -> None:
    long = "n" * 80
    spec = {"kind": "assignment", "agents": [long], "tasks": [long]}
    read = NewProblem.model_validate({"name": "long", "spec": spec}).spec
    assert isinstance(read, ReadyMadeSpec)
    NewProblem.model_validate(json.loads(json.dumps({"name": "long", "spec": compile_ready(read.model_dump())})))


def posterior_for(client: TestClient, problem: Json) -> Json:
    dataset = create_dataset(client, outcomes=problem["outcomes"], rows=history(problem["outcomes"]))
    return learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"], inference=QUICK)


class PosteriorsByKind(ProblemsByKind):
    """Posteriors by problem kind, each learned on first access."""

    def __missing__(self, kind: str) -> Json:
        self[kind] = posterior_for(self.client, create(self.client, SPECS[kind]))
        return self[kind]


@pytest.fixture(scope="module")
def posteriors(client: TestClient) -> PosteriorsByKind:
    await_solvers(client)
    return PosteriorsByKind(client)


def prescribe(client: TestClient, posterior: Json, **changes: Any) -> Json:
    body = {"contexts": [{"rain": 1.0}, {"rain": 4.0}], "scenarios": 20} | changes
    return check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))


@pytest.mark.parametrize("policy", ["averaged", "bcp", "predictive"])
@pytest.mark.parametrize("kind", SPECS)
def test_every_kind_is_learned_and_decided(
    client: TestClient, posteriors: ProblemsByKind, problems: ProblemsByKind, kind: str, policy: str
) -> None:
    for found in prescribe(client, posteriors[kind], policy=policy)["prescriptions"]:
        assert found["status"] == "optimal", found["reason"]
        decision = found["decision"]
        assert list(decision) == problems[kind]["decisions"]
        if kind != "production":
            assert all(value == pytest.approx(round(value), abs=1e-6) for value in decision.values())
        rules = compile_ready(problems[kind]["spec"])["rows"]
        for row in (row for row in rules if not row["recourse"]):
            value = sum(factor * decision[name] for name, factor in row["decisions"].items())
            assert row["sense"] != "<=" or value <= row["limit"] + 1e-6
            assert row["sense"] != ">=" or value >= row["limit"] - 1e-6
            assert row["sense"] != "=" or value == pytest.approx(row["limit"], abs=1e-6)


def test_a_maximised_problem_reports_its_expected_value(client: TestClient, posteriors: ProblemsByKind) -> None:
    for kind in ("knapsack", "production"):
        for found in prescribe(client, posteriors[kind], policy="bcp", costs_over="posterior")["prescriptions"]:
            assert found["facts"]["expected_value"] == pytest.approx(-found["expected_cost"])
            assert found["facts"]["expected_value"] > 0


@pytest.mark.parametrize(
    ("kind", "patch", "where", "shut"),
    [
        ("facility_location", {"facilities": {"north": {"capacity": 0}}}, "facilities/north/capacity", "open north"),
        ("knapsack", {"capacities": {"litres": 1}}, "capacities/litres", "lamps"),
        (
            "shortest_path",
            {"edges": {"tunnel to office": {"cost": 1000}}},
            "edges/tunnel to office/cost",
            "tunnel to office",
        ),
        ("assignment", {"costs": {"bob": {"wall": 1000}}}, "costs/bob/wall", "bob to wall"),
        ("production", {"resources": {"hours": {"available": 0}}}, "resources/hours/available", "make bread"),
        ("unit_commitment", {"units": {"coal": {"fixed_cost": 1e6}}}, "units/coal/fixed_cost", "coal on in hour 1"),
    ],
)
def test_numbers_are_patched_by_the_names_of_the_specification(
    client: TestClient, posteriors: ProblemsByKind, kind: str, patch: Json, where: str, shut: str
) -> None:
    answer = prescribe(client, posteriors[kind], policy="bcp", problem_patch=patch)
    assert [one["where"] for one in answer["problem_differs"]] == [where]
    assert all(found["decision"][shut] == pytest.approx(0.0, abs=1e-6) for found in answer["prescriptions"])


@pytest.mark.parametrize(
    ("kind", "patch", "pointer", "words"),
    [
        (
            "facility_location",
            {"facilities": {"east": {"capacity": 1}}},
            "#/problem_patch/facilities/east",
            "north, south",
        ),
        (
            "facility_location",
            {"customers": {"city": {"demand": 5}}},
            "#/problem_patch",
            "names and counts cannot change",
        ),
        ("shortest_path", {"target": "moon"}, "#/problem_patch/target", "there are home"),
        ("assignment", {"capacities": {"ann": 0, "bob": 0}}, "#/problem_patch/capacities", "no agent can do a task"),
        (
            "knapsack",
            {"items": {"rugs": {"weights": {"kg": -1}}}},
            "#/problem_patch/items/rugs/weights/kg",
            "greater than",
        ),
    ],
)
def test_a_patch_that_breaks_the_problem_is_refused_with_a_pointer(
    client: TestClient, posteriors: ProblemsByKind, kind: str, patch: Json, pointer: str, words: str
) -> None:
    body = {"contexts": [{"rain": 1.0}], "problem_patch": patch}
    refused = check_json(client.post(f"/v1/posteriors/{posteriors[kind]['id']}/prescribe", json=body), 422)
    assert [error["pointer"] for error in refused["errors"]] == [pointer]
    assert words in refused["errors"][0]["detail"]
