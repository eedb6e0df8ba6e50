"""CSV and Excel output: text never becomes a formula, and nothing else changes."""

from __future__ import annotations

import io
import math
from datetime import datetime

import pyarrow as pa
import pyarrow.csv
import pytest
from python_calamine import CalamineWorkbook

from app.http.errors import ConflictError
from app.http.tables import csv_pieces, harmless, xlsx_pieces

TEXTS = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "plain", "-5", "+1.5e3", "", "a=b", None]
ESCAPED = ["'=1+1", "'+cmd|' /C calc'!A0", "'-2+3", "'@SUM(A1)", "'\t=1", "'\r=1", "plain", "-5", "+1.5e3"]
ESCAPED += ["", "a=b", None]


def table() -> pa.Table:
    count = len(TEXTS)
    return pa.table(
        {
            "=name": TEXTS,
            "number": [-1.5, math.nan, math.inf, *range(count - 3)],
            "flag": [True, False, None] * (count // 3),
            "day": [datetime(2026, 1, 2, 3, 4)] * count,
        }
    )


def test_formula_like_text_is_escaped_in_csv() -> None:
    found = harmless(table())
    assert found.column_names == ["'=name", "number", "flag", "day"]
    assert found["'=name"].to_pylist() == ESCAPED
    assert found["number"].to_numpy()[3:].tolist() == table()["number"].to_numpy()[3:].tolist()
    written = b"".join(csv_pieces([table().slice(0, 6), table().slice(6)]))
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    read = pyarrow.csv.read_csv(io.BytesIO(written), parse_options=options)
    assert read.num_rows == len(TEXTS)
    assert read["'=name"].to_pylist()[:5] == ESCAPED[:5]


def test_dictionary_encoded_text_is_escaped_too() -> None:
    found = harmless(pa.table({"x": pa.array(["=1", "b"]).dictionary_encode()}))
    assert found["x"].to_pylist() == ["'=1", "b"]


def test_a_workbook_stores_text_as_text_and_numbers_as_numbers() -> None:
    whole = table()
    content = b"".join(xlsx_pieces([whole.slice(0, 4), whole.slice(4)], whole.schema, len(TEXTS)))
    header, *rows = CalamineWorkbook.from_filelike(io.BytesIO(content)).get_sheet_by_index(0).to_python()
    assert header == ["=name", "number", "flag", "day"]
    assert [row[0] for row in rows][:5] == TEXTS[:5]
    assert [row[1] for row in rows][:4] == [-1.5, "", "", 0.0]
    assert [row[2] for row in rows][:3] == [True, False, ""]
    assert rows[0][3] == datetime(2026, 1, 2, 3, 4)
    assert b"<f>" not in content


@pytest.mark.parametrize(("rows", "columns"), [(1_048_576, 1), (500_001, 2)])
def test_a_table_too_large_for_a_sheet_is_refused_before_writing(rows: int, columns: int) -> None:
    schema = pa.schema([(str(number), pa.float64()) for number in range(columns)])
    with pytest.raises(ConflictError, match="choose csv or parquet"):
        xlsx_pieces([], schema, rows)
