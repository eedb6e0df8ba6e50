"""Option `problem_patch`: same result as a problem built with the values; reported, checked and stored."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.demo import as_csv, example_problem
from app.http.errors import InvalidRequest
from app.posteriors.service import load
from app.prescriptions import offload, patching
from app.problems import patch as patches
from bco_core.prescribe import PrescribeOptions
from bco_core.prescribe import prescribe as decide
from bco_core.problems.registry import build_problem
from tests.app.jobs.test_batches import run_batch, submit, upload
from tests.app.prescriptions.test_batching import BlockedPrescribe, blocked, path, post_concurrently
from tests.app.problems.test_two_stage import SHIPMENT, SPEC, posterior_for
from tests.support.journey import (
    CONTEXTS,
    OUTCOMES,
    QUICK,
    ROWS,
    Json,
    check_json,
    create_dataset,
    learn_posterior,
    prescribe,
)

__all__ = ["blocked"]

BAKERY: Json = {"kind": "newsvendor", "items": example_problem()["spec"]["items"]}


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, seed=4, inference=QUICK | {"particles": 60, "initial_scale": 0.3})


@pytest.fixture(scope="module")
def trucks(client: TestClient) -> Json:
    rows = [{"name": "yard", "coefficients": {"small": 1, "large": 1}, "sense": "<=", "limit": 15}]
    return posterior_for(client, SPEC | {"decision_rows": rows}, ["load"])


def refuse_patch(client: TestClient, posterior: Json, patch: Any, status: int = 422) -> Json:
    body = {"contexts": CONTEXTS[:1], "problem_patch": patch}
    return check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body), status)


@pytest.mark.parametrize("policy", ["averaged", "bcp", "predictive"])
def test_a_patch_equals_a_problem_built_with_its_values_bit_for_bit(
    client: TestClient, posterior: Json, policy: str
) -> None:
    patch = {"items": {"croissants": {"underage_cost": 4, "maximum_order": 70}, "loaves": {"overage_cost": 0.4}}}
    answer = prescribe(client, posterior["id"], contexts=CONTEXTS[:4], policy=policy, problem_patch=patch)
    with transaction() as session:
        row = session.get_one(PosteriorRow, posterior["id"])
        core = load(session, row)
    croissants, loaves = (dict(item) for item in row.problem["items"])
    spec = {
        "kind": "newsvendor",
        "items": [croissants | {"underage_cost": 4.0, "maximum_order": 70.0}, loaves | {"overage_cost": 0.4}],
    }
    days = ["FRI", "MON", "SAT", "SUN", "THU", "TUE", "WED"]
    numbers = ("temperature", "rain", "promotion", "holiday")
    encoded = torch.tensor(
        [
            [float(one["weekday"] == day) for day in days] + [float(one[name]) for name in numbers]
            for one in CONTEXTS[:4]
        ],
        dtype=torch.float64,
    )
    expected = decide(core, build_problem(spec), encoded, PrescribeOptions(policy=policy))
    assert [list(one["decision"].values()) for one in answer["prescriptions"]] == expected.decisions.tolist()
    assert [one["expected_cost"] for one in answer["prescriptions"]] == expected.costs.mean.tolist()
    plain = prescribe(client, posterior["id"], contexts=CONTEXTS[:4], policy=policy)
    assert plain["problem_differs"] is None
    assert plain["prescriptions"] != answer["prescriptions"]
    # The patch is not stored.
    assert prescribe(client, posterior["id"], contexts=CONTEXTS[:4], policy=policy) == plain


def test_the_answer_lists_the_changes_of_the_problem(client: TestClient, posterior: Json) -> None:
    patch = {"items": {"croissants": {"underage_cost": 2, "maximum_order": 90}, "loaves": {"overage_cost": 0.6}}}
    answer = prescribe(client, posterior["id"], problem_patch=patch)
    differs = {one["where"]: one for one in answer["problem_differs"]}
    under, over = (
        example_problem()["spec"]["items"][n][name] for n, name in ((0, "underage_cost"), (1, "overage_cost"))
    )
    assert set(differs) == {
        "items/croissants/underage_cost",
        "items/croissants/maximum_order",
        "items/loaves/overage_cost",
    }
    assert differs["items/croissants/underage_cost"] == {
        "where": "items/croissants/underage_cost",
        "learned": under,
        "requested": 2.0,
        "change": pytest.approx((2 - under) / under),
    }
    assert differs["items/loaves/overage_cost"]["change"] == pytest.approx((0.6 - over) / over)
    sentence = answer["warnings"][-1]
    assert "the posterior was learned, and its quality estimated, for other values: items/croissants/" in sentence
    assert sentence.endswith("the largest of 3 changes")


@pytest.mark.parametrize("patch", [{}, {"items": {}}, {"items": {"croissants": {"underage_cost": 1.8}}}])
def test_a_patch_that_changes_nothing_gives_a_warning(client: TestClient, posterior: Json, patch: Json) -> None:
    plain, answer = prescribe(client, posterior["id"]), prescribe(client, posterior["id"], problem_patch=patch)
    assert answer["prescriptions"] == plain["prescriptions"]
    assert answer["problem_differs"] == []
    assert "changes nothing" in answer["warnings"][-1]


@pytest.mark.parametrize(
    ("patch", "pointer", "words"),
    [
        ({"kind": "shipment"}, "#/problem_patch/kind", "cannot be changed"),
        ({"prices": 3}, "#/problem_patch/prices", "no such part of this problem; it has items"),
        ({"items": {"bagels": {"underage_cost": 1}}}, "#/problem_patch/items/bagels", "it has croissants, loaves"),
        ({"items": {"loaves": {"cost": 1}}}, "#/problem_patch/items/loaves/cost", "not permitted"),
        ({"items": {"loaves": {"name": "bread"}}}, "#/problem_patch/items/loaves/name", "a name cannot be changed"),
        ({"items": {"loaves": 3}}, "#/problem_patch/items/loaves", "give the fields to change"),
        ({"items": [{"name": "loaves"}]}, "#/problem_patch/items", "name what to change"),
        ({"items": {"loaves": {"underage_cost": -1}}}, "#/problem_patch/items/loaves/underage_cost", "greater than 0"),
        ({"items": {"loaves": {"underage_cost": "2"}}}, "#/problem_patch/items/loaves/underage_cost", "valid number"),
        (
            {"items": {"loaves": {"underage_cost": 1e30}}},
            "#/problem_patch/items/loaves/underage_cost",
            "less than or equal",
        ),
        ({"items": {"loaves": {"minimum_order": 500}}}, "#/problem_patch/items/loaves", "above maximum_order"),
        (["items"], "#/problem_patch", "valid dictionary"),
    ],
)
def test_an_invalid_patch_is_refused_with_a_pointer(
    client: TestClient, posterior: Json, patch: Any, pointer: str, words: str
) -> None:
    answer = refuse_patch(client, posterior, patch)
    assert answer["errors"][0]["pointer"] == pointer
    assert words in answer["errors"][0]["detail"]


@pytest.mark.parametrize(
    "text",
    ['{"items": {"loaves": {"underage_cost": NaN}}}', f'{{"relative_gap": {"9" * 30}}}', '{"items": {"a\\ud800": {}}}'],
)
def test_invalid_numbers_and_text_are_refused(client: TestClient, posterior: Json, text: str) -> None:
    body = f'{{"contexts": [{json.dumps(CONTEXTS[0])}], "problem_patch": {text}}}'
    address = f"/v1/posteriors/{posterior['id']}/prescribe"
    response = client.post(address, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"].startswith("#/problem_patch")


def test_rows_and_coefficients_are_patched_by_name(client: TestClient, trucks: Json) -> None:
    contexts = [{"rain": 2.0}]
    patch = {
        "decision_rows": {"yard": {"limit": 3, "coefficients": {"large": 2}}},
        "rows": {"row 1": {"constant": 1}},
        "relative_gap": 1e-7,
    }
    answer = prescribe(client, trucks["id"], contexts=contexts, problem_patch=patch)
    decision = answer["prescriptions"][0]["decision"]
    assert decision["small"] + 2 * decision["large"] <= 3
    assert {one["where"] for one in answer["problem_differs"]} == {
        "decision_rows/yard/limit",
        "decision_rows/yard/coefficients/large",
        "rows/row 1/constant",
        "relative_gap",
    }
    for patch, pointer in (
        ({"decision_rows": {"yard": {"limit": -1}}}, "#/problem_patch/decision_rows"),
        (
            {"decision_rows": {"yard": {"coefficients": {"van": 1}}}},
            "#/problem_patch/decision_rows/yard/coefficients/van",
        ),
        ({"decisions": {"small": {"minimum": 30}}}, "#/problem_patch/decisions/small/minimum"),
    ):
        body = {"contexts": contexts, "problem_patch": patch}
        response = client.post(f"/v1/posteriors/{trucks['id']}/prescribe", json=body)
        assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, pointer)


def test_matrices_are_replaced_and_their_shape_is_checked() -> None:
    patched = patches.apply(SHIPMENT, {"transport_costs": [[1, 4], [3, 2]], "sources": {"north": {"order_cost": 6}}})
    assert patched.spec["transport_costs"] == [[1, 4], [3, 2]]
    assert [one.where for one in patched.differs] == ["transport_costs/1/1", "sources/north/order_cost"]
    assert patched.spec["sources"][0]["emergency_cost"] == 100
    with pytest.raises(InvalidRequest, match="names"):
        patches.apply(SHIPMENT, {"destinations": ["port", "quay"]})
    with pytest.raises(InvalidRequest, match="names"):
        patches.apply(SHIPMENT, {"destinations": ["port"]})


def test_many_changes_are_counted_and_the_largest_are_listed() -> None:
    assets = [{"name": f"a{n}"} for n in range(15)]
    matrix = [[float(i == j) for j in range(15)] for i in range(15)]
    spec = {"kind": "mean_variance_portfolio", "assets": assets, "covariance": matrix}
    other = [[2.0 if i == j else 1e-3 for j in range(15)] for i in range(15)]
    differs = patches.apply(spec, {"covariance": other}).differs
    assert len(differs) == 225
    assert "the largest of 225 changes" in patches.warning(differs)


def test_a_patched_problem_is_built_once_and_counted_by_the_cache(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Json] = []

    def build(spec: Json) -> Any:
        built.append(spec)
        return build_problem(spec)

    monkeypatch.setattr(patching, "build_problem", build)
    for order in (("underage_cost", "overage_cost"), ("overage_cost", "underage_cost")):
        patch = {"items": {"loaves": dict.fromkeys(order, 0.77)}}
        prescribe(client, posterior["id"], problem_patch=patch)
    assert len(built) == 1
    cache = client.app.state.posteriors  # type: ignore[attr-defined]
    (key,) = [
        key for key in cache._entries if key[:2] == (posterior["id"], "patch") and key[2] == patches.digest(patch)
    ]
    assert cache._entries.getsizeof(cache._entries[key]) >= 20_000
    cache.forget(posterior["id"])
    assert key not in cache._entries


def test_only_requests_with_the_same_patch_are_batched(
    client: TestClient, posterior: Json, blocked: BlockedPrescribe
) -> None:
    bodies: list[Json] = [{"contexts": CONTEXTS[n : n + 1]} for n in range(6)]
    for n, cost in ((1, 2.5), (2, 2.5), (3, 3.5), (4, 2.5)):
        bodies[n]["problem_patch"] = {"items": {"loaves": {"underage_cost": cost}}}
    blocked.go_on.set()
    alone = [{"status": 200} | prescribe(client, posterior["id"], **body) for body in bodies]
    blocked.go_on.clear()
    blocked.begun.clear()
    blocked.sizes.clear()
    assert post_concurrently(client, blocked, path(posterior), bodies) == alone
    assert sorted(blocked.sizes) == [1, 1, 1, 3]


def test_a_problem_that_takes_long_to_build_is_built_in_a_solver_process(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick call may not start it; the solver process returns the same decision."""
    patch = {"items": {"loaves": {"underage_cost": 5}}}
    here = prescribe(client, posterior["id"], contexts=CONTEXTS[:1], problem_patch=patch)
    client.app.state.posteriors.forget(posterior["id"])  # type: ignore[attr-defined]
    tried: list[int] = []

    def build(spec: Json) -> Any:
        tried.append(1)
        raise offload.OutOfTime("this takes longer than a quick call may")

    monkeypatch.setattr(patching, "build_problem", build)
    there = prescribe(client, posterior["id"], contexts=CONTEXTS[:1], problem_patch=patch)
    assert tried
    assert there["prescriptions"][0]["decision"] == here["prescriptions"][0]["decision"]
    assert there["problem_differs"] == here["problem_differs"]


def test_a_batch_checks_its_patch_on_creation_and_uses_it(client: TestClient, posterior: Json) -> None:
    patch = {"items": {"loaves": {"underage_cost": 5, "maximum_order": 40}}}
    dataset = create_dataset(client, rows=ROWS[:20])
    address = f"/v1/posteriors/{posterior['id']}/batch-prescriptions"
    made = check_json(client.post(address, json={"dataset_id": dataset["id"], "problem_patch": patch}), 202)
    assert made["spec"]["problem_patch"] == patch
    expected = prescribe(client, posterior["id"], contexts=CONTEXTS[:20], problem_patch=patch)["prescriptions"]
    uploaded = submit(client, posterior, CONTEXTS[:20], problem_patch=json.dumps(patch))
    for job_id in (made["id"], uploaded):
        job = run_batch(client, job_id)
        assert job["state"] == "succeeded", job["error"]
        table = pq.read_table(io.BytesIO(client.get(f"/v1/jobs/{job_id}/result", params={"format": "parquet"}).content))
        for name in OUTCOMES:
            assert table.column(f"decision.{name}").to_pylist() == [one["decision"][name] for one in expected]
        log = client.get(f"/v1/jobs/{job_id}/log").text
        assert "learned, and its quality estimated, for other values" in log
    bad = {"items": {"bagels": {}}}
    response = client.post(address, json={"dataset_id": dataset["id"], "problem_patch": bad})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "#/problem_patch/items/bagels")
    response = upload(client, posterior, as_csv(CONTEXTS[:2]).encode(), problem_patch=json.dumps(bad))
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "#/problem_patch/items/bagels")
    assert upload(client, posterior, as_csv(CONTEXTS[:2]).encode(), problem_patch="no json").status_code == 422
    job_body = {
        "kind": "prescribe",
        "posterior_id": posterior["id"],
        "dataset_id": dataset["id"],
        "problem_patch": patch,
    }
    assert check_json(client.post("/v1/jobs", json=job_body), 202)["spec"]["problem_patch"] == patch
