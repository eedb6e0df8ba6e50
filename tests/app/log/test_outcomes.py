"""Outcomes of prescriptions: recorded once, costed, checked for drift, exported as a data set."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from starlette.requests import Request
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.http.security import LOCAL
from app.log import outcomes, router
from app.prescriptions.context import AnswerBody
from app.prescriptions.schemas import PrescribeRequest
from bco_core import build_problem
from tests.app.problems.test_two_stage import SHIPMENT, SPEC, posterior_for
from tests.support.journey import (
    CONTEXTS,
    OUTCOMES,
    QUICK,
    ROWS,
    Json,
    await_solvers,
    check_json,
    learn_posterior,
    upload,
)

ITEMS = {"croissants": (1.8, 0.6), "loaves": (2.4, 1.2)}


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, inference=QUICK)


def prescribe_logged(client: TestClient, posterior: Json, **changes: Any) -> Json:
    body = {"contexts": CONTEXTS[:1]} | changes
    return check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))


def record(client: TestClient, answer: Json, status: int = 200, **outcome_body: Any) -> Json:
    return check_json(client.post(f"/v1/prescriptions/{answer['id']}/outcome", json=outcome_body), status)


def newsvendor_cost(orders: Json, demand: Json) -> float:
    """Compute the cost by hand."""
    return sum(
        under * max(demand[name] - orders[name], 0) + over * max(orders[name] - demand[name], 0)
        for name, (under, over) in ITEMS.items()
    )


def test_costs_of_prescribed_and_actual_decisions_match_hand_computation(client: TestClient, posterior: Json) -> None:
    answer = prescribe_logged(client, posterior)
    (decided,) = answer["prescriptions"]
    happened, actual = {"croissants": 90.0, "loaves": 55.0}, {"croissants": 120.0, "loaves": 40.0}
    found = record(client, answer, outcomes=happened, actual_decision=actual)
    assert (found["id"], found["contexts"], found["recorded"]) == (answer["id"], 1, 1)
    (row,) = found["rows"]
    ours, theirs = newsvendor_cost(decided["decision"], happened), newsvendor_cost(actual, happened)
    assert (row["outcomes"], row["actual_decision"], row["index"]) == (happened, actual, 0)
    assert row["promised_cost"] == decided["expected_cost"]
    assert row["realised_cost"] == pytest.approx(ours)
    assert row["actual_decision_cost"] == pytest.approx(theirs)
    # Perfect foresight orders the demand.
    assert row["best_cost"] == pytest.approx(0.0, abs=1e-9)
    assert (row["regret"], row["actual_decision_regret"]) == (pytest.approx(ours), pytest.approx(theirs))
    assert row["saved"] == pytest.approx(theirs - ours)
    assert check_json(client.get(f"/v1/prescriptions/{answer['id']}"))["outcomes"] == found["rows"]


def test_missing_outcomes_are_null_until_recorded(client: TestClient, posterior: Json) -> None:
    answer = prescribe_logged(client, posterior)
    (row,) = record(client, answer, outcomes={"croissants": 90.0, "loaves": None})["rows"]
    assert row["outcomes"] == {"croissants": 90.0}
    assert [row[cost] for cost in ("realised_cost", "actual_decision_cost", "best_cost", "regret", "saved")] == [
        None
    ] * 5
    (row,) = record(client, answer, outcomes={"loaves": 55.0})["rows"]
    assert row["outcomes"] == {"croissants": 90.0, "loaves": 55.0}
    assert (row["realised_cost"] is None, row["actual_decision_cost"]) == (False, None)
    (row,) = record(client, answer, actual_decision={"croissants": 1.0, "loaves": 1.0})["rows"]
    assert row["saved"] is not None


def test_repeating_an_outcome_is_allowed_and_changing_it_needs_replace(client: TestClient, posterior: Json) -> None:
    answer = prescribe_logged(client, posterior)
    outcome_body = {
        "outcomes": {"croissants": 90.0, "loaves": 55.0},
        "actual_decision": {"croissants": 80.0, "loaves": 60.0},
    }
    first = record(client, answer, **outcome_body)
    assert record(client, answer, **outcome_body) == first
    problem = record(client, answer, 409, outcomes={"loaves": 56.0})
    assert problem["errors"][0]["pointer"] == "#/outcomes/loaves"
    assert "replace" in problem["detail"]
    assert check_json(client.get(f"/v1/prescriptions/{answer['id']}"))["outcomes"] == first["rows"]
    (row,) = record(client, answer, outcomes={"croissants": 91.0, "loaves": 56.0}, replace=True)["rows"]
    assert (row["outcomes"], row["actual_decision"], row["actual_decision_cost"]) == (
        {"croissants": 91.0, "loaves": 56.0},
        {},
        None,
    )


def test_many_contexts_are_recorded_by_their_index(client: TestClient, posterior: Json) -> None:
    odd = CONTEXTS[1] | {"weekday": "NODAY"}
    answer = prescribe_logged(client, posterior, contexts=[CONTEXTS[0], odd, *CONTEXTS[2:40]])
    happened = {index: {name: ROWS[index][name] for name in OUTCOMES} for index in range(40)}
    rows = [{"index": index, "outcomes": happened[index]} for index in reversed(range(30))]
    found = record(client, answer, rows=rows)
    assert (found["recorded"], found["contexts"]) == (30, 40)
    assert [row["index"] for row in found["rows"]] == list(range(30))
    for row in found["rows"]:
        decision = answer["prescriptions"][row["index"]]["decision"]
        if row["index"] == 1:
            # There is no decision to cost, but the best decision has a cost.
            assert (row["realised_cost"], row["promised_cost"], row["best_cost"]) == (None, None, 0.0)
        else:
            assert row["realised_cost"] == pytest.approx(newsvendor_cost(decision, happened[row["index"]]))
    assert (
        record(client, answer, rows=[{"index": 30, "actual_decision": dict.fromkeys(OUTCOMES, 1.0)}])["recorded"] == 31
    )


@pytest.mark.parametrize(
    ("outcome_body", "pointer"),
    [
        ({}, "#"),
        ({"outcomes": {}}, "#"),
        ({"outcomes": {"bread": 1.0}}, "#/outcomes/bread"),
        ({"actual_decision": {"bread": 1.0}}, "#/actual_decision/bread"),
        ({"outcomes": {"loaves": "many"}}, "#/outcomes/loaves"),
        ({"outcomes": {"loaves": True}}, "#/outcomes/loaves"),
        ({"rows": [{"index": 1, "outcomes": {"loaves": 1.0}}]}, "#/rows/0/index"),
        ({"rows": [{"index": -1, "outcomes": {"loaves": 1.0}}]}, "#/rows/0/index"),
        ({"rows": [{"index": 0}]}, "#/rows/0"),
        ({"rows": [{"index": 0, "outcomes": {"loaves": 1.0}}] * 2}, "#/rows/1/index"),
        ({"rows": [{"index": 0, "outcomes": {"bread": 1.0}}]}, "#/rows/0/outcomes/bread"),
        ({"rows": [{"index": 0, "outcomes": {"loaves": 1.0}}], "outcomes": {"loaves": 1.0}}, "#"),
        ({"outcomes": {"loaves": 1.0}, "unknown": 1}, "#/unknown"),
    ],
)
def test_invalid_outcomes_are_named_and_not_stored(
    client: TestClient, posterior: Json, outcome_body: Json, pointer: str
) -> None:
    answer = prescribe_logged(client, posterior)
    problem = record(client, answer, 422, **outcome_body)
    assert [error["pointer"] for error in problem["errors"]] == [pointer]
    assert check_json(client.get(f"/v1/prescriptions/{answer['id']}"))["outcomes"] == []


def test_infinite_numbers_are_refused(client: TestClient, posterior: Json) -> None:
    path = f"/v1/prescriptions/{prescribe_logged(client, posterior)['id']}/outcome"
    for number in ("NaN", "Infinity", "1e999"):
        content = f'{{"outcomes": {{"loaves": {number}}}}}'
        response = client.post(path, content=content, headers={"content-type": "application/json"})
        assert response.status_code == 422, response.text


def test_with_several_contexts_the_index_is_required(client: TestClient, posterior: Json) -> None:
    answer = prescribe_logged(client, posterior, contexts=CONTEXTS[:2])
    assert "index" in record(client, answer, 422, outcomes={"loaves": 1.0})["detail"]


def test_of_two_concurrent_records_one_wins_without_mixing(client: TestClient, posterior: Json) -> None:
    for _ in range(5):
        answer = prescribe_logged(client, posterior)
        client.get(f"/v1/prescriptions/{answer['id']}")

        def record_value(value: float, answer: Json = answer) -> int:
            body = {
                "outcomes": {"croissants": value, "loaves": value},
                "actual_decision": {"croissants": value, "loaves": value},
            }
            return client.post(f"/v1/prescriptions/{answer['id']}/outcome", json=body).status_code

        with ThreadPoolExecutor(6) as threads:
            statuses = list(threads.map(record_value, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        assert sorted(statuses) == [200] + [409] * 5
        (row,) = check_json(client.get(f"/v1/prescriptions/{answer['id']}"))["outcomes"]
        assert len({*row["outcomes"].values(), *row["actual_decision"].values()}) == 1


def test_concurrent_records_of_different_contexts_are_all_stored(client: TestClient, posterior: Json) -> None:
    answer = prescribe_logged(client, posterior, contexts=CONTEXTS[:8])
    client.get(f"/v1/prescriptions/{answer['id']}")

    def record_value(index: int) -> int:
        rows = [{"index": index, "outcomes": {"loaves": 1.0 * index}}]
        for _ in range(10):
            status = client.post(f"/v1/prescriptions/{answer['id']}/outcome", json={"rows": rows}).status_code
            if status != 503:
                break
        return status

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(record_value, range(8))) == {200}
    found = check_json(client.get(f"/v1/prescriptions/{answer['id']}"))
    assert found["recorded"] == 8
    assert [row["outcomes"]["loaves"] for row in found["outcomes"]] == [1.0 * index for index in range(8)]


def test_a_concurrently_recorded_outcome_is_seen(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second record arrives between the first one's read and write."""
    answer = prescribe_logged(client, posterior)
    client.get(f"/v1/prescriptions/{answer['id']}")
    real, calls = outcomes._price_changes, []

    def record_in_between(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            record(client, answer, outcomes={"loaves": 7.0})
        return real(*given)

    monkeypatch.setattr(outcomes, "_price_changes", record_in_between)
    problem = record(client, answer, 409, outcomes={"loaves": 8.0})
    assert "another value" in problem["detail"]
    (row,) = check_json(client.get(f"/v1/prescriptions/{answer['id']}"))["outcomes"]
    assert row["outcomes"] == {"loaves": 7.0}


def test_two_stage_outcomes_are_costed_with_their_recourse(client: TestClient) -> None:
    made = posterior_for(client, SHIPMENT, ["port", "mill"])
    answer = prescribe_logged(client, made, contexts=[{"rain": 2.0}])
    happened = {"port": 17.0, "mill": 22.0}
    (row,) = record(client, answer, outcomes=happened, actual_decision={"north": 20.0, "south": 19.0})["rows"]
    problem = build_problem(SHIPMENT)
    demand = torch.tensor([list(happened.values())], dtype=torch.float64)
    decided = torch.tensor([list(answer["prescriptions"][0]["decision"].values())], dtype=torch.float64)
    assert row["realised_cost"] == pytest.approx(problem.cost(decided, demand).item())
    assert row["best_cost"] <= min(row["realised_cost"], row["actual_decision_cost"]) + 1e-9


def test_the_best_integer_decision_is_integer(client: TestClient) -> None:
    made = posterior_for(client, SPEC, ["load"])
    answer = prescribe_logged(client, made, contexts=[{"rain": 2.0}])
    (row,) = record(client, answer, outcomes={"load": 33.0}, actual_decision={"small": 4, "large": 5})["rows"]
    # By enumeration: 2 small + 5 large + courier ≥ 33.
    best = min(4 * a + 9 * b + 3 * max(33 - 2 * a - 5 * b, 0) for a in range(21) for b in range(13))
    assert row["best_cost"] == pytest.approx(best)
    assert row["actual_decision_cost"] == pytest.approx(4 * 4 + 9 * 5)


def test_slow_costs_are_computed_by_a_solver_process(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = prescribe_logged(client, posterior)
    await_solvers(client)
    monkeypatch.setattr(router, "quickly", lambda _: None)
    (row,) = record(client, answer, outcomes={"croissants": 90.0, "loaves": 55.0})["rows"]
    assert row["realised_cost"] == pytest.approx(
        newsvendor_cost(answer["prescriptions"][0]["decision"], row["outcomes"])
    )
    assert record(client, answer, 409, outcomes={"loaves": 56.0})["errors"][0]["pointer"] == "#/outcomes/loaves"


def test_outcomes_of_an_evaluation_cost_our_decision(client: TestClient, posterior: Json) -> None:
    """Its answer has our decision for each context next to the alternatives."""
    body = {"contexts": CONTEXTS[:2]}
    answer = client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body).json()
    evaluations = [{"status": "evaluated", "ours": one, "alternatives": []} for one in answer["prescriptions"]]
    body_of_answer = AnswerBody(answer["posterior_id"], answer["digest"], orjson.dumps({"evaluations": evaluations}))
    log = client.app.state.log  # type: ignore[attr-defined]
    http = Request({"type": "http", "caller": LOCAL, "headers": []})
    kept = orjson.loads(log.keep("evaluate", http, PrescribeRequest.model_validate(body), body_of_answer))
    happened = {"croissants": 90.0, "loaves": 55.0}
    (row,) = record(client, kept, rows=[{"index": 1, "outcomes": happened}])["rows"]
    assert row["realised_cost"] == pytest.approx(newsvendor_cost(evaluations[1]["ours"]["decision"], happened))
    found = check_json(client.get("/v1/prescriptions", params={"kind": "evaluate"}))["items"]
    assert [(one["id"], one["contexts"], one["recorded"]) for one in found] == [(kept["id"], 2, 1)]


# drift


def drift(client: TestClient, posterior: Json, status: int = 200, **query: Any) -> Json:
    return check_json(client.get(f"/v1/posteriors/{posterior['id']}/drift", params={"source": "log"} | query), status)


def test_drift_of_the_log_compares_expected_and_recorded_costs(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = learn_posterior(client, inference=QUICK | {"epochs": 20, "particles": 100})
    empty = drift(client, made)
    assert (empty["verdict"], empty["overall"], empty["source"], empty["dataset_id"]) == ("too_few", None, "log", None)
    answer = prescribe_logged(client, made, contexts=CONTEXTS)
    rows = [{"index": index, "outcomes": {name: ROWS[index][name] for name in OUTCOMES}} for index in range(60)]
    recorded = record(client, answer, rows=rows)["rows"]
    steady = drift(client, made)
    assert (steady["overall"]["rows"], steady["left_out"]) == (60, 0)
    costs = [(row["promised_cost"], row["realised_cost"]) for row in recorded]
    assert steady["overall"]["promised"] == pytest.approx(sum(p for p, _ in costs) / 60)
    assert steady["overall"]["realised"] == pytest.approx(sum(r for _, r in costs) / 60)
    above = [
        row["realised_cost"] > promise["cost_quantiles"]["0.95"]
        for row, promise in zip(recorded, answer["prescriptions"], strict=True)
    ]
    assert steady["overall"]["above"]["share"] == pytest.approx(sum(above) / 60)
    # Three times the demand: the second call's expected costs fail; incomplete records are left out.
    busy = prescribe_logged(client, made, contexts=CONTEXTS)
    many = [{"index": row["index"], "outcomes": {k: 3.0 * v for k, v in row["outcomes"].items()}} for row in rows]
    record(client, busy, rows=[*many[:50], {"index": 50, "outcomes": {"loaves": 1.0}}])
    found = drift(client, made)
    assert (found["verdict"], found["overall"]["rows"], found["left_out"]) == ("drifting", 110, 1)
    assert found["stretches"][0]["first"] < found["stretches"][-1]["last"]
    monkeypatch.setattr("app.prescriptions.drift.MOST_ROWS", 50)
    assert drift(client, made)["overall"]["rows"] == 49
    assert "leave dataset_id out" in drift(client, made, 422, dataset_id="data_X")["detail"]


def test_drift_leaves_out_outcomes_of_other_posteriors(client: TestClient, posterior: Json) -> None:
    other = learn_posterior(client)
    record(client, prescribe_logged(client, posterior), outcomes={"croissants": 90.0, "loaves": 55.0})
    assert drift(client, other)["overall"] is None


# export


def test_the_export_can_be_uploaded_as_a_data_set(client: TestClient) -> None:
    made = learn_posterior(client, inference=QUICK)
    by_list = [list(one.values()) for one in CONTEXTS[20:25]]
    with transaction() as session:
        columns = session.get_one(PosteriorRow, made["id"]).columns
    assert [c["name"] for c in columns if c["role"] == "context"] == list(CONTEXTS[0])
    first = prescribe_logged(client, made, contexts=CONTEXTS[:20])
    second = prescribe_logged(client, made, contexts=by_list)
    for answer, offset, count in ((first, 0, 19), (second, 20, 5)):
        rows = [
            {
                "index": index,
                "outcomes": {name: ROWS[offset + index][name] for name in OUTCOMES},
                "actual_decision": {"croissants": 10.0 * index, "loaves": 5.0},
            }
            for index in range(count)
        ]
        record(client, answer, rows=rows)
    path = "/v1/prescriptions/export"
    response = client.get(path, params={"posterior_id": made["id"]})
    table = pyarrow.csv.read_csv(io.BytesIO(response.content)).to_pylist()
    exact = pq.read_table(
        io.BytesIO(client.get(path, params={"posterior_id": made["id"], "format": "parquet"}).content)
    )
    assert len(table) == exact.num_rows == 25
    assert [row["index"] for row in table] == [*range(20), *range(5)]
    for row, source, answer in zip(exact.to_pylist(), ROWS, [first] * 20 + [second] * 5, strict=False):
        index = row["index"]
        assert row["prescription"] == answer["id"]
        assert {name: row[name] for name in CONTEXTS[0]} == {
            name: float(value) if not isinstance(value, str) else value
            for name, value in source.items()
            if name in CONTEXTS[0]
        }
        decided = answer["prescriptions"][index]
        assert {name: row[f"decision.{name}"] for name in OUTCOMES} == decided["decision"]
        assert row["expected_cost"] == decided["expected_cost"]
    assert table[19]["croissants"] is None
    assert table[18]["actual_decision.croissants"] == 180.0
    assert response.headers["content-disposition"] == 'attachment; filename="prescriptions.csv"'
    contexts = ",".join(CONTEXTS[0])
    sent = upload(client, response.content, outcomes="croissants,loaves", contexts=contexts, missing="drop")
    dataset = check_json(sent, 201)
    assert dataset["rows"] == 24
    later = check_json(client.get(f"/v1/datasets/{dataset['id']}/rows", params={"limit": 100}))["items"]
    for row, source in zip(later[:19], ROWS, strict=False):
        assert {name: row[name] for name in OUTCOMES} == {name: source[name] for name in OUTCOMES}
    again = learn_posterior(client, dataset_id=dataset["id"])
    assert prescribe_logged(client, again)["prescriptions"][0]["status"] == "optimal"


def test_an_export_without_outcomes_is_refused(client: TestClient) -> None:
    response = client.get("/v1/prescriptions/export", params={"until": "2001-01-01T00:00:00Z"})
    assert (response.status_code, "nothing to export" in response.json()["detail"]) == (404, True)


def test_contexts_named_like_other_columns_are_prefixed(client: TestClient) -> None:
    rows = [{"index": float(n), "kind": "ab"[n % 2], "demand": 5.0 + n % 3} for n in range(30)]
    problem = {"kind": "newsvendor", "items": [{"name": "demand", "underage_cost": 3, "overage_cost": 1}]}
    made = check_json(client.post("/v1/problems", json={"name": "p", "spec": problem}), 201)
    body = {"name": "d", "outcomes": ["demand"], "rows": rows}
    dataset = check_json(client.post("/v1/datasets", json=body), 201)
    posterior = learn_posterior(client, problem_id=made["id"], dataset_id=dataset["id"])
    answer = prescribe_logged(client, posterior, contexts=[{"index": 3, "kind": "b"}])
    client.get(f"/v1/prescriptions/{answer['id']}")
    query = {"posterior_id": posterior["id"], "format": "parquet"}
    (row,) = pq.read_table(io.BytesIO(client.get("/v1/prescriptions/export", params=query).content)).to_pylist()
    assert (row["index"], row["context.index"], row["kind"], row["context.kind"]) == (0, 3.0, "prescribe", "b")


def test_a_long_log_is_exported_in_pieces(client: TestClient, posterior: Json) -> None:
    made = learn_posterior(client)
    ids = [prescribe_logged(client, made)["id"] for _ in range(45)]
    client.app.state.log.flush(10)  # type: ignore[attr-defined]
    with client.stream("GET", "/v1/prescriptions/export", params={"posterior_id": made["id"]}) as response:
        table = pyarrow.csv.read_csv(io.BytesIO(response.read()))
    assert table.column("prescription").to_pylist() == [one for one in ids if one]
    assert orjson.dumps(table.column_names).count(b"prescription") == 1


# patches, evaluations, included parts


def test_outcomes_are_costed_with_the_patch_of_their_call(client: TestClient, posterior: Json) -> None:
    answer = prescribe_logged(client, posterior, problem_patch={"items": {"croissants": {"underage_cost": 18.0}}})
    order = answer["prescriptions"][0]["decision"]["croissants"]
    loaves = answer["prescriptions"][0]["decision"]["loaves"]
    found = record(client, answer, outcomes={"croissants": order + 10, "loaves": loaves})
    assert found["rows"][0]["realised_cost"] == pytest.approx(180.0)


@pytest.mark.parametrize("changes", [{}, {"problem_patch": {"items": {"loaves": {"maximum_order": 3.0}}}}])
def test_an_evaluation_is_reproduced_bit_for_bit(client: TestClient, posterior: Json, changes: Json) -> None:
    body = {"contexts": CONTEXTS[:2], "alternatives": [{"decision": {"loaves": 50}}], **changes}
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/evaluate", json=body))
    assert check_json(client.get(f"/v1/prescriptions/{answer['id']}"))["answer"] == answer
    again = check_json(client.post(f"/v1/prescriptions/{answer['id']}/reproduce"))
    assert (again["identical"], again["differences"]) == (True, [])


def test_an_answer_with_included_parts_is_reproduced_bit_for_bit(client: TestClient, posterior: Json) -> None:
    await_solvers(client)
    include = ["scenarios", "outcomes", "sensitivity", "neighbours"]
    answer = prescribe_logged(
        client, posterior, include=include, problem_patch={"items": {"loaves": {"maximum_order": 3.0}}}
    )
    again = check_json(client.post(f"/v1/prescriptions/{answer['id']}/reproduce"))
    assert (again["identical"], again["differences"]) == (True, [])
