"""Data sets: histories of contexts and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack

from bco_client import tables
from bco_client.options import RoleArguments, names
from bco_client.records import DatasetRecord
from bco_client.steps import HttpRequest, Steps, answer, delete, done, get, listed, record, upload
from bco_client.steps import create as creating
from bco_client.tables import FILES, File, Table

# Tables of up to this many values go as JSON, larger ones as a file.
JSON_VALUES = 50_000
_ROWS_A_PAGE = 1_000
# Roles that several columns may have.
LISTS = ("outcomes", "contexts", "categorical", "series", "decisions")


def create(
    data: Table | File,
    name: str,
    *,
    sheet: str = "",
    idempotency_key: str | None = None,
    **roles: Unpack[RoleArguments],
) -> Steps[DatasetRecord]:
    """Send a history: a frame, rows, or a CSV, Parquet or Excel file by its path or content.

    Levels of a pandas index that the call names (``time``, ``series``, …) become columns; other levels are not sent.
    """
    fields: dict[str, Any] = {"name": name, **roles}
    for role in LISTS:
        if fields.get(role) is not None:
            fields[role] = names(fields[role])
    fields = {role: value for role, value in fields.items() if value is not None}
    if not isinstance(data, FILES):
        data = tables.with_index(data, _named(fields))
    if _is_small(data):
        return record(
            DatasetRecord, creating("datasets", body=fields | {"rows": tables.as_rows(data)}, key=idempotency_key)
        )
    form = {role: _as_text(value) for role, value in fields.items()}
    return record(DatasetRecord, _upload("datasets", "upload", data=data, form=form, sheet=sheet, key=idempotency_key))


def _as_text(value: Any) -> str:
    """Return a form field; an empty list is written as ``[]``, since an empty field means that it is not given."""
    if isinstance(value, list):
        return ",".join(value) if value else "[]"
    return str(value)


def _named(fields: Mapping[str, Any]) -> set[str]:
    several = [name for role in LISTS for name in fields.get(role) or ()]
    return {*several, fields.get("time") or ""}


def _is_small(data: Any) -> bool:
    """Return whether the data are plain rows, few enough for JSON."""
    if isinstance(data, FILES) or tables.kind_of(data) != "rows":
        return False
    return len(data) * len(tables.column_names(data)) <= JSON_VALUES


def _upload(*parts: str, data: Any, form: Mapping[str, str], sheet: str, key: str | None) -> HttpRequest:
    file = tables.of_file(data) if isinstance(data, FILES) else tables.as_file(data)
    return upload(*parts, file=file, form={**form, **({"sheet": sheet} if sheet else {})}, key=key)


def append(
    dataset_id: str, data: Table | File, *, sheet: str = "", idempotency_key: str | None = None
) -> Steps[DatasetRecord]:
    """Append rows with the same columns as a new revision. Posteriors keep the revision they were learned from."""
    if not isinstance(data, FILES) and tables.has_named_index(data):
        known = yield from read(dataset_id)
        data = tables.with_index(data, {column.name for column in known.columns})
    path = ("datasets", dataset_id, "rows")
    if _is_small(data):
        request = creating(*path, body={"rows": tables.as_rows(data)}, key=idempotency_key)
    else:
        request = _upload(*path, "upload", data=data, form={}, sheet=sheet, key=idempotency_key)
    return (yield from record(DatasetRecord, request))


def read(dataset_id: str) -> Steps[DatasetRecord]:
    """Return a data set with the profile of its columns and its warnings."""
    return record(DatasetRecord, get("datasets", dataset_id))


def rows(
    dataset_id: str,
    *,
    to: Literal["pandas", "polars", "arrow", "rows"] = "rows",
    revision: int | None = None,
    limit: int | None = None,
) -> Steps[Any]:
    """Return the rows of a revision, by default the newest, as a list of dicts or as a frame."""
    result: list[dict[str, Any]] = []
    cursor = None
    while limit is None or len(result) < limit:
        size = _ROWS_A_PAGE if limit is None else min(_ROWS_A_PAGE, limit - len(result))
        page = yield from answer(
            get("datasets", dataset_id, "rows", limit=size, cursor=cursor, revision=None if cursor else revision)
        )
        result += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    return tables.as_kind(result, to)


def list_all(*, name: str | None = None, limit: int | None = None) -> Steps[list[DatasetRecord]]:
    """List data sets, newest first; ``name`` filters."""
    return listed(DatasetRecord, "datasets", limit=limit, name=name)


def remove(dataset_id: str) -> Steps[None]:
    """Delete a data set that no job uses."""
    return done(delete("datasets", dataset_id))
