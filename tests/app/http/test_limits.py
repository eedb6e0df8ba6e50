"""Requests above a limit are refused early, with the name of the limit."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from httpx import Response
from starlette.testclient import TestClient

from app.datasets import unpack
from app.http.errors import TooManyError, UnavailableError
from app.main import create_app
from app.prescriptions import batching, service
from app.prescriptions.admission import AdmissionLimit
from app.prescriptions.context import PrescribeCall
from app.problems import service as problems
from tests.support.journey import CONTEXTS, Json, check_json, counts, learn_posterior, prescribe, upload


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client)


def assert_refused(response: Response, status: int, words: str, pointer: str | None = None) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert words in response.json()["detail"]
    if pointer is not None:
        assert response.json()["errors"][0]["pointer"] == pointer


def send_rows(client: TestClient, rows: list[Json]) -> Response:
    return client.post("/v1/datasets", json={"name": "days", "outcomes": ["demand"], "rows": rows})


def parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


# data sets

TABLE = pa.table({"x": [1.0, 2.0, 3.0], "demand": [1.0, 2.0, 3.0]})


def test_a_data_set_has_a_limited_number_of_cells(client: TestClient, settings: Callable[..., None]) -> None:
    settings(max_cells=5)
    before = counts()
    assert_refused(send_rows(client, [{"x": i, "demand": i} for i in range(3)]), 422, "BCO_MAX_CELLS", "#/rows")
    assert_refused(upload(client, b"x,demand\n1,1\n2,2\n3,3\n"), 422, "BCO_MAX_CELLS", "#/file")
    assert_refused(upload(client, parquet(TABLE)), 422, "BCO_MAX_CELLS", "#/file")
    assert counts() == before
    settings(max_cells=6)
    assert send_rows(client, [{"x": i, "demand": i} for i in range(3)]).status_code == 201
    assert upload(client, b"x,demand\n1,1\n2,2\n3,3\n").status_code == 201


def test_rows_without_common_columns_count_as_a_full_table(client: TestClient) -> None:
    """Six thousand rows with their own column each would be 36 million cells."""
    rows = [{f"x{index}": 1, "demand": 1} for index in range(6000)]
    assert_refused(send_rows(client, rows), 422, "BCO_MAX_CELLS", "#/rows")


def test_too_many_columns_are_refused_at_once(client: TestClient) -> None:
    names = [f"x{index}" for index in range(unpack.MOST_COLUMNS + 1)]
    assert_refused(send_rows(client, [dict.fromkeys(names, 1)]), 422, "columns", "#/rows")
    assert_refused(upload(client, ",".join(names).encode() + b"\n"), 422, "columns", "#/file")


LONG = "x" * 200_000
SHARED = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array([LONG]))


@pytest.mark.parametrize("kind", ["dictionary", "string", "large_string"])
def test_a_small_parquet_file_that_decodes_to_gigabytes_is_refused(client: TestClient, kind: str) -> None:
    """A text of 200 kB shared by a hundred thousand rows: 20 GB in a file of a few kB."""
    table = pa.table({"text": SHARED, "demand": [1.0] * 100_000})
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, table.schema, store_schema=kind == "dictionary") as writer:
        if kind == "large_string":
            # The Arrow schema stored in a file decides the type of its text.
            large = pa.schema([("text", pa.large_string()), ("demand", pa.float64())])
            metadata = pq.ParquetFile(io.BytesIO(parquet(large.empty_table()))).metadata.metadata
            writer.add_key_value_metadata({"ARROW:schema": metadata[b"ARROW:schema"]})
        writer.write_table(table)
    content = buffer.getvalue()
    assert kind in str(pq.read_schema(io.BytesIO(content)).field("text").type)
    assert len(content) < 100_000
    assert_refused(upload(client, content), 422, "BCO_MAX_CELLS", "#/file")


def test_unusable_columns_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(unpack, "_read_within", never)
    for values in (pa.array([b"x", b"y"]), pa.array([[1], [2]]), pa.array([{"a": 1}, {"a": 2}])):
        content = parquet(pa.table({"x": values, "demand": [1.0, 2.0]}))
        with pytest.raises(unpack.InvalidFile, match="only numbers, booleans, text"):
            unpack.unpack(content, unpack.Limits(max_rows=10, max_cells=1000))


def test_every_text_type_of_parquet_is_read(client: TestClient) -> None:
    for values in (
        pa.array(["SAT", "SUN", "SAT", None]),
        pa.array(["SAT", "SUN", "SAT", None], pa.large_string()),
        pa.array(["SAT", "SUN", "SAT", None]).dictionary_encode(),
    ):
        content = parquet(pa.table({"day": values, "demand": [1, 2, 3, 4]}))
        made = check_json(upload(client, content, missing="drop"), 201)
        assert made["rows"] == 3
        assert made["columns"][0]["categories"] == ["SAT", "SUN"]


# prescriptions


def test_prescriptions_above_the_concurrency_limit_get_503_with_retry_after(
    posterior: Json, settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(max_prescriptions=2)
    with TestClient(create_app(), raise_server_exceptions=False) as client:
        check_limit_of_two(client, posterior, monkeypatch)


def test_a_workspace_takes_at_most_its_share_of_the_slots() -> None:
    places = AdmissionLimit(3, 2)
    with ExitStack() as taken:
        for workspace in ("greedy", "greedy"):
            taken.enter_context(places.slot(workspace))
        with pytest.raises(TooManyError, match="BCO_MAX_WORKSPACE_PRESCRIPTIONS"), places.slot("greedy"):
            pass
        taken.enter_context(places.slot("modest"))
        with pytest.raises(UnavailableError, match="BCO_MAX_PRESCRIPTIONS"), places.slot("late"):
            pass
    assert places.taken == 0
    with places.slot("greedy"), places.slot("greedy"):
        assert places.taken == 2


def check_limit_of_two(client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()
    kind = service.CALL_KINDS["prescribe"]

    def answer_slowly(*arguments: Any) -> Json:
        begun.release()
        assert go_on.wait(60)
        return kind.answer(*arguments)

    path, body = f"/v1/posteriors/{posterior['id']}/prescribe", {"contexts": CONTEXTS[:1]}
    monkeypatch.setitem(service.CALL_KINDS, "prescribe", kind._replace(answer=answer_slowly))
    with ThreadPoolExecutor(2) as pool:
        served = [pool.submit(client.post, path, json=body) for _ in range(2)]
        for _ in served:
            assert begun.acquire(timeout=60)
        turned_away = client.post(path, json=body)
        assert_refused(turned_away, 503, "BCO_MAX_PRESCRIPTIONS")
        assert turned_away.headers["retry-after"] == "1"
        assert client.get(f"/v1/posteriors/{posterior['id']}").status_code == 200
        go_on.set()
        assert [one.result(60).status_code for one in served] == [200, 200]
    assert client.app.state.admission.taken == 0
    assert prescribe(client, posterior["id"])["prescriptions"]


def test_short_prescriptions_run_one_after_the_other(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "TURN_SECONDS", 30.0)
    path, body = f"/v1/posteriors/{posterior['id']}/prescribe", {"contexts": CONTEXTS[:1]}
    kind, busy, most = service.CALL_KINDS["prescribe"], 0, 0

    def count_concurrent(*arguments: Any) -> Json:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        time.sleep(0.02)
        busy -= 1
        return kind.answer(*arguments)

    monkeypatch.setitem(service.CALL_KINDS, "prescribe", kind._replace(answer=count_concurrent))
    with ThreadPoolExecutor(6) as pool:
        served = [pool.submit(client.post, path, json=body) for _ in range(6)]
        assert [one.result(60).status_code for one in served] == [200] * 6
    assert most == 1


def test_a_refused_prescription_frees_its_slot(client: TestClient, posterior: Json) -> None:
    path = f"/v1/posteriors/{posterior['id']}/prescribe"
    for body in ({"contexts": [{}]}, {"contexts": CONTEXTS[:1], "scenarios": 10**6}, {"contexts": 3}):
        assert client.post(path, json=body).status_code == 422
    assert client.app.state.admission.taken == 0


def test_a_prescription_is_cut_off_at_its_time_limit(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 25))
    core_prescribe = import_module("bco_core.prescribe")
    monkeypatch.setattr(core_prescribe, "monotonic", lambda: next(clock))
    monkeypatch.setattr(core_prescribe, "_CHUNK_NUMBERS", 1)
    monkeypatch.setattr(PrescribeCall, "deadline", 0.0)
    body = {"contexts": CONTEXTS[:10]}
    response = client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body)
    assert_refused(response, 503, "BCO_PRESCRIBE_SECONDS")


# the database


@pytest.mark.parametrize(
    "error", [sa.exc.OperationalError("SELECT secret", {}, Exception("locked")), sa.exc.TimeoutError()]
)
def test_a_database_outage_returns_503_with_retry_after(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def raise_error(*_: object) -> None:
        raise error

    monkeypatch.setattr(problems, "read", raise_error)
    response = client.get("/v1/problems/prob_x")
    assert_refused(response, 503, "try again")
    assert int(response.headers["retry-after"]) >= 1
    assert "secret" not in response.text
