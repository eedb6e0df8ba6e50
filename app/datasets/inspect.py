"""Inspect a file before anything is stored: describe its columns, suggest roles, and warn of oddities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.parsing import RawTable, ambiguous_number, as_numbers, as_text, category_text, is_temporal
from app.datasets.profile import profile
from app.datasets.roles import ColumnRoles
from app.datasets.schemas import InspectedColumn, Inspection, Kind
from app.datasets.suggest_roles import ColumnFacts, RoleSuggestions, suggest_roles
from app.datasets.times import looks_like_times
from app.datasets.validation_errors import quote
from app.db.text import is_plain
from app.http.errors import InvalidRequest
from app.settings import Settings
from bco_core.data import LARGEST

FIRST_ROWS, SAMPLES, LONGEST = 8, 4, 40
# Values that tell the kind of a text column.
_TELLING = 1_000
# A larger table takes seconds to check with the suggested roles.
_CHECKED_CELLS = 2_000_000
_MOST_ODD = 20


@dataclass(frozen=True)
class _ColumnContent:
    """Kind of a column, its numbers if it has any, and warnings."""

    kind: Kind
    numbers: pa.Array | None = None
    odd: tuple[str, ...] = ()


def inspect(raw: RawTable, outcomes: Sequence[str], settings: Settings) -> Inspection:
    """Describe a file; ``outcomes`` are those of the problem, if it is known."""
    if not raw.columns or not raw.rows:
        raise InvalidRequest.at((raw.whole,), "the file has no rows below the names of its columns")
    names = list(raw.columns)[: settings.max_columns]
    facts, odd = [], _too_many(raw, len(names), settings)
    for name in names:
        column = raw.columns[name]
        content = _read_column(raw, name, column)
        facts.append(_facts(name, column, content, raw.rows))
        odd += content.odd
    suggestions = suggest_roles(raw, facts, outcomes, settings)
    odd += suggestions.odd
    return Inspection(
        format=raw.format,
        sheets=list(raw.sheets),
        rows=raw.rows,
        column_count=len(raw.columns),
        columns=[_describe(raw, one, suggestions) for one in facts],
        missing=suggestions.missing,
        first_rows=_first_rows(raw, names),
        odd=[*odd, *_check(raw, names, suggestions, settings)][:_MOST_ODD],
    )


def _too_many(raw: RawTable, shown_columns: int, settings: Settings) -> list[str]:
    if len(raw.columns) <= shown_columns:
        return []
    return [
        f"the file has {len(raw.columns)} columns, and a data set takes {settings.max_columns} (BCO_MAX_COLUMNS): the "
        "others are left out"
    ]


def _describe(raw: RawTable, facts: ColumnFacts, suggestions: RoleSuggestions) -> InspectedColumn:
    role, reason = suggestions.roles[facts.name]
    return InspectedColumn(
        name=facts.name,
        kind=facts.kind,
        missing=facts.missing,
        distinct=facts.distinct,
        minimum=facts.minimum,
        maximum=facts.maximum,
        samples=_samples(raw.columns[facts.name]),
        role=role,
        categorical=facts.name in suggestions.categorical,
        reason=reason,
    )


# columns


def _read_column(raw: RawTable, name: str, column: Any) -> _ColumnContent:
    if column.null_count == len(column):
        return _ColumnContent("empty")
    if is_temporal(column):
        return _ColumnContent("time")
    if not pa.types.is_string(column.type):
        return _numeric(raw, name, as_numbers(column)[0], ())
    telling = _telling(column)
    if looks_like_times(as_text(telling)):
        return _ColumnContent("time")
    numbers, other = as_numbers(telling)
    if len(other) > len(telling) / 2 and ambiguous_number(telling) is None:
        return _ColumnContent("categorical")
    numbers, other = as_numbers(column)
    if not other:
        return _numeric(raw, name, numbers, ())
    ambiguous = ambiguous_number(column)
    if ambiguous is not None:
        sentence = f"'{name}': {quote(ambiguous)} is ambiguous (decimal comma or thousands?); write a decimal point"
        return _ColumnContent("numeric", None, (sentence,))
    if 2 * len(other) > raw.rows - column.null_count:
        return _ColumnContent("categorical")
    place = raw.place(other[0], name)[1]
    sentence = f"{len(other)} values of '{name}' are not numbers, such as {quote(column[other[0]].as_py())} at {place}"
    return _numeric(raw, name, numbers, (sentence,))


def _numeric(raw: RawTable, name: str, numbers: pa.Array, odd: tuple[str, ...]) -> _ColumnContent:
    beyond = pc.invert(pc.fill_null(pc.less_equal(pc.abs(numbers), LARGEST), True))
    if pc.any(beyond).as_py():
        place = raw.place(pc.index(beyond, True).as_py(), name)[1]
        odd = (*odd, f"'{name}' holds numbers that are not finite, such as at {place}")
        numbers = pc.if_else(beyond, None, numbers)
    return _ColumnContent("numeric", numbers, odd)


def _telling(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values from all over a column."""
    held = column.drop_null()
    if len(held) <= _TELLING:
        return held
    return held.take(pa.array(np.linspace(0, len(held) - 1, _TELLING).astype(np.int64)))


def _facts(name: str, column: pa.ChunkedArray, content: _ColumnContent, rows: int) -> ColumnFacts:
    missing, distinct = column.null_count, int(pc.count_distinct(column).as_py())
    low = high = None
    whole = False
    if content.numbers is not None and content.numbers.null_count < len(content.numbers):
        extremes = pc.min_max(content.numbers).as_py()
        low, high = extremes["min"], extremes["max"]
        whole = bool(pc.all(pc.equal(pc.floor(content.numbers), content.numbers)).as_py())
    return ColumnFacts(name, content.kind, rows, missing, distinct, low, high, whole)


# values as texts


def _samples(column: pa.ChunkedArray) -> list[str]:
    """Return a few distinct values from the first rows."""
    held = column.slice(0, _TELLING).drop_null()
    return [_to_text(value) for value in pc.unique(held).slice(0, SAMPLES).to_pylist()]


def _first_rows(raw: RawTable, names: list[str]) -> list[list[str | None]]:
    columns = [[_cell(value) for value in raw.columns[name][:FIRST_ROWS].to_pylist()] for name in names]  # type: ignore[union-attr]
    return [list(row) for row in zip(*columns, strict=True)]


def _cell(value: Any) -> str | None:
    return None if value is None else _to_text(value)


def _to_text(value: Any) -> str:
    """Write a value as a short plain text."""
    text = f"{value:.10g}" if isinstance(value, float) else category_text(value)
    text = "".join(mark if is_plain(mark) else "?" for mark in text[: LONGEST + 1])
    return f"{text[:LONGEST]}…" if len(text) > LONGEST else text


# check


def _check(raw: RawTable, names: list[str], suggestions: RoleSuggestions, settings: Settings) -> list[str]:
    """Return the warnings, or the refusals, of a data set made from the file with the suggested roles."""
    by_role = {role: [name for name in names if suggestions.roles[name][0] == role] for role in _ROLES}
    if not by_role["outcome"] or raw.rows * len(names) > _CHECKED_CELLS:
        return []
    roles = ColumnRoles(
        by_role["outcome"],
        by_role["context"],
        [name for name in suggestions.categorical if name in by_role["context"]],
        suggestions.missing,
        by_role["time"][0] if by_role["time"] else None,
        by_role["series"],
        decisions=by_role["decision"],
    )
    try:
        return profile(raw, roles, settings).warnings
    except InvalidRequest as refusal:
        return [field.detail for field in refusal.fields]


_ROLES = ("time", "series", "context", "outcome", "decision")
