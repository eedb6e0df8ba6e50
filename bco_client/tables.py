"""Convert tables to files and rows, and answers back to the kind of table that was given.

A table is a pandas or polars frame, a pyarrow table or a list of dicts. A package is imported only for tables of its
kind.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast, runtime_checkable

from bco_client.to_json import plain, to_json

Kind = Literal["pandas", "polars", "arrow", "rows"]
Row = Mapping[str, Any]
Rows = Sequence[Row]
Fetched = Literal["csv", "parquet"]


@runtime_checkable
class Frame(Protocol):
    """The common part of pandas and polars frames and pyarrow tables."""

    @property
    def columns(self) -> Any: ...

    @property
    def shape(self) -> Any: ...


F = TypeVar("F", bound=Frame)
File = os.PathLike[str] | bytes
FILES = (os.PathLike, bytes)
Table = Frame | Rows

# Parts that become one JSON text in a frame, because their size differs between contexts.
_TEXTS = ("scenarios", "recourse", "neighbours", "sensitivity.switches", "sensitivity.prices")
CANNOT = "a table is a pandas or polars DataFrame, a pyarrow Table or a list of dicts"


def kind_of(table: Any) -> Kind:
    package, name = type(table).__module__.partition(".")[0], type(table).__name__
    if package in ("pandas", "polars") and name == "DataFrame":
        return cast(Kind, package)
    if package == "pyarrow" and name == "Table":
        return "arrow"
    if name == "LazyFrame":
        raise TypeError(f"{CANNOT}; call collect() on the LazyFrame first")
    if isinstance(table, Sequence) and not isinstance(table, str | bytes):
        if not all(isinstance(row, Mapping) for row in table):
            raise TypeError(f"{CANNOT}; an entry of this list is no dict")
        return "rows"
    raise TypeError(f"{CANNOT}, and this is a {name}")


def has_pyarrow() -> bool:
    return find_spec("pyarrow") is not None


def row_count(table: Any) -> int:
    return table.num_rows if kind_of(table) == "arrow" else len(table)


# on the way to the service


def with_index(table: Any, wanted: Collection[str]) -> Any:
    """Return a pandas frame with the wanted levels of its index as columns; return any other table unchanged."""
    if kind_of(table) != "pandas":
        return table
    levels = [name for name in table.index.names if name in wanted and name not in table.columns]
    return table.reset_index(level=levels) if levels else table


def has_named_index(table: Any) -> bool:
    return kind_of(table) == "pandas" and any(name is not None for name in table.index.names)


def as_file(table: Any) -> tuple[str, bytes]:
    """Return a file name and content: Parquet where possible, which keeps types and digits, else CSV."""
    kind = kind_of(table)
    if kind == "polars":
        return "table.parquet", _polars_parquet(table)
    if kind == "arrow":
        return "table.parquet", _arrow_parquet(table)
    if has_pyarrow():
        import pyarrow as pa

        try:
            return "table.parquet", _arrow_parquet(_as_arrow(table, kind))
        except (pa.ArrowException, TypeError, ValueError):
            # A column of numbers and texts is for the service to judge: its sentence says where the mistake is.
            pass
    return "table.csv", _pandas_csv(table) if kind == "pandas" else rows_csv(table)


def of_file(file: File) -> tuple[str, bytes]:
    return ("table", file) if isinstance(file, bytes) else (Path(file).name, Path(file).read_bytes())


def as_form(given: Mapping[str, Any]) -> dict[str, str]:
    """Return options of prescribe as form fields: one for each part of a risk, lists with commas, the rest as JSON."""
    fields = {name: value for name, value in given.items() if name != "risk"}
    if "include" in fields:
        fields["include"] = ",".join(fields["include"])
    if given.get("risk") is not None:
        # As in JSON: a risk measure is CVaR alone unless it says otherwise.
        fields |= {"cvar_weight": 1.0} | dict(given["risk"])
    return {name: value if isinstance(value, str) else to_json(value).decode() for name, value in fields.items()}


def as_rows(table: Any, names: Collection[str] | None = None) -> list[dict[str, Any]]:
    """Return the rows as JSON values, of the named columns only if any are named; missing columns are left out."""
    kind = kind_of(table)
    if kind == "rows":
        result: Iterable[Row] = table
    elif kind == "arrow":
        result = table.to_pylist()
    else:
        result = table.to_dict("records") if kind == "pandas" else table.to_dicts()
    return [
        {str(name): plain(value) for name, value in row.items() if names is None or name in names} for row in result
    ]


def select(table: Any, names: Collection[str]) -> Any:
    """Return the table with only these columns."""
    kind = kind_of(table)
    if kind == "rows":
        return [{name: value for name, value in row.items() if name in names} for row in table]
    kept = [name for name in column_names(table) if name in names]
    return table[kept] if kind == "pandas" else table.select(kept)


def column_names(table: Any) -> list[str]:
    kind = kind_of(table)
    if kind == "rows":
        return list(dict.fromkeys(name for row in table for name in row))
    return list(table.column_names if kind == "arrow" else table.columns)


def _as_arrow(table: Any, kind: Kind) -> Any:
    import pyarrow as pa

    if kind == "pandas":
        return pa.Table.from_pandas(table, preserve_index=False)
    return pa.table({name: [row.get(name) for row in table] for name in column_names(table)})


def _arrow_parquet(table: Any) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _polars_parquet(table: Any) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def _pandas_csv(table: Any) -> bytes:
    # As Parquet has them, booleans are the numbers 0 and 1.
    truths = [name for name, kind in table.dtypes.items() if str(kind) in ("bool", "boolean")]
    text: str = table.astype(dict.fromkeys(truths, "Int8")).to_csv(index=False)
    return text.encode()


def rows_csv(rows: Rows) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, column_names(rows), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        values = {name: plain(value) for name, value in row.items()}
        writer.writerow({name: int(value) if isinstance(value, bool) else value for name, value in values.items()})
    return out.getvalue().encode()


# on the way back


def fetched_as(kind: Kind) -> Fetched:
    """Return the best format for a table of this kind: polars reads Parquet by itself, others need pyarrow."""
    return "parquet" if kind == "polars" or has_pyarrow() else "csv"


def from_file(content: bytes, format: Fetched, kind: Kind) -> Any:
    """Read a file from the service as a table of this kind."""
    buffer = io.BytesIO(content)
    if kind == "polars":
        import polars

        return polars.read_parquet(buffer) if format == "parquet" else polars.read_csv(buffer, infer_schema_length=None)
    if kind == "pandas":
        import pandas

        return pandas.read_parquet(buffer) if format == "parquet" else pandas.read_csv(buffer)
    if format == "parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(buffer)
        return table if kind == "arrow" else table.to_pylist()
    if kind == "arrow":
        import pyarrow.csv

        return pyarrow.csv.read_csv(buffer)
    return [{name: _read(text) for name, text in row.items()} for row in csv.DictReader(io.StringIO(content.decode()))]


def _read(text: str) -> float | str | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def flat(answer: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten a nested answer to one row, as in a batch's result: ``decision.croissants``, lists as JSON text.

    Warnings are joined in one text, and each has a column too.
    """
    row: dict[str, Any] = {}
    for name, value in answer.items():
        place = before + name
        if place == "warnings" and isinstance(value, list):
            row[place] = "; ".join(map(str, value))
            row |= {f"warning.{number}": str(warning) for number, warning in enumerate(value, 1)}
        elif isinstance(value, list) or (place in _TEXTS and value is not None):
            row[place] = to_json(value).decode()
        elif isinstance(value, Mapping):
            row |= flat(value, f"{place}.")
        elif place != "facts":  # where there are any, each has a column
            row[place] = value
    return row


def as_given(rows: Sequence[Mapping[str, Any]], given: Any) -> Any:
    """Convert rows to the kind of the given table; a pandas frame keeps its index."""
    table = as_kind(rows, kind_of(given))
    return table.set_index(given.index) if kind_of(given) == "pandas" else table


def as_kind(rows: Sequence[Mapping[str, Any]], kind: Kind) -> Any:
    if kind == "rows":
        return list(rows)
    columns = {name: [row.get(name) for row in rows] for name in column_names(rows)}
    if kind == "polars":
        import polars

        return polars.DataFrame(columns, strict=False)
    if kind == "arrow":
        import pyarrow as pa

        return pa.table(columns)
    import pandas

    return pandas.DataFrame(columns)


def answers_beside(result: Any, sent: Collection[str], given: Any) -> Any:
    """Return the columns of a batch's result that were not sent, with the index of the table that was given.

    A sent column with the name of an answer column has the prefix ``context.`` in the result.
    """
    found = column_names(result)
    renamed = {f"context.{name}" for name in sent} & set(found)
    added = [name for name in found if name not in renamed and (name not in sent or f"context.{name}" in renamed)]
    answers = select(result, added)
    if row_count(answers) != row_count(given):
        raise ValueError(f"the result has {row_count(answers)} rows, and {row_count(given)} were sent")
    return answers.set_index(given.index) if kind_of(given) == "pandas" else answers
