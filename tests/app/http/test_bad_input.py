"""Bad requests get a clear error and change nothing.

Each case sends one bad request; ``SECRET`` stands for the bad value, and must not appear in the response.
"""

from __future__ import annotations

import gc
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from httpx import Response
from starlette.testclient import TestClient

from app.db.base import DEFAULT_WORKSPACE
from app.demo import example_problem
from app.ids import new_id
from app.jobs import service
from app.main import create_app
from tests.support.journey import (
    CONTEXTS,
    OUTCOMES,
    QUICK,
    ROWS,
    Json,
    check_json,
    counts,
    create_dataset,
    create_job,
    create_problem,
    learn_posterior,
    upload,
)

SECRET = "sesame-4711"
SECRET_NUMBER = 471147
NUL = "\0"


@dataclass(frozen=True)
class World:
    """Objects in every state that a bad request can refer to."""

    problem: Json
    dataset: Json
    few_rows: Json
    other_outcomes: Json
    posterior: Json
    queued: Json
    running: Json
    failed: Json
    cancelled: Json


@pytest.fixture(scope="module")
def world(client: TestClient) -> World:
    problem, dataset = create_problem(client), create_dataset(client)
    ids = {"problem_id": problem["id"], "dataset_id": dataset["id"]}
    queued, running, failed, cancelled = (create_job(client, **ids) for _ in range(4))
    service.start(running["id"])
    attempt = service.start(failed["id"])
    assert attempt is not None
    service.fail(failed["id"], attempt, "it was not to be")
    service.cancel(DEFAULT_WORKSPACE, cancelled["id"])
    return World(
        problem=problem,
        dataset=dataset,
        few_rows=create_dataset(client, rows=ROWS[:9]),
        other_outcomes=create_dataset(client, outcomes=["croissants"], contexts=["temperature"]),
        posterior=learn_posterior(client, **ids),
        queued=queued,
        running=running,
        failed=failed,
        cancelled=cancelled,
    )


@dataclass(frozen=True)
class Case:
    """One bad request and its expected error: status, pointer and words of the message."""

    send: Callable[[TestClient, World], Response]
    status: int = 422
    pointer: str | None = None
    says: str = ""
    settings: Json = field(default_factory=dict)


def assert_refused(response: Response, case: Case) -> None:
    assert response.status_code == case.status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert set(body) == {"type", "title", "status", "detail", "errors"}
    assert re.fullmatch(r"urn:bco:error:[a-z-]+", body["type"])
    assert body["status"] == case.status
    assert body["title"]
    sentences = [body["detail"], *(error["detail"] for error in body["errors"])]
    assert all(sentences)
    if case.pointer is not None:
        assert case.pointer in [error["pointer"] for error in body["errors"]]
    assert re.search(case.says, body["detail"]), body["detail"]
    for sentence in sentences:
        assert SECRET not in sentence
        assert str(SECRET_NUMBER) not in sentence
        assert "Traceback" not in sentence


# senders of requests

ROW = {"x": 1.5, "shop": "north", "demand": 3}
OTHER_ROW = {"x": 2.5, "shop": "south", "demand": 4}
ITEM = {"name": "demand", "underage_cost": 3, "overage_cost": 1}
BUDGETED = {
    "kind": "newsvendor",
    "decision_rows": [{"name": "budget", "coefficients": {"demand": 2}, "sense": "<=", "limit": 10}],
}


JSON_TYPE = {"Content-Type": "application/json"}


def send_json(client: TestClient, path: str, body: Any) -> Response:
    """Send JSON escaped as ASCII, so that lone surrogates can be sent too."""
    return client.post(path, content=json.dumps(body), headers=JSON_TYPE)


def post(path: str, body: Any) -> Callable[[TestClient, World], Response]:
    return lambda client, world: send_json(client, path, body)


def raw(
    path: str, body: str | bytes, content_type: str = "application/json"
) -> Callable[[TestClient, World], Response]:
    headers = {"Content-Type": content_type}
    return lambda client, world: client.post(path, content=body, headers=headers)


def problem(**changes: Any) -> Callable[[TestClient, World], Response]:
    return post("/v1/problems", example_problem() | changes)


def item(**changes: Any) -> Callable[[TestClient, World], Response]:
    return problem(spec={"kind": "newsvendor", "items": [ITEM, ITEM | {"name": "second"} | changes]})


def item_literal(literal: str) -> Callable[[TestClient, World], Response]:
    """Send a cost that only a lenient JSON parser accepts."""
    spec = {"kind": "newsvendor", "items": [ITEM | {"overage_cost": "LITERAL"}]}
    return raw("/v1/problems", json.dumps({"name": "n", "spec": spec}).replace('"LITERAL"', literal))


def dataset(**changes: Any) -> Callable[[TestClient, World], Response]:
    return post("/v1/datasets", {"name": "d", "outcomes": ["demand"], "rows": [ROW, OTHER_ROW]} | changes)


def second_row(**changes: Any) -> Callable[[TestClient, World], Response]:
    return dataset(rows=[ROW, OTHER_ROW | changes, ROW])


def row_literal(literal: str, **changes: Any) -> Callable[[TestClient, World], Response]:
    body = {"name": "d", "outcomes": ["demand"], "rows": [ROW, OTHER_ROW | {"x": "LITERAL"}]} | changes
    return raw("/v1/datasets", json.dumps(body).replace('"LITERAL"', literal))


def file(content: bytes | str, **form: str) -> Callable[[TestClient, World], Response]:
    data = content.encode() if isinstance(content, str) else content
    return lambda client, world: upload(client, data, **form)


def parquet(columns: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), buffer)
    return buffer.getvalue()


def job(**changes: Any) -> Callable[[TestClient, World], Response]:
    def send(client: TestClient, world: World) -> Response:
        ids = {"problem_id": world.problem["id"], "dataset_id": world.dataset["id"]}
        return send_json(client, "/v1/jobs", ids | changes)

    return send


def job_on(name: str) -> Callable[[TestClient, World], Response]:
    return lambda client, world: job(dataset_id=getattr(world, name)["id"])(client, world)


def prescribe(**changes: Any) -> Callable[[TestClient, World], Response]:
    def send(client: TestClient, world: World) -> Response:
        body = {"contexts": CONTEXTS[:2]} | changes
        return send_json(client, f"/v1/posteriors/{world.posterior['id']}/prescribe", body)

    return send


def second_context(**changes: Any) -> Callable[[TestClient, World], Response]:
    return prescribe(contexts=[CONTEXTS[0], CONTEXTS[1] | changes])


def both_contexts(**changes: Any) -> Callable[[TestClient, World], Response]:
    return prescribe(contexts=[CONTEXTS[0] | changes, CONTEXTS[1] | changes])


def context_literal(literal: str) -> Callable[[TestClient, World], Response]:
    def send(client: TestClient, world: World) -> Response:
        body = json.dumps({"contexts": [context | {"rain": "LITERAL"} for context in CONTEXTS[:2]]}).replace(
            '"LITERAL"', literal
        )
        return client.post(f"/v1/posteriors/{world.posterior['id']}/prescribe", content=body, headers=JSON_TYPE)

    return send


def without(context: Json, name: str) -> Json:
    return {key: value for key, value in context.items() if key != name}


def call(method: str, kind: str, suffix: str = "", body: Any = None) -> Callable[[TestClient, World], Response]:
    """Send a request about an object of the world: ``call("POST", "failed", "/cancel")``."""

    def send(client: TestClient, world: World) -> Response:
        name, _, want = kind.partition(".")
        made = getattr(world, name)
        identifier = made["posterior_id"] if want == "posterior" else made["id"]
        prefixes = {"prob": "problems", "data": "datasets", "job": "jobs", "post": "posteriors"}
        prefix = prefixes[identifier.partition("_")[0]]
        return client.request(method, f"/v1/{prefix}/{identifier}{suffix}", json=body)

    return send


# the table

PROBLEMS = {
    "no name": Case(post("/v1/problems", {"spec": example_problem()["spec"]}), pointer="#/name"),
    "blank name": Case(problem(name="   "), pointer="#/name"),
    "name too long": Case(problem(name=SECRET * 20), pointer="#/name"),
    "name not text": Case(problem(name=SECRET_NUMBER), pointer="#/name"),
    "name with a NUL": Case(problem(name=f"{SECRET}{NUL}"), pointer="#/name"),
    "name with half a character": Case(problem(name="\ud800"), pointer="#/name"),
    "item name with a NUL": Case(item(name=f"{SECRET}{NUL}"), pointer="#/spec/items/1/name"),
    "extra field": Case(problem(colour=SECRET), pointer="#/colour"),
    "extra field called body": Case(problem(body=SECRET), pointer="#/body"),
    "no spec": Case(post("/v1/problems", {"name": "n"}), pointer="#/spec"),
    "spec is a list": Case(problem(spec=[SECRET]), pointer="#/spec"),
    "unknown kind": Case(problem(spec={"kind": SECRET, "items": [ITEM]}), pointer="#/spec/kind", says="newsvendor"),
    "no kind": Case(problem(spec={"items": [ITEM]}), pointer="#/spec/kind"),
    "costs stated twice": Case(
        item(price=3, unit_cost=1), pointer="#/spec/items/1/underage_cost", says="state the same cost twice"
    ),
    "nothing lost by too many": Case(
        item(underage_cost=None, overage_cost=None, price=3, unit_cost=1, salvage_value=1.5),
        pointer="#/spec/items/1/salvage_value",
        says="ordering too much must cost something",
    ),
    "half a pack of whole numbers": Case(
        item(integer=True, pack_size=2.5), pointer="#/spec/items/1/pack_size", says="integer pack_size"
    ),
    "no pack between the bounds": Case(
        item(pack_size=10, minimum_order=12, maximum_order=19), pointer="#/spec/items/1/pack_size", says="no multiple"
    ),
    "a certain service": Case(item(minimum_service_level=1), pointer="#/spec/items/1/minimum_service_level"),
    "a budget below the smallest orders": Case(
        problem(spec=BUDGETED | {"items": [ITEM | {"minimum_order": 9}]}),
        pointer="#/spec/decision_rows/0",
        says="the order bounds alone make it at least 18",
    ),
    "a budget for what is not sold": Case(
        problem(spec=BUDGETED | {"items": [ITEM | {"name": "other"}]}),
        pointer="#/spec/decision_rows/0/coefficients/demand",
        says="no item of this name",
    ),
    "no items": Case(problem(spec={"kind": "newsvendor", "items": []}), pointer="#/spec/items"),
    "too many items": Case(
        problem(spec={"kind": "newsvendor", "items": [ITEM | {"name": f"i{index}"} for index in range(201)]}),
        pointer="#/spec/items",
    ),
    "two items of one name": Case(
        problem(spec={"kind": "newsvendor", "items": [ITEM | {"name": SECRET}] * 2}), pointer="#/spec", says="name"
    ),
    "item without a name": Case(item(name=""), pointer="#/spec/items/1/name"),
    "item with an extra field": Case(item(weight=SECRET), pointer="#/spec/items/1/weight"),
    "cost of zero": Case(item(overage_cost=0), pointer="#/spec/items/1/overage_cost", says="greater than 0"),
    "negative cost": Case(item(overage_cost=-SECRET_NUMBER), pointer="#/spec/items/1/overage_cost"),
    "cost too large": Case(item(overage_cost=1e13), pointer="#/spec/items/1/overage_cost"),
    "cost as text": Case(item(overage_cost=SECRET), pointer="#/spec/items/1/overage_cost"),
    "cost as digits in text": Case(item(overage_cost="3"), pointer="#/spec/items/1/overage_cost"),
    "cost as a boolean": Case(item(overage_cost=True), pointer="#/spec/items/1/overage_cost"),
    "cost missing": Case(item(overage_cost=None), pointer="#/spec/items/1/overage_cost"),
    "cost nested": Case(item(overage_cost=[1]), pointer="#/spec/items/1/overage_cost"),
    "cost NaN": Case(item_literal("NaN"), pointer="#/spec/items/0/overage_cost", says="finite"),
    "cost Infinity": Case(item_literal("Infinity"), pointer="#/spec/items/0/overage_cost", says="finite"),
    "cost 1e400": Case(item_literal("1e400"), pointer="#/spec/items/0/overage_cost", says="finite"),
    "no demand possible": Case(item(maximum_demand=0), pointer="#/spec/items/1/maximum_demand"),
    "bounds the wrong way round": Case(
        item(minimum_order=SECRET_NUMBER, maximum_order=2), pointer="#/spec/items/1", says="minimum_order"
    ),
}

DATASETS = {
    "empty": Case(dataset(rows=[]), pointer="#/rows", says="at least 2 rows"),
    "rows without columns": Case(dataset(rows=[{}, {}]), pointer="#/rows"),
    "one row": Case(dataset(rows=[ROW]), pointer="#/rows", says="at least 2"),
    "one complete row": Case(dataset(rows=[ROW, ROW | {"x": None}], missing="drop"), pointer="#/rows"),
    "no complete row": Case(dataset(rows=[ROW | {"x": None}] * 3, missing="drop"), pointer="#/rows"),
    "row not an object": Case(dataset(rows=[ROW, SECRET]), pointer="#/rows/1"),
    "rows not a list": Case(dataset(rows=SECRET), pointer="#/rows"),
    "no rows field": Case(post("/v1/datasets", {"name": "d", "outcomes": ["demand"]}), pointer="#/rows"),
    "no outcomes": Case(dataset(outcomes=[]), pointer="#/outcomes"),
    "outcomes not a list": Case(dataset(outcomes="demand"), pointer="#/outcomes"),
    "unknown outcome": Case(dataset(outcomes=["demand", SECRET]), pointer="#/outcomes/1", says="x, shop, demand"),
    "unknown context": Case(dataset(contexts=["x", SECRET]), pointer="#/contexts/1", says="x, shop, demand"),
    "unknown categorical": Case(dataset(categorical=[SECRET]), pointer="#/categorical/0", says="x, shop, demand"),
    "outcome twice": Case(dataset(outcomes=["demand", "demand"]), pointer="#/outcomes/1", says="twice"),
    "context twice": Case(dataset(contexts=["x", "x"]), pointer="#/contexts/1", says="twice"),
    "context and outcome": Case(dataset(contexts=["x", "demand"]), pointer="#/contexts/1", says="both"),
    "categorical outcome": Case(dataset(categorical=["demand"]), pointer="#/categorical/0", says="number"),
    "no context": Case(dataset(rows=[{"demand": 1}, {"demand": 2}]), pointer="#/contexts", says="context"),
    "missing value": Case(second_row(x=None), pointer="#/rows/1/x", says="missing=drop"),
    "missing field": Case(dataset(rows=[ROW, without(OTHER_ROW, "x")]), pointer="#/rows/1/x", says="1 in 'x'"),
    "missing text": Case(second_row(shop=None), pointer="#/rows/1/shop", says="1 in 'shop'"),
    "missing outcome": Case(second_row(demand=None), pointer="#/rows/1/demand"),
    "unknown way with missing": Case(dataset(missing=SECRET), pointer="#/missing", says="'reject', 'drop' or 'impute'"),
    "text among numbers": Case(second_row(x=SECRET), pointer="#/rows/1/x", says="categorical"),
    "text as outcome": Case(second_row(demand=SECRET), pointer="#/rows/1/demand", says="number"),
    "digits in text as outcome": Case(second_row(demand="471147"), pointer="#/rows/1/demand", says="number"),
    "list as value": Case(second_row(x=[SECRET]), pointer="#/rows/1/x", says="number, text"),
    "object as value": Case(second_row(shop={"a": SECRET}), pointer="#/rows/1/shop", says="number, text"),
    "list as category": Case(
        dataset(rows=[ROW, OTHER_ROW | {"shop": [SECRET]}], categorical=["shop"]), pointer="#/rows/1/shop"
    ),
    "NaN": Case(row_literal("NaN"), pointer="#/rows/1/x", says="finite"),
    "Infinity": Case(row_literal("Infinity"), pointer="#/rows/1/x", says="finite"),
    "-Infinity": Case(row_literal("-Infinity"), pointer="#/rows/1/x", says="finite"),
    "1e400": Case(row_literal("1e400"), pointer="#/rows/1/x", says="finite"),
    "whole number of 400 digits": Case(row_literal("1" + "0" * 400), pointer="#/rows/1/x", says="finite"),
    "1e200": Case(row_literal("1e200"), pointer="#/rows/1/x", says="finite"),
    "NaN as category": Case(row_literal("NaN", categorical=["x"]), pointer="#/rows/1/x", says="finite"),
    "Infinity among text": Case(
        raw(
            "/v1/datasets",
            '{"name": "d", "outcomes": ["demand"], "rows": [{"shop": "a", "demand": 1}, {"shop": "b", "demand": 2},'
            ' {"shop": Infinity, "demand": 3}]}',
        ),
        pointer="#/rows/2/shop",
        says="finite",
    ),
    "column without a name": Case(dataset(rows=[{"": 1, "demand": 2}, {"": 2, "demand": 3}]), says="name"),
    "half a character as value": Case(second_row(shop="\ud800"), pointer="#/rows/1/shop"),
    "half a character as name": Case(dataset(rows=[{"\ud800": 1, "demand": 2}, {"\ud800": 2, "demand": 3}])),
    "name with a NUL": Case(dataset(name=f"a{NUL}"), pointer="#/name"),
    "blank name": Case(dataset(name=""), pointer="#/name"),
    "extra field": Case(dataset(colour=SECRET), pointer="#/colour"),
    "too many rows": Case(
        dataset(rows=[ROW, OTHER_ROW] * 3), pointer="#/rows", says="BCO_MAX_ROWS", settings={"max_rows": 5}
    ),
    "too many columns": Case(dataset(), pointer="#/contexts", says="BCO_MAX_COLUMNS", settings={"max_columns": 2}),
    "too many categories": Case(
        dataset(rows=[ROW | {"shop": f"s{index}"} for index in range(4)]),
        pointer="#/contexts",
        says="'shop'.*4.*3",
        settings={"max_categories": 3},
    ),
}

GOOD_PARQUET = parquet({"x": [1.0, 2.0, 3.0], "demand": [1.0, 2.0, 3.0]})
DUPLICATED = pa.Table.from_arrays([pa.array([1, 2])] * 3, names=["x", "x", "demand"])

UPLOADS = {
    "no file": Case(
        lambda client, world: client.post("/v1/datasets/upload", data={"name": "u", "outcomes": "demand"}),
        pointer="#/file",
    ),
    "no name": Case(file("x,demand\n1,2\n2,3\n", name=""), pointer="#/name"),
    "name with a NUL": Case(file("x,demand\n1,2\n2,3\n", name=f"a{NUL}"), pointer="#/name"),
    "no outcomes": Case(file("x,demand\n1,2\n2,3\n", outcomes=" , "), pointer="#/outcomes"),
    "unknown outcome": Case(file("x,demand\n1,2\n2,3\n", outcomes=SECRET), pointer="#/outcomes/0", says="x, demand"),
    "unknown way with missing": Case(file("x,demand\n1,2\n2,3\n", missing=SECRET), pointer="#/missing"),
    "empty file": Case(file(""), pointer="#/file", says="empty"),
    "blank file": Case(file("\n\n\n"), pointer="#/file", says="empty"),
    "header alone": Case(file("x,demand\n"), pointer="#/file", says="at least 2 rows"),
    "header alone without a newline": Case(file("x,demand"), pointer="#/file", says="at least 2 rows"),
    "one row": Case(file("x,demand\n1,2\n"), pointer="#/file", says="at least 2"),
    "too many rows": Case(
        file("x,demand\n" + "1,2\n" * 6), pointer="#/file", says="BCO_MAX_ROWS", settings={"max_rows": 5}
    ),
    "a value too many": Case(file(f"x,demand\n1,2\n2,3,{SECRET}\n"), pointer="#/file", says="line 3.*3 values.*2"),
    "a value too few": Case(file("x,demand\n1,2\n2\n3,4\n"), pointer="#/file", says="line 3.*1 value"),
    "duplicate columns": Case(file("x,x,demand\n1,2,3\n2,3,4\n"), pointer="#/file", says="two columns"),
    "duplicate columns but for spaces": Case(file("x, x,demand\n1,2,3\n2,3,4\n"), pointer="#/file"),
    "column without a name": Case(file(",demand\n1,2\n2,3\n"), pointer="#/file", says="no name"),
    "missing value": Case(file("x,demand\n1,2\n,3\n"), pointer="#/file", says="line 3, column 'x'.*missing=drop"),
    "text among numbers": Case(file(f"x,demand\n1,2\n{SECRET},3\n4,5\n"), pointer="#/file", says="line 3, column 'x'"),
    "text as outcome": Case(file(f"x,demand\n1,2\n2,{SECRET}\n"), pointer="#/file", says="line 3, column 'demand'"),
    "commas that may mean two things": Case(
        file("x;demand\n1;2,500\n2;3,500\n"), pointer="#/file", says="line 2, column 'demand': '2,500' is ambiguous"
    ),
    "digits with underscores": Case(file("x,demand\n1,2\n1_000,3\n2,4\n"), pointer="#/file", says="line 3"),
    "nan": Case(file("x,demand\n1,2\nnan,3\n"), pointer="#/file", says="line 3, column 'x'.*finite"),
    "inf": Case(file("x,demand\n1,2\n2,-inf\n"), pointer="#/file", says="line 3, column 'demand'.*finite"),
    "1e400": Case(file("x,demand\n1,2\n1e400,3\n"), pointer="#/file", says="line 3, column 'x'.*finite"),
    "latin-1": Case(file("shop,demand\nMüller,2\nb,3\n".encode("latin-1")), pointer="#/file", says="UTF-8"),
    "latin-1 header": Case(file("käufer,demand\n1,2\n2,3\n".encode("latin-1")), pointer="#/file", says="UTF-8"),
    "utf-16": Case(file("x,demand\n1,2\n2,3\n".encode("utf-16")), pointer="#/file", says="UTF-8"),
    "a picture": Case(file(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4), pointer="#/file", says="neither Parquet nor"),
    "a damaged workbook": Case(file(b"PK\x03\x04" + bytes(range(256)) * 4), pointer="#/file", says="save it again"),
    "an old workbook": Case(file(b"\xd0\xcf\x11\xe0" + bytes(500)), pointer="#/file", says="save it as .xlsx"),
    "a sheet of a CSV file": Case(file("x,demand\n1,2\n2,3\n", sheet=SECRET), pointer="#/file", says="no sheets"),
    "every byte there is": Case(file(bytes(range(256)) * 40), pointer="#/file", says="neither Parquet nor"),
    "zeros": Case(file(bytes(5000)), pointer="#/file"),
    "truncated parquet": Case(file(GOOD_PARQUET[: len(GOOD_PARQUET) // 2]), pointer="#/file", says="Parquet"),
    "parquet without its end": Case(file(GOOD_PARQUET[:-1]), pointer="#/file", says="Parquet"),
    "parquet signature alone": Case(file(b"PAR1"), pointer="#/file", says="Parquet"),
    "parquet with damaged data": Case(
        file(GOOD_PARQUET[:8] + bytes(40) + GOOD_PARQUET[48:]), pointer="#/file", says="Parquet"
    ),
    "parquet without rows": Case(
        file(parquet({"x": pa.array([], pa.float64()), "demand": pa.array([], pa.float64())})),
        pointer="#/file",
        says="at least 2 rows",
    ),
    "parquet with lists": Case(file(parquet({"x": [[1], [2]], "demand": [1, 2]})), pointer="#/file", says="'x'"),
    "parquet with dates": Case(
        file(parquet({"x": [date(2024, 1, 1), date(2024, 1, 2)], "demand": [1, 2]})), pointer="#/file", says="'x'"
    ),
    "parquet with bytes": Case(file(parquet({"x": [b"a", b"b"], "demand": [1, 2]})), pointer="#/file", says="'x'"),
    "parquet with duplicate columns": Case(file(parquet(DUPLICATED)), pointer="#/file"),
    "parquet with NaN": Case(
        file(parquet({"x": [1.0, float("nan")], "demand": [1, 2]})), pointer="#/file", says="'x'.*finite"
    ),
    "parquet with a null": Case(
        file(parquet({"x": [1.0, None], "demand": [1, 2]})), pointer="#/file", says="missing=drop"
    ),
    "parquet with a null column": Case(
        file(parquet({"x": pa.nulls(2), "demand": [1, 2]})), pointer="#/file", says="missing"
    ),
    "json instead of a form": Case(post("/v1/datasets/upload", {"name": "u", "outcomes": "demand"}), pointer="#/file"),
    "form without a boundary": Case(
        raw("/v1/datasets/upload", b"file=x", "multipart/form-data"), status=400, says="multipart"
    ),
}

JOBS = {
    "no problem": Case(post("/v1/jobs", {"dataset_id": "data_x"}), pointer="#/problem_id"),
    "no data set": Case(post("/v1/jobs", {"problem_id": "prob_x"}), pointer="#/dataset_id"),
    "unknown problem": Case(job(problem_id=f"prob_{SECRET}"), pointer="#/problem_id", says="GET /v1/problems"),
    "unknown data set": Case(job(dataset_id=f"data_{SECRET}"), pointer="#/dataset_id", says="GET /v1/datasets"),
    "problem id with a NUL": Case(job(problem_id=NUL), pointer="#/problem_id"),
    "data set id with a NUL": Case(job(dataset_id=NUL), pointer="#/dataset_id"),
    "problem id not text": Case(job(problem_id=SECRET_NUMBER), pointer="#/problem_id"),
    "outcomes that do not fit": Case(job_on("other_outcomes"), pointer="#/dataset_id", says="croissants, loaves"),
    "too few rows": Case(job_on("few_rows"), pointer="#/dataset_id", says="at least 10 rows.*9"),
    "both temperatures": Case(
        job(inference={"kl_weight": 0.1, "inverse_temperature": 10}), pointer="#/inference", says="not both"
    ),
    "unknown policy": Case(job(policy=SECRET), pointer="#/policy", says="'bcp'"),
    "unknown predictor": Case(job(predictor={"kind": SECRET}), pointer="#/predictor/kind", says="'linear'"),
    "unknown family": Case(job(inference={"family": SECRET}), pointer="#/inference/family", says="'laplace'"),
    "unknown method": Case(job(inference={"method": SECRET}), pointer="#/inference/method", says="'vi'"),
    "unknown option": Case(job(inference={"colour": SECRET}), pointer="#/inference/colour"),
    "hidden layers for a linear model": Case(job(predictor={"kind": "linear", "hidden": [8]}), pointer="#/predictor"),
    "no hidden layers for a network": Case(job(predictor={"kind": "mlp", "hidden": []}), pointer="#/predictor"),
    "layer without units": Case(job(predictor={"hidden": [8, 0]}), pointer="#/predictor/hidden/1"),
    "layer too wide": Case(job(predictor={"hidden": [SECRET_NUMBER]}), pointer="#/predictor/hidden/0"),
    "too many layers": Case(job(predictor={"hidden": [8] * 9}), pointer="#/predictor/hidden"),
    "network too large": Case(
        job(predictor={"hidden": [2000, 2000]}), pointer="#/predictor/hidden", says="BCO_MAX_PARAMETERS"
    ),
    "no members": Case(job(inference={"members": 0}), pointer="#/inference/members"),
    "too many members": Case(
        job(inference={"members": SECRET_NUMBER}), pointer="#/inference/members", says="64.*BCO_MAX_MEMBERS"
    ),
    "too many particles": Case(
        job(inference={"particles": SECRET_NUMBER}), pointer="#/inference/particles", says="2000.*BCO_MAX_PARTICLES"
    ),
    "no epochs": Case(job(inference={"epochs": 0}), pointer="#/inference/epochs"),
    "half an epoch": Case(job(inference={"epochs": 1.5}), pointer="#/inference/epochs"),
    "epochs as a boolean": Case(job(inference={"epochs": True}), pointer="#/inference/epochs"),
    "negative temperature": Case(job(inference={"kl_weight": -1}), pointer="#/inference/kl_weight"),
    "temperature NaN": Case(job(inference={"kl_weight": float("nan")}), pointer="#/inference/kl_weight", says="finite"),
    "learning rate of zero": Case(job(inference={"learning_rate": 0}), pointer="#/inference/learning_rate"),
    "negative seed": Case(job(seed=-SECRET_NUMBER), pointer="#/seed", says="greater than or equal to 0"),
    "seed beyond JSON's whole numbers": Case(job(seed=2**53), pointer="#/seed"),
    "seed as text": Case(job(seed=SECRET), pointer="#/seed"),
    "name with a NUL": Case(job(name=f"a{NUL}"), pointer="#/name"),
    "name too long": Case(job(name=SECRET * 20), pointer="#/name"),
}

PRESCRIBE = {
    "no contexts field": Case(call("POST", "posterior", "/prescribe", {}), pointer="#/contexts"),
    "no contexts": Case(prescribe(contexts=[]), pointer="#/contexts"),
    "contexts not a list": Case(prescribe(contexts=CONTEXTS[0]), pointer="#/contexts"),
    "context a number": Case(prescribe(contexts=[CONTEXTS[0], SECRET_NUMBER]), pointer="#/contexts/1"),
    "context a text": Case(prescribe(contexts=[CONTEXTS[0], SECRET]), pointer="#/contexts/1"),
    "context null": Case(prescribe(contexts=[CONTEXTS[0], None]), pointer="#/contexts/1"),
    "missing field": Case(
        prescribe(contexts=[CONTEXTS[0], without(CONTEXTS[1], "rain")]), pointer="#/contexts/1", says="'rain'"
    ),
    "empty context": Case(prescribe(contexts=[{}]), pointer="#/contexts/0", says="'weekday'"),
    "extra field": Case(
        second_context(**{SECRET: 1}),
        pointer="#/contexts/1",
        says="weekday, temperature, rain, promotion, holiday",
    ),
    "outcome among the contexts": Case(second_context(loaves=1), pointer="#/contexts/1"),
    "list too short": Case(prescribe(contexts=[["SAT", 1, 2, 3]]), pointer="#/contexts/0", says="5 values.*weekday"),
    "list too long": Case(prescribe(contexts=[["SAT", 1, 2, 3, 4, 5]]), pointer="#/contexts/0", says="5 values"),
    "unseen category": Case(both_contexts(weekday=SECRET), pointer="#/contexts/1/weekday", says="FRI, MON, SAT"),
    "unseen category in a list": Case(
        prescribe(contexts=[[SECRET, 1, 2, 3, 4]]), pointer="#/contexts/0/weekday", says="FRI, MON, SAT"
    ),
    "category as a number": Case(both_contexts(weekday=SECRET_NUMBER), pointer="#/contexts/1/weekday", says="FRI"),
    "category null": Case(both_contexts(weekday=None), pointer="#/contexts/1/weekday", says="missing"),
    "category nested": Case(both_contexts(weekday=["SAT"]), pointer="#/contexts/1/weekday", says="FRI"),
    "category as half a character": Case(both_contexts(weekday="\ud800"), pointer="#/contexts/1/weekday"),
    "text for a number": Case(both_contexts(rain=SECRET), pointer="#/contexts/1/rain", says="must be a number"),
    "digits in text for a number": Case(both_contexts(rain="1.5"), pointer="#/contexts/1/rain", says="number"),
    "null for a number": Case(both_contexts(rain=None), pointer="#/contexts/1/rain", says="missing"),
    "list for a number": Case(both_contexts(rain=[SECRET]), pointer="#/contexts/1/rain", says="number"),
    "object for a number": Case(both_contexts(rain={"mm": 1}), pointer="#/contexts/1/rain", says="number"),
    "NaN": Case(context_literal("NaN"), pointer="#/contexts/1/rain", says="finite"),
    "Infinity": Case(context_literal("-Infinity"), pointer="#/contexts/1/rain", says="finite"),
    "1e400": Case(context_literal("1e400"), pointer="#/contexts/1/rain", says="finite"),
    "whole number of 400 digits": Case(context_literal("9" * 400), pointer="#/contexts/1/rain", says="finite"),
    "beyond any prediction": Case(both_contexts(rain=1e80), pointer="#/contexts/1", says="far from the history"),
    "unknown policy": Case(prescribe(policy=SECRET), pointer="#/policy", says="'thompson'"),
    "alpha beyond one": Case(prescribe(policy="blended", alpha=1.5), pointer="#/alpha"),
    "alpha for another policy": Case(prescribe(policy="bcp", alpha=0.5), pointer="#/alpha", says="blended"),
    "unknown scenarios for costs": Case(prescribe(costs_over=SECRET), pointer="#/costs_over", says="'predictive'"),
    "no scenarios": Case(prescribe(scenarios=0), pointer="#/scenarios"),
    "half a scenario": Case(prescribe(scenarios=0.5), pointer="#/scenarios"),
    "scenarios as a boolean": Case(prescribe(scenarios=True), pointer="#/scenarios"),
    "too many scenarios": Case(prescribe(scenarios=SECRET_NUMBER), pointer="#/scenarios", says="BCO_MAX_SCENARIOS"),
    "too many contexts": Case(
        prescribe(contexts=CONTEXTS[:4]), pointer="#/contexts", says="3.*BCO_MAX_CONTEXTS", settings={"max_contexts": 3}
    ),
    "negative seed": Case(prescribe(seed=-SECRET_NUMBER), pointer="#/seed"),
    "seed too large": Case(prescribe(seed=2**53), pointer="#/seed"),
    "unknown quality": Case(prescribe(require_quality=SECRET), pointer="#/require_quality", says="'warn'"),
    "extra option": Case(prescribe(colour=SECRET), pointer="#/colour"),
}

POSTS = {
    "problems": "/v1/problems",
    "data sets": "/v1/datasets",
    "jobs": "/v1/jobs",
    "prescribe": "/v1/posteriors/post_x/prescribe",
}
BODIES = {
    f"{what} to {name}": case
    for name, path in POSTS.items()
    for what, case in {
        "malformed JSON": Case(raw(path, f'{{"name": "{SECRET}",'), pointer="#", says="not valid JSON"),
        "nothing": Case(raw(path, ""), pointer="#"),
        "a list": Case(raw(path, f'["{SECRET}"]'), pointer="#"),
        "text": Case(raw(path, f'"{SECRET}"'), pointer="#"),
        "null": Case(raw(path, "null"), pointer="#"),
        "bytes that are not UTF-8": Case(raw(path, b'{"name": "\xff"}'), pointer="#", says="valid JSON"),
        "a hundred thousand brackets": Case(raw(path, "[" * 50_000), pointer="#", says="200 levels"),
        "a number of five thousand digits": Case(raw(path, '{"seed": ' + "9" * 5000 + "}"), pointer="#"),
        "the wrong content type": Case(raw(path, "{}", "text/plain"), pointer="#", says="application/json"),
        "no content type": Case(raw(path, "{}", ""), pointer="#", says="application/json"),
        "a form": Case(raw(path, "a=b", "application/x-www-form-urlencoded"), pointer="#", says="application/json"),
    }.items()
}

UNKNOWN_IDS = {
    f"{method} {path} of {what}": Case(
        lambda client, world, method=method, path=path, identifier=identifier: client.request(
            method, path.format(identifier), json={"contexts": CONTEXTS[:1]} if "prescribe" in path else None
        ),
        status=404,
        says=f"no {kind} has this id; GET /v1/{folder} lists them",
    )
    for folder, kind, prefix, addresses in (
        ("problems", "problem", "prob", (("GET", ""), ("DELETE", ""))),
        ("datasets", "data set", "data", (("GET", ""), ("DELETE", ""))),
        ("jobs", "job", "job", (("GET", ""), ("DELETE", ""), ("POST", "/cancel"))),
        (
            "posteriors",
            "posterior",
            "post",
            (("GET", ""), ("DELETE", ""), ("GET", "/diagnostics"), ("GET", "/particles"), ("POST", "/prescribe")),
        ),
    )
    for method, suffix in addresses
    for path in (f"/v1/{folder}/{{}}{suffix}",)
    for what, identifier in (
        ("an id like ours", new_id(prefix)),
        ("an id unlike ours", SECRET),
        ("a NUL", "%00"),
        ("a NUL after our prefix", f"{prefix}_%00"),
        ("bytes that are not UTF-8", "%ff%fe"),
        ("a picture", "%F0%9F%A5%90"),
        ("five thousand characters", "x" * 5000),
    )
}

ADDRESSES = {
    "unknown address": Case(lambda client, world: client.get("/v1/recipes"), status=404, says="/docs"),
    "unknown version": Case(lambda client, world: client.get("/v2/problems"), status=404, says="/docs"),
    "PUT where there is none": Case(lambda client, world: client.put("/v1/problems"), status=405, says="method"),
    "DELETE of a list": Case(lambda client, world: client.delete("/v1/jobs"), status=405, says="method"),
    "POST to one object": Case(call("POST", "problem"), status=405, says="method"),
    "PATCH of one object": Case(call("PATCH", "queued"), status=405, says="method"),
}

LISTS = {
    f"{what} for {folder}": Case(
        lambda client, world, path=f"/v1/{folder}", query=query: client.get(f"{path}?{query}"),
        pointer=f"#/query/{query.partition('=')[0]}",
    )
    for folder in ("problems", "datasets", "jobs", "posteriors", "aliases")
    for what, query in {
        "a limit of zero": "limit=0",
        "a limit too large": "limit=201",
        "a limit in words": f"limit={SECRET}",
        "a cursor that is nonsense": f"cursor={SECRET}",
        "an empty cursor": "cursor=",
        "a cursor with a NUL": "cursor=%00",
        "an endless cursor": "cursor=" + "x" * 5000,
    }.items()
}

PARTICLES = {
    f"particles with {query}": Case(call("GET", "posterior", f"/particles?{query}"), pointer=pointer)
    for query, pointer in (
        ("first=-1", "#/query/first"),
        (f"first={SECRET}", "#/query/first"),
        ("first=99999999999999999999", "#/query/first"),
        ("count=0", "#/query/count"),
        ("count=1.5", "#/query/count"),
        ("count=99999999999999999999", "#/query/count"),
    )
}

STATES = {
    "deleting a problem in use": Case(call("DELETE", "problem"), 409, says="delete them first"),
    "deleting a data set in use": Case(call("DELETE", "dataset"), 409, says="delete them first"),
    "deleting a queued job": Case(call("DELETE", "queued"), 409, says="queued; cancel it first"),
    "deleting a running job": Case(call("DELETE", "running"), 409, says="running; cancel it first"),
    "cancelling a failed job": Case(call("POST", "failed", "/cancel"), 409, says="already failed"),
    "deleting the posterior of a queued job": Case(call("DELETE", "queued.posterior"), 404, says="GET /v1/posteriors"),
} | {
    f"{verb} of a {state} job": Case(call(method, f"{state}.posterior", suffix, body), 409, says=words)
    for state, words in {
        "queued": r"job job_\w+ is queued \(0%\)",
        "running": r"job job_\w+ is running",
        "failed": r"job job_\w+ has failed, so there is no posterior",
        "cancelled": r"job job_\w+ was cancelled, so there is no posterior",
    }.items()
    for verb, method, suffix, body in (
        ("prescribing from the posterior", "POST", "/prescribe", {"contexts": CONTEXTS[:1]}),
        ("reading the posterior", "GET", "", None),
        ("reading the diagnostics", "GET", "/diagnostics", None),
        ("downloading the particles", "GET", "/particles", None),
    )
}

TABLE = {
    f"{group}: {name}": case
    for group, cases in {
        "problem": PROBLEMS,
        "data set": DATASETS,
        "upload": UPLOADS,
        "job": JOBS,
        "prescribe": PRESCRIBE,
        "body": BODIES,
        "id": UNKNOWN_IDS,
        "address": ADDRESSES,
        "list": LISTS,
        "particles": PARTICLES,
        "state": STATES,
    }.items()
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE.keys())
def test_bad_input_is_refused_clearly_and_changes_nothing(
    client: TestClient, world: World, settings: Callable[..., None], case: Case
) -> None:
    settings(**case.settings)
    before = counts()
    assert_refused(case.send(client, world), case)
    assert counts() == before


def test_the_unmodified_requests_of_the_table_are_valid(client: TestClient, world: World) -> None:
    """Otherwise a case could be refused for the wrong reason."""
    sent = [problem(), item(), item_literal("1"), dataset(), second_row(), row_literal("1"), job()]
    sent += [file("x,demand\n1,2\n2,3\n"), file(GOOD_PARQUET)]
    assert {send(client, world).status_code for send in sent} <= {201, 202}
    assert {send(client, world).status_code for send in (prescribe(), second_context(), context_literal("1"))} == {200}


def test_cancelling_a_succeeded_job_is_refused_and_keeps_its_result(client: TestClient, world: World) -> None:
    response = client.post(f"/v1/jobs/{world.posterior['job_id']}/cancel")
    assert_refused(response, Case(call("POST", "queued"), 409, says="already succeeded"))
    assert check_json(client.get(f"/v1/posteriors/{world.posterior['id']}")) == world.posterior


def test_a_job_in_use_by_its_posterior_is_not_deleted(client: TestClient, world: World) -> None:
    before = counts()
    response = client.delete(f"/v1/jobs/{world.posterior['job_id']}")
    assert_refused(response, Case(call("DELETE", "queued"), 409, says="posterior still exists"))
    assert counts() == before


@pytest.mark.filterwarnings("ignore:Unclosed file <tempfile.SpooledTemporaryFile:ResourceWarning")
def test_a_truncated_form_is_refused(client: TestClient, world: World) -> None:
    """Starlette leaves the file of the unfinished part to the garbage collector: hence the filter and gc.collect."""
    before = counts()
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nx,demand\n1,'
    send = raw("/v1/datasets/upload", body, "multipart/form-data; boundary=b")
    assert_refused(send(client, world), Case(send, pointer="#/file"))
    assert counts() == before
    gc.collect()


def test_several_errors_are_listed_at_once(client: TestClient) -> None:
    body = {"predictor": {"kind": SECRET}, "seed": -1, "inference": {"epochs": 0}}
    answer = client.post("/v1/jobs", json=body).json()
    assert {error["pointer"] for error in answer["errors"]} == {
        "#/problem_id",
        "#/dataset_id",
        "#/predictor/kind",
        "#/seed",
        "#/inference/epochs",
    }
    assert answer["detail"].endswith("(and 4 more)")


def test_an_unsupported_method_is_answered_with_the_supported_ones(client: TestClient) -> None:
    assert "POST" in client.put("/v1/problems").headers["allow"]


def test_pointers_escape_slashes_and_tildes(client: TestClient) -> None:
    rows = [{"a/b~c": 1, "demand": 1}, {"a/b~c": None, "demand": 2}]
    answer = client.post("/v1/datasets", json={"name": "d", "outcomes": ["demand"], "rows": rows}).json()
    assert [error["pointer"] for error in answer["errors"]] == ["#/rows/1/a~1b~0c"]


# bodies over the limit


@pytest.fixture(scope="module")
def small_client(client: TestClient) -> Iterator[TestClient]:
    """The application with a body limit of one megabyte."""
    from app.settings import get_settings

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BCO_MAX_BODY_MB", "1")
        get_settings.cache_clear()
        application = create_app()
    get_settings.cache_clear()
    with TestClient(application, raise_server_exceptions=False) as small:
        yield small


def chunks(*parts: bytes) -> Iterator[bytes]:
    """Stream a body of unknown length."""
    yield from parts


JSON_HEAD, JSON_TAIL = b'{"name": "' + SECRET.encode(), b'"}'
FORM_HEAD = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nx,demand\n'
FORM_TAIL = b"1,2\n2,3\n\r\n--b--\r\n"
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
OVERSIZE = {
    "JSON with its length": ("/v1/problems", JSON_TYPE, lambda: JSON_HEAD + b"x" * 1_000_001 + JSON_TAIL),
    "JSON in chunks": ("/v1/problems", JSON_TYPE, lambda: chunks(JSON_HEAD, *[b"x" * 10_000] * 101, JSON_TAIL)),
    "a file with its length": ("/v1/datasets/upload", FORM, lambda: FORM_HEAD + b"1,2\n" * 250_000 + FORM_TAIL),
    "a file in chunks": (
        "/v1/datasets/upload",
        FORM,
        lambda: chunks(FORM_HEAD, *[b"1,2\n" * 2500] * 101, FORM_TAIL),
    ),
    "contexts in chunks": (
        "/v1/posteriors/post_x/prescribe",
        JSON_TYPE,
        lambda: chunks(b'{"contexts": [', *[b"[1], " * 2000] * 101, b"[1]]}"),
    ),
}


@pytest.mark.parametrize(("path", "headers", "body"), OVERSIZE.values(), ids=OVERSIZE.keys())
def test_a_body_over_the_limit_is_refused_with_or_without_a_length(
    small_client: TestClient, path: str, headers: dict[str, str], body: Callable[[], Any]
) -> None:
    before = counts()
    response = small_client.post(path, content=body(), headers=headers)
    assert ("content-length" in response.request.headers) == isinstance(body(), bytes)
    assert_refused(response, Case(call("POST", "queued"), 413, says=r"larger than 1 MB \(BCO_MAX_BODY_MB\)"))
    assert response.json()["type"] == "urn:bco:error:too-large"
    assert counts() == before


def test_a_body_of_exactly_the_limit_is_read(small_client: TestClient) -> None:
    head, tail = b'{"name": "', b'"}'
    body = head + b"x" * (1_000_000 - len(head) - len(tail)) + tail
    response = small_client.post("/v1/problems", content=body, headers=JSON_TYPE)
    assert response.status_code == 422
    assert {error["pointer"] for error in response.json()["errors"]} == {"#/name", "#/spec"}


def test_a_content_length_that_is_not_a_number_is_not_trusted(small_client: TestClient) -> None:
    body = JSON_HEAD + b"x" * 1_000_001 + JSON_TAIL
    response = small_client.post("/v1/problems", content=body, headers=JSON_TYPE | {"Content-Length": "-5"})
    assert response.status_code in (400, 413)


# no partial writes when writing fails half way


def test_a_data_set_whose_second_chunk_fails_is_not_stored(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.datasets import service as datasets

    before = counts()
    calls = []

    def fail_at_second_call(data: bytes) -> str:
        calls.append(data)
        if len(calls) == 2:
            raise OSError("disk full of bees")
        return "0" * 64

    monkeypatch.setattr(datasets, "CHUNK_ROWS", 10)
    monkeypatch.setattr(datasets, "checksum", fail_at_second_call)
    response = client.post("/v1/datasets", json={"name": "d", "outcomes": OUTCOMES, "rows": ROWS})
    assert_refused(response, Case(call("POST", "queued"), 500))
    assert "bees" not in response.text
    assert len(calls) == 2
    assert counts() == before


def test_a_posterior_that_cannot_be_written_leaves_its_job_running(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.jobs import compute
    from app.posteriors import service as posteriors

    made = create_job(client, inference=QUICK)
    attempt = service.start(made["id"])
    assert attempt is not None
    before = counts()
    calls = []

    def fail_at_third_call(data: bytes) -> str:
        calls.append(data)
        if len(calls) == 3:
            raise OSError("disk full")
        return "0" * 64

    monkeypatch.setattr(posteriors, "checksum", fail_at_third_call)
    with pytest.raises(OSError, match="disk full"):
        compute.run(made["id"], attempt)
    # The job's log may have grown.
    assert counts() | {"job_log": 0} == before | {"job_log": 0}
    assert check_json(client.get(f"/v1/jobs/{made['id']}"))["state"] == "running"
