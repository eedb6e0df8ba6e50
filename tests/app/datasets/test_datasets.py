"""Data sets over HTTP: creation, columns, CSV, Parquet and chunks."""

from __future__ import annotations

import io
import math
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.datasets import service
from app.db.blobs import CorruptBlob
from app.db.engine import transaction
from app.db.tables import DatasetChunkRow
from tests.support.journey import (
    Json,
    check_json,
    counts,
    create_dataset,
    create_job,
    learn_posterior,
    pages,
    prescribe,
    upload,
)

DAYS = [
    {"weekday": "SAT", "temperature": 21.5, "demand": 131},
    {"weekday": "SUN", "temperature": 24, "demand": 118},
    {"weekday": "MON", "temperature": -3.25, "demand": 64},
    {"weekday": "SAT", "temperature": 0, "demand": 64},
]
STORED = {
    "weekday": ["SAT", "SUN", "MON", "SAT"],
    "temperature": [21.5, 24.0, -3.25, 0.0],
    "demand": [131.0, 118.0, 64.0, 64.0],
}
CSV = "weekday,temperature,demand\nSAT,21.5,131\nSUN,24,118\nMON,-3.25,64\nSAT,0,64\n"


def stored_columns(dataset: Json) -> dict[str, list[Any]]:
    """Read the data set's columns from the database."""
    with transaction() as session:
        columns: dict[str, list[Any]] = service.read_table(session, dataset["id"]).to_pydict()
    return columns


def column(dataset: Json, name: str) -> Json:
    (found,) = (entry for entry in dataset["columns"] if entry["name"] == name)
    return {key: value for key, value in found.items() if value is not None and key not in ("name", "role")}


def parquet(columns: dict[str, Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, **options)
    return buffer.getvalue()


# creating, reading, listing, deleting


def test_posted_rows_create_a_data_set_with_a_location(client: TestClient) -> None:
    response = client.post("/v1/datasets", json={"name": "days", "outcomes": ["demand"], "rows": DAYS})
    dataset = check_json(response, 201)
    assert re.fullmatch(r"data_[0-9A-HJKMNP-TV-Z]{26}", dataset["id"])
    assert response.headers["Location"] == f"/v1/datasets/{dataset['id']}"
    assert dataset["rows"] == 4
    assert stored_columns(dataset) == STORED
    assert check_json(client.get(f"/v1/datasets/{dataset['id']}")) == dataset


def test_the_profile_matches_counts_by_hand(client: TestClient) -> None:
    dataset = create_dataset(client, outcomes=["demand"], rows=DAYS)
    assert [(entry["name"], entry["role"]) for entry in dataset["columns"]] == [
        ("weekday", "context"),
        ("temperature", "context"),
        ("demand", "outcome"),
    ]
    assert column(dataset, "weekday") == {"kind": "categorical", "missing": 0, "categories": ["MON", "SAT", "SUN"]}
    temperature = column(dataset, "temperature")
    mean = (21.5 + 24 - 3.25 + 0) / 4
    spread = math.sqrt(((21.5 - mean) ** 2 + (24 - mean) ** 2 + (-3.25 - mean) ** 2 + mean**2) / 4)
    assert temperature.pop("mean") == pytest.approx(mean, rel=1e-12)
    assert temperature.pop("std") == pytest.approx(spread, rel=1e-12)
    assert temperature == {"kind": "numeric", "missing": 0, "minimum": -3.25, "maximum": 24.0, "distinct": 4}
    assert column(dataset, "demand")["distinct"] == 3


def test_data_sets_are_listed_newest_first_a_page_at_a_time(client: TestClient) -> None:
    for index in range(5):
        create_dataset(client, name=f"page {index}", outcomes=["demand"], rows=DAYS)
    found = pages(client, "/v1/datasets", 2)
    ids = [item["id"] for page in found for item in page]
    assert ids == sorted(ids, reverse=True)
    assert len(set(ids)) == len(ids) == counts()["datasets"]
    assert [len(page) for page in found[:-1]] == [2] * (len(found) - 1)


def test_deleting_a_data_set_deletes_its_rows_and_chunks(client: TestClient) -> None:
    before = counts()
    dataset = create_dataset(client, outcomes=["demand"], rows=DAYS)
    response = client.delete(f"/v1/datasets/{dataset['id']}")
    assert (response.status_code, response.content) == (204, b"")
    assert client.get(f"/v1/datasets/{dataset['id']}").status_code == 404
    assert counts() == before


def test_a_data_set_that_a_job_uses_cannot_be_deleted(client: TestClient) -> None:
    job = create_job(client)
    before = counts()
    response = client.delete(f"/v1/datasets/{job['dataset_id']}")
    assert response.status_code == 409
    assert "jobs use this data set" in response.json()["detail"]
    assert counts() == before


# choosing columns and kinds


def test_contexts_can_be_chosen_and_ordered_and_others_are_not_stored(client: TestClient) -> None:
    rows = [row | {"note": f"n{index}"} for index, row in enumerate(DAYS)]
    dataset = create_dataset(client, outcomes=["demand"], contexts=["temperature", "weekday"], rows=rows)
    assert list(stored_columns(dataset)) == ["temperature", "weekday", "demand"]


def test_numbers_listed_as_categorical_become_categories(client: TestClient) -> None:
    rows = [{"shop": shop, "demand": 1 + index} for index, shop in enumerate((10, 9, 10.0, " 9 ", True, 2.5))]
    dataset = create_dataset(client, outcomes=["demand"], categorical=["shop"], rows=rows)
    assert column(dataset, "shop")["categories"] == ["10", "2.5", "9", "true"]
    assert stored_columns(dataset)["shop"] == ["10", "9", "10", "9", "true", "2.5"]


def test_booleans_in_json_count_as_one_and_zero(client: TestClient) -> None:
    rows = [{"promotion": True, "demand": 1}, {"promotion": False, "demand": 2}]
    dataset = create_dataset(client, outcomes=["demand"], rows=rows)
    assert column(dataset, "promotion")["kind"] == "numeric"
    assert stored_columns(dataset)["promotion"] == [1.0, 0.0]


def test_a_mostly_textual_column_keeps_its_few_numbers_as_categories(client: TestClient) -> None:
    rows = [{"shop": shop, "demand": 1} for shop in ("north", "south", 12)]
    dataset = create_dataset(client, outcomes=["demand"], rows=rows)
    assert column(dataset, "shop")["categories"] == ["12", "north", "south"]


def test_rows_with_missing_values_are_dropped_on_request_and_counted(client: TestClient) -> None:
    rows = [
        {"x": 1, "shop": "a", "demand": 10},
        {"x": None, "shop": "a", "demand": 20},
        {"x": 3, "demand": 30},
        {"x": 4, "shop": "b", "demand": None},
        {"x": 5, "shop": "b", "demand": 50},
        {"shop": None, "demand": 60},
    ]
    dataset = create_dataset(client, outcomes=["demand"], missing="drop", rows=rows)
    assert dataset["rows"] == 2
    assert stored_columns(dataset) == {"x": [1.0, 5.0], "shop": ["a", "b"], "demand": [10.0, 50.0]}
    assert {entry["name"]: entry["missing"] for entry in dataset["columns"]} == {"x": 2, "shop": 2, "demand": 1}
    assert column(dataset, "x")["mean"] == 3.0
    assert "4 rows with missing values were dropped" in dataset["warnings"]


def test_missing_values_in_columns_that_are_not_used_do_not_matter(client: TestClient) -> None:
    rows = [row | {"note": None} for row in DAYS]
    dataset = create_dataset(client, outcomes=["demand"], contexts=["weekday"], rows=rows)
    assert dataset["rows"] == 4


def test_constant_columns_are_accepted_with_a_warning(client: TestClient) -> None:
    rows = [{"x": 7, "shop": "a", "z": index / 7, "demand": 5} for index in range(60)]
    dataset = create_dataset(client, outcomes=["demand"], rows=rows)
    assert dataset["warnings"] == [
        "column 'x' has the same value in every row",
        "context 'shop' has the same value in every row and cannot help",
        "column 'demand' has the same value in every row",
    ]


def test_few_rows_and_rare_categories_cause_warnings(client: TestClient) -> None:
    dataset = create_dataset(client, outcomes=["demand"], rows=DAYS)
    few, rare = dataset["warnings"]
    assert few.startswith("only 4 rows")
    assert rare == "2 of the categories of 'weekday' occur only once"


def test_an_ordinary_history_has_no_warnings(client: TestClient) -> None:
    rows = [{"x": index / 7, "shop": "ab"[index % 2], "demand": index * 37 % 50} for index in range(50)]
    assert create_dataset(client, outcomes=["demand"], rows=rows)["warnings"] == []


# CSV

CSV_FILES = {
    "comma": CSV.encode(),
    "semicolon": CSV.replace(",", ";").encode(),
    "tab": CSV.replace(",", "\t").encode(),
    "byte order mark": CSV.encode("utf-8-sig"),
    "crlf": CSV.replace("\n", "\r\n").encode(),
    "crlf and byte order mark": CSV.replace("\n", "\r\n").encode("utf-8-sig"),
    "no final newline": CSV.rstrip().encode(),
    "blank lines at the end": (CSV + "\n\n").encode(),
    "everything quoted": re.sub(r"[^,\n]+", r'"\g<0>"', CSV).encode(),
    "spaces around numbers and names": CSV.replace(",", " , ").encode(),
    "scientific notation": CSV.replace("131", "1.31e2").replace("-3.25", "-325E-2").encode(),
}


@pytest.mark.parametrize("content", CSV_FILES.values(), ids=CSV_FILES.keys())
def test_every_csv_dialect_gives_the_same_rows(client: TestClient, content: bytes) -> None:
    response = upload(client, content)
    dataset = check_json(response, 201)
    assert response.headers["Location"] == f"/v1/datasets/{dataset['id']}"
    assert stored_columns(dataset) == STORED


def test_quoted_text_may_contain_delimiters_and_quotes(client: TestClient) -> None:
    content = b'shop,demand\n"north, big",1\n"the ""best""",2\n'
    dataset = check_json(upload(client, content), 201)
    assert stored_columns(dataset)["shop"] == ["north, big", 'the "best"']


def test_quoted_line_breaks_are_read_in_unused_columns(client: TestClient) -> None:
    content = b'note,x,demand\n"two\nlines",1,2\n"one line",2,3\n'
    assert stored_columns(check_json(upload(client, content, contexts="x"), 201)) == {
        "x": [1.0, 2.0],
        "demand": [2.0, 3.0],
    }


def test_a_quoted_column_name_may_contain_other_delimiters(client: TestClient) -> None:
    content = b'"price, net";"shop";demand\n1;a;2\n2;b;3\n'
    assert list(stored_columns(check_json(upload(client, content), 201))) == ["price, net", "shop", "demand"]


def test_words_for_missing_values_are_missing_unless_quoted(client: TestClient) -> None:
    content = "shop,x,demand\n" + "".join(f"a,{word},1\n" for word in ("", "NA", "N/A", "null", "NULL", "None"))
    content += '"NA",1,2\nb,2,3\n'
    dataset = check_json(upload(client, content.encode(), missing="drop"), 201)
    assert column(dataset, "x")["missing"] == 6
    assert stored_columns(dataset)["shop"] == ["NA", "b"]


def test_an_upload_refuses_an_unknown_form_field(client: TestClient) -> None:
    before = counts()
    response = upload(client, b"x,demand\n1,1\n", categoricals="x")
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "#/categoricals"
    assert counts() == before


def test_an_upload_takes_roles_as_comma_separated_names(client: TestClient) -> None:
    content = b"shop,x,unused,sold,returned\n1,2,q,3,4\n2,3,q,4,5\n"
    form = {"outcomes": "sold, returned", "contexts": " shop,x ", "categorical": "shop"}
    dataset = check_json(upload(client, content, **form), 201)
    assert stored_columns(dataset) == {"shop": ["1", "2"], "x": [2.0, 3.0], "sold": [3.0, 4.0], "returned": [4.0, 5.0]}
    assert [entry["role"] for entry in dataset["columns"]] == ["context", "context", "outcome", "outcome"]


def test_a_csv_file_of_many_blocks_keeps_every_row_in_order(client: TestClient) -> None:
    lines = [f"{index},shop {index % 50},{index * 0.5}" for index in range(80_000)]
    content = ("x,shop,demand\n" + "\n".join(lines)).encode()
    assert len(content) > 1_500_000
    table = stored_columns(check_json(upload(client, content), 201))
    assert table["x"] == [float(index) for index in range(80_000)]
    assert table["shop"][79_999] == "shop 49"
    assert table["demand"][-1] == 39_999.5


# Parquet


def test_a_parquet_file_may_have_every_number_and_text_type(client: TestClient) -> None:
    content = parquet(
        {
            "int8": pa.array([1, -2, 3], pa.int8()),
            "uint64": pa.array([1, 2**40, 3], pa.uint64()),
            "float32": pa.array([0.5, 1.5, -2.25], pa.float32()),
            "decimal": pa.array([Decimal("1.25"), Decimal("2.50"), Decimal("3.75")]),
            "flag": pa.array([True, False, True]),
            "text": pa.array(["a", "b", "a"]),
            "large": pa.array(["x", "y", "x"], pa.large_string()),
            "dictionary": pa.array(["p", "q", "p"]).dictionary_encode(),
            "demand": pa.array([3, 4, 5], pa.int32()),
        }
    )
    assert stored_columns(check_json(upload(client, content), 201)) == {
        "int8": [1.0, -2.0, 3.0],
        "uint64": [1.0, float(2**40), 3.0],
        "float32": [0.5, 1.5, -2.25],
        "decimal": [1.25, 2.5, 3.75],
        "flag": [1.0, 0.0, 1.0],
        "text": ["a", "b", "a"],
        "large": ["x", "y", "x"],
        "dictionary": ["p", "q", "p"],
        "demand": [3.0, 4.0, 5.0],
    }


def test_nulls_in_parquet_are_missing_values(client: TestClient) -> None:
    columns = {
        "x": pa.array([1, None, 3, 4]),
        "flag": pa.array([True, True, None, False]),
        "shop": pa.array(["a", "b", "c", "d"]).dictionary_encode(),
        "demand": [1.0, 2.0, 3.0, 4.0],
    }
    dataset = check_json(upload(client, parquet(columns), missing="drop"), 201)
    assert stored_columns(dataset) == {"x": [1.0, 4.0], "flag": [1.0, 0.0], "shop": ["a", "d"], "demand": [1.0, 4.0]}
    assert {entry["name"]: entry["missing"] for entry in dataset["columns"]} == {
        "x": 1,
        "flag": 1,
        "shop": 0,
        "demand": 0,
    }


def test_a_parquet_file_of_many_row_groups_keeps_every_row_in_order(client: TestClient) -> None:
    content = parquet({"x": list(range(1000)), "demand": [0.5] * 1000}, row_group_size=64, compression="zstd")
    assert stored_columns(check_json(upload(client, content), 201))["x"] == [float(index) for index in range(1000)]


def test_json_csv_and_parquet_give_the_same_data_set(client: TestClient) -> None:
    from_rows = create_dataset(client, outcomes=["demand"], rows=DAYS)
    from_csv = check_json(upload(client, CSV.encode()), 201)
    from_parquet = check_json(upload(client, parquet(STORED)), 201)
    for other in (from_csv, from_parquet):
        assert {key: other[key] for key in ("rows", "columns", "warnings")} == {
            key: from_rows[key] for key in ("rows", "columns", "warnings")
        }


# chunks


def test_a_data_set_in_many_chunks_reads_back_whole_and_in_order(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "CHUNK_ROWS", 7)
    rows = [{"x": index, "shop": f"s{index % 5}", "demand": index * 3} for index in range(45)]
    before = counts()["dataset_chunks"]
    dataset = create_dataset(client, outcomes=["demand"], rows=rows)
    assert counts()["dataset_chunks"] - before == 7
    assert stored_columns(dataset) == {
        "x": [float(row["x"]) for row in rows],
        "shop": [row["shop"] for row in rows],
        "demand": [float(row["demand"]) for row in rows],
    }


def test_a_damaged_chunk_is_detected(client: TestClient) -> None:
    dataset = create_dataset(client, outcomes=["demand"], rows=DAYS)
    with transaction() as session:
        chunk = session.scalars(sa.select(DatasetChunkRow).where(DatasetChunkRow.dataset_id == dataset["id"])).one()
        chunk.data = chunk.data[:100] + bytes([chunk.data[100] ^ 1]) + chunk.data[101:]
    with pytest.raises(CorruptBlob):
        stored_columns(dataset)


# uploaded values can be used in contexts unchanged


def learn_from_file(client: TestClient, content: bytes, **form: str) -> Json:
    dataset = check_json(upload(client, content, **form), 201)
    spec = {"kind": "newsvendor", "items": [{"name": "demand", "underage_cost": 3, "overage_cost": 1}]}
    problem = check_json(client.post("/v1/problems", json={"name": "shop", "spec": spec}), 201)
    return learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"])


def test_booleans_of_a_csv_file_match_json_booleans_when_prescribing(client: TestClient) -> None:
    content = "promotion,demand\n" + "".join(f"{bool(index % 2)},{index}\n" for index in range(20))
    posterior = learn_from_file(client, content.encode())
    assert prescribe(client, posterior["id"], contexts=[{"promotion": True}])["prescriptions"]


def test_integers_with_a_decimal_point_in_csv_match_json_numbers(
    client: TestClient,
) -> None:
    content = "shop,demand\n" + "".join(f"{index % 3}.0,{index}\n" for index in range(20))
    posterior = learn_from_file(client, content.encode(), categorical="shop")
    assert prescribe(client, posterior["id"], contexts=[{"shop": 2}])["prescriptions"]


def test_categorical_booleans_of_parquet_match_json_booleans_when_prescribing(client: TestClient) -> None:
    content = parquet({"promotion": [bool(index % 2) for index in range(20)], "demand": list(range(20))})
    posterior = learn_from_file(client, content, categorical="promotion")
    assert prescribe(client, posterior["id"], contexts=[{"promotion": True}])["prescriptions"]
