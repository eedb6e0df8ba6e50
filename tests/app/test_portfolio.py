"""A portfolio by HTTP: learned by Metropolis–Hastings, interrupted and resumed, prescribed, out of reach."""

from __future__ import annotations

import random
from typing import Any

import pytest
import sqlalchemy as sa
from journey import Json, answered, create_job, learn
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import CheckpointBlockRow
from app.jobs import checkpoints, compute, service

ASSETS = ["shares", "bonds", "gold"]
SPEC: Json = {
    "kind": "return_constrained_portfolio",
    "assets": [{"name": name} for name in ASSETS],
    "covariance": [[0.0004, 0.0001, 0.0], [0.0001, 0.0003, 0.0], [0.0, 0.0, 0.0005]],
    "target_return": 0.05,
}
QUICK: Json = {"chains": 2, "steps": 120, "burn_in": 60, "particles": 40, "inverse_temperature": 100}


def months(count: int = 60) -> list[Json]:
    drawn = random.Random(1)
    rows = []
    for _ in range(count):
        mood = drawn.gauss(0, 1)
        row: Json = {"mood": mood, "rates": drawn.gauss(0, 1)}
        for index, name in enumerate(ASSETS):
            row[name] = 0.1 + 0.02 * mood * (index - 1) + drawn.gauss(0, 0.01)
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    problem = answered(client.post("/v1/problems", json={"name": "fund", "spec": SPEC}), 201)
    body = {"name": "months", "outcomes": ASSETS, "rows": months()}
    return {"problem_id": problem["id"], "dataset_id": answered(client.post("/v1/datasets", json=body), 201)["id"]}


@pytest.fixture(scope="module")
def posterior(client: TestClient, ids: Json) -> Json:
    job = learn(client, create_job(client, **ids, posterior=QUICK)["id"])
    assert job["state"] == "succeeded", job["error"]
    return answered(client.get(f"/v1/posteriors/{job['posterior_id']}"))


CONTEXTS = [{"mood": 0.5, "rates": 0.0}, {"mood": -1.0, "rates": 0.3}]


def test_auto_samples_and_the_diagnostics_say_so(client: TestClient, posterior: Json) -> None:
    found = answered(client.get(f"/v1/posteriors/{posterior['id']}/diagnostics"))
    assert (found["method"], found["inference"], found["policy"]) == ("auto", "mh", "bcp")
    assert "no useful gradient" in found["inference_reason"]
    assert found["chains"]["count"] == 2
    assert len(found["chains"]["acceptance"]) == 2
    assert found["history"]["required_feasibility"] == 0.95
    assert min(found["history"]["chain_feasibility"]) >= 0.95
    assert found["temperatures"] == [{"inverse_temperature": 100, "loss_before": None, "loss_after": None, "chosen": 1}]
    assert found["quality"] in ("warn", "ok")


def test_a_portfolio_is_prescribed_with_its_chance_of_reaching_the_target(client: TestClient, posterior: Json) -> None:
    body = {"contexts": CONTEXTS, "scenarios": 40}
    answer = answered(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))
    assert answer["policy"] == "bcp"
    for one in answer["prescriptions"]:
        assert set(one["decision"]) == set(ASSETS)
        assert 0 < sum(one["decision"].values()) <= 1 + 1e-9
        assert min(one["decision"].values()) >= 0
        assert (one["status"], one["reason"]) == ("optimal", "")
        assert one["feasibility"] > 0.8
        assert one["expected_cost"] > 0


@pytest.mark.parametrize("choice", ["best_effort", "error"])
def test_a_target_out_of_reach_is_answered_as_the_caller_chose(client: TestClient, ids: Json, choice: str) -> None:
    spec = SPEC | {"target_return": 0.3, "infeasible": choice}
    problem = answered(client.post("/v1/problems", json={"name": "dream", "spec": spec}), 201)
    job = learn(client, create_job(client, **ids | {"problem_id": problem["id"]}, posterior=QUICK)["id"])
    assert job["state"] == "succeeded", job["error"]
    made = answered(client.get(f"/v1/posteriors/{job['posterior_id']}"))
    assert made["quality"] == "bad"
    assert "keep their constraints in 95% of the history" in made["reason"]
    response = client.post(f"/v1/posteriors/{made['id']}/prescribe", json={"contexts": CONTEXTS, "scenarios": 40})
    for one in answered(response)["prescriptions"]:
        assert one["reason"].startswith("no portfolio returns 0.3 in the worst 0.05 of the scenarios")
        assert "the best there is returns" in one["reason"]
        if choice == "error":
            assert one["status"] == "infeasible"
            assert set(one["decision"].values()) == {None}
            assert one["expected_cost"] is None
        else:
            assert one["status"] == "best_effort"
            assert sum(one["decision"].values()) == pytest.approx(1)


def stored_blocks(job_id: str) -> int:
    with transaction() as session:
        query = sa.select(sa.func.count()).where(CheckpointBlockRow.job_id == job_id)
        return session.scalars(query).one()


def test_a_job_whose_process_died_goes_on_from_its_checkpoint_and_ends_the_same(
    client: TestClient, ids: Json, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bco_core.inference.metropolis.CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(compute, "REPORT_SECONDS", -1.0)
    job_id = create_job(client, **ids, posterior=QUICK)["id"]
    report, seen = service.report, []

    def die(job_id: str, attempt: int, progress: float, message: str, *more: Any) -> bool:
        seen.append(message)
        if "step 100 of 120" in message and attempt == 1:
            raise MemoryError
        return report(job_id, attempt, progress, message, *more)

    monkeypatch.setattr(service, "report", die)
    first = service.start(job_id)
    assert first is not None
    with pytest.raises(MemoryError):
        compute.run(job_id, first)
    assert stored_blocks(job_id) > 10
    seen.clear()
    job = learn(client, job_id)
    assert (job["state"], job["attempts"]) == ("succeeded", 2)
    assert not any("step 50 of" in message for message in seen)
    assert any("step 100 of" in message for message in seen)
    assert stored_blocks(job_id) == 0
    again = answered(client.get(f"/v1/posteriors/{job['posterior_id']}"))
    assert again["digest"] == posterior["digest"]


def test_a_checkpoint_is_replaced_refused_to_the_unwanted_and_ignored_when_damaged(
    client: TestClient, ids: Json
) -> None:
    import numpy as np

    job_id = create_job(client, **ids, posterior=QUICK)["id"]
    attempt = service.start(job_id)
    assert attempt is not None
    assert checkpoints.load(job_id) is None
    checkpoints.save(job_id, attempt, {"a": np.arange(1_500_000.0), "b": np.ones(3)})
    assert stored_blocks(job_id) == 4
    checkpoints.save(job_id, attempt, {"a": np.arange(5.0)})
    loaded = checkpoints.load(job_id)
    assert loaded is not None
    assert set(loaded) == {"a"}
    assert loaded["a"].tolist() == [0, 1, 2, 3, 4]
    checkpoints.save(job_id, attempt + 1, {"a": np.zeros(2)})
    assert stored_blocks(job_id) == 1
    with transaction() as session:
        session.execute(sa.update(CheckpointBlockRow).values(sha256="0"))
    assert checkpoints.load(job_id) is None
    answered(client.post(f"/v1/jobs/{job_id}/cancel"), 202)
    assert stored_blocks(job_id) == 0


@pytest.mark.parametrize(
    ("changes", "pointer", "words"),
    [
        ({"kind": "lottery"}, "#/spec/kind", "the problem kind must be one of"),
        ({"covariance": [[1.0]]}, "#/spec/covariance", "3 rows of 3 numbers"),
        ({"covariance": None}, "#/spec/covariance", "exactly one of them"),
        ({"confidence": 1}, "#/spec/confidence", "less than 1"),
        ({"assets": [{"name": "gold"}, {"name": "gold"}]}, "#/spec", "same name"),
        ({"budget": 0}, "#/spec/budget", "greater than 0"),
    ],
)
def test_a_bad_portfolio_is_refused_where_it_is_wrong(
    client: TestClient, changes: Json, pointer: str, words: str
) -> None:
    refusal = answered(client.post("/v1/problems", json={"name": "fund", "spec": SPEC | changes}), 422)
    assert refusal["errors"][0]["pointer"] == pointer
    assert words in refusal["errors"][0]["detail"]


def test_chains_that_are_all_burn_in_are_refused(client: TestClient, ids: Json) -> None:
    body = {**ids, "posterior": QUICK | {"burn_in": 120}}
    refusal = answered(client.post("/v1/jobs", json=body), 422)
    assert "burn_in must be shorter" in refusal["detail"]
