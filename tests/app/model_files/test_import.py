"""Import and export of model files: imports match the file, exports can be imported again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support.journey import check_json, counts, learn
from tests.support.model_files import DESCRIPTION, LP, MPS, STO, TIM, Json, send

RHS = {"constant": 0.0, "outcomes": {"demand": 1.0}}
SPEC: Json = {
    "kind": "linear",
    "sense": "minimize",
    "decisions": [{"name": "order", "cost": 5.0, "minimum": 0.0, "maximum": None, "integer": False}],
    "recourse": [{"name": "express", "cost": 8.0, "minimum": 0.0, "maximum": None, "integer": False}],
    "outcomes": [{"name": "demand", "minimum": 0.0, "maximum": None}],
    "rows": [
        {"name": "meet", "decisions": {"order": 1.0}, "recourse": {"express": 1.0}, "sense": ">=", "limit": RHS},
        {"name": "room", "decisions": {"order": 1.0}, "recourse": {}, "sense": "<=", "limit": 40.0},
    ],
    "relative_gap": None,
    "absolute_gap": None,
}


def assert_refused(response: Any, says: str, pointer: str = "#/file", status: int = 422) -> None:
    assert response.status_code == status, response.text
    answer = response.json()
    assert says in answer["detail"], answer
    assert [error["pointer"] for error in answer["errors"]][:1] == [pointer]


@pytest.mark.parametrize("file", [MPS, LP], ids=["mps", "lp"])
def test_importing_a_file_and_description_equals_posting_the_problem(client: TestClient, file: str) -> None:
    made = send(client, file)
    answer = check_json(made, 201)
    assert made.headers["location"] == f"/v1/problems/{answer['id']}"
    assert answer["spec"] == SPEC
    assert (answer["name"], answer["outcomes"], answer["decisions"]) == ("bakery", ["demand"], ["order"])
    assert (answer["dataset_id"], answer["notes"]) == (None, [])
    posted = check_json(client.post("/v1/problems", json={"name": "bakery", "spec": SPEC}), 201)
    assert check_json(client.get(f"/v1/problems/{answer['id']}"))["spec"] == posted["spec"]


def test_the_description_may_be_a_file(client: TestClient) -> None:
    files = {"file": ("model", MPS.encode()), "description": ("description.json", json.dumps(DESCRIPTION).encode())}
    assert check_json(client.post("/v1/problems/import", files=files), 201)["spec"] == SPEC


def test_a_repeated_idempotency_key_imports_one_problem(client: TestClient) -> None:
    headers = {"Idempotency-Key": "import once"[:6]}
    files = {"file": ("model", MPS.encode())}
    form = {"description": json.dumps(DESCRIPTION)}
    first, second = (client.post("/v1/problems/import", data=form, files=files, headers=headers) for _ in range(2))
    assert check_json(first, 201) == check_json(second, 201)
    assert second.headers["idempotency-replayed"] == "true"


def test_an_exported_problem_can_be_imported_again(client: TestClient) -> None:
    made = check_json(send(client, MPS), 201)
    address = f"/v1/problems/{made['id']}/mps"
    text = client.get(address)
    assert text.headers["content-type"].startswith("text/plain")
    assert "*   right-hand side in meet: 0.0 + 1.0 demand" in text.text
    assert " RHS meet" not in text.text
    assert " RHS meet 12.5\n" in client.get(address, params={"at": "demand=12.5"}).text
    description = check_json(client.get(address, params={"part": "description"}))
    again = check_json(send(client, text.text, description), 201)
    assert again["spec"] == SPEC
    assert again["name"] == "bakery"


def test_linear_kinds_can_be_exported_and_others_are_refused(client: TestClient) -> None:
    shipment = {
        "kind": "shipment",
        "sources": [{"name": "north 1", "order_cost": 5, "emergency_cost": 100}],
        "destinations": ["here", "there"],
        "transport_costs": [[1.0, 4.0]],
    }
    made = check_json(client.post("/v1/problems", json={"name": "ship", "spec": shipment}), 201)
    address = f"/v1/problems/{made['id']}/mps"
    text = client.get(address).text
    description = check_json(client.get(address, params={"part": "description"}))
    again = check_json(send(client, text, description), 201)
    assert (again["decisions"], again["outcomes"]) == (["north 1"], ["here", "there"])
    item = {"name": "loaves", "underage_cost": 1, "overage_cost": 1}
    other = check_json(
        client.post("/v1/problems", json={"name": "n", "spec": {"kind": "newsvendor", "items": [item]}}), 201
    )
    answer = client.get(f"/v1/problems/{other['id']}/mps")
    assert answer.status_code == 409
    assert "not a linear model" in answer.json()["detail"]


@pytest.mark.parametrize("at", ["demand", "supply=1", "demand=x", "demand=inf", "demand=1e13"])
def test_an_invalid_outcome_value_is_refused(client: TestClient, at: str) -> None:
    made = check_json(send(client, MPS), 201)
    answer = client.get(f"/v1/problems/{made['id']}/mps", params={"at": at})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/query/at/0"


# SMPS


def test_smps_creates_a_problem_and_a_data_set_to_learn_from(client: TestClient) -> None:
    made = check_json(send(client, MPS, {"name": "bakery"}, time=TIM, scenarios=STO), 201)
    assert made["decisions"] == ["order"]
    assert made["spec"]["outcomes"] == [{"name": "rhs of meet", "minimum": 10.0, "maximum": 30.0}]
    assert made["spec"]["rows"][0]["limit"] == {"constant": 0.0, "outcomes": {"rhs of meet": 1.0}}
    data = check_json(client.get(f"/v1/datasets/{made['dataset_id']}"))
    assert (data["name"], data["rows"]) == ("scenarios of bakery", 200)
    assert [(column["name"], column["role"]) for column in data["columns"]] == [("rhs of meet", "outcome")]
    rows = check_json(client.get(f"/v1/datasets/{data['id']}/rows", params={"limit": 1000}))["items"]
    values = [row["rhs of meet"] for row in rows]
    assert [values.count(value) for value in (10, 20, 30)] == [50, 100, 50]
    body = {"problem_id": made["id"], "dataset_id": data["id"], "predictor": {"kind": "linear"}}
    quick = {"method": "vi", "members": 2, "epochs": 2, "particles": 40}
    job = learn(client, check_json(client.post("/v1/jobs", json=body | {"inference": quick}), 202)["id"])
    assert job["state"] == "succeeded", job["error"]
    request_body = {"contexts": [{}], "policy": "predictive", "scenarios": 400}
    answer = check_json(client.post(f"/v1/posteriors/{job['posterior_id']}/prescribe", json=request_body))
    assert 10 <= answer["prescriptions"][0]["decision"]["order"] <= 30


def test_a_refused_import_stores_nothing(client: TestClient) -> None:
    before = counts()
    assert_refused(send(client, MPS, {"name": "b"}, scenarios=STO.replace("0.5", "0.4")), "sum to 0.9", "#/scenarios")
    assert_refused(send(client, MPS.replace("ENDATA", ""), DESCRIPTION), "cut off")
    assert counts() == before


def test_a_data_set_without_contexts_needs_an_empty_list(client: TestClient) -> None:
    body: Json = {"name": "d", "outcomes": ["y"], "rows": [{"y": 1.0}, {"y": 2.0}]}
    assert "empty list" in client.post("/v1/datasets", json=body).json()["detail"]
    assert check_json(client.post("/v1/datasets", json=body | {"contexts": []}), 201)["rows"] == 2


# descriptions

WRONG: list[tuple[Any, str, str]] = [
    ("{", "not valid JSON", "#/description"),
    ("[]", "valid dictionary", "#/description"),
    ({"decisions": []}, "Field required", "#/description/name"),
    (DESCRIPTION | {"decisions": ["order", "orders"]}, "no column", "#/description/decisions/1"),
    (DESCRIPTION | {"decisions": ["order", "order"]}, "twice", "#/description/decisions/1"),
    (DESCRIPTION | {"decisions": []}, "at least one", "#/description/decisions"),
    (DESCRIPTION | {"columns": {"orders": "x"}}, "no column", "#/description/columns/orders"),
    (
        DESCRIPTION | {"entries": [{"row": "met", "column": None, "outcomes": {}}]},
        "no row",
        "#/description/entries/0/row",
    ),
    (
        DESCRIPTION | {"entries": [{"row": "meet", "column": "x", "outcomes": {}}]},
        "no column",
        "#/description/entries/0/column",
    ),
    (DESCRIPTION | {"entries": 2 * DESCRIPTION["entries"]}, "twice", "#/description/entries/1"),
    (DESCRIPTION | {"entries": [{"row": "meet", "column": None, "outcomes": {"d": 1}}]}, "no outcome", "#/file"),
    (DESCRIPTION | {"outcomes": []}, "at least 1", "#/file"),
    (DESCRIPTION | {"more": 1}, "not permitted", "#/description/more"),
]


@pytest.mark.parametrize(("description", "says", "pointer"), WRONG)
def test_a_description_that_does_not_fit_is_refused_with_a_pointer(
    client: TestClient, description: Any, says: str, pointer: str
) -> None:
    assert_refused(send(client, MPS, description), says, pointer)
