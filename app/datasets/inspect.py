"""A file that is looked at before anything is kept: what its columns hold, what they may be, and what looks odd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.inspection_schemas import InspectedColumn, Inspection, Kind
from app.datasets.parsing import RawTable, ambiguous_number, as_numbers, as_text, category_text, is_temporal
from app.datasets.profile import profile
from app.datasets.roles import Roles
from app.datasets.suggest_roles import Looked, Suggested, suggest
from app.datasets.times import looks_like_times
from app.datasets.validation_errors import shown
from app.db.text import is_plain
from app.http.errors import InvalidRequest
from app.settings import Settings
from bco_core.data import LARGEST

FIRST_ROWS, SAMPLES, LONGEST = 8, 4, 40
# So many values tell what a column of text holds.
_TELLING = 1_000
# A whole check with the suggested roles takes seconds beyond this.
_CHECKED_CELLS = 2_000_000
_MOST_ODD = 20


@dataclass(frozen=True)
class _Found:
    """What was found in a column: its kind, its numbers if it has any, and what is odd about it."""

    kind: Kind
    numbers: pa.Array | None = None
    odd: tuple[str, ...] = ()


def inspect(raw: RawTable, outcomes: Sequence[str], settings: Settings) -> Inspection:
    """Describe a file; ``outcomes`` are those that are known already."""
    if not raw.columns or not raw.rows:
        raise InvalidRequest.at((raw.whole,), "the file has no rows below the names of its columns")
    names = list(raw.columns)[: settings.max_columns]
    looked, odd = [], _too_many(raw, len(names), settings)
    for name in names:
        column = raw.columns[name]
        found = _found(raw, name, column)
        looked.append(_looked(name, column, found, raw.rows))
        odd += found.odd
    suggested = suggest(raw, looked, outcomes, settings)
    odd += suggested.odd
    return Inspection(
        format=raw.format,
        sheets=list(raw.sheets),
        rows=raw.rows,
        column_count=len(raw.columns),
        columns=[_described(raw, one, suggested) for one in looked],
        missing=suggested.missing,
        first_rows=_first_rows(raw, names),
        odd=[*odd, *_checked(raw, names, suggested, settings)][:_MOST_ODD],
    )


def _too_many(raw: RawTable, shown_columns: int, settings: Settings) -> list[str]:
    if len(raw.columns) <= shown_columns:
        return []
    return [
        f"the file has {len(raw.columns)} columns, and a data set takes {settings.max_columns} (BCO_MAX_COLUMNS): the "
        "others are left out"
    ]


def _described(raw: RawTable, looked: Looked, suggested: Suggested) -> InspectedColumn:
    role, reason = suggested.roles[looked.name]
    return InspectedColumn(
        name=looked.name,
        kind=looked.kind,
        missing=looked.missing,
        distinct=looked.distinct,
        minimum=looked.minimum,
        maximum=looked.maximum,
        samples=_samples(raw.columns[looked.name]),
        role=role,
        categorical=looked.name in suggested.categorical,
        reason=reason,
    )


# what a column holds


def _found(raw: RawTable, name: str, column: Any) -> _Found:
    if column.null_count == len(column):
        return _Found("empty")
    if is_temporal(column):
        return _Found("time")
    if not pa.types.is_string(column.type):
        return _numeric(raw, name, as_numbers(column)[0], ())
    telling = _telling(column)
    if looks_like_times(as_text(telling)):
        return _Found("time")
    numbers, other = as_numbers(telling)
    if len(other) > len(telling) / 2 and ambiguous_number(telling) is None:
        return _Found("categorical")
    numbers, other = as_numbers(column)
    if not other:
        return _numeric(raw, name, numbers, ())
    ambiguous = ambiguous_number(column)
    if ambiguous is not None:
        sentence = (
            f"'{name}': {shown(ambiguous)} may have a decimal comma or set thousands apart; write a decimal point"
        )
        return _Found("numeric", None, (sentence,))
    if 2 * len(other) > raw.rows - column.null_count:
        return _Found("categorical")
    place = raw.place(other[0], name)[1]
    sentence = f"{len(other)} values of '{name}' are not numbers, such as {shown(column[other[0]].as_py())} at {place}"
    return _numeric(raw, name, numbers, (sentence,))


def _numeric(raw: RawTable, name: str, numbers: pa.Array, odd: tuple[str, ...]) -> _Found:
    beyond = pc.invert(pc.fill_null(pc.less_equal(pc.abs(numbers), LARGEST), True))
    if pc.any(beyond).as_py():
        place = raw.place(pc.index(beyond, True).as_py(), name)[1]
        odd = (*odd, f"'{name}' holds numbers that are not finite, such as at {place}")
        numbers = pc.if_else(beyond, None, numbers)
    return _Found("numeric", numbers, odd)


def _telling(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Some values from all over a column."""
    held = column.drop_null()
    if len(held) <= _TELLING:
        return held
    return held.take(pa.array(np.linspace(0, len(held) - 1, _TELLING).astype(np.int64)))


def _looked(name: str, column: pa.ChunkedArray, found: _Found, rows: int) -> Looked:
    missing, distinct = column.null_count, int(pc.count_distinct(column).as_py())
    low = high = None
    whole = False
    if found.numbers is not None and found.numbers.null_count < len(found.numbers):
        extremes = pc.min_max(found.numbers).as_py()
        low, high = extremes["min"], extremes["max"]
        whole = bool(pc.all(pc.equal(pc.floor(found.numbers), found.numbers)).as_py())
    return Looked(name, found.kind, rows, missing, distinct, low, high, whole)


# what is shown


def _samples(column: pa.ChunkedArray) -> list[str]:
    """A few different values from the first rows."""
    held = column.slice(0, _TELLING).drop_null()
    return [_written(value) for value in pc.unique(held).slice(0, SAMPLES).to_pylist()]


def _first_rows(raw: RawTable, names: list[str]) -> list[list[str | None]]:
    columns = [[_cell(value) for value in raw.columns[name][:FIRST_ROWS].to_pylist()] for name in names]  # type: ignore[union-attr]
    return [list(row) for row in zip(*columns, strict=True)]


def _cell(value: Any) -> str | None:
    return None if value is None else _written(value)


def _written(value: Any) -> str:
    """A value as a short text that reads as it is written."""
    text = f"{value:.10g}" if isinstance(value, float) else category_text(value)
    text = "".join(mark if is_plain(mark) else "?" for mark in text[: LONGEST + 1])
    return f"{text[:LONGEST]}…" if len(text) > LONGEST else text


# whether it can be used


def _checked(raw: RawTable, names: list[str], suggested: Suggested, settings: Settings) -> list[str]:
    """What keeping the file with the suggested roles would be warned of or refused for."""
    by_role = {role: [name for name in names if suggested.roles[name][0] == role] for role in _ROLES}
    if not by_role["outcome"] or raw.rows * len(names) > _CHECKED_CELLS:
        return []
    roles = Roles(
        by_role["outcome"],
        by_role["context"],
        [name for name in suggested.categorical if name in by_role["context"]],
        suggested.missing,
        by_role["time"][0] if by_role["time"] else None,
        by_role["series"],
        decisions=by_role["decision"],
    )
    try:
        return profile(raw, roles, settings).warnings
    except InvalidRequest as refusal:
        return [field.detail for field in refusal.fields]


_ROLES = ("time", "series", "context", "outcome", "decision")
