"""Tables of any kind: they keep their types when sent, and answers have the same kind."""

from __future__ import annotations

import io
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bco_client import tables
from bco_client.to_json import plain, to_json

ROWS: list[dict[str, Any]] = [
    {"day": date(2024, 1, 1), "shop": "north", "open": True, "sold": 3.5},
    {"day": date(2024, 1, 2), "shop": 'süd, "west"', "open": False, "sold": None},
]
KINDS = {
    "rows": lambda rows: rows,
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.Table.from_pylist,
}


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param](ROWS)


def test_kind_of_recognises_every_table(table: Any) -> None:
    made = {"rows": list, "pandas": pd.DataFrame, "polars": pl.DataFrame, "arrow": pa.Table}
    assert isinstance(table, made[tables.kind_of(table)])
    assert tables.row_count(table) == 2
    assert tables.column_names(table) == ["day", "shop", "open", "sold"]


def test_as_file_keeps_types_and_digits(table: Any) -> None:
    name, content = tables.as_file(table)
    assert name == "table.parquet"
    found = pq.read_table(io.BytesIO(content))
    assert found.num_rows == 2
    assert pa.types.is_temporal(found.schema.field("day").type)
    assert pa.types.is_boolean(found.schema.field("open").type)
    assert found.column("sold").to_pylist() == [3.5, None]
    assert found.column("shop").to_pylist() == ["north", 'süd, "west"']


@pytest.mark.parametrize("kind", ["rows", "pandas"])
def test_without_pyarrow_as_file_writes_csv_with_booleans_as_numbers(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "has_pyarrow", lambda: False)
    name, content = tables.as_file(KINDS[kind](ROWS))
    assert name == "table.csv"
    assert content.decode() == 'day,shop,open,sold\n2024-01-01,north,1,3.5\n2024-01-02,"süd, ""west""",0,\n'


def test_as_rows_gives_json_values(table: Any) -> None:
    rows = tables.as_rows(table, ["day", "open", "sold", "nothing"])
    assert [row["open"] for row in rows] == [True, False]
    assert [row["sold"] for row in rows] == [3.5, None]
    assert rows[0]["day"] in ("2024-01-01", "2024-01-01T00:00:00")
    assert "shop" not in rows[0]
    to_json(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_have_the_kind_of_the_given_table(kind: str) -> None:
    given = KINDS[kind](ROWS)
    back = tables.as_given([{"a": 1.0, "b": "x"}, {"a": None, "b": "y"}], given)
    assert type(back) is type(given)
    assert tables.as_rows(back) == [{"a": 1.0, "b": "x"}, {"a": None, "b": "y"}]


def test_a_pandas_frame_keeps_its_index() -> None:
    given = pd.DataFrame(ROWS, index=["first", "second"])
    back = tables.as_given([{"a": 1}, {"a": 2}], given)
    assert list(back.index) == ["first", "second"]


def test_requested_index_levels_become_columns() -> None:
    given = pd.DataFrame(ROWS).set_index(["day", "shop"])
    assert list(tables.with_index(given, ["day"]).columns) == ["day", "open", "sold"]
    assert list(tables.with_index(given, ["other"]).columns) == ["open", "sold"]


def test_columns_added_by_a_batch_are_separated_from_sent_ones() -> None:
    result = pd.DataFrame({"x": [1, 2], "context.status": ["a", "b"], "status": ["optimal"] * 2, "gap": [0.0, 0.0]})
    given = pd.DataFrame({"x": [1, 2], "status": ["a", "b"]}, index=[5, 6])
    back = tables.answers_beside(result, ["x", "status"], given)
    assert back.to_dict("list") == {"status": ["optimal"] * 2, "gap": [0.0, 0.0]}
    assert list(back.index) == [5, 6]
    with pytest.raises(ValueError, match="the result has 1 rows, and 2 were sent"):
        tables.answers_beside(result.head(1), ["x", "status"], given)


def test_a_mixed_column_is_sent_as_csv_so_that_the_service_finds_the_row() -> None:
    mixed = [{"x": 1.5}, {"x": "many"}]
    assert tables.as_file(mixed) == ("table.csv", b"x\n1.5\nmany\n")
    assert tables.as_file(pd.DataFrame(mixed)) == ("table.csv", b"x\n1.5\nmany\n")


@pytest.mark.parametrize("wrong", ["text", 3, {"x": 1}, [1, 2], None, object()])
def test_objects_that_are_not_tables_are_rejected(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a table is a pandas or polars DataFrame"):
        tables.kind_of(wrong)


def test_a_lazy_frame_must_be_collected_first() -> None:
    with pytest.raises(TypeError, match=r"call collect\(\) on the LazyFrame first"):
        tables.kind_of(pl.DataFrame(ROWS).lazy())


@pytest.mark.parametrize("kind", ["rows", "pandas", "polars", "arrow"])
@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_files_of_the_service_are_read_as_any_kind(kind: Any, format: Any) -> None:
    rows = [{"status": "optimal", "gap": 0.25}, {"status": "refused", "gap": None}]
    content = tables.as_file(rows)[1] if format == "parquet" else tables.rows_csv(rows)
    assert tables.as_rows(tables.from_file(content, format, kind)) == rows


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(1.5), 1.5),
        (np.int32(3), 3),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (float("nan"), None),
        (np.float32("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
        (pd.Timestamp("2024-01-31 06:00"), "2024-01-31T06:00:00"),
        (np.datetime64("2024-01-31"), "2024-01-31"),
        (np.datetime64("NaT"), None),
        (datetime(2024, 1, 31, 6), "2024-01-31T06:00:00"),
        (date(2024, 1, 31), "2024-01-31"),
        (Decimal("1.25"), 1.25),
        ((1, {"a": np.float64("nan")}), [1, {"a": None}]),
    ],
)
def test_values_of_any_library_become_plain_python(value: Any, expected: Any) -> None:
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("value", [float("inf"), np.float64("-inf"), [1, float("inf")]])
def test_infinite_numbers_are_rejected(value: Any) -> None:
    with pytest.raises(ValueError, match="an infinite number cannot be sent"):
        plain(value)


def test_other_objects_are_rejected() -> None:
    with pytest.raises(TypeError, match="a value of the type object cannot be sent"):
        plain(object())


def test_options_become_form_fields() -> None:
    given = {"policy": "bcp", "scenarios": 100, "risk": {"cvar_level": 0.9}, "include": ["outcomes", "recourse"]}
    assert tables.as_form(given) == {
        "policy": "bcp",
        "scenarios": "100",
        "include": "outcomes,recourse",
        "cvar_weight": "1.0",
        "cvar_level": "0.9",
    }
