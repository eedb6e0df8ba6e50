"""Convert values of any library to JSON: NumPy numbers and arrays, dates, missing values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """Return the value as numbers, strings, booleans, lists and dicts; None where it is missing (NaN, NaT, NA)."""
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return _number(float(value))
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Decimal):
        return _number(float(value))
    # Missing values of pandas and NumPy: NaT is a date unlike itself, NA is neither true nor false.
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, date | datetime):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return _of_numpy(value)
    raise TypeError(f"a value of the type {type(value).__name__} cannot be sent; send numbers, texts, dates or lists")


def _number(value: float) -> float | None:
    if math.isinf(value):
        raise ValueError("an infinite number cannot be sent; leave it out, or write None where it is unknown")
    return None if math.isnan(value) else value


def _of_numpy(value: Any) -> Any:
    if getattr(getattr(value, "dtype", None), "kind", "") == "M":
        text = str(value) if value.ndim == 0 else [str(entry) for entry in value]
        return None if text == "NaT" else text
    return plain(value.tolist())


def to_json(value: Any) -> bytes:
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":")).encode()
