"""Format contexts and decisions as one line of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.pages.render import number

# Further names and values are only counted.
MOST = 5


def format_value(value: Any) -> str:
    """Format one value of a context or a decision."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value, 6) if value is None or isinstance(value, int | float) else str(value)


def _short(value: Any) -> str:
    return number(value) if isinstance(value, float) else format_value(value)


def one_line(values: Any, most: int = MOST) -> str:
    """Return ``weekday SAT, temperature 21.5 and 3 more``; contexts may be lists without names."""
    if isinstance(values, Mapping):
        texts = [f"{name} {_short(value)}" for name, value in values.items()]
    elif isinstance(values, list):
        texts = [_short(value) for value in values]
    else:
        return format_value(values)
    rest = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + rest
