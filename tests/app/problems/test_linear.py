"""Problems of kind linear over HTTP: creation, refusals, learning, decisions and patches."""

from __future__ import annotations

import copy
import csv
import io
import random
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.jobs import compute, parts, service
from app.problems import patch
from app.problems.schemas import decision_names, outcome_names
from tests.support.journey import Json, await_solvers, check_json, create_dataset, create_problem, learn, prescribe

SPEC: dict[str, Any] = {
    "kind": "linear",
    "decisions": [{"name": "order", "cost": 5, "maximum": 100}],
    "recourse": [{"name": "express", "cost": {"constant": 8, "outcomes": {"fuel": 2}}}],
    "outcomes": [{"name": "demand", "minimum": 0, "maximum": 80}, {"name": "fuel", "minimum": 0, "maximum": 5}],
    "rows": [
        {
            "name": "demand",
            "decisions": {"order": 1},
            "recourse": {"express": 1},
            "sense": ">=",
            "limit": {"outcomes": {"demand": 1}},
        }
    ],
}


def test_a_linear_model_is_stored_with_its_uncertain_numbers(client: TestClient) -> None:
    problem = check_json(client.post("/v1/problems", json={"name": "orders", "spec": SPEC}), 201)
    assert (problem["outcomes"], problem["decisions"]) == (["demand", "fuel"], ["order"])
    assert problem["spec"]["recourse"][0]["cost"] == {"constant": 8.0, "outcomes": {"fuel": 2.0}}
    assert problem["spec"]["decisions"][0]["cost"] == 5.0
    assert check_json(client.get(f"/v1/problems/{problem['id']}")) == problem


@pytest.mark.parametrize(
    ("path", "value", "pointer", "words"),
    [
        (("rows", 0, "limit"), {"outcomes": {"rain": 1}}, "#/spec/rows/0/limit/outcomes/rain", "no outcome"),
        (("rows", 0, "limit"), {"outcomes": {"demand": "1"}}, "#/spec/rows/0/limit/outcomes/demand", "number"),
        (("rows", 0, "recourse"), {"train": 1}, "#/spec/rows/0/recourse/train", "no part of the problem"),
        (("decisions", 0, "maximum"), -1, "#/spec/decisions/0/minimum", "above the maximum"),
        (("decisions", 0, "cost"), "5", "#/spec/decisions/0/cost", "number"),
        (("decisions", 0, "cost"), {"slope": 5}, "#/spec/decisions/0/cost/slope", "not permitted"),
        (("recourse", 0, "cost"), -9, "#/spec/recourse", "without limit"),
        (("recourse", 0, "maximum"), 1, "#/spec/rows", "not always a recourse"),
    ],
)
def test_an_unsupported_specification_is_refused_with_a_pointer(
    client: TestClient, path: tuple[Any, ...], value: Any, pointer: str, words: str
) -> None:
    spec = copy.deepcopy(SPEC)
    part: Any = spec
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    response = client.post("/v1/problems", json={"name": "orders", "spec": spec})
    assert response.status_code == 422
    error = response.json()["errors"][0]
    assert error["pointer"].startswith(pointer)
    assert words in error["detail"].lower()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {
                "decisions": [{"name": "order", "cost": 1, "maximum": 10}],
                "recourse": [{"name": "lorries", "cost": 1, "integer": True}],
                "rows": [
                    {
                        "decisions": {"order": 1},
                        "recourse": {"lorries": 1},
                        "sense": "=",
                        "limit": {"outcomes": {"y": 1}},
                    }
                ],
            },
            "not always a recourse",
        ),
        (
            {
                "decisions": [{"name": "order", "cost": {"outcomes": {"y": 1}}, "maximum": 10, "integer": True}],
                "rows": [{"decisions": {"order": 2}, "sense": "=", "limit": 3}],
            },
            "no decision in whole numbers",
        ),
        (
            {
                "decisions": [
                    {"name": "order", "cost": {"outcomes": {"y": 1}}, "minimum": 0.2, "maximum": 0.8, "integer": True}
                ]
            },
            "no decision in whole numbers",
        ),
    ],
    ids=["recourse", "row", "bounds"],
)
def test_an_integer_infeasible_problem_is_refused(client: TestClient, spec: dict[str, Any], words: str) -> None:
    whole = {"kind": "linear", "outcomes": [{"name": "y", "minimum": 0, "maximum": 5}]} | spec
    response = client.post("/v1/problems", json={"name": "orders", "spec": whole})
    assert response.status_code == 422
    assert words in response.json()["detail"]


def test_numbers_are_patched_by_name() -> None:
    done = patch.apply(
        SPEC,
        {
            "decisions": {"order": {"cost": 6, "maximum": 50}},
            "recourse": {"express": {"cost": {"outcomes": {"fuel": 3}}}},
            "rows": {"demand": {"decisions": {"order": 2}, "limit": 7}},
        },
    )
    assert done.spec["decisions"][0]["cost"] == 6
    assert done.spec["recourse"][0]["cost"] == {"constant": 8.0, "outcomes": {"fuel": 3.0}}
    assert (done.spec["rows"][0]["decisions"], done.spec["rows"][0]["limit"]) == ({"order": 2.0}, 7.0)
    assert {one.where for one in done.differs} >= {"recourse/express/cost/outcomes/fuel", "decisions/order/cost"}


class UnreadableRows(list[Json]):
    def __iter__(self) -> Iterator[Json]:
        raise AssertionError("the rows are read")


def test_names_of_a_large_model_are_read_without_its_rows() -> None:
    spec = SPEC | {"rows": UnreadableRows(SPEC["rows"])}
    assert (outcome_names(spec), decision_names(spec)) == (["demand", "fuel"], ["order"])


# From a job with default options to decisions, for models with uncertain recourse costs, with integer recourse, and
# with an uncertain objective that is maximised.

VANS: Json = SPEC | {
    "recourse": [{"name": "vans", "cost": {"constant": 30, "outcomes": {"fuel": 4}}, "integer": True}],
    "rows": [SPEC["rows"][0] | {"recourse": {"vans": 10}}],
}
BAG: Json = {
    "kind": "knapsack",
    "items": [{"name": name, "weights": {"kg": kg}} for name, kg in (("demand", 3), ("fuel", 4))],
    "capacities": {"kg": 5},
    "shares": True,
}
MODELS: dict[str, tuple[Json, Json]] = {
    "recourse costs": (SPEC, {"recourse": {"express": {"cost": {"constant": 30}}}}),
    "whole recourse": (VANS, {"recourse": {"vans": {"cost": {"constant": 200}}}}),
    "maximised objective": (BAG, {"capacities": {"kg": 4}}),
}
INCLUDED = ["scenarios", "outcomes", "recourse", "sensitivity", "neighbours"]


def weeks(count: int) -> list[Json]:
    generator = random.Random(4)
    found = []
    for _ in range(count):
        season, oil = generator.gauss(0, 1), generator.gauss(0, 1)
        demand, fuel = 40 + 12 * season + generator.gauss(0, 3), 2.5 + oil + generator.gauss(0, 0.2)
        found.append({"season": season, "oil": oil, "demand": demand, "fuel": fuel})
    return found


CONTEXT: Json = {"season": 0.5, "oil": -0.2}
OTHER: Json = {"season": -1.0, "oil": 0.9}


class LearnedModels(dict[str, Json]):
    """Posteriors by model name, each learned with default options on first access."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def __missing__(self, name: str) -> Json:
        problem = create_problem(self.client, spec=MODELS[name][0])
        dataset = create_dataset(self.client, outcomes=["demand", "fuel"], rows=weeks(80))
        body = {"problem_id": problem["id"], "dataset_id": dataset["id"]}
        job = learn(self.client, check_json(self.client.post("/v1/jobs", json=body), 202)["id"])
        assert job["state"] == "succeeded", job["error"]
        self[name] = check_json(self.client.get(f"/v1/posteriors/{job['posterior_id']}"))
        return self[name]


@pytest.fixture(scope="module")
def posteriors(client: TestClient) -> LearnedModels:
    await_solvers(client)
    return LearnedModels(client)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def prescriptions_for(client: TestClient, posterior: Json, **body: Any) -> list[Json]:
    found: list[Json] = prescribe(client, posterior["id"], **{"contexts": [CONTEXT, OTHER], "scenarios": 20} | body)[
        "prescriptions"
    ]
    return found


def test_defaults_learn_and_decide(client: TestClient, posteriors: LearnedModels, model: str) -> None:
    posterior = posteriors[model]
    assert posterior["loss"] == ("spo_plus" if model == "maximised objective" else "squared_error")
    first, second = prescriptions_for(client, posterior)
    assert {first["status"], second["status"]} == {"optimal"}
    assert first["expected_cost"] is not None
    if model == "maximised objective":
        assert first["facts"]["expected_value"] == pytest.approx(-first["expected_cost"])
        assert first["decision"] == pytest.approx({"demand": 1, "fuel": 0.5})
    else:
        # Demand is lower, and express orders cost more than twice as much.
        assert second["decision"]["order"] < first["decision"]["order"] <= 80


def test_given_decisions_are_evaluated_and_completed(client: TestClient, posteriors: LearnedModels, model: str) -> None:
    posterior = posteriors[model]
    (ours,) = prescriptions_for(client, posterior, contexts=[CONTEXT], policy="predictive")
    worse = dict.fromkeys(ours["decision"], 0.0)
    body = {
        "contexts": [CONTEXT],
        "scenarios": 20,
        "policy": "predictive",
        "alternatives": [
            {"name": "nothing", "decision": worse},
            {"name": "ours", "decision": dict.fromkeys(ours["decision"])},
        ],
    }
    found = check_json(client.post(f"/v1/posteriors/{posterior['id']}/evaluate", json=body))["evaluations"][0]
    nothing, left = found["alternatives"]
    assert (nothing["status"], left["status"]) == ("given", "ours")
    assert nothing["expected_cost"] > left["expected_cost"]
    assert left["expected_cost"] == pytest.approx(found["ours"]["expected_cost"], rel=1e-6)


def test_every_part_is_included_or_null_where_meaningless(
    client: TestClient, posteriors: LearnedModels, model: str
) -> None:
    (found,) = prescriptions_for(client, posteriors[model], contexts=[CONTEXT], include=INCLUDED)
    assert [name for name in INCLUDED if found[name] is None] == (
        ["recourse"] if model == "maximised objective" else []
    )
    costs = found["scenarios"]["costs"]
    assert sum(costs) / len(costs) == pytest.approx(found["expected_cost"])
    season = found["sensitivity"]["derivatives"]["season"]
    assert season["method"] == "difference"
    if model == "maximised objective":
        # One unit of season adds twelve to the outcome 'demand', the value of an item taken whole.
        assert season["expected_cost"] == pytest.approx(-12, rel=0.1)
        return
    plan = found["recourse"]
    assert plan["first_stage_cost"] + plan["expected_cost"] == pytest.approx(found["expected_cost"])
    # Recourse costs are the amounts times the price of the day.
    assert sum(one["cost"] for one in plan["expected"].values()) == pytest.approx(plan["expected_cost"])
    whole = [amount == round(amount) for (amount,) in plan["plans"]["amounts"]]
    assert all(whole) == (model == "whole recourse")


def test_a_patched_cost_changes_the_decision(client: TestClient, posteriors: LearnedModels, model: str) -> None:
    posterior, changed = posteriors[model], MODELS[model][1]
    before, after = (
        prescriptions_for(client, posterior, policy="bcp", **own)[0] for own in ({}, {"problem_patch": changed})
    )
    assert after["status"] == "optimal"
    assert after["decision"] != before["decision"]
    assert after["expected_cost"] > before["expected_cost"]


def test_cvar_aversion_reduces_the_tail_cost(client: TestClient, posteriors: LearnedModels, model: str) -> None:
    risk = {"cvar_weight": 1.0, "cvar_level": 0.95}
    calm, wary = (
        prescriptions_for(client, posteriors[model], policy="predictive", **own)[0] for own in ({}, {"risk": risk})
    )
    assert wary["status"] == "optimal"
    rounding = 1e-6 * abs(calm["expected_cost"])
    assert wary["expected_cost"] >= calm["expected_cost"] - rounding
    assert wary["cvar_95"] <= calm["cvar_95"] + rounding
    if model != "maximised objective":
        assert wary["cvar_95"] < calm["cvar_95"] - rounding


def test_a_batch_gives_the_decisions_of_prescribe(client: TestClient, posteriors: LearnedModels, model: str) -> None:
    posterior = posteriors[model]
    dataset = create_dataset(client, outcomes=["demand", "fuel"], rows=[CONTEXT | {"demand": 1, "fuel": 1}] * 3)
    body = {"dataset_id": dataset["id"], "scenarios": 20, "policy": "bcp"}
    job = check_json(client.post(f"/v1/posteriors/{posterior['id']}/batch-prescriptions", json=body), 202)
    attempt = service.start(job["id"])
    assert attempt is not None
    assert parts.offer(job["id"], attempt)

    def run_part() -> None:
        assert parts.start(job["id"], 0)
        compute.run_part(job["id"], 0)

    compute.run(job["id"], attempt, run_part)
    done = check_json(client.get(f"/v1/jobs/{job['id']}"))
    assert done["state"] == "succeeded", done["error"]
    result = client.get(f"/v1/jobs/{job['id']}/result", params={"format": "csv"}).text
    table = list(csv.DictReader(io.StringIO(result)))
    (alone,) = prescriptions_for(client, posterior, contexts=[CONTEXT], policy="bcp")
    assert [row["status"] for row in table] == ["optimal"] * 3
    for name, value in alone["decision"].items():
        assert [float(row[f"decision.{name}"]) for row in table] == pytest.approx([value] * 3, rel=1e-6)
