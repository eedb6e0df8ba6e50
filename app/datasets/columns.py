"""Read each column of a raw table as numbers, categories or keys. Unusable values become mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.parsing import NUMBER_LIKE, RawTable, ambiguous_number, as_numbers, as_text, is_temporal
from app.datasets.times import looks_like_times
from app.datasets.validation_errors import Mistakes, quote
from app.db.text import NOT_PLAIN, UNPLAIN, is_storable
from app.http.errors import InvalidRequest
from app.settings import Settings
from bco_core.data import LARGEST

NOT_FINITE = "not a finite number; leave it empty if it is unknown"


def read_numbers_column(raw: RawTable, name: str, mistakes: Mistakes, what: str = "an outcome") -> pa.Array | None:
    """Read a column of outcomes or decisions as float64, null where missing."""
    if not check_values(raw, name, mistakes):
        return None
    numbers, other = as_numbers(raw.columns[name])
    if other:
        if not _is_ambiguous(raw, name, other, mistakes):
            mistakes.at(other, name, _not_a_number(raw, name, f"{what} must be a number, and this is text"))
        return None
    return _finite(numbers, name, mistakes)


def read_context(raw: RawTable, name: str, kind: str | None, mistakes: Mistakes) -> pa.Array | None:
    """Read a column of numbers or of text; a mix is a mistake.

    ``kind`` is what the column must be, if that is known: numeric or categorical.
    """
    if not check_values(raw, name, mistakes):
        return None
    if kind == "categorical":
        return _read_text(raw, name, mistakes)
    if is_temporal(raw.columns[name]):
        mistakes.add((raw.whole,), _TIMES.format(name=name))
        return None
    numbers, other = as_numbers(raw.columns[name])
    if other:
        if _is_ambiguous(raw, name, other, mistakes):
            return None
        if kind == "numeric":
            mistakes.at(other, name, _not_a_number(raw, name, f"'{name}' must be a number, and this is text"))
            return None
        if raw.rows - numbers.null_count >= len(other):
            sentence = f"text in a column of numbers; correct it, or list '{name}' under categorical"
            mistakes.at(other, name, _not_a_number(raw, name, sentence))
            return None
        texts = _read_text(raw, name, mistakes)
        if texts is not None and looks_like_times(texts):
            mistakes.add((raw.whole,), _TIMES.format(name=name))
            return None
        return texts
    return _finite(numbers, name, mistakes)


def _is_ambiguous(raw: RawTable, name: str, other: list[int], mistakes: Mistakes) -> bool:
    """Check whether the numbers could be read in two ways, which is a mistake."""
    value = ambiguous_number(raw.columns[name])
    if value is None:
        return False
    sentence = (
        f"{quote(value)} is ambiguous: its mark may separate decimals or thousands, and no other value of '{name}' "
        "settles it; write numbers with a decimal point and without thousands separators"
    )
    mistakes.at(other[:1], name, sentence)
    return True


def _not_a_number(raw: RawTable, name: str, sentence: str) -> Callable[[int], str]:
    """Return the sentence, or one about spelling where the value is a number written unlike the rest of its column."""
    column = raw.columns[name]

    def of(row: int) -> str:
        value = column[row] if isinstance(column, list) else column[row].as_py()
        if isinstance(value, str) and NUMBER_LIKE.fullmatch(value.strip()):
            return f"{quote(value)} is written unlike other numbers of '{name}'; use one format"
        return sentence

    return of


_TIMES = (
    "column '{name}' holds dates; name it as time, list the contexts without it, or list it under categorical if its "
    "dates are only labels"
)


def read_key(raw: RawTable, name: str, mistakes: Mistakes) -> pa.Array | None:
    """Read a key of series as text."""
    return _read_text(raw, name, mistakes) if check_values(raw, name, mistakes) else None


def _read_text(raw: RawTable, name: str, mistakes: Mistakes) -> pa.Array | None:
    """Read a column as text; categories are shown to people, so they must be plain."""
    texts = as_text(raw.columns[name])
    odd = pc.fill_null(pc.match_substring_regex(texts, f"[{UNPLAIN}]"), False)
    if pc.any(odd).as_py():
        mistakes.at(np.flatnonzero(np.asarray(odd)).tolist(), name, f"the text holds {NOT_PLAIN}")
        return None
    return texts


def _finite(numbers: pa.Array, name: str, mistakes: Mistakes) -> pa.Array | None:
    usable = pc.fill_null(pc.less_equal(pc.abs(numbers), LARGEST), True)
    if not pc.all(usable).as_py():
        mistakes.at(np.flatnonzero(~np.asarray(usable)).tolist(), name, NOT_FINITE)
        return None
    return numbers


def check_values(raw: RawTable, name: str, mistakes: Mistakes) -> bool:
    """Check for JSON values that no data set can store; files hold numbers and text alone."""
    column = raw.columns[name]
    wrong: dict[int, str] = {}
    for row, value in enumerate(column if isinstance(column, list) else ()):
        reason = _unusable(value)
        if reason:
            wrong[row] = reason
    mistakes.at(list(wrong), name, lambda row: wrong[row])
    return not wrong


def _unusable(value: Any) -> str | None:
    if isinstance(value, list | dict):
        return "a value must be a number, text, true, false or null"
    if isinstance(value, str) and not is_storable(value):
        return "the text holds a character that cannot be stored"
    if isinstance(value, float) and not math.isfinite(value):
        return NOT_FINITE
    return None


# categories

# Stands for rare categories, and for those first seen when deciding.
OTHER = "other"
RARE = 2


def group_categories(
    column: pa.ChunkedArray, name: str, rare_are_other: bool, settings: Settings
) -> tuple[pa.ChunkedArray, dict[str, Any], list[str]]:
    """Return the column, with rare categories grouped if ``rare_are_other``, its profile, and notes."""
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(column).to_pylist()}
    if rare_are_other:
        frequent = _frequent(counts, settings.max_categories)
        rare = sorted(counts.keys() - set(frequent) - {OTHER})
        column = with_other(column, frequent)
        notes = [f"{len(rare)} rare categories of '{name}' became \"{OTHER}\""] if rare else []
        return column, {"kind": "categorical", "categories": [*frequent, OTHER], "other": True}, notes
    if len(counts) > settings.max_categories:
        detail = (
            f"text column '{name}' has {len(counts)} different values, more than {settings.max_categories}; "
            "leave it out by listing the contexts you want, group its values, or send unseen=other"
        )
        raise InvalidRequest.at(("contexts",), detail)
    categories = sorted(counts)
    notes = [f"context '{name}' has the same value in every row and cannot help"] if len(counts) == 1 else []
    once = [category for category in categories if counts[category] == 1]
    if once and len(counts) > 1:
        notes.append(f"{len(once)} of the categories of '{name}' occur only once")
    return column, {"kind": "categorical", "categories": categories}, notes


def _frequent(counts: dict[str, int], most: int) -> list[str]:
    """Return the ``most`` − 1 most frequent categories that are not rare; "other" takes a place too."""
    frequent = [name for name, count in counts.items() if count >= RARE and name != OTHER]
    frequent.sort(key=lambda name: (-counts[name], name))
    return sorted(frequent[: most - 1])


def with_other(column: pa.ChunkedArray, categories: Sequence[str]) -> pa.ChunkedArray:
    """Replace all categories but the given ones by "other"."""
    known = pc.is_in(column, pa.array(categories, pa.string()))
    return pc.if_else(known, column, OTHER)
