"""Excel workbooks are read like other files: one sheet, dates as times, limited memory and time."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examined
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app.child_processes import InvalidFile
from app.datasets import service, unpack
from app.datasets.unpack import Limits
from app.db.engine import transaction
from tests.support.journey import Json, check_json, learn_posterior, upload
from tests.support.workbooks import sheet, workbook

HEADER = ["day", "shop", "promotion", "price", "demand"]
ROWS = [
    [date(2024, 1, 1), "a", True, 1.5, 10],
    [date(2024, 1, 2), "b", False, 2.25, 20],
    [date(2024, 1, 3), "a", True, 3, 30.5],
]
FEW = Limits(max_rows=1000, max_cells=100_000)


def book(rows: list[list[Any]], first: int = 1) -> bytes:
    return workbook({"history": sheet(rows, first)})


def stored_columns(dataset: Json) -> dict[str, list[Any]]:
    with transaction() as session:
        found: dict[str, list[Any]] = service.read_table(session, dataset["id"]).to_pydict()
    return found


def refusal(client: TestClient, content: bytes, status: int = 422, **form: str) -> str:
    answer = check_json(upload(client, content, **form), status)
    assert [error["pointer"] for error in answer["errors"]] == ["#/file"]
    detail: str = answer["detail"]
    return detail


def test_a_workbook_gives_the_same_rows_as_other_files(client: TestClient) -> None:
    dataset = check_json(upload(client, book([HEADER, *ROWS]), time="day"), 201)
    assert stored_columns(dataset) == {
        "day": [datetime(2024, 1, day) for day in (1, 2, 3)],
        "shop": ["a", "b", "a"],
        "promotion": [1.0, 0.0, 1.0],
        "price": [1.5, 2.25, 3.0],
        "demand": [10.0, 20.0, 30.5],
    }
    time = dataset["columns"][0]
    assert (time["format"], time["unit"], time["last"]) == ("iso date", "day", "2024-01-03")


def test_timestamps_are_read_to_the_second(client: TestClient) -> None:
    moments = [datetime(2024, 1, 1) + timedelta(minutes=20 * index) for index in range(80)]
    rows = [[moment, index] for index, moment in enumerate(moments)]
    dataset = check_json(upload(client, book([["when", "demand"], *rows]), time="when"), 201)
    assert stored_columns(dataset)["when"] == moments
    assert (dataset["columns"][0]["unit"], dataset["columns"][0]["step"]) == ("minute", 20)


def test_a_sheet_can_be_chosen_by_name(client: TestClient) -> None:
    content = workbook({"notes": sheet([["read me"]]), "data": sheet([HEADER, *ROWS])})
    assert check_json(upload(client, content, sheet="data", time="day"), 201)["rows"] == 3
    assert "its sheets are notes, data" in refusal(client, content, sheet="sesame")


def test_errors_use_the_row_numbers_of_the_workbook(client: TestClient) -> None:
    rows = [HEADER, *ROWS, [date(2024, 1, 4), "a", True, 1, "many"]]
    assert refusal(client, book(rows), time="day").startswith("row 5, column 'demand'")
    assert refusal(client, book(rows, first=4), time="day").startswith("row 8, column 'demand'")


def test_trailing_empty_columns_and_rows_are_ignored(client: TestClient) -> None:
    rows = [["x", None, "demand"], [1, None, 2], [3, " ", 4], [None, None, None], ["", "", None]]
    assert stored_columns(check_json(upload(client, book(rows)), 201)) == {"x": [1.0, 3.0], "demand": [2.0, 4.0]}


def test_empty_cells_and_errors_are_missing(client: TestClient) -> None:
    rows = [["x", "demand"], [1, 2], [None, 3], ["#N/A", 4], ["NA", 5], [6, 6]]
    dataset = check_json(upload(client, book(rows), missing="drop"), 201)
    assert (dataset["columns"][0]["missing"], stored_columns(dataset)["x"]) == (3, [1.0, 6.0])


def test_columns_with_mixed_cells_become_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "BLOCK_ROWS", 2)
    rows = [
        ["mixed", "moments", "numbers"],
        [1, date(2024, 1, 1), 1],
        [2.5, date(2024, 1, 2), True],
        ["x", datetime(2024, 1, 3, 6), 3],
    ]
    written_as, table = unpack.unpack(book(rows), FEW)
    assert written_as == "xlsx"
    assert table.to_pydict() == {
        "mixed": ["1", "2.5", "x"],
        "moments": [datetime(2024, 1, 1), datetime(2024, 1, 2), datetime(2024, 1, 3, 6)],
        "numbers": [1.0, 1.0, 3.0],
    }


def test_a_batch_accepts_a_workbook(client: TestClient) -> None:
    path = f"/v1/posteriors/{learn_posterior(client)['id']}/batch-prescriptions/upload"
    header = ["weekday", "temperature", "rain", "promotion", "holiday", "on"]
    content = book([header, ["SAT", 21.5, 0, 1, 0, date(2024, 1, 6)]])
    assert client.post(path, files={"file": ("contexts.xlsx", content)}).status_code == 202


# odd files


def test_a_workbook_that_decompresses_too_far_is_refused_before_reading(
    client: TestClient, settings: Callable[..., None]
) -> None:
    settings(max_cells=1000)
    bomb = workbook({"history": sheet([HEADER, *ROWS])}, **{"xl/media.xml": bytes(1_000_000)})
    assert len(bomb) < 10_000
    assert "unfolds to more than 0.064 MB" in refusal(client, bomb, time="day")


def test_a_workbook_with_false_sizes_is_refused(client: TestClient, settings: Callable[..., None]) -> None:
    settings(max_cells=1000)
    honest, lie = struct.pack("<I", 1_000_000), struct.pack("<I", 100)
    bomb = workbook({"history": sheet([HEADER, *ROWS])}, **{"xl/media.xml": bytes(1_000_000)})
    assert bomb.count(honest) == 2
    assert "cannot be read" in refusal(client, bomb.replace(honest, lie), time="day")


def test_a_sheet_with_a_distant_cell_stays_within_the_memory_limit(
    client: TestClient, settings: Callable[..., None]
) -> None:
    far = sheet([["x", "demand"], [1, 2]]).replace(
        "</sheetData>", '<row r="1048576"><c r="XFD1048576"><v>1</v></c></row></sheetData>'
    )
    settings(upload_mb=200)
    response = upload(client, workbook({"far": far}))
    assert response.status_code in (413, 422)
    assert upload(client, b"x,demand\n1,1\n2,2\n").status_code == 201


ODD = {
    "no sheets": (workbook({}), "cannot be read"),
    "an empty sheet": (book([]), "empty"),
    "a header alone": (book([HEADER]), "at least 2 rows"),
    "no XML": (workbook({"a": "nonsense"}), "cannot be read"),
    "half a sheet": (workbook({"a": sheet([HEADER, *ROWS])[:-40]}), ""),
    "another archive": (workbook({}).replace(b"xl/workbook.xml", b"xl/workpook.xml"), "not an Excel workbook"),
    "a column without a name": (book([["x", None, "demand"], [1, 2, 3], [2, 3, 4]]), "no name"),
    "two columns of one name": (book([["x", "x", "demand"], [1, 2, 3], [2, 3, 4]]), "two columns"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_workbooks_are_refused_with_a_message(client: TestClient, name: str) -> None:
    content, says = ODD[name]
    assert says in refusal(client, content)


def test_too_many_rows_are_refused(client: TestClient, settings: Callable[..., None]) -> None:
    settings(max_rows=2)
    assert "BCO_MAX_ROWS" in refusal(client, book([HEADER, *ROWS]), time="day")


@pytest.mark.parametrize("seed", range(30))
def test_damaged_workbooks_are_read_or_refused(seed: int) -> None:
    drawn = random.Random(seed)
    content = bytearray(book([HEADER, *ROWS]))
    for _ in range(drawn.choice([1, 3, 30])):
        content[drawn.randrange(4, len(content))] = drawn.randrange(256)
    if seed % 3 == 0:
        del content[drawn.randrange(4, len(content)) :]
    with suppress(InvalidFile):
        written_as, table = unpack.unpack(bytes(content), FEW)
        assert (written_as, table.num_columns) == ("xlsx", 5)


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**9), 10**9),
    st.floats(-1e9, 1e9),
    st.dates(date(1901, 1, 1), date(2100, 1, 1)),
    st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), min_size=1, max_size=6),
)


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), max_size=6))
@examined(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_cells_give_a_table(rows: list[list[Any]]) -> None:
    _, table = unpack.unpack(book([["x", "demand"], *rows]), FEW)
    assert table.column_names == ["x", "demand"]
    assert table.num_rows <= len(rows)
