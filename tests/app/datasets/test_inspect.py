"""POST /v1/datasets/inspect: columns of a file, suggested roles and warnings, without storing it."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from httpx import Response
from starlette.testclient import TestClient

from app.demo import as_csv, bakery_rows
from tests.support.journey import Json, check_json, counts
from tests.support.polling import crowding
from tests.support.workbooks import sheet, workbook


def post_inspect(client: TestClient, content: bytes, **form: str) -> Response:
    return client.post("/v1/datasets/inspect", data=form, files={"file": ("history", content)})


def inspect(client: TestClient, content: bytes, **form: str) -> Json:
    before = counts()
    found = check_json(post_inspect(client, content, **form))
    assert counts() == before
    return found


def roles(found: Json) -> dict[str, str]:
    return {column["name"]: column["role"] for column in found["columns"]}


def column(found: Json, name: str) -> Json:
    return next(one for one in found["columns"] if one["name"] == name)


def shops(days: int = 120) -> str:
    """Write three shops over time as CSV, with gaps, decimal commas and stocked amounts."""
    lines = ["day;shop;promotion;price;sold;stocked"]
    for number in range(days):
        day = date(2024, 1, 1) + timedelta(number)
        for shop, level in (("north", 40), ("south", 60), ("west", 25)):
            stocked = "" if number % 11 == 3 else str(level + 5)
            lines.append(f"{day:%d.%m.%Y};{shop};{number % 2};4,{50 + number % 9};{level + number % 13};{stocked}")
    return "\n".join(lines)


# roles


def test_time_series_outcome_and_decision_columns_are_recognised(client: TestClient) -> None:
    found = inspect(client, shops().encode())
    assert roles(found) == {
        "day": "time",
        "shop": "series",
        "promotion": "context",
        "price": "context",
        "sold": "outcome",
        "stocked": "decision",
    }
    assert (found["format"], found["rows"], found["column_count"], found["missing"]) == ("csv", 360, 6, "reject")
    assert column(found, "price") | {"reason": ""} == {
        "name": "price",
        "kind": "numeric",
        "missing": 0,
        "distinct": 9,
        "minimum": 4.5,
        "maximum": 4.58,
        "samples": ["4,50", "4,51", "4,52", "4,53"],
        "role": "context",
        "categorical": False,
        "reason": "",
    }
    assert found["first_rows"][0] == ["01.01.2024", "north", "0", "4,50", "40", "45"]
    assert any("'stocked' has no decision" in sentence for sentence in found["odd"])


def test_suggested_roles_can_be_used_for_the_upload(client: TestClient) -> None:
    found = inspect(client, shops().encode())
    by_role = {
        role: ",".join(name for name, one in roles(found).items() if one == role) for role in set(roles(found).values())
    }
    form = {
        "name": "as suggested",
        "outcomes": by_role["outcome"],
        "contexts": by_role["context"],
        "time": by_role["time"],
        "series": by_role["series"],
        "decisions": by_role["decision"],
        "missing": found["missing"],
    }
    kept = client.post("/v1/datasets/upload", data=form, files={"file": ("shops", shops().encode())})
    assert {one["name"]: one["role"] for one in check_json(kept, 201)["columns"]} == roles(found)


def test_without_informative_names_the_last_amounts_are_outcomes(client: TestClient) -> None:
    found = inspect(client, as_csv(bakery_rows(120)).encode())
    assert [name for name, role in roles(found).items() if role == "outcome"] == ["croissants", "loaves"]
    assert roles(found)["weekday"] == roles(found)["temperature"] == "context"


def test_given_outcomes_are_suggested(client: TestClient) -> None:
    found = inspect(client, as_csv(bakery_rows(120)).encode(), outcomes="loaves, cakes")
    assert [name for name, role in roles(found).items() if role == "outcome"] == ["loaves"]
    assert any("'cakes' is not a column" in sentence for sentence in found["odd"])


ROWS = 40


def table(**columns: list[Any]) -> bytes:
    names = list(columns)
    lines = [",".join(names)] + [",".join(str(columns[name][row]) for name in names) for row in range(ROWS)]
    return "\n".join(lines).encode()


GENERATOR = random.Random(3)
AMOUNTS = [GENERATOR.randint(20, 90) for _ in range(ROWS)]
PRICES = [round(GENERATOR.uniform(3, 5), 2) for _ in range(ROWS)]
DAYS = [str(date(2024, 1, 1) + timedelta(number)) for number in range(ROWS)]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"demand": AMOUNTS, "price": PRICES}, {"demand": "outcome", "price": "context"}),
        ({"x": PRICES, "unitsSold": AMOUNTS}, {"x": "context", "unitsSold": "outcome"}),
        ({"y": AMOUNTS, "sales_last_week": AMOUNTS[::-1]}, {"y": "outcome", "sales_last_week": "context"}),
        ({"sold": AMOUNTS, "demand_forecast": PRICES}, {"sold": "outcome", "demand_forecast": "context"}),
        ({"x": PRICES, "order_quantity": AMOUNTS, "load": AMOUNTS}, {"order_quantity": "decision", "load": "outcome"}),
        ({"when": DAYS, "delivered": DAYS, "sold": AMOUNTS}, {"when": "time", "delivered": "left out"}),
        ({"row": list(range(ROWS)), "x": PRICES, "sold": AMOUNTS}, {"row": "left out", "x": "context"}),
        ({"period": list(range(7, 7 + ROWS)), "sold": AMOUNTS}, {"period": "time", "sold": "outcome"}),
        (
            {"const": [1] * ROWS, "note": [f"n{n}" for n in range(ROWS)], "sold": AMOUNTS},
            {"const": "left out", "note": "left out"},
        ),
        ({"week": [n // 4 for n in range(ROWS)], "sold": AMOUNTS}, {"week": "context"}),
        ({"a": AMOUNTS, "b": AMOUNTS[::-1]}, {"a": "context", "b": "outcome"}),
    ],
)
def test_roles_are_suggested_by_name_and_value(
    client: TestClient, columns: dict[str, list[Any]], expected: dict[str, str]
) -> None:
    assert roles(inspect(client, table(**columns))).items() >= expected.items()


def test_the_fewest_keys_that_separate_series_are_suggested(client: TestClient) -> None:
    lines = ["day,note,store,item,qty"]
    for number in range(20):
        for store in ("a", "b", "c"):
            lines += [
                f"{date(2024, 1, 1) + timedelta(number)},n{number % 2},{store},{item},{number}" for item in (7, 8)
            ]
    found = roles(inspect(client, "\n".join(lines).encode()))
    assert found == {"day": "time", "note": "context", "store": "series", "item": "series", "qty": "outcome"}


def test_repeated_times_without_a_series_key_are_reported(client: TestClient) -> None:
    content = table(day=[DAYS[n // 2] for n in range(ROWS)], sold=AMOUNTS)
    found = inspect(client, content)
    assert any("occur more than once" in sentence for sentence in found["odd"])


def test_numeric_codes_are_suggested_as_categories(client: TestClient) -> None:
    found = inspect(client, table(zone=[n % 5 for n in range(ROWS)], sold=AMOUNTS))
    assert (column(found, "zone")["role"], column(found, "zone")["categorical"]) == ("context", True)


@pytest.mark.parametrize(
    ("gap", "expected"), [("price", "impute"), ("sold", "drop"), ("weather", "drop"), ("stocked", "reject")]
)
def test_treatment_of_missing_values_is_suggested(client: TestClient, gap: str, expected: str) -> None:
    columns: dict[str, list[Any]] = {
        "price": list(PRICES),
        "weather": ["sun", "rain"] * (ROWS // 2),
        "sold": list(AMOUNTS),
        "stocked": list(AMOUNTS),
    }
    columns[gap][5] = ""
    found = inspect(client, table(**columns))
    assert (found["missing"], column(found, gap)["missing"]) == (expected, 1)


# oddities


def test_values_that_make_a_file_unusable_are_reported(client: TestClient) -> None:
    content = table(price=[*PRICES[:7], "unknown", *PRICES[8:]], amount=[*AMOUNTS[:3], "inf", *AMOUNTS[4:]])
    odd = inspect(client, content)["odd"]
    assert any("1 values of 'price' are not numbers, such as 'unknown' at line 9" in sentence for sentence in odd)
    assert any("'amount' holds numbers that are not finite, such as at line 5" in sentence for sentence in odd)


def test_ambiguous_numbers_and_dates_without_separators_are_reported(client: TestClient) -> None:
    dates = [20240101 + n % 28 for n in range(ROWS)]
    content = ["date;price;sold"] + [f"{dates[n]};1,{100 + n};{AMOUNTS[n]}" for n in range(ROWS)]
    found = inspect(client, "\n".join(content).encode())
    assert any("decimal comma" in sentence for sentence in found["odd"])
    assert any("dates without marks" in sentence for sentence in found["odd"])
    assert roles(found)["date"] == "left out"


def test_oddities_are_limited_in_number(client: TestClient) -> None:
    names = [f"c{number}" for number in range(60)]
    lines = [",".join(names)] + [",".join(["x" if row == 3 else str(row * 7 % 31)] * 60) for row in range(ROWS)]
    assert len(inspect(client, "\n".join(lines).encode())["odd"]) == 20


# other files


def test_a_parquet_file_with_dates_and_booleans_is_inspected(client: TestClient) -> None:
    buffer = io.BytesIO()
    days = [date(2024, 1, 1) + timedelta(number) for number in range(ROWS)]
    pq.write_table(
        pa.table({"day": days, "open": [True, False] * (ROWS // 2), "sold": [1 / 3 + n for n in AMOUNTS]}), buffer
    )
    found = inspect(client, buffer.getvalue())
    assert (found["format"], roles(found)) == ("parquet", {"day": "time", "open": "context", "sold": "outcome"})
    assert found["first_rows"][0][:2] == ["2024-01-01", "true"]
    assert len(column(found, "sold")["samples"][0]) < 15


def test_sheets_of_a_workbook_are_listed(client: TestClient) -> None:
    rows = [["day", "sold"], *([date(2024, 1, 1) + timedelta(n), AMOUNTS[n]] for n in range(ROWS))]
    content = workbook({"Notes": sheet([["a"], ["b"]]), "Sales": sheet(rows)})
    assert inspect(client, content)["sheets"] == ["Notes", "Sales"]
    found = inspect(client, content, sheet="Sales")
    assert roles(found) == {"day": "time", "sold": "outcome"}
    refused = post_inspect(client, content, sheet="Other")
    assert refused.status_code == 422
    assert "its sheets are Notes, Sales" in refused.json()["detail"]


# hostile files


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n\n",
        b"only,a,header\n",
        bytes(range(256)) * 40,
        b"\x89PNG\r\n\x1a\n" + bytes(200),
        b"PK\x03\x04" + bytes(100),
        b"PAR1" + bytes(100),
        b"a,a\n1,2\n3,4\n",
        b"a,\n1,2\n3,4\n",
        "a\u202eb,c\n1,2\n".encode(),
        b"a,b\n1\n",
    ],
)
def test_a_file_without_a_table_is_refused_with_a_message(client: TestClient, content: bytes) -> None:
    before = counts()
    refused = post_inspect(client, content)
    assert refused.status_code == 422, refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert [one["pointer"] for one in refused.json()["errors"]] == ["#/file"]
    assert counts() == before


def test_only_the_first_five_hundred_columns_are_shown(client: TestClient, settings: Callable[..., None]) -> None:
    names = [f"column {number}" for number in range(501)]
    lines = [",".join(names)] + [",".join(str(GENERATOR.random()) for _ in names) for _ in range(25)]
    found = inspect(client, "\n".join(lines).encode())
    assert (found["column_count"], len(found["columns"]), len(found["first_rows"][0])) == (501, 500, 500)
    assert "501 columns" in found["odd"][0]


def test_huge_headers_are_refused_and_long_values_are_cut(client: TestClient) -> None:
    wide = post_inspect(client, (",".join(f"c{n}" for n in range(10_001)) + "\n").encode())
    assert (wide.status_code, "more than 10000 columns" in wide.text) == (422, True)
    long = inspect(
        client, b"n" * 20_000 + b",sold\n" + b"".join(b"%d" % n + b"t" * 5_000 + b",%d\n" % n for n in range(30))
    )
    assert all(len(value) <= 41 for row in long["first_rows"] for value in row)
    assert len(long["columns"][0]["name"]) == 20_000


def test_formulas_and_markup_stay_text(client: TestClient) -> None:
    content = b"<script>alert(1)</script>,x,sold\n" + b"".join(
        b"=1+%d,%d,%d\n" % (n % 3, n, AMOUNTS[n]) for n in range(ROWS)
    )
    found = inspect(client, content)
    assert found["columns"][0]["name"] == "<script>alert(1)</script>"
    assert found["columns"][0]["samples"] == ["=1+0", "=1+1", "=1+2"]


def test_bidirectional_controls_are_removed_from_samples(client: TestClient) -> None:
    content = table(note=["a\u202eb"] * (ROWS // 2) + ["c"] * (ROWS // 2), sold=AMOUNTS)
    assert column(inspect(client, content), "note")["samples"] == ["a?b", "c"]


def test_form_fields_of_an_upload_are_refused(client: TestClient) -> None:
    answer = client.post("/v1/datasets/inspect", data={"name": "x"}, files={"file": ("a", b"x,y\n1,2\n")})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/name"


@pytest.mark.slow
def test_a_million_rows_are_inspected_in_seconds(client: TestClient, tmp_path: Path) -> None:
    rows = 1_000_000
    days = pa.array([19_000 + n // 1_000 for n in range(rows)], pa.int32()).cast(pa.date32())
    shop = pa.array([f"shop {n % 1_000}" for n in range(rows)])
    values = pa.array([float(n % 97) for n in range(rows)])
    buffer = io.BytesIO()
    pq.write_table(pa.table({"day": days, "shop": shop, "price": values, "sold": values}), buffer)
    began = time.monotonic()
    found = inspect(client, buffer.getvalue())
    assert roles(found) == {"day": "time", "shop": "series", "price": "context", "sold": "outcome"}
    assert time.monotonic() - began < 30 * crowding()


# column names in forms


def test_names_with_commas_can_be_quoted(client: TestClient) -> None:
    content = b'"price, net",x,sold\n' + b"".join(b"%d,%d,%d\n" % (n % 7, n, AMOUNTS[n]) for n in range(ROWS))
    form = {"name": "quoted", "outcomes": "sold", "contexts": 'x, "price, net"'}
    kept = check_json(client.post("/v1/datasets/upload", data=form, files={"file": ("a", content)}), 201)
    assert [one["name"] for one in kept["columns"]] == ["x", "price, net", "sold"]


def test_an_empty_list_means_no_context_and_a_comma_alone_is_refused(client: TestClient) -> None:
    content = table(day=DAYS, x=PRICES, sold=AMOUNTS)
    form = {"name": "time alone", "outcomes": "sold", "contexts": "[]", "time": "day"}
    kept = check_json(client.post("/v1/datasets/upload", data=form, files={"file": ("a", content)}), 201)
    assert [one["name"] for one in kept["columns"]] == ["day", "sold"]
    rows = [{"day": str(day), "x": 1.0, "sold": amount} for day, amount in zip(DAYS, AMOUNTS, strict=True)]
    body = {"name": "time alone", "outcomes": ["sold"], "contexts": [], "time": "day", "rows": rows}
    assert check_json(client.post("/v1/datasets", json=body), 201)["columns"] == kept["columns"]
    for field in ("contexts", "outcomes", "categorical", "series", "decisions"):
        comma = form | {field: " , "}
        refused = check_json(client.post("/v1/datasets/upload", data=comma, files={"file": ("a", content)}), 422)
        assert refused["errors"] == [
            {"pointer": f"#/{field}", "detail": "a comma alone names no column; send [] for no columns"}
        ]
    unclosed = {"name": "unclosed", "outcomes": 'so"ld', "time": "day"}
    refused = client.post("/v1/datasets/upload", data=unclosed, files={"file": ("a", content)})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "#/outcomes/0")
