"""Appended rows create revisions; rows are read back in pages; refused appends change nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.datasets import revisions, service
from app.datasets.parsing import parse_rows
from app.db.base import DEFAULT_WORKSPACE
from app.db.blobs import checksum
from app.db.engine import transaction
from app.db.tables import DatasetChunkRow, KeyRow
from app.http.errors import ConflictError
from app.keys import service as keys
from app.settings import get_settings
from tests.support.journey import Json, check_json, counts, create_dataset, create_job, learn_posterior, upload

OPTIONS: Json = {"outcomes": ["demand"], "time": "day", "series": ["shop"], "categorical": ["weather"]}
ROWS: list[Json] = [
    {"day": f"2024-01-0{day}", "shop": shop, "weather": weather, "demand": 10 * day + index}
    for day in (1, 2, 3)
    for index, (shop, weather) in enumerate((("a", "sun"), ("b", "rain")))
]
NEXT: Json = {"day": "2024-01-04", "shop": "a", "weather": "sun", "demand": 44}


def make_dataset(client: TestClient, **changes: Any) -> Json:
    return create_dataset(client, **OPTIONS | {"rows": ROWS} | changes)


def append(client: TestClient, dataset: Json, *rows: Json, **headers: str) -> Any:
    return client.post(f"/v1/datasets/{dataset['id']}/rows", json={"rows": rows}, headers=headers)


def read_back(client: TestClient, dataset: Json, **query: Any) -> tuple[list[Json], list[Json]]:
    """Read all rows by following cursors; return them and the answers."""
    answers, items = [], []
    while True:
        answer = check_json(client.get(f"/v1/datasets/{dataset['id']}/rows", params=query))
        answers.append(answer)
        items += answer["items"]
        if answer["next_cursor"] is None:
            return items, answers
        query["cursor"] = answer["next_cursor"]


def column(dataset: Json, name: str) -> Json:
    (found,) = (entry for entry in dataset["columns"] if entry["name"] == name)
    entry: Json = found
    return entry


def assert_refused(client: TestClient, dataset: Json, rows: list[Json], says: str, pointer: str | None = None) -> None:
    before = counts()
    answer = check_json(append(client, dataset, *rows), 422)
    assert re.search(says, answer["detail"]), answer["detail"]
    if pointer is not None:
        assert answer["errors"][0]["pointer"] == pointer
    assert counts() == before
    assert check_json(client.get(f"/v1/datasets/{dataset['id']}")) == dataset


@pytest.fixture
def key_headers(client: TestClient) -> Iterator[Callable[..., Json]]:
    """Make headers with a key of a workspace; delete all keys afterwards, so that no key is needed again."""
    yield lambda workspace, *scopes: {
        "Authorization": f"Bearer {keys.create('test', workspace, list(scopes), None)[1]}"
    }
    with transaction() as session:
        session.execute(sa.delete(KeyRow))


# appending


def test_appended_rows_create_a_revision_with_profile_and_digest(client: TestClient) -> None:
    dataset = make_dataset(client)
    response = append(client, dataset, NEXT, NEXT | {"shop": "c", "weather": "rain", "demand": 5})
    grown = check_json(response, 201)
    assert response.headers["Location"] == f"/v1/datasets/{dataset['id']}"
    assert (grown["revision"], grown["rows"]) == (2, 8)
    assert grown["digest"] != dataset["digest"]
    assert (column(grown, "day")["first"], column(grown, "day")["last"]) == ("2024-01-01", "2024-01-04")
    assert column(grown, "shop")["distinct"] == 3
    assert (column(grown, "demand")["minimum"], column(grown, "demand")["maximum"]) == (5.0, 44.0)
    assert check_json(client.get(f"/v1/datasets/{dataset['id']}")) == grown
    with transaction() as session:
        chunks = session.scalars(
            sa.select(DatasetChunkRow).where(DatasetChunkRow.dataset_id == dataset["id"]).order_by(DatasetChunkRow.seq)
        ).all()
        old, new = service.read_table(session, dataset["id"], 1), service.read_table(session, dataset["id"])
    assert [(chunk.seq, chunk.revision) for chunk in chunks] == [(0, 1), (1, 2)]
    assert grown["digest"] == checksum("".join(chunk.sha256 for chunk in chunks).encode())
    assert new.slice(0, 6).equals(old)
    assert new["shop"].to_pylist()[6:] == ["a", "c"]


def test_appending_gives_the_same_profile_as_one_upload(client: TestClient) -> None:
    more = [NEXT, NEXT | {"shop": "b", "demand": 45}]
    grown = check_json(append(client, make_dataset(client), *more), 201)
    at_once = make_dataset(client, rows=ROWS + more)
    assert {key: grown[key] for key in ("columns", "warnings", "rows")} == {
        key: at_once[key] for key in ("columns", "warnings", "rows")
    }


def test_a_file_can_be_appended(client: TestClient) -> None:
    dataset = make_dataset(client)
    files = {"file": ("more.csv", b"demand,day,weather,shop\n44,2024-01-04,sun,a\n")}
    grown = check_json(client.post(f"/v1/datasets/{dataset['id']}/rows/upload", files=files), 201)
    assert (grown["revision"], grown["rows"]) == (2, 7)
    assert read_back(client, dataset)[0][-1] == NEXT | {"demand": 44.0}


def test_the_last_rows_can_be_read_alone(client: TestClient) -> None:
    dataset = make_dataset(client)
    append(client, dataset, NEXT)
    everything, _ = read_back(client, dataset)
    for count in (1, 2, len(everything), 1000):
        found = check_json(client.get(f"/v1/datasets/{dataset['id']}/rows", params={"last": True, "limit": count}))
        assert found == {"items": everything[-count:], "next_cursor": None, "revision": 2}
    address = f"/v1/datasets/{dataset['id']}/rows"
    first = check_json(client.get(address, params={"last": True, "limit": 2, "revision": 1}))
    assert first["items"] == everything[len(ROWS) - 2 : len(ROWS)]
    refusal = check_json(client.get(address, params={"last": True, "cursor": "1.0.1"}), 422)
    assert refusal["detail"] == "the last rows are one page; leave out cursor or last"
    assert client.get("/v1/datasets/data_01ARZ3NDEKTSV4RRFFQ69G5FAV/rows?last=true").status_code == 404


def test_data_sets_without_time_accept_repeated_rows(client: TestClient) -> None:
    rows = [{"x": 1, "demand": 2}, {"x": 2, "demand": 3}]
    dataset = create_dataset(client, outcomes=["demand"], rows=rows)
    grown = check_json(append(client, dataset, rows[0]), 201)
    assert (grown["rows"], grown["revision"], column(grown, "x")["mean"]) == (3, 2, pytest.approx(4 / 3))


def test_earlier_times_can_be_appended_if_they_are_new(client: TestClient) -> None:
    dataset = make_dataset(client, rows=[row for row in ROWS if (row["day"], row["shop"]) != ("2024-01-02", "b")])
    late = {"day": "2024-01-02", "shop": "b", "weather": "sun", "demand": 7}
    assert check_json(append(client, dataset, late), 201)["rows"] == 6


def test_dates_can_be_appended_in_another_format(client: TestClient) -> None:
    dataset = make_dataset(client)
    grown = check_json(append(client, dataset, NEXT | {"day": "04.01.2024"}), 201)
    assert (column(grown, "day")["format"], column(grown, "day")["last"]) == ("iso date", "2024-01-04")


def test_appended_gaps_and_new_categories_follow_the_data_set_options(client: TestClient) -> None:
    rows = [row | {"price": float(index)} for index, row in enumerate(ROWS)]
    dataset = make_dataset(client, rows=rows, missing="impute", unseen="other")
    more = [NEXT | {"price": None, "weather": "hail"}, NEXT | {"shop": "b", "price": 9, "demand": None}]
    grown = check_json(append(client, dataset, *more), 201)
    assert grown["rows"] == 7
    assert column(grown, "weather")["categories"] == ["rain", "sun", "other"]
    assert (column(grown, "price")["missing"], column(grown, "price")["median"]) == (1, 2.5)
    assert read_back(client, dataset)[0][-1] | {"price": None, "weather": "other"} == read_back(client, dataset)[0][-1]
    assert any("1 rows were dropped because they lack 'demand'" in warning for warning in grown["warnings"])


def test_a_repeated_idempotency_key_appends_nothing(client: TestClient) -> None:
    dataset = make_dataset(client)
    first, second = (append(client, dataset, NEXT, **{"Idempotency-Key": "monday"}) for _ in range(2))
    assert check_json(first, 201) == check_json(second, 201)
    assert check_json(client.get(f"/v1/datasets/{dataset['id']}"))["revision"] == 2


def test_appending_does_not_change_a_posterior(client: TestClient) -> None:
    posterior = learn_posterior(client)
    dataset = check_json(client.get(f"/v1/datasets/{posterior['dataset_id']}"))
    row = read_back(client, dataset)[0][0] | {"temperature": 99.0}
    assert column(check_json(append(client, dataset, row), 201), "temperature")["maximum"] == 99.0
    assert check_json(client.get(f"/v1/posteriors/{posterior['id']}")) == posterior


def test_a_grown_data_set_in_use_cannot_be_deleted(client: TestClient) -> None:
    job = create_job(client)
    dataset = check_json(client.get(f"/v1/datasets/{job['dataset_id']}"))
    check_json(append(client, dataset, read_back(client, dataset)[0][0]), 201)
    before = counts()
    assert client.delete(f"/v1/datasets/{dataset['id']}").status_code == 409
    assert counts() == before


# refusals

BAD_ROWS = {
    "stored already": (
        [NEXT, ROWS[3]],
        r"row 1, .*same time and series \(2024-01-02\) as a stored row",
        "#/rows/1/day",
    ),
    "twice at once": ([NEXT, NEXT], "row 1, column 'day': the same .* as row 0", "#/rows/1/day"),
    "no rows": ([], "no rows to append", "#/rows"),
    "another column": ([NEXT | {"sesame": 1}], "does not have; it has day, shop, weather, demand", "#/rows"),
    "a column too few": ([{"day": "2024-01-04", "shop": "a", "demand": 1}], "'weather' is missing", "#/rows"),
    "a new category": (
        [NEXT | {"weather": "hail"}],
        "'hail' is new to 'weather'; it can be rain, sun",
        "#/rows/0/weather",
    ),
    "a gap": ([NEXT | {"demand": None}], "missing values", "#/rows/0/demand"),
    "text": ([NEXT | {"demand": "many"}], "must be a number", "#/rows/0/demand"),
    "moments": ([NEXT | {"day": "2024-01-04T06:00"}], "iso datetime .* iso date", "#/rows"),
    "zoned moments": ([NEXT | {"day": "2024-01-04T06:00Z"}], "with a time zone", "#/rows"),
    "periods": ([NEXT | {"day": 4}], "written as period", "#/rows"),
    "no such day": ([NEXT | {"day": "2024-02-30"}], "'2024-02-30' is not a date", "#/rows/0/day"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_unsuitable_rows_are_refused_and_change_nothing(client: TestClient, name: str) -> None:
    rows, says, pointer = BAD_ROWS[name]
    assert_refused(client, make_dataset(client), rows, says, pointer)


def test_appended_times_keep_the_spacing(client: TestClient) -> None:
    weeks = [{"day": f"2024-01-{day:02}", "demand": 1} for day in (1, 8, 15)]
    dataset = create_dataset(client, outcomes=["demand"], time="day", rows=weeks)
    assert_refused(client, dataset, [{"day": "2024-01-23", "demand": 1}], "are 1 week apart, .* would be 1 day apart")
    assert append(client, dataset, {"day": "2024-01-29", "demand": 1}).status_code == 201


def test_text_cannot_be_appended_to_a_numeric_column(client: TestClient) -> None:
    dataset = create_dataset(client, outcomes=["demand"], rows=[{"x": 1, "demand": 2}, {"x": 2, "demand": 3}])
    assert_refused(client, dataset, [{"x": "a", "demand": 2}], "'x' must be a number", "#/rows/0/x")


def test_a_data_set_cannot_grow_beyond_the_row_limit(client: TestClient, settings: Any) -> None:
    dataset = make_dataset(client)
    settings(max_rows=6)
    assert_refused(client, dataset, [NEXT], "more than 6 rows")


def test_appending_to_a_missing_data_set_is_not_found(client: TestClient) -> None:
    assert append(client, {"id": "data_01J00000000000000000000000"}, NEXT).status_code == 404
    assert client.get("/v1/datasets/data_01J00000000000000000000000/rows").status_code == 404


def test_appending_needs_the_train_scope_and_reading_the_read_scope(
    client: TestClient, key_headers: Callable[..., Json]
) -> None:
    dataset = make_dataset(client)
    path = f"/v1/datasets/{dataset['id']}/rows"
    reader, stranger = key_headers(DEFAULT_WORKSPACE, "read"), key_headers("elsewhere", "read", "train")
    assert client.get(path, headers=reader).status_code == 200
    assert client.post(path, json={"rows": [NEXT]}, headers=reader).status_code == 403
    files = {"file": ("more.csv", b"x\n1\n")}
    assert client.post(f"{path}/upload", files=files, headers=reader).status_code == 403
    assert client.get(path, headers=stranger).status_code == 404
    assert client.post(path, json={"rows": [NEXT]}, headers=stranger).status_code == 404


# concurrency


def test_concurrent_appends_are_all_stored_once(client: TestClient) -> None:
    dataset = make_dataset(client)

    def add(day: int) -> int:
        raw = parse_rows([NEXT | {"day": f"2024-01-{day:02}"}], get_settings())
        return revisions.append(DEFAULT_WORKSPACE, dataset["id"], raw).revision

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(add, range(4, 8))) == [2, 3, 4, 5]
    grown = check_json(client.get(f"/v1/datasets/{dataset['id']}"))
    assert (grown["rows"], grown["revision"], column(grown, "day")["last"]) == (10, 5, "2024-01-07")
    rows = read_back(client, dataset)[0]
    assert sorted(row["day"] for row in rows)[-4:] == [f"2024-01-0{day}" for day in range(4, 8)]
    with transaction() as session:
        query = sa.select(DatasetChunkRow.sha256).where(DatasetChunkRow.dataset_id == dataset["id"])
        checksums = session.scalars(query.order_by(DatasetChunkRow.seq)).all()
    assert grown["digest"] == checksum("".join(checksums).encode())


def test_of_two_equal_concurrent_appends_one_is_refused(client: TestClient) -> None:
    dataset = make_dataset(client)
    raw = parse_rows([NEXT], get_settings())

    def add(_: int) -> str:
        try:
            revisions.append(DEFAULT_WORKSPACE, dataset["id"], raw)
        except Exception as error:
            return str(getattr(error, "detail", error))
        return "kept"

    with ThreadPoolExecutor(2) as pool:
        results = sorted(pool.map(add, range(2)))
    assert results[0] == "kept"
    assert "as a stored row" in results[1]
    assert len(read_back(client, dataset)[0]) == 7


def test_an_append_that_loses_every_race_gets_a_conflict(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_dataset(client)
    monkeypatch.setattr(revisions, "_store", lambda *given: False)
    with pytest.raises(ConflictError, match="send the rows again"):
        revisions.append(DEFAULT_WORKSPACE, dataset["id"], parse_rows([NEXT], get_settings()))


# reading back


def test_rows_are_read_back_in_pages_in_the_format_of_requests(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CHUNK_ROWS", 4)
    dataset = make_dataset(client)
    check_json(append(client, dataset, NEXT), 201)
    everything = [row | {"demand": float(row["demand"])} for row in [*ROWS, NEXT]]
    for limit in (1, 2, 3, 4, 6, 7, 8):
        items, answers = read_back(client, dataset, limit=limit)
        assert items == everything
        assert [len(answer["items"]) for answer in answers[:-1]] == [limit] * (len(answers) - 1)
        assert {answer["revision"] for answer in answers} == {2}
    assert read_back(client, dataset, revision=1)[0] == everything[:6]
    again = create_dataset(client, **OPTIONS | {"rows": items})
    assert again["columns"] == check_json(client.get(f"/v1/datasets/{dataset['id']}"))["columns"]


def test_pagination_stays_on_its_first_revision(client: TestClient) -> None:
    dataset = make_dataset(client)
    path = f"/v1/datasets/{dataset['id']}/rows"
    first = check_json(client.get(path, params={"limit": 5}))
    check_json(append(client, dataset, NEXT), 201)
    rest = check_json(client.get(path, params={"limit": 5, "cursor": first["next_cursor"]}))
    assert (len(rest["items"]), rest["next_cursor"], rest["revision"]) == (1, None, 1)


def test_times_are_read_back_as_text_and_periods_as_numbers(client: TestClient) -> None:
    for times, shown in (
        (["2024-01-01T06:00", "2024-01-01T07:00"], ["2024-01-01T06:00:00", "2024-01-01T07:00:00"]),
        ([3, 4], [3, 4]),
        (["05.01.2024", "06.01.2024"], ["2024-01-05", "2024-01-06"]),
    ):
        rows = [{"when": time, "demand": 1} for time in times]
        dataset = create_dataset(client, outcomes=["demand"], time="when", rows=rows)
        assert [row["when"] for row in read_back(client, dataset)[0]] == shown


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"cursor": "sesame"}, "#/query/cursor"),
        ({"cursor": "2.0.0"}, "#/query/cursor"),
        ({"cursor": "1.0.0", "revision": 2}, "#/query/cursor"),
        ({"revision": 2}, "#/query/revision"),
        ({"revision": 0}, "#/query/revision"),
        ({"limit": 0}, "#/query/limit"),
        ({"limit": 1001}, "#/query/limit"),
    ],
)
def test_an_invalid_page_is_refused(client: TestClient, query: Json, pointer: str) -> None:
    dataset = make_dataset(client)
    answer = check_json(client.get(f"/v1/datasets/{dataset['id']}/rows", params=query), 422)
    assert answer["errors"][0]["pointer"] == pointer


def test_a_cursor_beyond_the_end_gives_no_rows(client: TestClient) -> None:
    dataset = make_dataset(client)
    answer = check_json(client.get(f"/v1/datasets/{dataset['id']}/rows", params={"cursor": "1.0.900"}))
    assert (answer["items"], answer["next_cursor"]) == ([], None)


def test_an_uploaded_data_set_accepts_uploaded_rows(client: TestClient) -> None:
    dataset = check_json(upload(client, b"day;demand\n1;4,99\n2;5,25\n", time="day"), 201)
    files = {"file": ("more.csv", b"day;demand\n3;1,5\n")}
    check_json(client.post(f"/v1/datasets/{dataset['id']}/rows/upload", files=files), 201)
    assert [row["demand"] for row in read_back(client, dataset)[0]] == [4.99, 5.25, 1.5]
