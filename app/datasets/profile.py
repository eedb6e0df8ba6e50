"""Deciding what each column is, refusing what cannot be used, and saying what is odd about the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.parsing import RawTable, as_numbers, as_text
from app.db.text import NOT_PLAIN, UNPLAIN, is_storable
from app.http.errors import InvalidRequest
from app.settings import Settings
from bco_core.data import LARGEST

FEW_ROWS = 50


@dataclass(frozen=True)
class Roles:
    """Which columns are what, as the caller says. ``contexts`` None means all that are not outcomes."""

    outcomes: list[str]
    contexts: list[str] | None
    categorical: list[str]
    missing: str


@dataclass(frozen=True)
class Profiled:
    """A clean table (float64 and text columns, nothing missing), its columns' profile, and warnings."""

    table: pa.Table
    columns: list[dict[str, Any]]
    warnings: list[str]


def profile(raw: RawTable, roles: Roles, settings: Settings) -> Profiled:
    """Check and describe a raw table. Raises InvalidRequest naming the column, the row and the remedy."""
    names = _chosen_columns(raw, roles, settings)
    arrays = {name: _typed(raw, roles, name) for name in names}
    table, dropped = _without_missing(raw, roles, pa.table(arrays))
    warnings = [f"{dropped} rows with missing values were dropped"] if dropped else []
    if table.num_rows < 2:
        raise InvalidRequest.at((raw.whole,), "a data set needs at least 2 rows without missing values")
    if table.num_rows < FEW_ROWS:
        warnings.append(f"only {table.num_rows} rows: decisions learned from so few may change much with more data")
    columns = []
    for name in names:
        role = "outcome" if name in roles.outcomes else "context"
        missing = arrays[name].null_count
        described, notes = _describe(table.column(name), name, settings)
        columns.append({"name": name, "role": role, "missing": missing} | described)
        warnings += notes
    return Profiled(table, columns, warnings)


def _chosen_columns(raw: RawTable, roles: Roles, settings: Settings) -> list[str]:
    if not raw.rows or not raw.columns:
        raise InvalidRequest.at((raw.whole,), "the data set is empty; send at least 2 rows with named columns")
    if raw.rows > settings.max_rows:
        raise InvalidRequest.at((raw.whole,), f"at most {settings.max_rows} rows (BCO_MAX_ROWS)")
    if not roles.outcomes:
        raise InvalidRequest.at(("outcomes",), "name at least one outcome column: what is unknown when deciding")
    contexts = roles.contexts
    if contexts is None:
        contexts = [name for name in raw.columns if name not in roles.outcomes]
    for field, listed in (("outcomes", roles.outcomes), ("contexts", contexts), ("categorical", roles.categorical)):
        for index, name in enumerate(listed):
            if name not in raw.columns:
                known = ", ".join(list(raw.columns)[:20])
                raise InvalidRequest.at((field, index), f"there is no such column; the columns are {known}")
            if name in listed[:index]:
                raise InvalidRequest.at((field, index), f"'{name}' is listed twice")
    for index, name in enumerate(contexts):
        if name in roles.outcomes:
            raise InvalidRequest.at(("contexts", index), f"'{name}' is both a context and an outcome; it can be one")
    if not contexts:
        raise InvalidRequest.at(("contexts",), "there is no context column besides the outcomes; add at least one")
    if len(contexts) + len(roles.outcomes) > settings.max_columns:
        limit = settings.max_columns
        raise InvalidRequest.at(("contexts",), f"more than {limit} columns (BCO_MAX_COLUMNS); list the useful ones")
    return [*contexts, *roles.outcomes]


def _typed(raw: RawTable, roles: Roles, name: str) -> pa.Array:
    """Numbers where the column holds numbers, text where it holds text, and a clear refusal of a mix."""
    column = raw.columns[name]
    _refuse_unusable(raw, name, column)
    if name in roles.categorical:
        if name in roles.outcomes:
            index = roles.categorical.index(name)
            raise InvalidRequest.at(("categorical", index), f"'{name}' is an outcome, and outcomes must be numbers")
        return _categories(raw, name)
    numbers, other = as_numbers(column)
    if other:
        counted = raw.rows - numbers.null_count
        if name in roles.outcomes:
            where, words = raw.place(other[0], name)
            raise InvalidRequest.at(where, f"{words}: an outcome must be a number, and this is text")
        if counted >= len(other):
            where, words = raw.place(other[0], name)
            detail = f"{words}: text in a column of numbers; correct it, or list '{name}' under categorical"
            raise InvalidRequest.at(where, detail)
        return _categories(raw, name)
    usable = pc.fill_null(pc.less_equal(pc.abs(numbers), LARGEST), True)
    if not pc.all(usable).as_py():
        where, words = raw.place(pc.index(usable, False).as_py(), name)
        raise InvalidRequest.at(where, f"{words}: not a finite number; leave it empty if it is unknown")
    return numbers


def _categories(raw: RawTable, name: str) -> pa.Array:
    """The column as text; a category is shown to people, so it must read as it is written."""
    text = as_text(raw.columns[name])
    odd = pc.fill_null(pc.match_substring_regex(text, f"[{UNPLAIN}]"), False)
    if pc.any(odd).as_py():
        where, words = raw.place(pc.index(odd, True).as_py(), name)
        raise InvalidRequest.at(where, f"{words}: the text holds {NOT_PLAIN}")
    return text


def _refuse_unusable(raw: RawTable, name: str, column: Any) -> None:
    """Refuse what JSON can spell but no data set can keep; what was read from a file is numbers and text."""
    for row, value in enumerate(column if isinstance(column, list) else ()):
        if isinstance(value, list | dict):
            where, words = raw.place(row, name)
            raise InvalidRequest.at(where, f"{words}: a value must be a number, text, true, false or null")
        if isinstance(value, str) and not is_storable(value):
            where, words = raw.place(row, name)
            raise InvalidRequest.at(where, f"{words}: the text holds a character that cannot be stored")
        if isinstance(value, float) and not math.isfinite(value):
            where, words = raw.place(row, name)
            raise InvalidRequest.at(where, f"{words}: not a finite number; leave it empty if it is unknown")


def _without_missing(raw: RawTable, roles: Roles, table: pa.Table) -> tuple[pa.Table, int]:
    if not any(column.null_count for column in table.columns):
        return table, 0
    if roles.missing == "drop":
        complete = table.drop_null()
        return complete, table.num_rows - complete.num_rows
    gaps = {name: table.column(name).null_count for name in table.column_names if table.column(name).null_count}
    name = next(iter(gaps))
    where, words = raw.place(pc.index(pc.is_null(table.column(name)), True).as_py(), name)
    counts = ", ".join(f"{count} in '{column}'" for column, count in gaps.items())
    detail = (
        f"missing values ({counts}; the first at {words}): fill them in, or send missing=drop to leave those rows out"
    )
    raise InvalidRequest.at(where, detail)


def _describe(column: pa.ChunkedArray, name: str, settings: Settings) -> tuple[dict[str, Any], Sequence[str]]:
    if pa.types.is_string(column.type):
        counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(column).to_pylist()}
        if len(counts) > settings.max_categories:
            detail = (
                f"text column '{name}' has {len(counts)} different values, more than {settings.max_categories}; "
                "leave it out by listing the contexts you want, or group its values"
            )
            raise InvalidRequest.at(("contexts",), detail)
        categories = sorted(counts)
        notes = [f"context '{name}' has the same value in every row and cannot help"] if len(counts) == 1 else []
        rare = [category for category in categories if counts[category] == 1]
        if rare and len(counts) > 1:
            notes.append(f"{len(rare)} of the categories of '{name}' occur only once")
        return {"kind": "categorical", "categories": categories}, notes
    values = column.to_numpy()
    low, high = float(values.min()), float(values.max())
    notes = [f"column '{name}' has the same value in every row"] if low == high else []
    return {
        "kind": "numeric",
        "minimum": low,
        "maximum": high,
        "mean": float(values.mean()),
        "std": float(values.std()),
        "distinct": len(np.unique(values)),
    }, notes
