"""Promotion: a job moves an alias to its new posterior if it is not worse."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from app.aliases.promotion import LEAST_ROWS, Promotion, PromotionComparison, consider
from app.db.engine import transaction
from app.db.tables import JobRow, PosteriorRow
from app.jobs import service as jobs
from app.jobs.kinds import learn as kind
from app.posteriors import service as posteriors
from bco_core.estimates import Estimate
from tests.support.journey import (
    Json,
    check_json,
    create_job,
    create_problem,
    learn,
    learn_posterior,
    store_function_for,
)


@pytest.fixture(scope="module")
def incumbent(client: TestClient) -> Json:
    return learn_posterior(client, seed=1)


@pytest.fixture(scope="module")
def challenger(client: TestClient, incumbent: Json) -> Json:
    return learn_posterior(client, problem_id=incumbent["problem_id"], dataset_id=incumbent["dataset_id"], seed=2)


def posterior_of_alias(client: TestClient, alias: str) -> str:
    found: str = check_json(client.get(f"/v1/aliases/{alias}"))["posterior_id"]
    return found


def log_of(client: TestClient, job: Json) -> list[str]:
    return [line["text"] for line in check_json(client.get(f"/v1/jobs/{job['id']}/log"))["lines"]]


def consider_promotion(
    client: TestClient, alias: str, challenger: Json, comparison: PromotionComparison | None, when: str = "if_not_worse"
) -> tuple[bool, str]:
    promotion = Promotion.model_validate({"alias": alias, "when": when})
    with transaction() as session:
        row = session.get_one(PosteriorRow, challenger["id"])
        return consider(session, "default", promotion, row, comparison, challenger["job_id"])


def compared_with(incumbent: Json, mean: float, rows: int = 50) -> PromotionComparison:
    return PromotionComparison(incumbent["id"], rows, Estimate(mean, 0.5))


@pytest.mark.parametrize(
    ("when", "mean", "rows", "moves"),
    [
        ("if_not_worse", -1.0, 50, True),
        ("if_not_worse", 0.0, 50, True),
        ("if_not_worse", 0.1, 50, False),
        ("if_not_worse", -9.0, LEAST_ROWS - 1, False),
        ("if_not_worse", float("nan"), 50, False),
        ("always", 5.0, 50, True),
        ("never", -5.0, 50, False),
    ],
)
def test_an_alias_moves_only_if_the_promotion_rule_allows_it(
    client: TestClient, incumbent: Json, challenger: Json, when: str, mean: float, rows: int, moves: bool
) -> None:
    check_json(client.put("/v1/aliases/earned", json={"posterior_id": incumbent["id"]}))
    moved, sentence = consider_promotion(client, "earned", challenger, compared_with(incumbent, mean, rows), when)
    assert moved is moves
    assert posterior_of_alias(client, "earned") == (challenger if moves else incumbent)["id"]
    assert (challenger["id"] if moves else f"still names {incumbent['id']}") in sentence
    if moves:
        move = check_json(client.get("/v1/aliases/earned/moves"))["items"][0]
        assert (move["reason"], move["by"]) == (sentence, challenger["job_id"])


def test_a_comparison_with_a_former_posterior_does_not_count(
    client: TestClient, incumbent: Json, challenger: Json
) -> None:
    """The alias was moved while the job was learning."""
    other = learn_posterior(client, problem_id=incumbent["problem_id"], dataset_id=incumbent["dataset_id"], seed=3)
    check_json(client.put("/v1/aliases/moved-meanwhile", json={"posterior_id": other["id"]}))
    moved, sentence = consider_promotion(client, "moved-meanwhile", challenger, compared_with(incumbent, -1.0))
    assert (moved, "were not compared" in sentence) == (False, True)


def test_posteriors_of_different_problems_are_not_compared(client: TestClient, incumbent: Json) -> None:
    foreign = learn_posterior(client, problem_id=create_problem(client)["id"], dataset_id=incumbent["dataset_id"])
    check_json(client.put("/v1/aliases/foreign", json={"posterior_id": incumbent["id"]}))
    moved, sentence = consider_promotion(client, "foreign", foreign, compared_with(incumbent, -1.0))
    assert (moved, "different problems" in sentence) == (False, True)


def test_jobs_create_keep_or_move_an_alias_and_log_it(client: TestClient, incumbent: Json) -> None:
    ids = {name: incumbent[name] for name in ("problem_id", "dataset_id")}
    promote = {"alias": "nightly", "when": "if_not_worse"}
    first = learn(client, create_job(client, **ids, promote=promote)["id"])
    assert (first["state"], first["spec"]["promote"]) == ("succeeded", promote)
    assert posterior_of_alias(client, "nightly") == first["posterior_id"]
    assert "there was no such alias" in log_of(client, first)[-1]
    second = learn(client, create_job(client, **ids, promote=promote, seed=5)["id"])
    assert posterior_of_alias(client, "nightly") == first["posterior_id"]
    assert f"still names {first['posterior_id']}" in log_of(client, second)[-1]
    third = learn(client, create_job(client, **ids, promote=promote | {"when": "always"}, seed=6)["id"])
    assert posterior_of_alias(client, "nightly") == third["posterior_id"]


def test_the_comparison_of_the_job_decides(client: TestClient, incumbent: Json) -> None:
    ids = {name: incumbent[name] for name in ("problem_id", "dataset_id")}
    check_json(client.put("/v1/aliases/handed", json={"posterior_id": incumbent["id"]}))
    for mean, moves in ((0.2, False), (-0.2, True)):
        job = create_job(client, **ids, promote={"alias": "handed"})
        attempt = jobs.start(job["id"])
        with transaction() as session:
            row = session.get_one(PosteriorRow, incumbent["id"])
            result = posteriors.load(session, row), row.diagnostics
            stored = session.get_one(JobRow, job["id"])
            given = kind.read(stored)
        assert attempt is not None
        store = kind.store_posterior(
            given.job, given.problem, given.dataset, *result, comparison=compared_with(incumbent, mean)
        )
        jobs.succeed(job["id"], attempt, store)
        assert posterior_of_alias(client, "handed") == (job["posterior_id"] if moves else incumbent["id"])
        assert "on the newest 50 rows" in log_of(client, job)[-1]


def test_a_cancelled_job_moves_no_alias(client: TestClient, incumbent: Json) -> None:
    ids = {name: incumbent[name] for name in ("problem_id", "dataset_id")}
    job = create_job(client, **ids, promote={"alias": "cancelled", "when": "always"})
    attempt = jobs.start(job["id"])
    assert attempt is not None
    with transaction() as session:
        row = session.get_one(PosteriorRow, incumbent["id"])
        result = posteriors.load(session, row), row.diagnostics
    store = store_function_for(job["id"], result)
    check_json(client.post(f"/v1/jobs/{job['id']}/cancel"), 202)
    jobs.succeed(job["id"], attempt, store)
    assert client.get("/v1/aliases/cancelled").status_code == 404


@pytest.mark.parametrize("promote", [{"alias": "post_x"}, {"alias": "a b"}, {"alias": "a", "when": "later"}, {}, "a"])
def test_an_invalid_promotion_is_refused_on_creation_of_the_job(
    client: TestClient, incumbent: Json, promote: object
) -> None:
    body = {"problem_id": incumbent["problem_id"], "dataset_id": incumbent["dataset_id"], "promote": promote}
    refused = client.post("/v1/jobs", json=body)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"].startswith("#/promote")
