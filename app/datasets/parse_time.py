"""The time of a context: a text as in the history or in ISO 8601, a date of a file, or a whole number of periods."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from typing import Any

import numpy as np

from app.datasets.encode_values import Refusals, Whole, by_value
from bco_core.features.calendar import Clock

_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?")
_WHOLE = re.compile(r"[+-]?\d{1,15}(\.0+)?")
_UNREADABLE = np.iinfo(np.int64).min
_MOST = 10**15
_WRITTEN_AS = {
    "iso date": "a date such as 2024-01-31",
    "iso datetime": "a time such as 2024-01-31T06:00",
    "dd.mm.yyyy": "a date such as 31.01.2024 or 2024-01-31",
    "period": "a whole number of periods",
}


def periods_of(time: dict[str, Any], clock: Clock, values: Any) -> tuple[Whole, Refusals]:
    """The periods (n,) of values of a time column with this profile; 0 where a value cannot be read."""

    def read(value: Any) -> int:
        try:
            return _whole(value) if time["format"] == "period" else _seconds(value, time["zone"])
        except (ValueError, OverflowError):
            return _UNREADABLE

    numbers, value = by_value(values, read)
    wrong = numbers == _UNREADABLE
    refused = {row: _sentence(time, value(row)) for row in np.flatnonzero(wrong).tolist()}
    moments = np.where(wrong, 0, numbers)
    return clock.periods(moments if time["format"] == "period" else moments.astype("datetime64[s]")), refused


def _sentence(time: dict[str, Any], value: Any) -> str:
    name, wanted = time["name"], _WRITTEN_AS[time["format"]]
    if value is None:
        return f"'{name}' is missing; it must be {wanted}"
    if not time["zone"] and _has_zone(value):
        return f"'{name}' has a time zone, and the times of the history have none; send {wanted}, without a zone"
    return f"'{name}' is no time as the history has them; it must be {wanted}"


def _whole(value: Any) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value.strip().partition(".")[0])
    if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value or abs(value) > _MOST:
        raise ValueError
    return int(value)


def _seconds(value: Any, zone: str) -> int:
    """Seconds since 1970 of a moment, in UTC if it has a zone; a zone where the history has none is an error."""
    if isinstance(value, str):
        moment = _of_text(value.strip())
    elif isinstance(value, datetime):
        moment = value
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day)
    else:
        raise ValueError
    if moment.tzinfo is not None and not zone:
        raise ValueError
    return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())


def _of_text(text: str) -> datetime:
    if dotted := _DOTTED.fullmatch(text):
        day, month, year = map(int, dotted.groups())
        return datetime(year, month, day)
    if not _ISO.fullmatch(text):
        raise ValueError
    return datetime.fromisoformat(text)


def _has_zone(value: Any) -> bool:
    try:
        moment = _of_text(value.strip()) if isinstance(value, str) else value
    except ValueError:
        return False
    return isinstance(moment, datetime) and moment.tzinfo is not None
