"""A linear model with uncertain costs over HTTP: surrogate loss, decisions, evaluation, updates, export."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.db.base import DEFAULT_WORKSPACE
from app.db.migrate import migrate
from app.main import create_app
from app.posteriors import portable
from app.settings import get_settings
from bco_core.inference.diagnostics import LOSSES
from tests.support.in_process import service_on
from tests.support.journey import (
    Json,
    check_json,
    create_dataset,
    create_job,
    create_problem,
    learn,
    learn_posterior,
    prescribe,
)

ROUTES = ["sea", "rail", "road"]
SPEC: Json = {
    "kind": "linear",
    "decisions": [{"name": name, "cost": {"outcomes": {f"{name} rate": 1}}, "maximum": 6} for name in ROUTES],
    "outcomes": [{"name": f"{name} rate"} for name in ROUTES],
    "rows": [{"name": "all", "decisions": dict.fromkeys(ROUTES, 1), "sense": "=", "limit": 10}],
}
SPEC_OUTCOMES = [outcome["name"] for outcome in SPEC["outcomes"]]
CONTEXTS = [{"storms": 1.5, "fuel": -0.3}, {"storms": -1.0, "fuel": 1.0}]


def days(count: int, seed: int = 0) -> list[Json]:
    random_ = random.Random(seed)
    found = []
    for _ in range(count):
        storms, fuel = random_.gauss(0, 1), random_.gauss(0, 1)
        noise = [random_.gauss(0, 0.3) for _ in ROUTES]
        rates = (3 + 1.5 * max(storms, 0) ** 2 + noise[0], 4 + 0.2 * fuel + noise[1], 4 + 1.2 * fuel + noise[2])
        found.append({"storms": storms, "fuel": fuel} | dict(zip(SPEC_OUTCOMES, rates, strict=True)))
    return found


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    problem = create_problem(client, name="freight", spec=SPEC)
    dataset = create_dataset(client, outcomes=SPEC_OUTCOMES, rows=days(120), name="rates")
    return {"problem_id": problem["id"], "dataset_id": dataset["id"]}


@pytest.fixture(scope="module")
def posterior(client: TestClient, ids: Json) -> Json:
    return learn_posterior(client, **ids, predictor={"kind": "auto"}, inference={"particles": 50})


def test_a_posterior_names_its_loss(client: TestClient, posterior: Json) -> None:
    assert (posterior["loss"], posterior["loss_meaning"]) == ("spo_plus", LOSSES["spo_plus"])
    diagnostics = check_json(client.get(f"/v1/posteriors/{posterior['id']}/diagnostics"))
    assert (diagnostics["loss"], diagnostics["loss_meaning"]) == ("spo_plus", LOSSES["spo_plus"])
    assert diagnostics["certificate"]["bound"] is None
    assert "surrogate" in diagnostics["certificate"]["reason"]
    assert diagnostics["held_out_cost"]["bcp"]["mean"] < diagnostics["constant_decision_cost"]["mean"]


def test_a_certificate_is_refused_with_the_reason(client: TestClient, ids: Json) -> None:
    options = {"predictor": {"kind": "auto"}, "inference": {"certify": True}}
    job = learn(client, create_job(client, **ids, **options)["id"])
    assert job["state"] == "failed"
    assert "surrogate" in str(job["error"])


def test_chains_sample_the_true_cost(client: TestClient, ids: Json) -> None:
    chains = {"method": "mh", "chains": 2, "steps": 120, "burn_in": 60, "particles": 40, "inverse_temperature": 100}
    found = learn_posterior(client, **ids, inference=chains)
    assert (found["loss"], found["loss_meaning"]) == ("cost", LOSSES["cost"])


def test_decisions_are_proven_optimal_and_can_be_evaluated(client: TestClient, posterior: Json) -> None:
    options = {"include": ["scenarios", "outcomes", "sensitivity", "neighbours"], "scenarios": 40}
    answer = prescribe(client, posterior["id"], contexts=CONTEXTS, **options)
    assert answer["policy"] == "bcp"
    for one in answer["prescriptions"]:
        assert sum(one["decision"].values()) == pytest.approx(10)
        assert (one["status"], one["solver"], one["reason"]) == ("optimal", "primal simplex", "")
        assert one["expected_cost"] > 0
    # Storms make the sea route expensive; without them it is used to its maximum.
    assert answer["prescriptions"][0]["decision"]["sea"] == 0
    assert answer["prescriptions"][1]["decision"]["sea"] == 6
    even = {"sea": 4, "rail": 3, "road": 3}
    body = {"contexts": CONTEXTS, "alternatives": [{"name": "even", "decision": even}, {"decision": {"sea": 5}}]}
    judged = check_json(client.post(f"/v1/posteriors/{posterior['id']}/evaluate", json=body))
    assert len(judged["evaluations"]) == 2


def test_cvar_is_minimised_over_scenarios(client: TestClient, posterior: Json) -> None:
    options = {"policy": "bcp", "risk": {"cvar_weight": 1.0, "cvar_level": 0.9}, "scenarios": 60}
    (one,) = prescribe(client, posterior["id"], contexts=CONTEXTS[:1], **options)["prescriptions"]
    assert (one["status"], one["solver"]) == ("optimal", "HiGHS")


def test_an_updated_posterior_keeps_its_loss(client: TestClient, posterior: Json) -> None:
    path = f"/v1/datasets/{posterior['dataset_id']}/rows"
    check_json(client.post(path, json={"rows": days(60, seed=1)}), 201)
    options = {"posterior_id": posterior["id"], "as_prior": True}
    job = create_job(
        client, problem_id=posterior["problem_id"], dataset_id=posterior["dataset_id"], from_posterior=options
    )
    done = learn(client, job["id"])
    assert done["state"] == "succeeded", done["error"]
    later = check_json(client.get(f"/v1/posteriors/{done['posterior_id']}"))
    assert (later["loss"], later["description"]["family"]) == ("spo_plus", "matrix_gaussian")


def test_an_imported_posterior_makes_the_same_decisions(client: TestClient, posterior: Json, tmp_path: Path) -> None:
    path = tmp_path / "freight.bco"
    portable.export(posterior["id"], path)
    here = prescribe(client, posterior["id"], contexts=CONTEXTS)["prescriptions"]
    with service_on(f"sqlite:///{tmp_path / 'elsewhere.db'}"):
        migrate(get_settings().sqlalchemy_url)
        portable.import_(path, DEFAULT_WORKSPACE)
        with TestClient(create_app()) as other:
            (row,) = check_json(other.get("/v1/posteriors"))["items"]
            there = check_json(other.get(f"/v1/posteriors/{row['id']}"))
            assert there["loss"] == "spo_plus"
            assert prescribe(other, row["id"], contexts=CONTEXTS)["prescriptions"] == here
