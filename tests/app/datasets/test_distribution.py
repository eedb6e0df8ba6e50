"""GET /v1/datasets/{id}/distribution: histograms, categories, outcomes over time, gaps and level shifts."""

from __future__ import annotations

import io
import itertools
import math
import random
import time
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from app.datasets.distribution import histogram
from tests.support.journey import OUTCOMES, ROWS, Json, check_json, create_dataset

FIRST = date(2023, 1, 2)


def distribution(client: TestClient, dataset: Json, **query: str) -> Json:
    return check_json(client.get(f"/v1/datasets/{dataset['id']}/distribution", params=query))


def make_dataset(client: TestClient, rows: list[Json], **changes: Any) -> Json:
    return create_dataset(client, **{"name": "history", "rows": rows, "outcomes": ["sold"], "time": "day"} | changes)


def days(count: int, level: float = 50.0, **more: Any) -> list[Json]:
    drawn = random.Random(1)
    return [{"day": str(FIRST + timedelta(n)), "sold": level + drawn.gauss(0, 4)} | more for n in range(count)]


# columns


def test_every_column_has_counts(client: TestClient) -> None:
    dataset = create_dataset(client)
    found = distribution(client, dataset)
    assert (found["id"], found["rows"], found["revision"]) == (dataset["id"], len(ROWS), 1)
    assert [one["name"] for one in found["columns"]] == [one["name"] for one in dataset["columns"]]
    assert found["over_time"] is None
    assert (found["series_count"], found["series"]) == (1, [])
    by_name = {one["name"]: one for one in found["columns"]}
    for column in found["columns"]:
        assert sum(column["counts"]) + column["others"] + column["missing"] == len(ROWS)
    weekdays = dict(zip(by_name["weekday"]["categories"], by_name["weekday"]["counts"], strict=True))
    assert weekdays == {day: sum(row["weekday"] == day for row in ROWS) for day in weekdays}
    croissants = by_name["croissants"]
    values = [row["croissants"] for row in ROWS]
    assert croissants["edges"][0] < min(values) <= max(values) < croissants["edges"][-1]
    expected = np.histogram(values, croissants["edges"])[0].tolist()
    assert croissants["counts"] == expected
    assert len(croissants["counts"]) <= 30


@pytest.mark.parametrize(
    ("values", "bins"),
    [
        ([0, 1, 1, 0, 1], [2, 3]),
        ([3, 3, 3], [3]),
        ([0.1, 0.1], [2]),
        ([1.0, 1.0 + 2e-16], [2]),
        ([-2, 1], [1, 1]),
        ([0, 1, 4, 5], [1, 1, 0, 0, 1, 1]),
        ([5e-324, 1e-323], [2]),
        ([], [0]),
    ],
)
def test_few_distinct_values_have_a_bin_each(values: list[float], bins: list[int]) -> None:
    edges, counts = histogram(np.array(values, dtype=np.float64))
    assert counts == bins
    assert len(edges) == len(counts) + 1


def test_few_distinct_values_lie_in_the_middle_of_bins() -> None:
    edges, counts = histogram(np.array([4.5, 4.51, 4.51, 4.53]))
    assert counts == [1, 2, 0, 1]
    assert edges == pytest.approx([4.495, 4.505, 4.515, 4.525, 4.535])
    assert histogram(np.array([30.0, 48.0, 72.0, 72.0]))[1] == [1, 1, 2]
    assert histogram(np.array([0.0, 1.0, 3.5, 3.5]))[1] == [1, 1, 0, 0, 2]
    assert sum(histogram(np.array([0.0, 1e-9, 1.0]))[1]) == 3


def test_integers_are_spread_evenly_over_bins() -> None:
    edges, counts = histogram(np.arange(100.0))
    assert counts == [4] * 25
    assert (edges[0], edges[1], edges[-1]) == (-0.5, 3.5, 99.5)


@pytest.mark.parametrize("high", [1e100, 1e9 + 0.1, 30.5, 29.5, 1e-290])
def test_extreme_values_are_all_counted(high: float) -> None:
    values = np.append(np.linspace(-high, high, 97), [0.0, high / 3])
    edges, counts = histogram(values)
    assert (len(counts), sum(counts)) == (30, 99)
    assert all(one < other for one, other in itertools.pairwise(edges))


def test_only_the_most_frequent_categories_are_named(client: TestClient) -> None:
    rows = [row | {"where": f"place {n % 30 if n % 2 else 0}"} for n, row in enumerate(ROWS)]
    found = distribution(client, create_dataset(client, rows=rows))
    column = next(one for one in found["columns"] if one["name"] == "where")
    assert len(column["categories"]) <= 20
    assert column["categories"][0] == "place 0"
    assert sum(column["counts"]) + column["others"] == len(ROWS)


def test_gaps_of_decisions_are_counted(client: TestClient) -> None:
    rows = [row | {"baked": None if n < 7 else 90} for n, row in enumerate(ROWS)]
    found = distribution(client, create_dataset(client, rows=rows, decisions=["baked"]))
    column = next(one for one in found["columns"] if one["name"] == "baked")
    assert (column["missing"], sum(column["counts"])) == (7, len(ROWS) - 7)


# over time


def test_a_short_history_has_one_bucket_per_day(client: TestClient) -> None:
    rows = days(100)
    found = distribution(client, make_dataset(client, rows))["over_time"]
    assert (found["series"], found["periods"], found["gaps"]) == (None, 1, [])
    assert found["times"] == [row["day"] for row in rows]
    (outcome,) = found["outcomes"]
    for values in (outcome["mean"], outcome["minimum"], outcome["maximum"]):
        assert values == pytest.approx([row["sold"] for row in rows])
    assert outcome["shifts"] == []


def test_a_long_history_has_few_buckets(client: TestClient) -> None:
    begin = datetime(2024, 1, 1)
    rows = [{"day": (begin + timedelta(hours=n)).isoformat(), "sold": float(n)} for n in range(3_000)]
    random.Random(4).shuffle(rows)
    found = distribution(client, make_dataset(client, rows))["over_time"]
    assert (found["periods"], len(found["times"])) == (8, 375)
    assert found["times"][:2] == ["2024-01-01T00:00", "2024-01-01T08:00"]
    (outcome,) = found["outcomes"]
    assert (outcome["mean"][0], outcome["minimum"][0], outcome["maximum"][0]) == (3.5, 0.0, 7.0)
    assert sum(found["rows"]) == 3_000


def test_months_and_periods_keep_their_format(client: TestClient) -> None:
    months = [{"day": f"{2000 + n // 12}-{n % 12 + 1:02d}-15", "sold": n} for n in range(60)]
    found = distribution(client, make_dataset(client, months))["over_time"]
    assert found["times"][:2] == ["2000-01-01", "2000-02-01"]
    periods = [{"day": 5 + 3 * n, "sold": n} for n in range(60)]
    found = distribution(client, make_dataset(client, periods))["over_time"]
    assert found["times"][:3] == ["5", "8", "11"]


def test_periods_far_apart_need_no_more_buckets(client: TestClient) -> None:
    rows = [{"day": number, "sold": 1.0 + number % 5} for number in (0, 1, 2, 10**15)]
    found = distribution(client, make_dataset(client, rows))["over_time"]
    assert len(found["times"]) == 2
    assert found["gaps"] == [{"after": "2", "before": str(10**15), "periods": 10**15 - 3, "series": 1}]


def test_a_gap_is_given_by_the_days_around_it_and_excludes_closed_days(client: TestClient) -> None:
    open_days = [row for row in days(200) if date.fromisoformat(row["day"]).weekday() != 6]
    rows = [row for row in open_days if not "2023-03-06" <= row["day"] <= "2023-03-14"]
    (gap,) = distribution(client, make_dataset(client, rows))["over_time"]["gaps"]
    assert gap == {"after": "2023-03-04", "before": "2023-03-15", "periods": 8, "series": 1}


def series_rows() -> list[Json]:
    """Make four shops: all lack two days in March, west lacks four days in May, east starts late."""
    rows = []
    for shop, level in (("north", 40), ("south", 60), ("west", 25), ("east", 30)):
        for row in days(200, level, shop=shop, item="bread, white"):
            day = row["day"]
            late = shop == "east" and day < "2023-06-01"
            lacks = day in ("2023-03-08", "2023-03-09") or (shop == "west" and "2023-05-02" <= day <= "2023-05-05")
            if not late and not lacks:
                rows.append(row)
    return rows


def test_gaps_are_listed_for_all_series_or_for_one(client: TestClient) -> None:
    dataset = make_dataset(client, series_rows(), series=["shop", "item"])
    found = distribution(client, dataset)
    assert found["series_count"] == 4
    assert found["series"][0] == {"series": "north, bread, white", "rows": 198}
    march = {"after": "2023-03-07", "before": "2023-03-10", "periods": 2, "series": 3}
    assert found["over_time"]["gaps"] == [march]
    (outcome,) = found["over_time"]["outcomes"]
    assert outcome["minimum"][0] < outcome["mean"][0] < outcome["maximum"][0]
    west = distribution(client, dataset, series="west, bread, white")
    assert west["over_time"]["series"] == "west, bread, white"
    assert west["over_time"]["gaps"] == [
        march | {"series": 1},
        {"after": "2023-05-01", "before": "2023-05-06", "periods": 4, "series": 1},
    ]
    assert west["columns"] == found["columns"]
    assert sum(west["over_time"]["rows"]) == 194


def test_only_the_fifty_longest_gaps_are_listed(client: TestClient) -> None:
    rows = [row for n, row in enumerate(days(700)) if n % 9 and not 300 < n < 320]
    gaps = distribution(client, make_dataset(client, rows))["over_time"]["gaps"]
    assert len(gaps) == 50
    assert [gap["after"] for gap in gaps] == sorted(gap["after"] for gap in gaps)
    assert max(gap["periods"] for gap in gaps) > 15


# level shifts


@pytest.mark.parametrize("at", [60, 150, 240])
def test_a_level_shift_is_found_near_its_time(client: TestClient, at: int) -> None:
    rows = [row | {"sold": row["sold"] + (15 if n >= at else 0)} for n, row in enumerate(days(300))]
    (outcome,) = distribution(client, make_dataset(client, rows))["over_time"]["outcomes"]
    (shift,) = outcome["shifts"]
    assert abs((date.fromisoformat(shift["since"]) - FIRST).days - at) <= 15
    assert shift["after"] - shift["before"] == pytest.approx(15, abs=3)
    assert shift["before"] == pytest.approx(50, abs=2)


def test_seasons_and_noise_are_not_level_shifts(client: TestClient) -> None:
    noisy = [row | {"sold": row["sold"] + 20 * math.sin(n / 30 * 2 * math.pi)} for n, row in enumerate(days(600))]
    (outcome,) = distribution(client, make_dataset(client, noisy))["over_time"]["outcomes"]
    assert outcome["shifts"] == []


def test_a_shift_with_a_warning_is_listed_too(client: TestClient) -> None:
    rows = [row | {"sold": row["sold"] + (12 if n >= 260 else 0)} for n, row in enumerate(days(320))]
    dataset = make_dataset(client, rows)
    assert any("higher since about" in warning for warning in dataset["warnings"])
    (outcome,) = distribution(client, dataset)["over_time"]["outcomes"]
    assert outcome["shifts"]


# query parameters


def test_a_single_part_and_outcome_can_be_requested(client: TestClient) -> None:
    rows = [row | {"other": 1.0 + n % 7} for n, row in enumerate(days(80))]
    dataset = make_dataset(client, rows, outcomes=["sold", "other"])
    assert len(distribution(client, dataset)["over_time"]["outcomes"]) == 2
    alone = distribution(client, dataset, outcome="other", only="over_time")
    assert [one["name"] for one in alone["over_time"]["outcomes"]] == ["other"]
    assert alone["columns"] == []
    assert distribution(client, dataset, only="columns")["over_time"] is None


def test_invalid_queries_are_refused(client: TestClient) -> None:
    plain = create_dataset(client)
    dated = make_dataset(client, series_rows(), series=["shop", "item"])
    for dataset, query, says in (
        (plain, {"series": "north"}, "no key columns"),
        (plain, {"outcome": "weekday"}, f"it has {', '.join(OUTCOMES)}"),
        (dated, {"series": "north"}, "write shop, item with commas between, such as"),
        (dated, {"only": "rows"}, "columns"),
        (dated, {"serie": "north"}, "series, outcome, only"),
    ):
        refused = client.get(f"/v1/datasets/{dataset['id']}/distribution", params=query)
        assert refused.status_code == 422, refused.text
        assert says in refused.json()["detail"]
        assert refused.json()["errors"][0]["pointer"].startswith("#/query/")
    assert client.get("/v1/datasets/data_nothing/distribution").status_code == 404


def test_the_distribution_includes_appended_rows(client: TestClient) -> None:
    dataset = make_dataset(client, days(60))
    more = {"rows": [{"day": str(FIRST + timedelta(60)), "sold": 999.0}]}
    check_json(client.post(f"/v1/datasets/{dataset['id']}/rows", json=more), 201)
    found = distribution(client, dataset)
    assert (found["rows"], found["revision"]) == (61, 2)
    assert found["over_time"]["outcomes"][0]["maximum"][-1] == 999.0


@pytest.mark.slow
def test_the_distribution_of_a_large_data_set_takes_seconds(client: TestClient) -> None:
    rows, series = 400_000, 500
    numbers = np.arange(rows)
    columns = {
        "day": pa.array((numbers // series + 19_000).astype(np.int32), pa.int32()).cast(pa.date32()),
        "shop": pa.array([f"shop {n}" for n in range(series)]).take(pa.array(numbers % series)),
        "price": pa.array(np.sin(numbers)),
        "sold": pa.array(numbers * 7 % 101),
    }
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    form = {"name": "large", "outcomes": "sold", "time": "day", "series": "shop"}
    file = {"file": ("large.parquet", buffer.getvalue())}
    dataset = check_json(client.post("/v1/datasets/upload", data=form, files=file), 201)
    began = time.process_time()
    found = distribution(client, dataset)
    assert time.process_time() - began < 10
    assert (found["series_count"], len(found["series"]), len(found["over_time"]["times"])) == (500, 500, 400)
