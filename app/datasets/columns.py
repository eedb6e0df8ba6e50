"""Each column of a raw table as what it holds: numbers, categories, keys. What cannot be used is a mistake."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.numbers import NUMBER_LIKE
from app.datasets.parsing import RawTable, ambiguous_number, as_numbers, as_text, is_temporal
from app.datasets.times import looks_like_times
from app.datasets.validation_errors import Mistakes, shown
from app.db.text import NOT_PLAIN, UNPLAIN, is_storable
from bco_core.data import LARGEST

NOT_FINITE = "not a finite number; leave it empty if it is unknown"


def outcome(raw: RawTable, name: str, mistakes: Mistakes, what: str = "an outcome") -> pa.Array | None:
    """A column of outcomes, or of decisions, as float64, null where missing."""
    if not usable(raw, name, mistakes):
        return None
    numbers, other = as_numbers(raw.columns[name])
    if other:
        if not _asked(raw, name, other, mistakes):
            mistakes.at(other, name, _not_a_number(raw, name, f"{what} must be a number, and this is text"))
        return None
    return _finite(numbers, name, mistakes)


def context(raw: RawTable, name: str, kind: str | None, mistakes: Mistakes) -> pa.Array | None:
    """Numbers where the column holds numbers, text where it holds text, and a clear refusal of a mix.

    ``kind`` is what the column must be, if that is known: numeric or categorical.
    """
    if not usable(raw, name, mistakes):
        return None
    if kind == "categorical":
        return text(raw, name, mistakes)
    if is_temporal(raw.columns[name]):
        mistakes.add((raw.whole,), _TIMES.format(name=name))
        return None
    numbers, other = as_numbers(raw.columns[name])
    if other:
        if _asked(raw, name, other, mistakes):
            return None
        if kind == "numeric":
            mistakes.at(other, name, _not_a_number(raw, name, f"'{name}' must be a number, and this is text"))
            return None
        if raw.rows - numbers.null_count >= len(other):
            sentence = f"text in a column of numbers; correct it, or list '{name}' under categorical"
            mistakes.at(other, name, _not_a_number(raw, name, sentence))
            return None
        texts = text(raw, name, mistakes)
        if texts is not None and looks_like_times(texts):
            mistakes.add((raw.whole,), _TIMES.format(name=name))
            return None
        return texts
    return _finite(numbers, name, mistakes)


def _asked(raw: RawTable, name: str, other: list[int], mistakes: Mistakes) -> bool:
    """Whether the column could be read in two ways; then its owner must say which."""
    value = ambiguous_number(raw.columns[name])
    if value is None:
        return False
    sentence = (
        f"{shown(value)} may have a decimal comma or set thousands apart, and no value of '{name}' tells which; write "
        "numbers without thousands and with a decimal point"
    )
    mistakes.at(other[:1], name, sentence)
    return True


def _not_a_number(raw: RawTable, name: str, sentence: str) -> Callable[[int], str]:
    """The sentence, with the value where it is a number in another spelling than the rest of its column."""
    column = raw.columns[name]

    def of(row: int) -> str:
        value = column[row] if isinstance(column, list) else column[row].as_py()
        if isinstance(value, str) and NUMBER_LIKE.fullmatch(value.strip()):
            return f"{shown(value)} is written in another way than other numbers of '{name}'; write all in one way"
        return sentence

    return of


_TIMES = (
    "column '{name}' holds dates; name it as time, list the contexts without it, or list it under categorical if its "
    "dates are mere names"
)


def key(raw: RawTable, name: str, mistakes: Mistakes) -> pa.Array | None:
    """A key of series as text."""
    return text(raw, name, mistakes) if usable(raw, name, mistakes) else None


def text(raw: RawTable, name: str, mistakes: Mistakes) -> pa.Array | None:
    """The column as text; a category is shown to people, so it must read as it is written."""
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


def usable(raw: RawTable, name: str, mistakes: Mistakes) -> bool:
    """Refuse what JSON can spell but no data set can keep; what was read from a file is numbers and text."""
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
