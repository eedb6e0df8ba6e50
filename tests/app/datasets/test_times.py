"""Time and series columns: formats, spacing, and refusals with value and row."""

from __future__ import annotations

import io
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from app.datasets import service
from app.db.engine import transaction
from tests.support.journey import Json, check_json, create_dataset, upload

START = date(2024, 1, 1)


def stored_table(dataset: Json) -> pa.Table:
    with transaction() as session:
        return service.read_table(session, dataset["id"])


def days(count: int, step: int = 1) -> list[date]:
    return [START + timedelta(days=step * index) for index in range(count)]


def sales(times: list[Any], **columns: Any) -> list[Json]:
    return [{"when": time, "demand": 5 + index % 7} | columns for index, time in enumerate(times)]


def time_of(dataset: Json) -> Json:
    entry = dataset["columns"][0]
    assert (entry["role"], entry["kind"], entry["name"]) == ("time", "time", "when")
    return {key: entry[key] for key in ("format", "unit", "step", "first", "last", "zone")}


def make_dataset(client: TestClient, times: list[Any], **changes: Any) -> Json:
    return create_dataset(client, outcomes=["demand"], time="when", rows=sales(times), **changes)


def parquet(columns: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


# formats

SPELLINGS = {
    "iso date": ([str(day) for day in days(5)], "2024-01-01", "2024-01-05", "day", ""),
    "dd.mm.yyyy": ([f"{day:%d.%m.%Y}" for day in days(5)], "2024-01-01", "2024-01-05", "day", ""),
    "iso datetime": (
        [f"2024-01-01T0{hour}:00" for hour in range(5)],
        "2024-01-01T00:00:00",
        "2024-01-01T04:00:00",
        "hour",
        "",
    ),
    "period": (list(range(-2, 3)), "-2", "2", "period", ""),
}


@pytest.mark.parametrize("written_as", SPELLINGS)
def test_the_format_of_times_is_recognised(client: TestClient, written_as: str) -> None:
    times, first, last, unit, zone = SPELLINGS[written_as]
    expected = {"format": written_as, "unit": unit, "step": 1, "first": first, "last": last, "zone": zone}
    from_json = make_dataset(client, times)
    assert time_of(from_json) == expected
    content = "when,demand\n" + "".join(f"{time},{5 + index % 7}\n" for index, time in enumerate(times))
    from_csv = check_json(upload(client, content.encode(), time="when"), 201)
    assert from_csv["columns"] == from_json["columns"]
    kind = pa.int64() if written_as == "period" else pa.timestamp("s")
    for dataset in (from_json, from_csv):
        assert stored_table(dataset).schema.field("when").type == kind


def test_times_with_zones_are_stored_in_utc(client: TestClient) -> None:
    zoned = make_dataset(client, ["2024-03-31T01:00+01:00", "2024-03-31T03:00+02:00", "2024-03-31T04:00:00+02:00"])
    found = time_of(zoned)
    assert (found["zone"], found["unit"], found["step"]) == ("UTC", "hour", 1)
    assert (found["first"], found["last"]) == ("2024-03-31T00:00:00", "2024-03-31T02:00:00")
    assert stored_table(zoned)["when"].to_pylist() == [datetime(2024, 3, 31, hour) for hour in range(3)]


def test_parquet_dates_and_timestamps_are_times(client: TestClient) -> None:
    demand = [1.0, 2.0, 3.0, 4.0]
    as_dates = parquet({"when": pa.array(days(4)), "demand": demand})
    moments = [datetime(2024, 1, 1, hour, 30) for hour in range(4)]
    naive = parquet({"when": pa.array(moments, pa.timestamp("ns")), "demand": demand})
    aware = [moment.replace(tzinfo=UTC) for moment in moments]
    zoned = parquet({"when": pa.array(aware, pa.timestamp("ms", "Europe/Berlin")), "demand": demand})
    midnights = parquet({"when": pa.array(days(4)).cast(pa.timestamp("us")), "demand": demand})
    found = [time_of(check_json(upload(client, content, time="when"), 201)) for content in (as_dates, midnights)]
    assert [(entry["format"], entry["last"]) for entry in found] == [("iso date", "2024-01-04")] * 2
    found = [time_of(check_json(upload(client, content, time="when"), 201)) for content in (naive, zoned)]
    assert [(entry["format"], entry["zone"], entry["first"]) for entry in found] == [
        ("iso datetime", "", "2024-01-01T00:30:00"),
        ("iso datetime", "UTC", "2024-01-01T00:30:00"),
    ]


# spacing


def month(number: int, day: int) -> date:
    return date(2024 + number // 12, number % 12 + 1, day)


def month_end(number: int) -> date:
    return month(number + 1, 1) - timedelta(days=1)


SPACINGS = {
    "a day with gaps": ([days(30)[index] for index in (0, 2, 4, 7, 12)], "day", 1),
    "working days": ([day for day in days(30) if day.weekday() < 5], "day", 1),
    "every second day": (days(9, 2), "day", 2),
    "weeks": (days(9, 7), "week", 1),
    "two weeks": (days(9, 14), "week", 2),
    "months": ([month(number, 1) for number in range(14)], "month", 1),
    "months with a gap": ([month(number, 15) for number in (0, 1, 2, 4, 7)], "month", 1),
    "ends of months": ([month_end(number) for number in range(14)], "month", 1),
    "quarters": ([month(number, 1) for number in range(0, 24, 3)], "month", 3),
    "a quarter of an hour": (
        [datetime(2024, 1, 1) + timedelta(minutes=15 * index) for index in range(9)],
        "minute",
        15,
    ),
    "six hours": ([datetime(2024, 1, 1) + timedelta(hours=6 * index) for index in range(9)], "hour", 6),
}


@pytest.mark.parametrize("name", SPACINGS)
def test_the_spacing_is_the_greatest_common_step(client: TestClient, name: str) -> None:
    times, unit, step = SPACINGS[name]
    texts = [time.isoformat() for time in times]
    for order in (texts, texts[::-1], texts[1::2] + texts[::2]):
        found = time_of(make_dataset(client, order))
        assert (found["unit"], found["step"]) == (unit, step)


def test_integer_periods_keep_their_step(client: TestClient) -> None:
    assert time_of(make_dataset(client, [10, 16, 13, 25]))["step"] == 3


def test_spacing_is_found_within_series(client: TestClient) -> None:
    rows = [{"when": str(day), "shop": "a", "demand": 1} for day in days(4, 7)]
    rows += [{"when": str(day + timedelta(days=1)), "shop": "b", "demand": 2} for day in days(4, 7)]
    dataset = create_dataset(client, outcomes=["demand"], time="when", series=["shop"], rows=rows)
    assert (time_of(dataset)["unit"], time_of(dataset)["step"]) == ("week", 1)
    assert (
        dataset["columns"][1] | {"name": "shop", "role": "series", "kind": "key", "distinct": 2}
        == (dataset["columns"][1])
    )


# series and stored columns


def test_long_tables_store_time_and_keys_first_and_need_no_contexts(client: TestClient) -> None:
    rows = [
        {"demand": 10 * item + index, "item": item, "price": 1.5, "when": str(day), "store": store}
        for store in ("north", "south")
        for item in (1, 2.0)
        for index, day in enumerate(days(3))
    ]
    options: Json = {"outcomes": ["demand"], "time": "when", "series": ["store", "item"], "rows": rows}
    dataset = create_dataset(client, **options, contexts=[], lead=3)
    assert dataset["lead"] == 3
    assert dataset["revision"] == 1
    assert len(dataset["digest"]) == 64
    table = stored_table(dataset)
    assert table.column_names == ["when", "store", "item", "demand"]
    assert table["item"].to_pylist()[:6] == ["1"] * 3 + ["2"] * 3
    assert [entry.get("distinct") for entry in dataset["columns"][1:3]] == [2, 2]
    named = create_dataset(client, **options)
    assert [entry["name"] for entry in named["columns"]] == ["when", "store", "item", "price", "demand"]
    content = "when,store,item,demand\n" + "".join(
        f"{r['when']},{r['store']},{r['item']},{r['demand']}\n" for r in rows
    )
    form = {"time": "when", "series": "store,item", "lead": "3"}
    uploaded = check_json(upload(client, content.encode(), **form), 201)
    assert stored_table(uploaded).equals(table)
    assert {key: uploaded[key] for key in ("lead", "digest")} == {key: dataset[key] for key in ("lead", "digest")}


def test_rows_stay_in_the_order_of_the_request(client: TestClient) -> None:
    dataset = make_dataset(client, ["2024-01-03", "2024-01-01", "2024-01-02"])
    assert [moment.day for moment in stored_table(dataset)["when"].to_pylist()] == [3, 1, 2]


def test_revisions_can_be_read_by_number(client: TestClient) -> None:
    dataset = make_dataset(client, [1, 2, 3])
    with transaction() as session:
        assert service.read_table(session, dataset["id"], 1).equals(service.read_table(session, dataset["id"]))


# refusals

REFUSED = {
    "mixed formats": (["2024-01-01", "02.01.2024", "2024-01-03"], "row 1, .*'02.01.2024'.*dd.mm.yyyy.*iso date"),
    "a date among moments": (["2024-01-01T00:00", "2024-01-02", "2024-01-03T00:00"], "row 1.*'2024-01-02'"),
    "some without a zone": (["2024-01-01T00:00Z", "2024-01-02T00:00", "2024-01-03T00:00Z"], "row 1.*with a time zone"),
    "two zones": (["2024-01-01T00:00+01:00", "2024-01-02T00:00-05:00"], "row 1.*-05:00.*different time zones"),
    "no such day": (["2024-02-28", "2024-02-30"], "row 1.*'2024-02-30' is not a date"),
    "no such day in German": (["28.02.2023", "29.02.2023"], "row 1.*'29.02.2023' is not a date"),
    "no such hour": (["2024-02-28T23:00", "2024-02-28T25:00"], "row 1.*25:00"),
    "words": (["2024-01-01", "yesterday"], "row 1.*'yesterday' is not a time; write 2024-01-31"),
    "American dates": (["1/31/2024", "2/1/2024"], "row 0.*'1/31/2024' is not a time"),
    "half periods": ([1, 1.5], "row 1.*'1.5' is not a time"),
    "booleans": ([True, False], "row 0.*'True' is not a time"),
    "dates without marks": ([20240131, 20240201], "'20240131' looks like a date"),
    "parts of a second": (["2024-01-01T00:00:00.5", "2024-01-01T00:01"], "row 0.*finer than a second"),
    "parts of a minute": (["2024-01-01T00:00:07", "2024-01-01T00:01"], "53 s apart"),
    "a gap": (["2024-01-01", None], "missing values.*1 in 'when'"),
    "nothing": ([None, None], "no values"),
    "a list": (["2024-01-01", ["2024-01-02"]], "row 1.*number, text"),
    "twice": (["2024-01-01", "2024-01-02", "2024-01-01"], r"row 2, .*same time \(2024-01-01\) as row 0, .*series"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_times_are_refused_with_their_row(client: TestClient, name: str) -> None:
    times, says = REFUSED[name]
    body = {"name": "d", "outcomes": ["demand"], "time": "when", "rows": sales(times, x=1)}
    answer = check_json(client.post("/v1/datasets", json=body), 422)
    assert re.search(says, answer["detail"]), answer["detail"]


def test_a_time_may_occur_once_per_series(client: TestClient) -> None:
    rows = [{"when": 1, "shop": shop, "demand": 1} for shop in ("a", "b", "a")]
    body = {"name": "d", "outcomes": ["demand"], "time": "when", "series": ["shop"], "rows": rows}
    answer = check_json(client.post("/v1/datasets", json=body), 422)
    assert "row 2, column 'when': the same time and series (1) as row 0" in answer["detail"]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"time": "nothing"}, "#/time"),
        ({"time": "demand"}, "#/time"),
        ({"time": "when", "series": ["when"]}, "#/time"),
        ({"time": "when", "series": ["demand"]}, "#/series/0"),
        ({"time": "when", "series": ["x"], "contexts": ["x"]}, "#/series/0"),
        ({"time": "when", "series": ["x", "x"]}, "#/series/1"),
        ({"series": ["x"], "categorical": ["when"]}, "#/series"),
        ({"lead": 2, "categorical": ["when"]}, "#/lead"),
        ({"time": "when", "lead": 0}, "#/lead"),
    ],
)
def test_contradictory_roles_are_refused(client: TestClient, changes: Json, pointer: str) -> None:
    body = {"name": "d", "outcomes": ["demand"], "rows": sales(["2024-01-01", "2024-01-02"], x=1)} | changes
    answer = check_json(client.post("/v1/datasets", json=body), 422)
    assert [error["pointer"] for error in answer["errors"]] == [pointer]


@pytest.mark.parametrize("texts", [["2024-01-01", "2024-01-02"], ["1.1.2024", "2.1.2024"], ["2024-01-01 06:00"] * 2])
def test_dates_are_no_category_unless_listed_as_categorical(client: TestClient, texts: list[str]) -> None:
    body = {"name": "d", "outcomes": ["demand"], "rows": sales(texts, x=1)}
    assert "name it as time" in check_json(client.post("/v1/datasets", json=body), 422)["detail"]
    dates = parquet({"when": pa.array(days(2)), "demand": [1, 2]})
    assert "name it as time" in check_json(upload(client, dates), 422)["detail"]
    assert check_json(upload(client, dates, categorical="when"), 201)["columns"][0]["kind"] == "categorical"
    dataset = create_dataset(client, outcomes=["demand"], categorical=["when"], rows=body["rows"])
    assert dataset["columns"][0]["kind"] == "categorical"


def test_the_number_of_series_is_limited(client: TestClient, settings: Any) -> None:
    settings(max_series=3)
    rows = [{"when": 1, "shop": shop, "item": item, "demand": 1} for shop in (1, 2) for item in (1, 2)]
    body = {"name": "d", "outcomes": ["demand"], "time": "when", "series": ["shop", "item"], "rows": rows}
    assert "4 series, more than 3 (BCO_MAX_SERIES)" in check_json(client.post("/v1/datasets", json=body), 422)["detail"]


def test_up_to_twenty_errors_are_listed_at_once(client: TestClient) -> None:
    rows = [{"when": "today", "x": 1, "demand": "many"} for _ in range(3)]
    body: Json = {"name": "d", "outcomes": ["demand"], "time": "when", "rows": rows}
    answer = check_json(client.post("/v1/datasets", json=body), 422)
    expected = [f"#/rows/{row}/{name}" for name in ("when", "demand") for row in range(3)]
    assert [error["pointer"] for error in answer["errors"]] == expected
    assert answer["detail"].endswith("(and 5 more)")
    body["rows"] = rows * 10
    answer = check_json(client.post("/v1/datasets", json=body), 422)
    assert len(answer["errors"]) == 20
    assert answer["detail"].endswith("(and 59 more)")
