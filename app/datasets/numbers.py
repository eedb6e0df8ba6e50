"""Numbers as people write them: decimal points or commas, thousands set apart. One way holds for a whole column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Blanks of several widths and apostrophes set thousands apart and mean nothing else.
_BLANK = " \u00a0\u2009\u202f'’"


def _spelling(decimal: str, thousands: str) -> re.Pattern[str]:
    blanks = f"[{re.escape(thousands)}{_BLANK}]"
    whole = rf"(?:\d+|[1-9]\d{{0,2}}(?P<mark>{blanks})\d{{3}}(?:(?P=mark)\d{{3}})*)"
    return re.compile(rf"[+-]?{whole}(?:{re.escape(decimal)}\d+)?")


_POINT, _COMMA = _spelling(".", ","), _spelling(",", ".")
NUMBER_LIKE = re.compile(rf"[+-]?\d[\d.,{_BLANK}]*[.,{_BLANK}][\d.,{_BLANK}]*")
_MARKS = re.compile(f"[,{_BLANK}]")


@dataclass(frozen=True)
class Spelled:
    """Texts as numbers, None where one is no number. ``ambiguous`` is a text that may mean two numbers."""

    numbers: list[float | None]
    ambiguous: str | None = None


def spelled(texts: Sequence[str]) -> Spelled:
    """The different texts of a column as numbers, all read in one way.

    Plain numbers are read as they always were. Where some texts have commas or set thousands apart, the decimal mark is
    the one with which all of them can be read. If both can be and give different numbers, the column is ambiguous; if
    neither can, the texts that fit the way of most are numbers.
    """
    plain = [_plain(text) for text in texts]
    if None not in plain or not any(_MARKS.search(text) for text in texts):
        return Spelled(plain)
    with_point = [
        number if number is not None else _marked(text, _POINT) for text, number in zip(texts, plain, strict=True)
    ]
    with_comma = [_marked(text, _COMMA) for text in texts]
    if None not in with_point and None not in with_comma:
        differs = (text for text, one, two in zip(texts, with_point, with_comma, strict=True) if one != two)
        return Spelled(with_point, next(differs, None))
    return Spelled(max(with_point, with_comma, key=lambda numbers: len(numbers) - numbers.count(None)))


def _plain(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def _marked(text: str, spelling: re.Pattern[str]) -> float | None:
    found = spelling.fullmatch(text)
    if found is None:
        return None
    if found["mark"]:
        text = text.replace(found["mark"], "")
    return float(text.replace(",", "."))
