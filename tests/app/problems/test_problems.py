"""Problems over HTTP: creation, lists, deletion and checks."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

from app.demo import example_problem
from tests.support.journey import Json, check_json, counts, create_job, create_problem, pages


def test_a_new_problem_has_a_location_and_all_defaults(client: TestClient) -> None:
    spec = {"kind": "newsvendor", "items": [{"name": "rolls", "underage_cost": 3, "overage_cost": 1}]}
    response = client.post("/v1/problems", json={"name": "  rolls  ", "spec": spec})
    problem = check_json(response, 201)
    assert re.fullmatch(r"prob_[0-9A-HJKMNP-TV-Z]{26}", problem["id"])
    assert response.headers["Location"] == f"/v1/problems/{problem['id']}"
    assert problem["name"] == "rolls"
    filled = {"name": "rolls", "underage_cost": 3.0, "overage_cost": 1.0}
    filled |= {"minimum_order": 0.0, "maximum_order": None, "maximum_demand": None}
    filled |= dict.fromkeys(("price", "unit_cost", "salvage_value", "shortage_penalty", "pack_size"))
    filled |= {"stock": 0.0, "integer": False, "minimum_service_level": 0.0}
    shared = {"decision_rows": [], "minimum_service_level": 0.0}
    assert problem["spec"] == {"kind": "newsvendor", "items": [filled]} | shared
    age = datetime.now(UTC) - datetime.fromisoformat(problem["created_at"])
    assert timedelta() <= age < timedelta(seconds=30)


def test_a_problem_is_read_back_as_created(client: TestClient) -> None:
    problem = create_problem(client, name="Bäckerei 面包 🥐")
    assert check_json(client.get(f"/v1/problems/{problem['id']}")) == problem


def test_a_deleted_problem_is_gone(client: TestClient) -> None:
    before = counts()
    problem = create_problem(client)
    response = client.delete(f"/v1/problems/{problem['id']}")
    assert (response.status_code, response.content) == (204, b"")
    assert client.get(f"/v1/problems/{problem['id']}").status_code == 404
    assert counts() == before


def test_a_problem_that_a_job_uses_cannot_be_deleted(client: TestClient) -> None:
    job = create_job(client)
    before = counts()
    response = client.delete(f"/v1/problems/{job['problem_id']}")
    assert response.status_code == 409
    assert "jobs use this problem" in response.json()["detail"]
    assert counts() == before


def test_lists_show_every_problem_once_newest_first_for_any_page_size(client: TestClient) -> None:
    made = []
    for index in range(7):
        made.append(create_problem(client, name=f"page {index}"))
        time.sleep(0.002)
    for limit in (1, 3, 7, 200):
        found = pages(client, "/v1/problems", limit)
        items = [item for page in found for item in page]
        assert [(item["id"], item["name"]) for item in items[:7]] == [(each["id"], each["name"]) for each in made[::-1]]
        assert {item["kind"] for item in items} == {"newsvendor"}
        assert all(len(page) == limit for page in found[:-1])
        assert len({item["id"] for item in items}) == len(items) == counts()["problems"]


def test_a_problem_created_while_paging_repeats_and_hides_none(client: TestClient) -> None:
    for index in range(4):
        create_problem(client, name=f"steady {index}")
    everything = [item["id"] for page in pages(client, "/v1/problems", 200) for item in page]
    first = check_json(client.get("/v1/problems", params={"limit": 2}))
    time.sleep(0.002)
    create_problem(client, name="latecomer")
    rest = check_json(client.get("/v1/problems", params={"limit": 200, "cursor": first["next_cursor"]}))
    assert [item["id"] for item in first["items"] + rest["items"]] == everything


def test_the_last_page_has_no_cursor_even_when_it_is_full(client: TestClient) -> None:
    create_problem(client)
    total = counts()["problems"]
    assert total <= 200
    answer = check_json(client.get("/v1/problems", params={"limit": total}))
    assert len(answer["items"]) == total
    assert answer["next_cursor"] is None


def test_posting_a_problem_twice_creates_two(client: TestClient) -> None:
    first, second = (check_json(client.post("/v1/problems", json=example_problem()), 201) for _ in range(2))
    assert first["id"] != second["id"]
    assert first["spec"] == second["spec"]


# checking


def test_a_problem_can_be_checked_without_creating_it(client: TestClient) -> None:
    before = counts()
    body = example_problem()
    answer = check_json(client.post("/v1/problems/check", json=body))
    names = [item["name"] for item in body["spec"]["items"]]
    assert answer == {"kind": "newsvendor", "outcomes": names, "decisions": names, "compiled": None}
    assert counts() == before


def test_a_check_returns_the_compiled_linear_model(client: TestClient) -> None:
    edges = [{"start": "a", "end": "b"}, {"start": "b", "end": "c"}, {"start": "a", "end": "c", "cost": 9}]
    body = {"name": "way", "spec": {"kind": "shortest_path", "source": "a", "target": "c", "edges": edges}}
    answer = check_json(client.post("/v1/problems/check", json=body))
    assert answer["outcomes"] == ["a to b", "b to c"]
    assert answer["decisions"] == ["a to b", "b to c", "a to c"]
    made = check_json(client.post("/v1/problems", json=body), 201)
    assert answer["compiled"] == check_json(client.get(f"/v1/problems/{made['id']}/compiled"))["spec"]


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "newsvendor", "items": []},
        {"kind": "newsvendor", "items": [{"name": "a", "underage_cost": -1, "overage_cost": 1}]},
        {"kind": "newsvendor", "items": [{"name": "a", "underage_cost": 1}]},
        {"kind": "linear", "decisions": [{"name": "x", "cost": -1}], "outcomes": [{"name": "y"}]},
        {"kind": "shortest_path", "source": "a", "target": "z", "edges": [{"start": "a", "end": "b"}]},
    ],
)
def test_a_check_gives_the_same_errors_as_creation(client: TestClient, spec: Json) -> None:
    body = {"name": "odd", "spec": spec}
    refused = check_json(client.post("/v1/problems", json=body), 422)
    assert check_json(client.post("/v1/problems/check", json=body), 422) == refused
    assert refused["errors"]
