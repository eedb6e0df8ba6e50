"""Number formats, missing values that are dropped or imputed, and rare categories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.datasets import service
from app.datasets.parsing import read_numbers
from app.db.engine import transaction
from tests.support.journey import Json, check_json, create_dataset, upload


def stored_columns(dataset: Json) -> dict[str, list[Any]]:
    with transaction() as session:
        found: dict[str, list[Any]] = service.read_table(session, dataset["id"]).to_pydict()
    return found


def column(dataset: Json, name: str) -> Json:
    (found,) = (entry for entry in dataset["columns"] if entry["name"] == name)
    return {key: value for key, value in found.items() if value is not None}


# numbers

WRITTEN = {
    "decimal commas": (["4,99", "3,5", "7"], [4.99, 3.5, 7.0]),
    "decimal commas, thousands by points": (["1.234,5", "12", "1.234"], [1234.5, 12.0, 1234.0]),
    "thousands by commas": (["1,234.5", "12", "1,234"], [1234.5, 12.0, 1234.0]),
    "millions by commas": (["1,234,567", "2,345"], [1234567.0, 2345.0]),
    "thousands by blanks": (["1 234", "-12 345,5"], [1234.0, -12345.5]),
    "thousands by narrow blanks": (["1\u202f234", "12"], [1234.0, 12.0]),
    "thousands by apostrophes": (["1'234.50", "0.5"], [1234.5, 0.5]),
    "a leading nought": (["0,123", "1,234"], [0.123, 1.234]),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_number_formats_are_recognised_per_column(client: TestClient, name: str) -> None:
    texts, numbers = WRITTEN[name]
    content = "x;demand\n" + "".join(f'{index};"{text}"\n' for index, text in enumerate(texts))
    assert stored_columns(check_json(upload(client, content.encode()), 201))["demand"] == numbers
    swapped = "demand;x\n" + "".join(f'{index};"{text}"\n' for index, text in enumerate(texts))
    assert stored_columns(check_json(upload(client, swapped.encode()), 201))["x"] == numbers


@pytest.mark.parametrize("outcome", [True, False])
def test_an_ambiguous_number_format_is_refused(client: TestClient, outcome: bool) -> None:
    header = "x;demand" if outcome else "demand;x"
    answer = check_json(upload(client, f"{header}\n1;999\n2;1,234\n".encode()), 422)
    assert "'1,234' is ambiguous" in answer["detail"]
    assert len(answer["errors"]) == 1


def test_mixed_number_formats_are_refused_with_the_value(client: TestClient) -> None:
    answer = check_json(upload(client, b"x;demand\n1;1.5\n2;2.5\n3;4,99\n"), 422)
    assert answer["detail"].startswith("line 4, column 'demand': '4,99' is written unlike other numbers")


@given(st.lists(st.floats(-1e9, 1e9).map(lambda number: round(number, 2)), min_size=1, max_size=8))
def test_grouped_numbers_are_read_back_exactly(numbers: list[float]) -> None:
    english = [f"{number:,.2f}" for number in numbers]
    german = [text.translate(str.maketrans(",.", ".,")) for text in english]
    swiss = [text.replace(",", "'") for text in english]
    for texts in (english, german, swiss):
        found = read_numbers(texts)
        assert found.ambiguous is None
        assert found.numbers == numbers


@given(st.lists(st.text(alphabet="0123456789.,' +-e", max_size=8), max_size=5))
def test_any_text_can_be_parsed(texts: list[str]) -> None:
    assert len(read_numbers(texts).numbers) == len(texts)


# missing values

GAPS = [
    {"x": 1, "shop": "a", "demand": 10},
    {"x": None, "shop": "a", "demand": 20},
    {"x": 3, "shop": "b", "demand": 30},
    {"x": 8, "shop": "b", "demand": None},
    {"x": 5, "shop": None, "demand": 50},
    {"x": 9, "shop": "b", "demand": 60},
]


def test_imputed_numbers_stay_missing_and_have_a_median(client: TestClient) -> None:
    dataset = create_dataset(client, outcomes=["demand"], missing="impute", rows=GAPS)
    assert stored_columns(dataset) == {
        "x": [1.0, None, 3.0, 9.0],
        "shop": ["a", "a", "b", "b"],
        "demand": [10.0, 20.0, 30.0, 60.0],
    }
    x = column(dataset, "x")
    assert (x["median"], x["missing"], x["mean"], x["distinct"]) == (3.0, 1, pytest.approx(13 / 3), 3)
    assert "median" not in column(dataset, "demand")
    assert dataset["handling"] == {"missing": "impute", "unseen": "reject"}
    assert dataset["warnings"][:2] == [
        "2 rows were dropped because they lack 'shop', 'demand': only context numbers are filled in",
        "1 missing values of 'x' are filled in",
    ]


def test_a_missing_category_becomes_other_where_allowed(client: TestClient) -> None:
    dataset = create_dataset(client, outcomes=["demand"], missing="impute", unseen="other", rows=GAPS)
    assert stored_columns(dataset)["shop"] == ["a", "a", "b", "other", "b"]
    assert column(dataset, "shop")["categories"] == ["a", "b", "other"]


def test_outcomes_times_and_series_keys_are_never_imputed(client: TestClient) -> None:
    rows: list[Json] = [{"when": day, "shop": shop, "demand": 1.5} for day in (1, 2, 3) for shop in ("a", "b")]
    rows[0]["demand"], rows[1]["when"], rows[2]["shop"] = None, None, None
    dataset = create_dataset(
        client, outcomes=["demand"], time="when", series=["shop"], missing="impute", unseen="other", rows=rows
    )
    assert stored_columns(dataset)["shop"] == ["b", "a", "b"]
    assert dataset["warnings"][0].startswith("3 rows were dropped because they lack 'when', 'shop', 'demand'")


def test_up_to_twenty_missing_values_are_listed(client: TestClient) -> None:
    body = {"name": "d", "outcomes": ["demand"], "rows": GAPS}
    answer = check_json(client.post("/v1/datasets", json=body), 422)
    assert [error["pointer"] for error in answer["errors"]] == ["#/rows/1/x", "#/rows/4/shop", "#/rows/3/demand"]
    assert "1 in 'x', 1 in 'shop', 1 in 'demand'" in answer["detail"]
    assert "missing=impute" in answer["detail"]


def test_a_context_without_any_number_is_refused(client: TestClient) -> None:
    rows = [{"x": None, "demand": 1}, {"x": None, "demand": 2}]
    body = {"name": "d", "outcomes": ["demand"], "missing": "impute", "rows": rows}
    assert "'x' has no value in any row" in check_json(client.post("/v1/datasets", json=body), 422)["detail"]


# rare categories


def test_rare_categories_become_other(client: TestClient) -> None:
    shops = ["a", "b", "a", "c", "b", "d"]
    rows = [{"shop": shop, "demand": index} for index, shop in enumerate(shops)]
    dataset = create_dataset(client, outcomes=["demand"], unseen="other", rows=rows)
    shop = column(dataset, "shop")
    assert (shop["categories"], shop["other"]) == (["a", "b", "other"], True)
    assert stored_columns(dataset)["shop"] == ["a", "b", "a", "other", "b", "other"]
    assert "2 rare categories of 'shop' became \"other\"" in dataset["warnings"]


def test_above_the_limit_the_rarest_categories_become_other(client: TestClient, settings: Any) -> None:
    settings(max_categories=3)
    rows = [{"shop": shop, "demand": index} for index, shop in enumerate("aaabbccccdd")]
    dataset = create_dataset(client, outcomes=["demand"], unseen="other", rows=rows)
    assert column(dataset, "shop")["categories"] == ["a", "c", "other"]
    form = {"unseen": "other"}
    content = "shop,demand\n" + "".join(f"{row['shop']},{row['demand']}\n" for row in rows)
    assert check_json(upload(client, content.encode(), **form), 201)["columns"] == dataset["columns"]


def test_without_rare_categories_other_exists_for_new_ones(client: TestClient) -> None:
    rows = [{"shop": shop, "demand": index} for index, shop in enumerate("abab")]
    dataset = create_dataset(client, outcomes=["demand"], unseen="other", rows=rows)
    assert column(dataset, "shop")["categories"] == ["a", "b", "other"]
