"""Filters of lists, and refusal of unknown query parameters."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import PosteriorRow
from tests.support.journey import FUND, Json, check_json, create_dataset, create_problem, learn_posterior

METHODS = ("get", "post", "put", "patch", "delete")
QUALITIES = ("ok", "warn", "bad")


def list_ids(client: TestClient, path: str, **only: str) -> list[str]:
    """Return the ids of a whole list, read in pages of two."""
    found: list[str] = []
    query: Json = {"limit": 2, **only}
    while True:
        answer = check_json(client.get(path, params=query))
        found += [item["id"] for item in answer["items"]]
        if answer["next_cursor"] is None:
            return found
        assert len(answer["items"]) == 2
        query["cursor"] = answer["next_cursor"]


# unknown query parameters


def test_no_endpoint_ignores_an_unknown_query_parameter(client: TestClient) -> None:
    seen = 0
    for path, entry in check_json(client.get("/openapi.json"))["paths"].items():
        for method in METHODS:
            if method not in entry or not path.startswith("/v1/"):
                continue
            known = [found["name"] for found in entry[method].get("parameters", []) if found["in"] == "query"]
            response = client.request(method, re.sub(r"{\w+}", "x", path), params={"problem_idd": "prob_x"})
            problem = check_json(response, 422)
            assert response.headers["content-type"] == "application/problem+json"
            assert [error["pointer"] for error in problem["errors"]] == ["#/query/problem_idd"], (method, path)
            assert (f"it accepts {', '.join(known)}" if known else "it accepts none") in problem["detail"]
            seen += 1
    assert seen >= 20


def test_exactly_the_unknown_parameters_are_named(client: TestClient) -> None:
    problem = check_json(client.get("/v1/jobs?statte=queued&limit=3&of=me&of=you"), 422)
    assert [error["pointer"] for error in problem["errors"]] == ["#/query/statte", "#/query/of"]


def test_pages_and_health_checks_accept_any_query(client: TestClient) -> None:
    for path in ("/livez", "/readyz", "/docs", "/openapi.json", "/metrics"):
        assert client.get(path, params={"from": "a link"}).status_code == 200


# filters


@pytest.fixture(scope="module")
def posteriors(client: TestClient) -> list[Json]:
    """Six posteriors with two names, oldest first, two of each quality."""
    made = [learn_posterior(client, name="bread" if number % 2 else "cake") for number in range(6)]
    with transaction() as session:
        for number, posterior in enumerate(made):
            row = session.get_one(PosteriorRow, posterior["id"])
            row.diagnostics = row.diagnostics | {"quality": QUALITIES[number // 2]}
    return [check_json(client.get(f"/v1/posteriors/{posterior['id']}")) for posterior in made]


def ids(objects: list[Json]) -> list[str]:
    """Return ids newest first, as lists show them."""
    return [one["id"] for one in reversed(objects)]


@pytest.mark.parametrize("column", ["problem_id", "dataset_id", "job_id", "name", "quality"])
def test_posteriors_can_be_filtered(client: TestClient, posteriors: list[Json], column: str) -> None:
    for wanted in {posterior[column] for posterior in posteriors}:
        expected = [posterior for posterior in posteriors if posterior[column] == wanted]
        assert 0 < len(expected) < len(posteriors)
        assert list_ids(client, "/v1/posteriors", **{column: wanted}) == ids(expected)


def test_filters_of_posteriors_can_be_combined(client: TestClient, posteriors: list[Json]) -> None:
    assert list_ids(client, "/v1/posteriors", name="bread", quality="warn") == [posteriors[3]["id"]]
    first, other = posteriors[0], posteriors[1]
    assert list_ids(client, "/v1/posteriors", problem_id=first["problem_id"], job_id=other["job_id"]) == []


@pytest.mark.parametrize("text", ["\x00", "prob_", "prob_bogus", "'; drop table posteriors", "", "\ud800"])
@pytest.mark.parametrize("column", ["problem_id", "dataset_id", "job_id"])
def test_text_that_cannot_be_an_id_matches_no_posterior(
    client: TestClient, posteriors: list[Json], column: str, text: str
) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert list_ids(client, "/v1/posteriors", **{column: text}) == []


def test_data_sets_can_be_filtered_by_name(client: TestClient) -> None:
    made = [create_dataset(client, name=name) for name in ("north", "south", "north", "north", "South")]
    assert list_ids(client, "/v1/datasets", name="north") == ids([made[0], made[2], made[3]])
    assert list_ids(client, "/v1/datasets", name=" south ") == [made[1]["id"]]
    assert list_ids(client, "/v1/datasets", name="nort") == []


def test_problems_can_be_filtered_by_name_and_kind(client: TestClient) -> None:
    funds = [create_problem(client, name=name, spec=FUND) for name in ("fund", "other", "fund")]
    bakery = create_problem(client, name="fund")
    assert list_ids(client, "/v1/problems", kind=FUND["kind"]) == ids(funds)
    assert list_ids(client, "/v1/problems", name="fund") == ids([funds[0], funds[2], bakery])
    assert list_ids(client, "/v1/problems", name="fund", kind="newsvendor") == [bakery["id"]]
    assert list_ids(client, "/v1/problems", kind="shipment") == []


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/v1/posteriors", {"quality": "splendid"}),
        ("/v1/posteriors", {"name": ""}),
        ("/v1/posteriors", {"name": "\x00"}),
        ("/v1/datasets", {"name": "\x00"}),
        ("/v1/problems", {"name": "x" * 201}),
        ("/v1/problems", {"kind": "dance"}),
    ],
)
def test_an_invalid_filter_is_refused_with_a_pointer(client: TestClient, path: str, wrong: dict[str, Any]) -> None:
    problem = check_json(client.get(path, params=wrong), 422)
    assert problem["errors"][0]["pointer"] == f"#/query/{next(iter(wrong))}"


def test_an_unknown_kind_is_refused_with_the_known_kinds(client: TestClient) -> None:
    assert "newsvendor" in check_json(client.get("/v1/problems", params={"kind": "dance"}), 422)["detail"]
