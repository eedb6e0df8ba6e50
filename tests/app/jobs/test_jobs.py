"""Jobs over HTTP: creation, results, seeds, options, cancellation and deletion."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.jobs import queue
from bco_core.inference.options import AutoOptions
from tests.support.journey import (
    OUTCOMES,
    QUICK,
    ROWS,
    Json,
    check_json,
    counts,
    create_dataset,
    create_job,
    create_problem,
    learn,
    learn_posterior,
    pages,
)


def test_a_new_job_is_queued_with_its_location(client: TestClient) -> None:
    problem, dataset = create_problem(client, name="rolls"), create_dataset(client)
    response = client.post("/v1/jobs", json={"problem_id": problem["id"], "dataset_id": dataset["id"]})
    job = check_json(response, 202)
    assert re.fullmatch(r"job_[0-9A-HJKMNP-TV-Z]{26}", job["id"])
    assert response.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert job["posterior_id"] == job["id"].replace("job_", "post_")
    assert (job["problem_id"], job["dataset_id"], job["name"]) == (problem["id"], dataset["id"], "rolls")
    assert (job["state"], job["progress"], job["attempts"], job["error"]) == ("queued", 0.0, 0, None)
    assert (job["started_at"], job["finished_at"]) == (None, None)
    assert check_json(client.get(f"/v1/jobs/{job['id']}")) == job


def test_a_job_shows_its_defaults(client: TestClient) -> None:
    job = create_job(client, predictor={}, inference={})
    defaults = AutoOptions()
    assert job["spec"]["predictor"] == {"kind": defaults.predictor.kind, "hidden": None}
    inference = job["spec"]["inference"]
    assert set(inference) == {"method", *(field.name for field in fields(defaults))} - {"predictor", "policy", "seed"}
    assert inference == {name: getattr(defaults, name) for name in inference}
    assert (job["spec"]["policy"], job["spec"]["seed"]) == (defaults.policy, defaults.seed)


def test_a_job_can_be_named_and_its_posterior_takes_the_name(client: TestClient) -> None:
    posterior = learn_posterior(client, name=" spring ")
    assert posterior["name"] == "spring"
    assert check_json(client.get(f"/v1/jobs/{posterior['job_id']}"))["name"] == "spring"


def test_an_accepted_job_is_queued_under_its_own_id_as_plain_json(client: TestClient) -> None:
    job = create_job(client)
    (queued,) = queue.client().list_queued_workflows(queue_name=queue.COMPUTING, workflow_ids=[job["id"]])
    assert (queued.workflow_id, queued.status) == (job["id"], "ENQUEUED")
    with transaction() as session:
        schema = None if session.get_bind().dialect.name == "sqlite" else "dbos"
        table = sa.table("workflow_input", sa.column("inputs"), sa.column("workflow_uuid"), schema=schema)
        payload = session.scalar(sa.select(table.c.inputs).where(table.c.workflow_uuid == job["id"]))
    assert json.loads(payload or "") == {"namedArgs": {}, "positionalArgs": [job["id"]]}


def test_a_job_that_cannot_be_queued_is_not_stored(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    before = counts()

    def fail_to_queue(*_: Any) -> None:
        raise RuntimeError("the queue is full of bees")

    monkeypatch.setattr(queue, "enqueue", fail_to_queue)
    response = client.post("/v1/jobs", json=ids)
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert "bees" not in response.text
    assert counts() == before


def test_the_size_of_a_posterior_counts_the_draws_of_chains_even_with_gradients(
    client: TestClient, settings: Callable[..., None]
) -> None:
    """Chains store a thousand draws, mixtures two vectors per member: 1.1 GB versus 47 MB here."""
    settings(max_posterior_mb=100)
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    body = ids | {"predictor": {"kind": "mlp", "hidden": [512, 512]}}
    check_json(client.post("/v1/jobs", json=body | {"inference": QUICK}), 202)
    before = counts()
    refusal = check_json(client.post("/v1/jobs", json=body | {"inference": {"method": "mh", "particles": 40}}), 422)
    assert refusal["errors"][0]["pointer"] == "#/inference/particles"
    assert "BCO_MAX_POSTERIOR_MB" in refusal["detail"]
    assert counts() == before


def test_a_finished_job_is_shown_as_succeeded(client: TestClient) -> None:
    job = learn(client, create_job(client)["id"])
    assert (job["state"], job["progress"], job["message"], job["error"]) == ("succeeded", 1.0, "done", None)
    assert job["attempts"] == 1
    created, started, finished = (
        datetime.fromisoformat(job[name]) for name in ("created_at", "started_at", "finished_at")
    )
    assert created <= started <= finished
    assert check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))["job_id"] == job["id"]


def test_jobs_are_listed_newest_first_a_page_at_a_time(client: TestClient) -> None:
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    for _ in range(5):
        create_job(client, **ids)
    found = [item["id"] for page in pages(client, "/v1/jobs", 2) for item in page]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == len(found) == counts()["jobs"]


def test_the_same_seed_learns_the_same_posterior_and_another_seed_another(client: TestClient) -> None:
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    predictor = {"kind": "mlp", "hidden": [8]}
    first, again, other = (
        learn_posterior(client, predictor=predictor, seed=seed, **ids)["digest"] for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


def test_the_same_history_uploaded_again_learns_the_same_posterior(client: TestClient) -> None:
    assert learn_posterior(client, seed=3)["digest"] == learn_posterior(client, seed=3)["digest"]


def test_the_largest_json_integers_are_accepted_as_seeds(client: TestClient) -> None:
    assert learn_posterior(client, seed=2**53 - 1)["description"]["seed"] == 2**53 - 1


@pytest.mark.parametrize(
    "changes",
    [
        {"predictor": {"kind": "linear"}},
        {"predictor": {"kind": "relu_affine"}},
        {"predictor": {"kind": "mlp", "hidden": [8]}},
        {"predictor": {"kind": "mlp", "hidden": [4, 3]}},
        {"predictor": {"kind": "skip_mlp", "hidden": [8]}},
        {"inference": QUICK | {"family": "gaussian"}},
        {"inference": QUICK | {"family": "laplace", "members": 1}},
        {"inference": QUICK | {"kl_weight": 0.01}},
        {"inference": QUICK | {"inverse_temperature": 500}},
        {"inference": QUICK | {"draws": 3, "batch_size": 16, "learning_rate": 0.01}},
        {"inference": {"method": "auto", "epochs": 2, "particles": 40}},
        {"policy": "averaged"},
        {"policy": "blended"},
        {"policy": "map"},
        {"policy": "thompson"},
    ],
    ids=lambda changes: json.dumps(changes),
)
def test_every_option_of_a_job_can_be_used_for_learning(client: TestClient, changes: Json) -> None:
    posterior = learn_posterior(client, **changes)
    predictor = {"kind": "linear"} | changes.get("predictor", {})
    widths = posterior["description"]["predictor"]["widths"]
    assert posterior["description"]["predictor"]["kind"] == predictor["kind"]
    assert widths[1:-1] == predictor.get("hidden", [])
    inference = changes.get("inference", QUICK)
    if inference["method"] == "vi":
        assert posterior["policy"] == changes.get("policy", "bcp")
    assert posterior["description"]["family"] == inference.get("family", "laplace")
    diagnostics = check_json(client.get(f"/v1/posteriors/{posterior['id']}/diagnostics"))
    assert diagnostics["method"] == inference["method"]
    if inference["method"] == "vi":
        assert diagnostics["members"]["count"] == inference["members"]
    assert diagnostics["kl_weight"] * diagnostics["inverse_temperature"] == pytest.approx(1)
    for name in ("kl_weight", "inverse_temperature"):
        assert diagnostics[name] == pytest.approx(inference.get(name, diagnostics[name]))


def test_a_problem_learns_from_its_own_outcomes_in_its_own_order(client: TestClient) -> None:
    rows = [row | {"croissants": 1000 + index, "loaves": index / 100} for index, row in enumerate(ROWS)]
    dataset = create_dataset(client, outcomes=[*OUTCOMES, "rain"], contexts=["temperature"], rows=rows)
    items = [{"name": name, "underage_cost": 1, "overage_cost": 1} for name in ("loaves", "croissants")]
    problem = create_problem(client, spec={"kind": "newsvendor", "items": items})
    posterior = learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"])
    body = {"contexts": [[5.0]]}
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))
    decision = answer["prescriptions"][0]["decision"]
    assert list(decision) == ["loaves", "croissants"]
    assert decision["loaves"] < 10 < 900 < decision["croissants"]


def test_diverging_training_fails_the_job_with_a_remedy(client: TestClient) -> None:
    before = counts()["posteriors"]
    predictor = {"kind": "mlp", "hidden": [8, 8, 8, 8, 8, 8, 8, 8]}
    inference = QUICK | {"learning_rate": 10, "epochs": 200, "patience": 200, "prior_scale": 1e-12}
    job = learn(client, create_job(client, predictor=predictor, inference=inference)["id"])
    assert (job["state"], job["message"]) == ("failed", "failed")
    assert "learning_rate" in job["error"]
    assert job["finished_at"] is not None
    assert counts()["posteriors"] == before


@pytest.mark.parametrize(
    "extreme",
    [
        {"initial_scale": 1e12},
        {"initial_scale": 1e-300},
        {"prior_scale": 1e12},
        {"prior_scale": 1e-300},
        {"kl_weight": 1e12},
        {"inverse_temperature": 1e-300},
        {"batch_size": 1},
        {"batch_size": 1_000_000},
    ],
    ids=lambda extreme: json.dumps(extreme),
)
def test_an_extreme_setting_gives_a_posterior_or_an_error_message(client: TestClient, extreme: Json) -> None:
    job = learn(client, create_job(client, inference=QUICK | extreme)["id"])
    assert (job["state"], job["error"] is None) in {("succeeded", True), ("failed", False)}


def test_a_history_with_constant_columns_can_be_learned_from(client: TestClient) -> None:
    rows = [{"x": 7, "z": index, "croissants": 5, "loaves": index} for index in range(30)]
    dataset = create_dataset(client, rows=rows)
    posterior = learn_posterior(client, dataset_id=dataset["id"])
    answer = check_json(
        client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json={"contexts": [{"x": 7, "z": 3}]})
    )
    assert answer["prescriptions"][0]["status"] == "optimal"


def test_a_history_with_one_perfect_decision_can_be_learned_from(client: TestClient) -> None:
    rows = [{"x": index, "croissants": 5, "loaves": 8} for index in range(30)]
    posterior = learn_posterior(client, dataset_id=create_dataset(client, rows=rows)["id"])
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json={"contexts": [{"x": 7}]}))
    assert set(answer["prescriptions"][0]["decision"]) == set(OUTCOMES)


def test_a_cancelled_job_stays_cancelled(client: TestClient) -> None:
    job = create_job(client)
    answer = check_json(client.post(f"/v1/jobs/{job['id']}/cancel"), 202)
    assert (answer["state"], answer["message"]) == ("cancelled", "cancelled")
    assert answer["finished_at"] is not None
    assert check_json(client.post(f"/v1/jobs/{job['id']}/cancel"), 202) == answer


def test_a_cancelled_job_leaves_the_queue(client: TestClient) -> None:
    job = create_job(client)
    client.post(f"/v1/jobs/{job['id']}/cancel")
    assert queue.client().list_queued_workflows(workflow_ids=[job["id"]]) == []


def test_a_finished_job_can_be_deleted_once_its_posterior_is(client: TestClient) -> None:
    posterior = learn_posterior(client)
    job = f"/v1/jobs/{posterior['job_id']}"
    refused = client.delete(job)
    assert refused.status_code == 409
    assert "posterior" in refused.json()["detail"]
    assert client.delete(f"/v1/posteriors/{posterior['id']}").status_code == 204
    response = client.delete(job)
    assert (response.status_code, response.content) == (204, b"")
    assert client.get(job).status_code == 404
    for path in (f"/v1/datasets/{posterior['dataset_id']}", f"/v1/problems/{posterior['problem_id']}"):
        assert client.delete(path).status_code == 204
