"""Idempotency-Key: a repeated POST returns the first answer and creates nothing, even after crashes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from httpx import Response
from starlette.testclient import TestClient

from app.db.base import now
from app.db.engine import transaction
from app.db.tables import AnswerRow, KeyRow
from app.demo import as_csv, bakery_rows, example_problem
from app.http import idempotency, security
from app.keys import service as keys
from app.main import create_app
from app.problems import check as problems
from tests.support.journey import OUTCOMES, QUICK, ROWS, Json, check_json, counts, create_dataset, create_problem, learn

# This module depends on the database's own SQL.
pytestmark = pytest.mark.both_databases

CSV = as_csv(bakery_rows(60)).encode()


@pytest.fixture
def key() -> str:
    return uuid4().hex


def post_problem(client: TestClient, key: str, **changes: Any) -> Response:
    return client.post("/v1/problems", json=example_problem() | changes, headers={"Idempotency-Key": key})


def post_dataset(client: TestClient, key: str, **changes: Any) -> Response:
    body = {"name": "days", "outcomes": OUTCOMES, "rows": ROWS} | changes
    return client.post("/v1/datasets", json=body, headers={"Idempotency-Key": key})


def post_upload(client: TestClient, key: str, name: str = "days") -> Response:
    form = {"name": name, "outcomes": ",".join(OUTCOMES)}
    files = {"file": ("days.csv", CSV)}
    return client.post("/v1/datasets/upload", data=form, files=files, headers={"Idempotency-Key": key})


def post_job(client: TestClient, key: str, **changes: Any) -> Response:
    body = {"predictor": {"kind": "linear"}, "inference": QUICK} | changes
    return client.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    return {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}


Post = Callable[..., Response]


@pytest.fixture(params=["problem", "dataset", "upload", "job"])
def post(request: pytest.FixtureRequest, ids: Json) -> Post:
    """Each creating POST: ``post(client, key)``; another ``name`` makes another body."""
    found: Post = {"problem": post_problem, "dataset": post_dataset, "upload": post_upload}.get(
        request.param, lambda client, key, **changes: post_job(client, key, **ids | changes)
    )
    return found


def object_counts() -> dict[str, int]:
    """Count all objects except stored answers."""
    return {name: count for name, count in counts().items() if name != "repeatable_answers"}


def test_a_repeated_request_gets_the_same_answer_and_creates_nothing(client: TestClient, post: Post, key: str) -> None:
    first = post(client, key)
    assert first.is_success, first.text
    assert "idempotency-replayed" not in first.headers
    before = object_counts()
    for _ in range(2):
        again = post(client, key)
        assert (again.status_code, again.content) == (first.status_code, first.content)
        for header in ("location", "content-type"):
            assert again.headers[header] == first.headers[header]
        assert again.headers["idempotency-replayed"] == "true"
    assert object_counts() == before


def test_the_answer_is_replayed_after_the_object_has_changed(client: TestClient, ids: Json, key: str) -> None:
    first = post_job(client, key, **ids)
    assert learn(client, first.json()["id"])["state"] == "succeeded"
    assert post_job(client, key, **ids).content == first.content


def test_another_body_with_the_same_key_is_refused(client: TestClient, post: Post, key: str) -> None:
    assert post(client, key).is_success
    before = object_counts()
    other = post(client, key, name="another")
    assert other.status_code == 409
    assert "Idempotency-Key" in other.json()["detail"]
    assert object_counts() == before


def test_another_key_creates_another_object(client: TestClient, post: Post, key: str) -> None:
    found = {post(client, each).json()["id"] for each in (key, key + "2")}
    assert len(found) == 2


def test_a_refused_request_can_be_corrected_with_the_same_key(client: TestClient, key: str) -> None:
    assert post_problem(client, key, name="").status_code == 422
    assert post_dataset(client, key, rows=[]).status_code == 422
    assert post_problem(client, key).status_code == 201
    assert post_dataset(client, key).status_code == 201


def test_a_server_error_leaves_the_key_free(client: TestClient, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(*_: object) -> None:
        raise RuntimeError("no luck")

    before = counts()
    with monkeypatch.context() as patch:
        patch.setattr(problems, "check_problem", raise_error)
        assert post_problem(client, key).status_code == 500
    assert counts() == before
    assert post_problem(client, key).status_code == 201


@pytest.mark.parametrize("bad", ["", "a b", "x" * 201, "t\tt"])
def test_an_invalid_key_is_refused(client: TestClient, bad: str) -> None:
    before = counts()
    answer = post_problem(client, bad)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/header/Idempotency-Key"
    assert counts() == before


def test_keys_are_separate_per_path(client: TestClient, key: str) -> None:
    assert post_problem(client, key).status_code == 201
    assert post_dataset(client, key).status_code == 201


def test_keys_are_separate_per_workspace(client: TestClient, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "CACHE_SECONDS", 0.0)
    found = set()
    for workspace in ("one", "two"):
        text = keys.create("test", workspace, ["read", "train"], None)[1]
        headers = {"Authorization": f"Bearer {text}", "Idempotency-Key": key}
        for _ in range(2):
            found.add(check_json(client.post("/v1/problems", json=example_problem(), headers=headers), 201)["id"])
    with transaction() as session:
        session.execute(sa.delete(KeyRow))
    assert len(found) == 2


def test_prescribe_takes_no_idempotency_key(client: TestClient) -> None:
    document = check_json(client.get("/openapi.json"))
    takers = {
        path
        for path, entry in document["paths"].items()
        for operation in entry.values()
        for parameter in operation.get("parameters", [])
        if parameter["name"] == "Idempotency-Key"
    }
    assert takers >= {"/v1/problems", "/v1/datasets", "/v1/datasets/upload", "/v1/jobs"}
    assert not any(path.endswith("/prescribe") for path in takers)


# concurrency


@pytest.fixture
def clients(client: TestClient) -> list[TestClient]:
    """Twelve clients of two applications on one database."""
    apps = [create_app(), create_app()]
    for app in apps:
        # The first access completes the routes, which is not thread-safe.
        assert TestClient(app).get("/openapi.json").status_code == 200
    return [TestClient(apps[index % 2], raise_server_exceptions=False) for index in range(12)]


@pytest.mark.slow
def test_concurrent_repeats_create_one_object_and_get_one_answer(
    clients: list[TestClient], post: Post, key: str
) -> None:
    before = object_counts()
    start = threading.Barrier(len(clients))

    def post_at_start(client: TestClient) -> Response:
        start.wait(60)
        return post(client, key)

    with ThreadPoolExecutor(len(clients)) as pool:
        answers = list(pool.map(post_at_start, clients))
    assert {answer.status_code for answer in answers} <= {201, 202}
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    more = {name: count - before[name] for name, count in object_counts().items() if count != before[name]}
    assert sum(more.get(name, 0) for name in ("problems", "datasets", "jobs")) == 1
    assert set(more.values()) == {1}


def claimed_at(key: str) -> datetime:
    with transaction() as session:
        return session.scalars(sa.select(AnswerRow.claimed_at).where(AnswerRow.key == key)).one()


def test_a_second_request_waits_for_the_first(
    clients: list[TestClient], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    build = problems.check_problem

    def check_slowly(spec: Json) -> Any:
        began.set()
        assert go_on.wait(60)
        return build(spec)

    monkeypatch.setattr(problems, "check_problem", check_slowly)
    monkeypatch.setattr(idempotency, "RENEW_SECONDS", 0.05)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post_problem, clients[0], key)
        assert began.wait(60)
        claimed = claimed_at(key)
        until = time.monotonic() + 60
        while claimed_at(key) == claimed:
            assert time.monotonic() < until, "the claim is not renewed"
        monkeypatch.setattr(idempotency, "WAIT_SECONDS", 0.3)
        hurried = pool.submit(post_problem, clients[1], key).result(60)
        assert (hurried.status_code, hurried.headers["retry-after"]) == (409, "1")
        assert "still being served" in hurried.json()["detail"]
        monkeypatch.setattr(idempotency, "WAIT_SECONDS", 60.0)
        second = pool.submit(post_problem, clients[1], key)
        go_on.set()
        assert first.result(60).content == second.result(60).content


# killed processes


def insert_unfinished_request(key: str, body: str, location: str | None) -> None:
    """Insert the state left by a process killed during a request."""
    with transaction() as session:
        session.add(
            AnswerRow(
                workspace="default",
                path="/v1/problems",
                key=key,
                body_sha256=body,
                claim="of the dead",
                claimed_at=now() - timedelta(minutes=1),
                location=location,
            )
        )


@pytest.fixture
def body_hash(client: TestClient) -> str:
    """Return the stored hash of the example problem's body."""
    key = uuid4().hex
    post_problem(client, key)
    with transaction() as session:
        return session.scalars(sa.select(AnswerRow.body_sha256).where(AnswerRow.key == key)).one()


def test_a_request_killed_before_it_created_anything_runs_again(client: TestClient, key: str, body_hash: str) -> None:
    insert_unfinished_request(key, body_hash, None)
    first = post_problem(client, key)
    assert first.status_code == 201
    assert post_problem(client, key).content == first.content


def test_a_request_killed_after_it_created_its_object_is_not_repeated(
    client: TestClient, key: str, body_hash: str
) -> None:
    problem = create_problem(client)
    location = f"/v1/problems/{problem['id']}"
    insert_unfinished_request(key, body_hash, location)
    before = object_counts()
    for _ in range(2):
        found = post_problem(client, key)
        assert (found.status_code, found.json()) == (201, problem)
        assert found.headers["location"] == location
    assert object_counts() == before


def test_an_object_created_and_deleted_is_not_created_again(client: TestClient, key: str, body_hash: str) -> None:
    problem = create_problem(client)
    insert_unfinished_request(key, body_hash, f"/v1/problems/{problem['id']}")
    client.delete(f"/v1/problems/{problem['id']}")
    before = object_counts()
    assert post_problem(client, key).status_code == 409
    assert object_counts() == before


@pytest.mark.slow
def test_a_request_presumed_dead_creates_nothing(
    clients: list[TestClient], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    build = problems.check_problem

    def check_first_call_slowly(spec: Json) -> Any:
        if not began.is_set():
            began.set()
            assert go_on.wait(60)
        return build(spec)

    monkeypatch.setattr(problems, "check_problem", check_first_call_slowly)
    monkeypatch.setattr(idempotency, "RENEW_SECONDS", 1000.0)
    monkeypatch.setattr(idempotency, "STALE", timedelta(seconds=0.2))
    before = object_counts()
    with ThreadPoolExecutor(2) as pool:
        silent = pool.submit(post_problem, clients[0], key)
        assert began.wait(60)
        served = pool.submit(post_problem, clients[1], key).result(60)
        go_on.set()
        late = silent.result(60)
    assert served.status_code == 201
    assert late.status_code == 409
    assert object_counts() == before | {"problems": before["problems"] + 1}
    assert post_problem(clients[0], key).content == served.content


# expiry


def test_a_key_expires_after_a_day(client: TestClient, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = post_problem(client, key)
    with transaction() as session:
        session.execute(sa.update(AnswerRow).where(AnswerRow.key == key).values(created_at=now() - timedelta(hours=25)))
    second = post_problem(client, key, name="another body, even")
    assert second.status_code == 201
    assert second.json()["id"] != first.json()["id"]


def test_expired_answers_are_deleted(client: TestClient, key: str) -> None:
    assert post_problem(client, key).status_code == 201
    with transaction() as session:
        session.execute(sa.update(AnswerRow).where(AnswerRow.key == key).values(created_at=now() - timedelta(hours=25)))
    client.app.state.swept_at = -math.inf
    assert post_problem(client, key + "2").status_code == 201
    with transaction() as session:
        assert session.scalars(sa.select(AnswerRow).where(AnswerRow.key == key)).all() == []
