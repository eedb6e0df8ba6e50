"""Fuzzed request bodies: each is refused clearly and leaves nothing behind, or gives a usable dataset."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from httpx import Response
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.datasets.service import read_table
from app.db.engine import transaction
from app.db.migrate import migrate
from app.demo import as_csv, bakery_rows, example_problem
from app.main import create_app
from app.settings import get_settings
from tests.support.in_process import service_on
from tests.support.journey import (
    CONTEXTS,
    OUTCOMES,
    ROWS,
    Json,
    counts,
    create_dataset,
    create_problem,
    learn_posterior,
)

REFUSALS = (400, 404, 409, 413, 422)
# The short run repeats a few fixed examples; the long run draws new ones for minutes.
EXAMPLES = [
    15,
    pytest.param(60, marks=pytest.mark.slow),
    pytest.param(2000, marks=pytest.mark.torture),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with service_on(f"sqlite:///{tmp_path_factory.mktemp('fuzz') / 'bco.db'}"):
        migrate(get_settings().sqlalchemy_url)
        with TestClient(create_app(), raise_server_exceptions=False) as client:
            yield client


# Letters, and characters special to CSV, JSON, databases or terminals.
ALPHABET = "aZ09 _-.,;:\"'\\/{}\n\r\t\0é½漢🙂\u00a0\u202e\ufeff"


def explore(examples: int, strategy: st.SearchStrategy[Any], promise: Callable[[Any], None]) -> None:
    chosen = settings(
        max_examples=examples,
        deadline=None,
        derandomize=examples < 1000,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    chosen(given(strategy)(promise))()


def assert_refused(response: Response) -> None:
    assert response.status_code in REFUSALS, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["detail"]
    assert "Traceback" not in response.text
    for found in problem["errors"]:
        assert found["pointer"].startswith("#")


def assert_usable(dataset: Json) -> None:
    """Check that the dataset can be read back: numbers are finite and texts are known categories."""
    with transaction() as session:
        table = read_table(session, dataset["id"])
    assert table.num_rows == dataset["rows"] >= 2
    for column in dataset["columns"]:
        values = table.column(column["name"]).to_pylist()
        if column["kind"] == "numeric":
            assert all(math.isfinite(value) for value in values)
            assert column["minimum"] <= min(values) <= max(values) <= column["maximum"]
        else:
            assert set(values) == set(column["categories"])


def upload_and_check(client: TestClient, content: bytes, outcomes: str, missing: str = "drop") -> None:
    """Upload a file and check that it is refused clearly or gives a usable dataset."""
    before = counts()
    form = {"name": "fuzz", "outcomes": outcomes, "missing": missing}
    response = client.post("/v1/datasets/upload", data=form, files={"file": ("fuzz", content)})
    looked_at = client.post("/v1/datasets/inspect", files={"file": ("fuzz", content)})
    if response.status_code == 201:
        assert_usable(response.json())
        assert looked_at.status_code == 200, looked_at.text
        distribution = client.get(f"/v1/datasets/{response.json()['id']}/distribution")
        assert distribution.status_code == 200, distribution.text
    else:
        assert_refused(response)
        assert counts() == before
        if looked_at.status_code != 200:
            assert_refused(looked_at)


def damaged_files(content: bytes) -> st.SearchStrategy[bytes]:
    """Draw a file with a few pieces removed, inserted, repeated or changed."""
    place = st.integers(0, len(content))
    cut = st.tuples(place, st.integers(0, 40), st.binary(max_size=12))

    def apply(cuts: list[tuple[int, int, bytes]]) -> bytes:
        found = content
        for start, length, new in cuts:
            found = found[:start] + new + found[start + length :]
        return found

    return st.lists(cut, min_size=1, max_size=4).map(apply)


# CSV

ODD = [
    "",
    "NA",
    "null",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e-400",
    "0x10",
    "1_000",
    "1,5",
    "٣",
    "½",
    "−1",
    "+1",
    " 7 ",
    "\0",
]
ODD += [
    '"',
    "'",
    ";",
    "\t",
    "\r",
    "a\nb",
    '"a""b"',
    "\ufeff",
    "\ud7ff",
    "é" * 300,
    "true",
    "TRUE",
    "1.0",
    "-0",
    "9" * 400,
]
CELL = st.one_of(st.sampled_from(ODD), st.floats().map(repr), st.integers().map(str), st.text(ALPHABET, max_size=8))
TABLES = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(CELL, min_size=width, max_size=width), min_size=1, max_size=8)
)


def to_csv(rows: list[list[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode("utf-8", "surrogatepass")


@pytest.mark.parametrize("examples", EXAMPLES)
def test_arbitrary_bytes_as_a_file_are_refused_or_usable(client: TestClient, examples: int) -> None:
    prefixes = st.sampled_from([b"", b"x,demand\n1,2\n", b"PAR1", b"\xef\xbb\xbf", b"PAR1\x15\x04", b'"'])
    content = st.tuples(prefixes, st.binary(max_size=200)).map(b"".join)
    explore(examples, content, lambda found: upload_and_check(client, found, "demand"))


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_damaged_csv_file_is_refused_or_usable(client: TestClient, examples: int) -> None:
    content = as_csv(bakery_rows(12)).encode()
    explore(examples, damaged_files(content), lambda found: upload_and_check(client, found, "croissants,loaves"))


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_csv_file_of_odd_values_is_refused_or_usable(client: TestClient, examples: int) -> None:
    header = [["demand", "a", "b", "c", "d"]]

    def promise(rows: list[list[str]]) -> None:
        upload_and_check(client, to_csv([header[0][: len(rows[0])], *rows]), "demand")
        upload_and_check(client, to_csv(rows), rows[0][0], "reject")

    explore(examples, TABLES, promise)


# Parquet

TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.float16(), st.floats(width=16)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(ALPHABET, max_size=6)),
    (pa.large_string(), st.text(ALPHABET, max_size=6)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["SAT", "SUN", ""])),
    (pa.null(), st.none()),
    (pa.binary(), st.binary(max_size=6)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2).map(lambda value: Decimal(f"{value:.2f}"))),
    (pa.list_(pa.int32()), st.lists(st.integers(0, 5), max_size=3)),
    (pa.struct([("x", pa.int32())]), st.fixed_dictionaries({"x": st.integers(0, 5)})),
]


@st.composite
def parquet_tables(draw: st.DrawFn) -> bytes:
    rows = draw(st.integers(0, 8))
    columns = {}
    for name in ["demand", "a", "b", "c"][: draw(st.integers(1, 4))]:
        kind, values = draw(st.sampled_from(TYPES))
        some = st.lists(st.one_of(st.none(), values), min_size=rows, max_size=rows)
        columns[name] = pa.array(draw(some), kind)
    return parquet(pa.table(columns), draw(st.sampled_from(["none", "snappy", "zstd"])))


def parquet(table: pa.Table, compression: str = "snappy") -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression=compression)
    return buffer.getvalue()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_parquet_file_of_any_types_is_refused_or_usable(client: TestClient, examples: int) -> None:
    explore(examples, parquet_tables(), lambda found: upload_and_check(client, found, "demand"))


@pytest.mark.parametrize("examples", EXAMPLES)
def test_a_damaged_parquet_file_is_refused_or_usable(client: TestClient, examples: int) -> None:
    table = pa.Table.from_pylist(bakery_rows(12))
    for content in (parquet(table), parquet(table, "none")):
        explore(examples, damaged_files(content), lambda found: upload_and_check(client, found, "croissants,loaves"))


# JSON

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(ALPHABET, max_size=10),
    st.sampled_from([2**70, 1e308, "\0", -0.0]),
)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(ALPHABET, max_size=8), inner, max_size=4),
)


@st.composite
def altered_bodies(draw: st.DrawFn, body: Json) -> Any:
    """Draw a valid body with some values replaced, removed or added."""
    found: Any = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        spot = found
        while isinstance(spot, dict | list) and spot:
            keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
            key = draw(st.sampled_from(keys))
            if not isinstance(spot[key], dict | list) or not spot[key] or draw(st.integers(0, 3)) == 0:
                act = draw(st.sampled_from(["replace", "remove", "add"]))
                if act == "remove":
                    del spot[key]
                elif act == "add" and isinstance(spot, dict):
                    spot[draw(st.text(ALPHABET, max_size=8))] = draw(ANY_JSON)
                else:
                    spot[key] = draw(ANY_JSON)
                break
            spot = spot[key]
    return found


@pytest.fixture(scope="module")
def bodies(client: TestClient) -> dict[str, Json]:
    """Return a valid body for every path that takes JSON."""
    posterior = learn_posterior(client)
    ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
    job = {"predictor": {"kind": "auto", "hidden": [8]}, "inference": {"method": "vi", "members": 2}, "seed": 7}
    return {
        "/v1/problems": example_problem(),
        "/v1/datasets": {"name": "days", "outcomes": OUTCOMES, "contexts": ["temperature"], "rows": ROWS[:6]},
        "/v1/jobs": {"name": "bakery", **ids, **job},
        f"/v1/posteriors/{posterior['id']}/prescribe": {
            "contexts": CONTEXTS[:2],
            "policy": "blended",
            "alpha": 0.5,
            "scenarios": 20,
            "seed": 1,
            "costs_over": "posterior",
        },
    }


def post_and_check(client: TestClient, path: str, content: bytes) -> None:
    before = counts()
    response = client.post(path, content=content, headers={"Content-Type": "application/json"})
    if not response.is_success:
        assert_refused(response)
        assert counts() == before
    elif path == "/v1/datasets":
        assert_usable(response.json())
    else:
        # Every answer is strict JSON, without NaN or infinity.
        json.loads(response.content, parse_constant=lambda word: pytest.fail(f"{word} in an answer"))


def text_of(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


PATHS = ["problems", "datasets", "jobs", "prescribe"]


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("which", PATHS)
def test_an_altered_json_body_is_answered_or_refused(
    client: TestClient, bodies: dict[str, Json], which: str, examples: int
) -> None:
    path = next(path for path in bodies if path.endswith(which))
    explore(examples, altered_bodies(bodies[path]), lambda found: post_and_check(client, path, text_of(found)))


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("which", PATHS)
def test_arbitrary_json_and_invalid_json_are_answered_or_refused(
    client: TestClient, bodies: dict[str, Json], which: str, examples: int
) -> None:
    path = next(path for path in bodies if path.endswith(which))
    content = st.one_of(ANY_JSON.map(text_of), damaged_files(text_of(bodies[path])), st.binary(max_size=50))
    explore(examples, content, lambda found: post_and_check(client, path, found))


def test_some_damaged_files_are_still_accepted(client: TestClient) -> None:
    """Otherwise the tests above would only see refusals."""
    outcomes: set[int] = set()
    form = {"name": "fuzz", "outcomes": "croissants,loaves", "missing": "drop"}

    def send(content: bytes) -> None:
        outcomes.add(client.post("/v1/datasets/upload", data=form, files={"file": ("fuzz", content)}).status_code)

    explore(60, damaged_files(as_csv(bakery_rows(12)).encode()), send)
    assert outcomes == {201, 422}


def test_csv_and_parquet_values_round_trip_unchanged(client: TestClient, tmp_path: Path) -> None:
    """Odd values are refused or kept, never changed."""
    rows = [["demand", "a"], *[[str(value), text] for value, text in enumerate(["x", "é", "a b", "N A"])]]
    made = client.post(
        "/v1/datasets/upload", data={"name": "n", "outcomes": "demand"}, files={"file": ("f", to_csv(rows))}
    ).json()
    with transaction() as session:
        table = read_table(session, made["id"])
    assert table.column("a").to_pylist() == ["x", "é", "a b", "N A"]
    assert table.column("demand").to_pylist() == [0.0, 1.0, 2.0, 3.0]
