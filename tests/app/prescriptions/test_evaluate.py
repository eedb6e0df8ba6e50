"""POST /v1/posteriors/{id}/evaluate: costs of the caller's decisions, broken constraints, open entries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from app.demo import example_problem
from app.prescriptions import offload
from app.prescriptions.schemas import EvaluateAnswer
from bco_core import deadlines
from bco_core.errors import OutOfTime
from bco_core.evaluate import _ContextScenarios
from bco_core.problems.linear import two_stage as linear
from bco_core.problems.registry import build_problem
from tests.app.prescriptions.test_prescriptions import encode_by_hand, load_posterior, predictive_scenarios
from tests.app.problems.test_two_stage import SPEC, posterior_for
from tests.support.journey import (
    ASSETS,
    CONTEXTS,
    FUND,
    OUTCOMES,
    QUICK,
    Json,
    await_solvers,
    check_json,
    create_dataset,
    learn_posterior,
    months,
    prescribe,
)

ITEMS = example_problem()["spec"]["items"]
YARD = [{"name": "yard", "coefficients": {"small": 1, "large": 1}, "sense": "<=", "limit": 15}]


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, seed=4, inference=QUICK | {"particles": 60, "initial_scale": 0.3})


@pytest.fixture(scope="module")
def trucks(client: TestClient) -> Json:
    return posterior_for(client, SPEC | {"decision_rows": YARD}, ["load"])


def post_evaluate(client: TestClient, posterior_id: str, **body: Any) -> Any:
    request_body = {"contexts": CONTEXTS[:1]} | body
    response = client.post(f"/v1/posteriors/{posterior_id}/evaluate", json=request_body)
    if response.status_code == 503 and "solver processes are starting" in response.text:
        await_solvers(client)
        response = client.post(f"/v1/posteriors/{posterior_id}/evaluate", json=request_body)
    return response


def evaluate(client: TestClient, posterior_id: str, **body: Any) -> Json:
    """Return the answer without its id, which is unique per call."""
    answer = check_json(post_evaluate(client, posterior_id, **body))
    assert answer.pop("id").startswith("pres_")
    return answer


def test_the_answer_has_the_documented_fields_and_the_decision_of_prescribe(
    client: TestClient, posterior: Json
) -> None:
    alternatives = [
        {"name": "as always", "decision": {"croissants": 100, "loaves": 55.5}},
        {"decision": {"croissants": None}},
        {"decision": {"loaves": 60}},
    ]
    answer = evaluate(client, posterior["id"], contexts=CONTEXTS[:3], alternatives=alternatives, scenarios=50)
    whole = {"id": "pres_x"} | answer
    assert EvaluateAnswer.model_validate(whole).model_dump(exclude_unset=True) == whole
    plain = prescribe(client, posterior["id"], contexts=CONTEXTS[:3], scenarios=50)
    for name in ("posterior_id", "digest", "policy", "scenarios", "quality", "history", "problem_differs", "warnings"):
        assert answer[name] == plain[name], name
    for one, ours in zip(answer["evaluations"], plain["prescriptions"], strict=True):
        assert {name: value for name, value in one["ours"].items() if name != "service_level"} == ours
        assert [each["name"] for each in one["alternatives"]] == ["as always", "alternative 2", "alternative 3"]
        always, left, some = one["alternatives"]
        assert (always["status"], always["filled"]) == ("given", [])
        assert always["decision"] == {"croissants": 100, "loaves": 55.5}
        assert (left["status"], left["filled"], left["decision"]) == ("ours", OUTCOMES, ours["decision"])
        assert (left["extra_cost"], left["worse_in"], left["expected_cost"]) == (0, 0, ours["expected_cost"])
        assert (some["status"], some["filled"]) == ("optimal", ["croissants"])
        assert some["decision"] == {"croissants": ours["decision"]["croissants"], "loaves": 60}


@pytest.mark.parametrize("costs_over", ["posterior", "predictive"])
def test_costs_and_extra_costs_can_be_recomputed_by_hand(client: TestClient, posterior: Json, costs_over: str) -> None:
    given = {"croissants": 110.0, "loaves": 50.0}
    options = {"scenarios": 40, "costs_over": costs_over}
    answer = evaluate(client, posterior["id"], contexts=CONTEXTS[:4], alternatives=[{"decision": given}], **options)
    core = load_posterior(posterior["id"])
    atoms = core.scenarios(torch.from_numpy(encode_by_hand(CONTEXTS[:4])), core.particles[:40]).outcomes
    if costs_over == "predictive":
        atoms = predictive_scenarios(core, CONTEXTS[:4], atoms.mean(dim=1), 40).outcomes
    under, over = (np.array([item[name] for item in ITEMS]) for name in ("underage_cost", "overage_cost"))
    for outcomes, one in zip(atoms.numpy(), answer["evaluations"], strict=True):

        def costs(decision: Json, outcomes: Any = outcomes) -> Any:
            short = outcomes - np.array([decision[name] for name in OUTCOMES])
            return np.where(short > 0, under * short, -over * short).sum(1)

        (found,), more = one["alternatives"], costs(given) - costs(one["ours"]["decision"])
        assert found["expected_cost"] == pytest.approx(costs(given).mean(), rel=1e-9)
        assert found["cvar_95"] == pytest.approx(np.sort(costs(given))[-2:].mean(), rel=1e-9)
        assert found["extra_cost"] == pytest.approx(more.mean(), rel=1e-9)
        assert found["extra_cost"] == pytest.approx(found["expected_cost"] - one["ours"]["expected_cost"], rel=1e-9)
        assert found["extra_cost_standard_error"] == pytest.approx(more.std(ddof=1) / math.sqrt(40), rel=1e-9)
        assert found["worse_in"] == pytest.approx((more > 0).mean())
        assert found["extra_cost_quantiles"]["0.95"] == pytest.approx(np.sort(more)[37])


def test_each_context_may_have_decisions_of_its_own(client: TestClient, posterior: Json) -> None:
    several = [{"name": "a", "decision": {"loaves": 40}}, {"name": "b", "decision": {}}]
    answer = evaluate(
        client, posterior["id"], contexts=CONTEXTS[:3], decisions=[{"croissants": 90, "loaves": 50}, several, {}]
    )
    names = [[one["name"] for one in each["alternatives"]] for each in answer["evaluations"]]
    assert names == [["alternative 1"], ["a", "b"], ["alternative 1"]]
    for number, decision in ((0, {"croissants": 90, "loaves": 50}), (1, {"loaves": 40})):
        (alone,) = evaluate(client, posterior["id"], contexts=[CONTEXTS[number]], decisions=[decision])["evaluations"]
        together = answer["evaluations"][number]["alternatives"][0]
        assert alone["alternatives"][0]["extra_cost"] == together["extra_cost"]


def test_decisions_that_break_constraints_are_costed_with_their_breaches(client: TestClient, trucks: Json) -> None:
    alternatives: list[Json] = [
        {"decision": {"small": 25, "large": 0}},
        {"decision": {"small": 2.5, "large": 5}},
        {"decision": {"small": None, "large": 5}},
        {"decision": {"small": 16, "large": None}},
    ]
    answer = evaluate(client, trucks["id"], contexts=[{"rain": 2.0}], alternatives=alternatives)
    ours, found = answer["evaluations"][0]["ours"], answer["evaluations"][0]["alternatives"]
    assert found[0]["breaches"] == [
        "small is 25, 5 above its maximum of 20",
        "'yard' is 25, 10 above its limit, 15",
    ]
    assert found[1]["breaches"] == ["small is 2.5 and must be an integer"]
    for one in found[:3]:
        assert one["expected_cost"] - ours["expected_cost"] == pytest.approx(one["extra_cost"], abs=1e-6)
    assert found[2]["breaches"] == []
    # Enumerate all completions of the third alternative.
    tried = evaluate(
        client,
        trucks["id"],
        contexts=[{"rain": 2.0}],
        alternatives=[{"decision": {"small": n, "large": 5}} for n in range(11)],
    )["evaluations"][0]["alternatives"]
    plan = evaluate(
        client, trucks["id"], contexts=[{"rain": 2.0}], alternatives=alternatives[2:3], policy="predictive"
    )["evaluations"][0]["alternatives"][0]
    assert plan["expected_cost"] == pytest.approx(min(one["expected_cost"] for one in tried), rel=1e-6)
    assert (found[3]["status"], found[3]["expected_cost"], found[3]["extra_cost"]) == ("infeasible", None, None)
    assert "no choice of the open entries satisfies all constraints with the given ones" in found[3]["reason"]
    assert found[3]["decision"] == {"small": None, "large": None}


def test_a_patch_changes_the_cost_of_decisions(client: TestClient, posterior: Json) -> None:
    decision = {"croissants": 100, "loaves": 60}
    patch = {"items": {"croissants": {"underage_cost": 3.6, "overage_cost": 1.2}}}
    plain, changed = (
        evaluate(client, posterior["id"], decisions=[decision], **options) for options in ({}, {"problem_patch": patch})
    )
    assert len(changed["problem_differs"]) == 2
    assert changed["warnings"][-1].startswith("the posterior was learned")
    ours = prescribe(client, posterior["id"], problem_patch=patch)["prescriptions"][0]
    assert changed["evaluations"][0]["ours"]["decision"] == ours["decision"]
    costs = [one["evaluations"][0]["alternatives"][0]["expected_cost"] for one in (plain, changed)]
    assert costs[1] > costs[0]


def test_an_alias_works_in_place_of_an_id(client: TestClient, posterior: Json) -> None:
    check_json(client.put("/v1/aliases/bakers", json={"posterior_id": posterior["id"]}))
    answer = evaluate(client, "bakers", decisions=[{"loaves": 60}])
    assert answer == evaluate(client, posterior["id"], decisions=[{"loaves": 60}])


def test_an_unusable_context_is_refused_alone(client: TestClient, posterior: Json) -> None:
    contexts = [CONTEXTS[0] | {"temperature": "warm"}, CONTEXTS[1]]
    answer = evaluate(client, posterior["id"], contexts=contexts, decisions=[{"loaves": 40}, {"loaves": 50}])
    first, second = answer["evaluations"]
    assert (first["status"], first["alternatives"], first["ours"]["status"]) == ("refused", [], "refused")
    assert "temperature" in first["reason"]
    assert (second["status"], second["alternatives"][0]["decision"]["loaves"]) == ("evaluated", 50)
    response = post_evaluate(client, posterior["id"], contexts=contexts[:1], decisions=[{"loaves": 40}])
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "#/contexts/0/temperature")


@pytest.mark.parametrize(
    ("body", "pointer", "words"),
    [
        ({}, "#", "exactly one of the two"),
        ({"alternatives": [{"decision": {}}], "decisions": [{}]}, "#", "exactly one of the two"),
        ({"alternatives": []}, "#/alternatives", "at least 1"),
        ({"decisions": [{}, {}]}, "#/decisions", "1 contexts and decisions for 2"),
        ({"decisions": [[]]}, "#/decisions/0", "1 to 100 alternatives"),
        ({"alternatives": [{"decision": {}}] * 101}, "#/alternatives", "BCO_MAX_ALTERNATIVES"),
        ({"decisions": [[{"decision": {}}] * 101]}, "#/decisions/0", "BCO_MAX_ALTERNATIVES"),
        ({"alternatives": [{"decision": {"bagels": 1}}]}, "#/alternatives/0/decision/bagels", "croissants, loaves"),
        ({"decisions": [{"bagels": None}]}, "#/decisions/0/bagels", "croissants, loaves"),
        ({"decisions": [[{"decision": {"bagels": 1}}]]}, "#/decisions/0/0/decision/bagels", "croissants, loaves"),
        ({"alternatives": [{"decision": {"loaves": "60"}}]}, "#/alternatives/0/decision/loaves", "valid number"),
        ({"alternatives": [{"decision": {"loaves": 1e13}}]}, "#/alternatives/0/decision/loaves", "less than"),
        ({"alternatives": [{"decision": [60, 70]}]}, "#/alternatives/0/decision", "dictionary"),
        ({"alternatives": [{"loaves": 60}]}, "#/alternatives/0/decision", "required"),
        (
            {"decisions": [{}], "problem_patch": {"items": {"bagels": {}}}},
            "#/problem_patch/items/bagels",
            "it has croissants",
        ),
        ({"decisions": [{}], "scenarios": 10**6}, "#/scenarios", "BCO_MAX_SCENARIOS"),
    ],
)
def test_an_invalid_evaluation_is_refused_with_a_pointer(
    client: TestClient, posterior: Json, body: Json, pointer: str, words: str
) -> None:
    response = post_evaluate(client, posterior["id"], **body)
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == pointer
    assert words in response.json()["detail"]


def test_non_finite_numbers_are_refused(client: TestClient, posterior: Json) -> None:
    for text in ("NaN", "Infinity", "1e400"):
        body = f'{{"contexts": [{{}}], "decisions": [{{"loaves": {text}}}]}}'
        address = f"/v1/posteriors/{posterior['id']}/evaluate"
        response = client.post(address, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 422, text
        assert response.json()["errors"][0]["pointer"] == "#/decisions/0/loaves"


def test_a_call_has_a_limited_number_of_decisions(
    client: TestClient, posterior: Json, settings: Callable[..., None]
) -> None:
    settings(max_contexts=5)
    body = {"contexts": CONTEXTS[:3], "alternatives": [{"decision": {}}] * 2}
    response = post_evaluate(client, posterior["id"], **body)
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "#/alternatives")
    assert "at most 5 decisions a call (BCO_MAX_CONTEXTS)" in response.json()["detail"]


def test_a_missing_posterior_is_not_found(client: TestClient) -> None:
    assert post_evaluate(client, "post_nowhere", decisions=[{}]).status_code == 404


@pytest.mark.parametrize("kind", ["posterior", "trucks"])
def test_a_solver_process_gives_the_same_answer_bit_for_bit(
    client: TestClient, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    found = request.getfixturevalue(kind)
    contexts = CONTEXTS[:2] if kind == "posterior" else [{"rain": 1.0}, {"rain": 3.0}]
    name = "loaves" if kind == "posterior" else "small"
    body = {"contexts": contexts, "alternatives": [{"decision": {name: 3}}, {"decision": {}}], "scenarios": 30}
    here = evaluate(client, found["id"], **body)
    await_solvers(client)
    monkeypatch.setattr(offload, "LARGE", 0)
    assert evaluate(client, found["id"], **body) == here


def test_long_searches_run_in_a_solver_process(
    client: TestClient, trucks: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search too long for a quick call does not return 503: a solver process runs it."""
    await_solvers(client)
    contexts, decision = [{"rain": 4.0}], {"small": 3}
    here = evaluate(client, trucks["id"], contexts=contexts, decisions=[decision])
    plain = prescribe(client, trucks["id"], contexts=contexts)
    monkeypatch.setattr(linear, "_is_long", lambda *_: True)
    client.app.state.slow.clear()  # type: ignore[attr-defined]
    there = evaluate(client, trucks["id"], contexts=contexts, decisions=[decision])
    assert (
        there["evaluations"][0]["alternatives"][0]["decision"] == here["evaluations"][0]["alternatives"][0]["decision"]
    )
    again = prescribe(client, trucks["id"], contexts=contexts)
    assert again["prescriptions"][0]["decision"] == plain["prescriptions"][0]["decision"]


def test_alternatives_without_time_have_the_status_time_limit(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_out_of_time(*_: Any, **__: Any) -> Any:
        raise OutOfTime("later")

    monkeypatch.setattr(deadlines, "before_long_work", lambda: None)
    monkeypatch.setattr(_ContextScenarios, "of", raise_out_of_time)
    answer = evaluate(client, posterior["id"], decisions=[{"loaves": 60}])
    (one,) = answer["evaluations"][0]["alternatives"]
    assert (one["status"], one["expected_cost"], one["decision"]["loaves"]) == ("time_limit", None, 60)
    assert answer["evaluations"][0]["ours"]["expected_cost"] is not None


def test_calls_without_a_free_slot_are_refused(client: TestClient, posterior: Json) -> None:
    places = client.app.state.admission  # type: ignore[attr-defined]
    total, places._total = places._total, 0
    try:
        assert post_evaluate(client, posterior["id"], decisions=[{}]).status_code == 503
    finally:
        places._total = total


def test_a_portfolio_reports_how_often_a_decision_meets_its_target(client: TestClient) -> None:
    problem = check_json(client.post("/v1/problems", json={"name": "fund", "spec": FUND}), 201)
    dataset = create_dataset(client, outcomes=ASSETS, rows=months())
    quick = {"method": "mh", "chains": 2, "steps": 60, "burn_in": 20}
    fund = learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"], inference=quick)
    body = {"contexts": [{"mood": 0.2, "rates": 0.1}], "scenarios": 40}
    alternatives = [{"decision": {"shares": 0.0, "bonds": 0.0, "gold": 0.2}}, {"decision": {"gold": 0.3}}]
    (one,) = evaluate(client, fund["id"], **body, alternatives=alternatives)["evaluations"]
    poor, left = one["alternatives"]
    assert poor["feasibility"] < 0.5
    assert left["decision"]["gold"] == 0.3
    assert left["filled"] == ["shares", "bonds"]
    spec = build_problem(fund["problem"])
    cost = spec.cost(torch.tensor(list(left["decision"].values()), dtype=torch.float64), torch.zeros(3))
    assert left["expected_cost"] == pytest.approx(float(cost))
