"""Posterior updates: learn from newer rows, compare with the old posterior, promote the better one."""

from __future__ import annotations

import random
from datetime import date, timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.journey import Json, check_json, create_dataset, create_job, create_problem, learn, learn_posterior

FIRST = date(2023, 1, 2)
SPEC: Json = {"kind": "newsvendor", "items": [{"name": "demand", "underage_cost": 3, "overage_cost": 1}]}
GOOD: Json = {"method": "vi", "members": 5, "epochs": 60, "particles": 40}


def days(numbers: range, level: float = 100.0, weekend: float = 30.0) -> list[Json]:
    noise = random.Random(numbers.start)
    return [
        {
            "day": (FIRST + timedelta(days=n)).isoformat(),
            "shop": shop,
            "demand": level + weekend * (n % 7 > 4) + noise.gauss(0, 4),
        }
        for n in numbers
        for shop in ("north", "south")
    ]


@pytest.fixture
def old(client: TestClient) -> Json:
    dataset = create_dataset(
        client, outcomes=["demand"], time="day", series=["shop"], lead=2, rows=days(range(120)), name="shops"
    )
    problem = create_problem(client, name="shop", spec=SPEC)
    return learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"], inference=GOOD)


def append(client: TestClient, dataset_id: str, rows: list[Json]) -> Json:
    return check_json(client.post(f"/v1/datasets/{dataset_id}/rows", json={"rows": rows}), 201)


def update_posterior(client: TestClient, old: Json, how: Json | None = None, **changes: Any) -> Json:
    body = {
        "problem_id": old["problem_id"],
        "dataset_id": old["dataset_id"],
        "from_posterior": {"posterior_id": old["id"]} | (how or {}),
    }
    return create_job(client, **body | changes)


def test_a_posterior_is_updated_from_newer_rows_and_compared_with_the_old(client: TestClient, old: Json) -> None:
    append(client, old["dataset_id"], days(range(120, 180), weekend=-30.0))
    job = learn(client, update_posterior(client, old)["id"])
    assert job["state"] == "succeeded", job["error"]
    new = check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))
    assert new["id"] != old["id"]
    update = check_json(client.get(f"/v1/posteriors/{new['id']}/diagnostics"))["update"]
    assert (update["from_posterior"], update["new_rows"], update["compared_rows"]) == (old["id"], 120, 40)
    # Weekend demand has reversed, and the new rows show it.
    assert update["difference"]["mean"] < -2 * update["difference"]["standard_error"]
    context = {"day": (FIRST + timedelta(days=180)).isoformat(), "shop": "north"}
    assert (FIRST + timedelta(days=180)).weekday() == 5
    orders = [
        check_json(client.post(f"/v1/posteriors/{one}/prescribe", json={"contexts": [context]}))["prescriptions"][0]
        for one in (old["id"], new["id"])
    ]
    assert orders[1]["decision"]["demand"] < orders[0]["decision"]["demand"]


@pytest.mark.slow
def test_the_alias_moves_to_an_updated_posterior_that_is_not_worse(client: TestClient, old: Json) -> None:
    check_json(client.put("/v1/aliases/shops", json={"posterior_id": old["id"]}))
    append(client, old["dataset_id"], days(range(120, 180), weekend=-30.0))
    job = update_posterior(client, old | {"id": "shops"}, promote={"alias": "shops"})
    job = learn(client, job["id"])
    assert check_json(client.get("/v1/aliases/shops"))["posterior_id"] == job["posterior_id"]


def test_an_impossible_update_is_refused_with_the_reason(client: TestClient, old: Json) -> None:
    def refusal(status: int = 422, **changes: Any) -> str:
        body = {
            "problem_id": old["problem_id"],
            "dataset_id": old["dataset_id"],
            "from_posterior": {"posterior_id": old["id"]},
        }
        answer = check_json(client.post("/v1/jobs", json=body | changes), status)
        return str(answer["errors"][0]["detail"])

    assert "already learned from all rows" in refusal()
    append(client, old["dataset_id"], days(range(120, 125)))
    assert "no posterior has this id" in refusal(from_posterior={"posterior_id": "post_nothing"})
    other = create_problem(client, name="other", spec=SPEC)
    assert "another problem" in refusal(problem_id=other["id"])
    elsewhere = create_dataset(client, outcomes=["demand"], time="day", series=["shop"], rows=days(range(30)))
    assert "another data set" in refusal(dataset_id=elsewhere["id"])
    half = {"posterior_id": old["id"], "forgetting": 0.5}
    assert "only a prior can be forgotten" in refusal(from_posterior=half)
    # Rows are counted only when the job reads them.
    job = learn(client, update_posterior(client, old)["id"])
    assert job["state"] == "failed"
    assert "at least 30 rows" in job["error"]
