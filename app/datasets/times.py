"""Columns of times: the format they are written in, the moments they mean, and the spacing between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.validation_errors import Mistakes, shown

Numbers = np.ndarray[Any, np.dtype[np.int64]]

DATE, DATETIME, GERMAN, PERIOD = "iso date", "iso datetime", "dd.mm.yyyy", "period"
EXAMPLES = "2024-01-31, 2024-01-31T06:00, 31.01.2024 or a whole number of periods"
MOST_PERIODS = 10**15
DAY = 86_400
_ZONED = DATETIME + " with a time zone"
_SPELLINGS = {
    DATE: re.compile(r"\d{4}-\d{2}-\d{2}"),
    DATETIME: re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,9})?)?"),
    _ZONED: re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}([.,]\d{1,9})?)? ?(Z|[+-]\d{2}(:?\d{2})?)"),
    GERMAN: re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}"),
    PERIOD: re.compile(r"[+-]?\d{1,18}(\.0+)?"),
}
_EPOCH = datetime(1970, 1, 1)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Times:
    """A column as moments: timestamps to the second (in UTC if ``zone`` says so), or whole numbers of periods."""

    values: pa.Array
    format: str
    zone: str

    @property
    def numbers(self) -> Numbers:
        """Seconds since 1970, or periods; nothing may be missing."""
        return np.asarray(self.values.cast(pa.int64()))


def read_times(column: pa.ChunkedArray | list[Any], name: str, mistakes: Mistakes) -> Times | None:
    """The moments of a column, None where missing. What cannot be read is added to the mistakes."""
    if not isinstance(column, list) and pa.types.is_temporal(column.type):
        return _of_moments(column, name, mistakes)
    values, codes = _distinct(column)
    formats = [_format(value) for value in values]
    known = [kind for kind in formats if kind is not None]
    if not values:
        mistakes.add((name,), f"the time column '{name}' has no values")
        return None
    if len(known) < len(values):
        wrong = _rows(codes, [kind is None for kind in formats])
        mistakes.at(wrong, name, lambda row: f"{shown(values[codes[row]])} is not a time; write {EXAMPLES}")
        return None
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    often: Counter[str] = Counter()
    for kind, count in zip(known, counts, strict=True):
        often[kind] += int(count)
    usual = often.most_common(1)[0][0]
    if len(often) > 1:
        others = _rows(codes, [kind != usual for kind in known])
        mistakes.at(
            others,
            name,
            lambda row: (
                f"{shown(values[codes[row]])} is written as {known[codes[row]]}, most of '{name}' as {usual}; "
                "write all in one format"
            ),
        )
        return None
    return _read(values, codes, usual, name, mistakes)


def looks_like_times(texts: pa.Array) -> bool:
    """Whether every text is a date or a date with a time of day."""
    distinct = pc.unique(texts).drop_null().to_pylist()
    return bool(distinct) and all(_format(text) in (DATE, DATETIME, _ZONED, GERMAN) for text in distinct)


def _distinct(column: pa.ChunkedArray | list[Any]) -> tuple[list[Any], Numbers]:
    """The different values and, for each row, which of them it has; -1 where it is missing."""
    if isinstance(column, list):
        # 1 and True are one key of a dict, and only one of them is a time.
        places: dict[tuple[type, Any], int] = {}
        codes = [-1 if value is None else places.setdefault((type(value), value), len(places)) for value in column]
        return [value for _, value in places], np.array(codes, dtype=np.int64)
    encoded = column.dictionary_encode().combine_chunks()
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices.fill_null(-1), dtype=np.int64)


def _rows(codes: Numbers, wanted: list[bool]) -> list[int]:
    chosen = np.array([*wanted, False])
    return [int(row) for row in np.flatnonzero(chosen[codes])]


def _format(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return PERIOD if abs(value) <= MOST_PERIODS and int(value) == value else None
    text = str(value).strip()
    return next((kind for kind, spelling in _SPELLINGS.items() if spelling.fullmatch(text)), None)


def _read(values: list[Any], codes: Numbers, kind: str, name: str, mistakes: Mistakes) -> Times | None:
    read: Callable[[str], int] = {PERIOD: _period, GERMAN: _german}.get(kind, _iso)
    moments, wrong = [], {}
    for code, value in enumerate(values):
        try:
            moments.append(read(str(value).strip()))
        except ValueError as error:
            moments.append(0)
            wrong[code] = str(error)
    if wrong:
        rows = _rows(codes, [code in wrong for code in range(len(values))])
        mistakes.at(rows, name, lambda row: f"{shown(values[codes[row]])} {wrong[int(codes[row])]}")
        return None
    if kind == _ZONED and not _one_zone(values, codes, name, mistakes):
        return None
    if kind == PERIOD and len(moments) > 1 and all(map(_is_written_date, moments)):
        row = _rows(codes, [True] * len(values))[:1]
        sentence = f"{shown(values[0])} looks like a date without marks, not like a period; write it as 2024-01-31"
        mistakes.at(row, name, sentence)
        return None
    numbers = np.array([*moments, 0], dtype=np.int64)[codes]
    array = pa.array(numbers, pa.int64(), mask=codes < 0)
    if kind == PERIOD:
        return Times(array, PERIOD, "")
    zone = "UTC" if kind == _ZONED else ""
    return Times(array.cast(pa.timestamp("s")), DATETIME if kind == _ZONED else kind, zone)


def _period(text: str) -> int:
    number = int(text.partition(".")[0])
    if abs(number) > MOST_PERIODS:
        raise ValueError("is too large for a period")
    return number


def _german(text: str) -> int:
    day, month, year = map(int, text.split("."))
    try:
        return (date(year, month, day) - _EPOCH.date()).days * DAY
    except ValueError:
        raise ValueError("is no date of the calendar") from None


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.replace(" ", "T", 1).replace(" ", "").replace(",", "."))
    except ValueError:
        raise ValueError("is no date and time of the calendar") from None


def _iso(text: str) -> int:
    moment = _moment(text)
    offset = moment.utcoffset() or timedelta()
    elapsed = moment.replace(tzinfo=None) - _EPOCH - offset
    if elapsed.microseconds:
        raise ValueError("is finer than a second; round it")
    return elapsed.days * DAY + elapsed.seconds


def _one_zone(values: list[Any], codes: Numbers, name: str, mistakes: Mistakes) -> bool:
    """Whether all offsets are those of one place: they change by an hour in summer, and not by more."""
    offsets = [_moment(str(value).strip()).utcoffset() or timedelta() for value in values]
    far = [abs(offset - offsets[0]) > _HOUR for offset in offsets]
    if not any(far) and max(offsets) - min(offsets) <= _HOUR:
        return True
    far = far if any(far) else [offset != offsets[0] for offset in offsets]
    first = shown(values[0])
    mistakes.at(
        _rows(codes, far),
        name,
        lambda row: f"{shown(values[codes[row]])} and {first} are in different time zones; write all times in one zone",
    )
    return False


def _is_written_date(number: int) -> bool:
    """Whether a number such as 20240131 is a date without marks."""
    if not 19_000_101 <= number <= 21_001_231:
        return False
    try:
        date(number // 10_000, number // 100 % 100, number % 100)
    except ValueError:
        return False
    return True


def _of_moments(column: pa.ChunkedArray, name: str, mistakes: Mistakes) -> Times | None:
    """Dates and timestamps as files keep them; those with a time zone are in UTC already."""
    kind = column.type
    zone = "UTC" if pa.types.is_timestamp(kind) and kind.tz is not None else ""
    array = column.combine_chunks()
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp(kind.unit))
        seconds = array.cast(pa.timestamp("s"), safe=False)
        finer = pc.fill_null(pc.not_equal(seconds.cast(pa.timestamp(kind.unit)), array), False)
        if pc.any(finer).as_py():
            rows = np.flatnonzero(np.asarray(finer))
            mistakes.at(list(rows), name, lambda row: f"{shown(array[row])} is finer than a second; round it")
            return None
        days = not zone and pc.all(pc.equal(pc.floor_temporal(seconds, unit="day"), seconds)).as_py()
        return Times(seconds, DATE if days else DATETIME, zone)
    return Times(array.cast(pa.date32()).cast(pa.timestamp("s")), DATE, "")


# spacing


def spacing(numbers: Numbers, series: Numbers, written_as: str) -> tuple[str, int]:
    """Unit and step: the greatest step that all differences within the series are whole multiples of.

    Raises ValueError with a sentence for times that are not whole minutes apart.
    """
    order = np.lexsort((numbers, series))
    times, within = numbers[order], np.diff(series[order]) == 0
    if not within.any():
        times = np.unique(numbers)
        within = np.ones(max(0, len(times) - 1), dtype=bool)
    steps = np.diff(times)[within]
    common = int(np.gcd.reduce(steps)) if steps.any() else 0
    if written_as == PERIOD:
        return PERIOD, max(1, common)
    if not common:
        # One moment alone: what it is written as tells the unit, as far as anything does.
        units = (("day", DAY), ("hour", 3600))
        return next((unit for unit, seconds in units if not (numbers % seconds).any()), "minute"), 1
    months = _months(times, within, steps)
    if months:
        return "month", months
    for unit, seconds in (("week", 7 * DAY), ("day", DAY), ("hour", 3600), ("minute", 60)):
        if common % seconds == 0:
            return unit, common // seconds
    raise ValueError(f"times are {common} s apart, and not whole minutes: round them to the spacing that you plan in")


def _months(times: Numbers, within: np.ndarray[Any, np.dtype[np.bool_]], steps: Numbers) -> int:
    """The greatest common step in months if all times of a series are on one day of the month, or on its last."""
    moved = steps > 0
    if steps[moved].min() < 28 * DAY:
        return 0
    days = (times // DAY).astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    of_month = (days - months.astype("datetime64[D]")).astype(np.int64)
    last = (days + 1).astype("datetime64[M]") != months
    of_day = times % DAY
    alike = (np.diff(of_month) == 0) | (last[1:] & last[:-1])
    alike &= np.diff(of_day) == 0
    if not alike[within].all():
        return 0
    return int(np.gcd.reduce(np.diff(months.astype(np.int64))[within]))


def first_duplicate(numbers: Numbers, series: Numbers) -> tuple[int, int] | None:
    """The first row that repeats the time and series of an earlier one: (earlier, later)."""
    order = np.lexsort((numbers, series))
    same = (np.diff(numbers[order]) == 0) & (np.diff(series[order]) == 0)
    if not same.any():
        return None
    places = np.flatnonzero(same)
    place = places[order[places + 1].argmin()]
    return int(order[place]), int(order[place + 1])


def written(number: int, written_as: str) -> str:
    """A moment as the profile shows it: an ISO date, an ISO date and time, or the period."""
    if written_as == PERIOD:
        return str(number)
    moment = np.datetime64(number, "s")
    return str(moment if written_as == DATETIME else moment.astype("datetime64[D]"))
