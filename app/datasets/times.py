"""Time in data sets: parse it, find its spacing, write it, and order rows by series and time.

Inside, a time is an int64 number: seconds since 1970, or the period itself where times are integers.
:class:`bco_core.timeline.Clock` counts periods.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.datasets.parsing import Refusals, by_value, category_text
from app.datasets.validation_errors import Mistakes, quote
from bco_core.arrays import Booleans, Floats, Integers
from bco_core.timeline import Clock

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
_EXPECTED = {
    DATE: "a date such as 2024-01-31",
    DATETIME: "a time such as 2024-01-31T06:00",
    GERMAN: "a date such as 31.01.2024 or 2024-01-31",
    PERIOD: "a whole number of periods",
}
_EPOCH = datetime(1970, 1, 1)
_HOUR = timedelta(hours=1)
_UNREADABLE = np.iinfo(np.int64).min


# single times


def _spelling(value: Any) -> str | None:
    """Return the format that a value is written in; None if it is not a time."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return PERIOD if abs(value) <= MOST_PERIODS and int(value) == value else None
    text = str(value).strip()
    return next((kind for kind, spelling in _SPELLINGS.items() if spelling.fullmatch(text)), None)


def _period(value: Any) -> int:
    """Read a whole number of periods, or raise ValueError with the end of a sentence about the value."""
    if isinstance(value, str) and _spelling(value) == PERIOD:
        value = int(value.strip().partition(".")[0])
    if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value:
        raise ValueError("is not a whole number of periods")
    if abs(value) > MOST_PERIODS:
        raise ValueError("is too large for a period")
    return int(value)


def _moment(value: Any) -> datetime:
    """Read a date or a time, or raise ValueError with the end of a sentence about the value."""
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    kind = _spelling(value) if isinstance(value, str) else None
    if kind is None or kind == PERIOD:
        raise ValueError("is not a time")
    text = value.strip()
    try:
        if kind == GERMAN:
            day, month, year = map(int, text.split("."))
            return datetime(year, month, day)
        return datetime.fromisoformat(text.replace(" ", "T", 1).replace(" ", "").replace(",", "."))
    except ValueError:
        raise ValueError(f"is not a {'date' if kind == GERMAN else 'date and time'} of the calendar") from None


def _whole_second(value: Any) -> datetime:
    moment = _moment(value)
    if moment.microsecond:
        raise ValueError("is finer than a second; round it")
    return moment


def _seconds(moment: datetime) -> int:
    """Return the seconds since 1970, in UTC if the moment has a zone."""
    elapsed = moment.replace(tzinfo=None) - _EPOCH - (moment.utcoffset() or timedelta())
    return elapsed.days * DAY + elapsed.seconds


def write_time(number: int, written_as: str) -> str:
    """Write a time as profiles and answers do: an ISO date, an ISO date and time, or the period."""
    if written_as == PERIOD:
        return str(number)
    moment = np.datetime64(number, "s")
    return str(moment if written_as == DATETIME else moment.astype("datetime64[D]"))


# columns of times in new data


@dataclass(frozen=True)
class Times:
    """Parsed column: timestamps to the second (in UTC if ``zone`` is "UTC"), or whole numbers of periods."""

    values: pa.Array
    format: str
    zone: str

    @property
    def numbers(self) -> Integers:
        """Seconds since 1970, or periods; no value may be missing."""
        return np.asarray(self.values.cast(pa.int64()))


def read_times(column: pa.ChunkedArray | list[Any], name: str, mistakes: Mistakes) -> Times | None:
    """Parse a column, keeping gaps. Unreadable values become mistakes, and the result is None."""
    if not isinstance(column, list) and pa.types.is_temporal(column.type):
        return _read_temporal(column, name, mistakes)
    values, codes = _distinct(column)
    formats = [_spelling(value) for value in values]
    readable = [kind for kind in formats if kind is not None]
    if not values:
        mistakes.add((name,), f"the time column '{name}' has no values")
        return None
    if len(readable) < len(values):
        wrong = _rows(codes, [kind is None for kind in formats])
        mistakes.at(wrong, name, lambda row: f"{quote(values[codes[row]])} is not a time; write {EXAMPLES}")
        return None
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    often: Counter[str] = Counter()
    for kind, count in zip(readable, counts, strict=True):
        often[kind] += int(count)
    usual = often.most_common(1)[0][0]
    if len(often) > 1:
        others = _rows(codes, [kind != usual for kind in readable])
        mistakes.at(
            others,
            name,
            lambda row: (
                f"{quote(values[codes[row]])} is written as {readable[codes[row]]}, most of '{name}' as {usual}; "
                "write all in one format"
            ),
        )
        return None
    return _read_texts(values, codes, usual, name, mistakes)


def looks_like_times(texts: pa.Array) -> bool:
    """Check whether every text is a date or a date with a time of day."""
    distinct = pc.unique(texts).drop_null().to_pylist()
    return bool(distinct) and all(_spelling(text) in (DATE, DATETIME, _ZONED, GERMAN) for text in distinct)


def _distinct(column: pa.ChunkedArray | list[Any]) -> tuple[list[Any], Integers]:
    """Return the distinct values and, for each row, the index of its value; -1 where it is missing."""
    if isinstance(column, list):
        # 1 and True are one key of a dict, and only one of them is a time.
        places: dict[tuple[type, Any], int] = {}
        codes = [-1 if value is None else places.setdefault((type(value), value), len(places)) for value in column]
        return [value for _, value in places], np.array(codes, dtype=np.int64)
    encoded = column.dictionary_encode().combine_chunks()
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices.fill_null(-1), dtype=np.int64)


def _rows(codes: Integers, marked: list[bool]) -> list[int]:
    """Return the rows whose distinct value is marked."""
    return [int(row) for row in np.flatnonzero(np.array([*marked, False])[codes])]


def _read_texts(values: list[Any], codes: Integers, kind: str, name: str, mistakes: Mistakes) -> Times | None:
    parsed: list[Any] = []
    wrong: dict[int, str] = {}
    for code, value in enumerate(values):
        try:
            parsed.append(_period(value) if kind == PERIOD else _whole_second(value))
        except ValueError as error:
            wrong[code] = str(error)
    if wrong:
        rows = _rows(codes, [code in wrong for code in range(len(values))])
        mistakes.at(rows, name, lambda row: f"{quote(values[codes[row]])} {wrong[int(codes[row])]}")
        return None
    if kind == _ZONED and not _one_zone(values, parsed, codes, name, mistakes):
        return None
    if kind == PERIOD and len(parsed) > 1 and all(map(_is_unmarked_date, parsed)):
        row = _rows(codes, [True] * len(values))[:1]
        sentence = f"{quote(values[0])} looks like a date without marks, not like a period; write it as 2024-01-31"
        mistakes.at(row, name, sentence)
        return None
    numbers = parsed if kind == PERIOD else [_seconds(moment) for moment in parsed]
    array = pa.array(np.array([*numbers, 0], dtype=np.int64)[codes], pa.int64(), mask=codes < 0)
    if kind == PERIOD:
        return Times(array, PERIOD, "")
    zone = "UTC" if kind == _ZONED else ""
    return Times(array.cast(pa.timestamp("s")), DATETIME if kind == _ZONED else kind, zone)


def _one_zone(values: list[Any], moments: list[datetime], codes: Integers, name: str, mistakes: Mistakes) -> bool:
    """Check that all offsets belong to one place: daylight saving changes them by an hour, not by more."""
    offsets = [moment.utcoffset() or timedelta() for moment in moments]
    far = [abs(offset - offsets[0]) > _HOUR for offset in offsets]
    if not any(far) and max(offsets) - min(offsets) <= _HOUR:
        return True
    far = far if any(far) else [offset != offsets[0] for offset in offsets]
    first = quote(values[0])
    mistakes.at(
        _rows(codes, far),
        name,
        lambda row: f"{quote(values[codes[row]])} and {first} are in different time zones; write all times in one zone",
    )
    return False


def _is_unmarked_date(number: int) -> bool:
    """Check whether a number such as 20240131 is a date without marks."""
    if not 19_000_101 <= number <= 21_001_231:
        return False
    try:
        date(number // 10_000, number // 100 % 100, number % 100)
    except ValueError:
        return False
    return True


def _read_temporal(column: pa.ChunkedArray, name: str, mistakes: Mistakes) -> Times | None:
    """Read dates and timestamps of a file; those with a time zone are in UTC already."""
    kind = column.type
    zone = "UTC" if pa.types.is_timestamp(kind) and kind.tz is not None else ""
    array = column.combine_chunks()
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp(kind.unit))
        seconds = array.cast(pa.timestamp("s"), safe=False)
        finer = pc.fill_null(pc.not_equal(seconds.cast(pa.timestamp(kind.unit)), array), False)
        if pc.any(finer).as_py():
            rows = np.flatnonzero(np.asarray(finer))
            mistakes.at(list(rows), name, lambda row: f"{quote(array[row])} is finer than a second; round it")
            return None
        days = not zone and pc.all(pc.equal(pc.floor_temporal(seconds, unit="day"), seconds)).as_py()
        return Times(seconds, DATE if days else DATETIME, zone)
    return Times(array.cast(pa.date32()).cast(pa.timestamp("s")), DATE, "")


# the time column of a data set


@dataclass(frozen=True)
class TimeColumn:
    """Time column of a data set, as its stored profile describes it.

    Times are ``step`` units apart; ``first`` and ``last`` are written by :func:`write_time`.
    """

    name: str
    format: str
    zone: str
    unit: str
    step: int
    first: str
    last: str

    @staticmethod
    def of(columns: Sequence[dict[str, Any]]) -> TimeColumn | None:
        """Find the time column in a data set's stored profile; None without one."""
        profile = next((column for column in columns if column["role"] == "time"), None)
        return (
            None if profile is None else TimeColumn(**{field.name: profile[field.name] for field in fields(TimeColumn)})
        )

    @cached_property
    def clock(self) -> Clock:
        return Clock.starting(self.unit, self.step, self._number(self.first))

    @property
    def origin(self) -> int:
        """Period of the first row."""
        return self._period(self.first)

    @property
    def span(self) -> int:
        """Number of periods from the first row to the last."""
        return self._period(self.last) - self.origin + 1

    def periods(self, clock: Clock, values: Any) -> tuple[Integers, Refusals]:
        """Return the periods (n,) of times; an unreadable time is refused and has period 0.

        Texts are written in the history's own format or in ISO 8601.
        """
        stored = pa.int64() if self.format == PERIOD else pa.timestamp("s")
        if isinstance(values, pa.ChunkedArray) and values.type == stored and not values.null_count:
            return clock.periods(np.asarray(values.cast(pa.int64()))), {}
        numbers, value = by_value(values, self._readable_number)
        wrong = numbers == _UNREADABLE
        refused = {row: self._refusal(value(row)) for row in np.flatnonzero(wrong).tolist()}
        return clock.periods(np.where(wrong, 0, numbers)), refused

    def _period(self, text: str) -> int:
        return int(self.clock.periods(np.array([self._number(text)]))[0])

    def _number(self, value: Any) -> int:
        if self.format == PERIOD:
            return _period(value)
        moment = _moment(value)
        if moment.tzinfo is not None and not self.zone:
            raise ValueError("has a time zone")
        return _seconds(moment)

    def _readable_number(self, value: Any) -> int:
        try:
            return self._number(value)
        except (ValueError, OverflowError):
            return _UNREADABLE

    def _refusal(self, value: Any) -> str:
        expected = _EXPECTED[self.format]
        if value is None:
            return f"'{self.name}' is missing; it must be {expected}"
        if not self.zone and _has_zone(value):
            what = "has a time zone, and the times of the history have none"
            return f"'{self.name}' {what}; send {expected}, without a zone"
        return f"'{self.name}' is not a time as in the history; it must be {expected}"


def _has_zone(value: Any) -> bool:
    try:
        return _moment(value).tzinfo is not None
    except ValueError:
        return False


# spacing


def spacing(numbers: Integers, series: Integers, written_as: str) -> tuple[str, int]:
    """Return unit and step: the largest step that divides all differences within the series.

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
        # A single moment: only the way it is written hints at the unit.
        units = (("day", DAY), ("hour", 3600))
        return next((unit for unit, seconds in units if not (numbers % seconds).any()), "minute"), 1
    months = _months(times, within, steps)
    if months:
        return "month", months
    for unit, seconds in (("week", 7 * DAY), ("day", DAY), ("hour", 3600), ("minute", 60)):
        if common % seconds == 0:
            return unit, common // seconds
    raise ValueError(f"times are {common} s apart, and not whole minutes: round them to the spacing that you plan in")


def _months(times: Integers, within: Booleans, steps: Integers) -> int:
    """Return the largest common step in months if all times of a series are on one day of the month, or on its last."""
    positive = steps > 0
    if steps[positive].min() < 28 * DAY:
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


# series

SeriesKey = tuple[str | None, ...]


def series_keys(columns: Sequence[Any], count: int) -> tuple[list[SeriesKey], Integers]:
    """Return the keys of all series, and the number (n,) of each row's series.

    Each combination of key values is a series; without key columns all rows are one.
    """
    if not columns:
        return [()], np.zeros(count, dtype=np.int64)
    if isinstance(columns[0], Sequence):
        return [tuple(map(_key_text, row)) for row in zip(*columns, strict=True)], np.arange(count)
    texts, numbers = [], np.zeros(count, dtype=np.int64)
    combined = np.zeros((1, 0), dtype=np.int64)
    for column in columns:
        chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
        encoded = chunked.dictionary_encode().combine_chunks()
        texts.append([*map(_key_text, encoded.dictionary.to_pylist()), None])
        codes = np.asarray(encoded.indices.fill_null(len(texts[-1]) - 1), dtype=np.int64)
        pairs, numbers = np.unique(numbers * len(texts[-1]) + codes, return_inverse=True)
        combined = np.column_stack([combined[pairs // len(texts[-1])], pairs % len(texts[-1])])
    return [tuple(text[code] for text, code in zip(texts, key, strict=True)) for key in combined.tolist()], numbers


def _key_text(value: Any) -> str | None:
    return None if value is None or isinstance(value, list | dict) else category_text(value)


def series_of(table: pa.Table, keys: Sequence[str]) -> tuple[list[SeriesKey], Integers]:
    """Return the keys of all series of a table, and the number (n,) of each row's series."""
    return series_keys([table.column(key) for key in keys], table.num_rows)


def first_duplicate(numbers: Integers, series: Integers) -> tuple[int, int] | None:
    """Find the first row that repeats the time and series of an earlier one: (earlier, later)."""
    order = np.lexsort((numbers, series))
    same = (np.diff(numbers[order]) == 0) & (np.diff(series[order]) == 0)
    if not same.any():
        return None
    places = np.flatnonzero(same)
    place = places[order[places + 1].argmin()]
    return int(order[place]), int(order[place + 1])


@dataclass(frozen=True)
class SeriesOrder:
    """Rows sorted by series and time: their indices in the table, series, times and periods, each (n,).

    Periods leave out weekdays and times of day that never have rows, so that consecutive rows differ by 1.
    """

    order: Integers
    series: Integers
    moments: Integers
    periods: Integers
    time: TimeColumn

    @property
    def same_series(self) -> Booleans:
        """Mark (n − 1,) the rows, from the second on, that have the series of the row before."""
        same: Booleans = np.diff(self.series) == 0
        return same


def order_rows(numbers: Integers, series: Integers, time: TimeColumn) -> SeriesOrder:
    """Sort rows at these times (n,) of these series (n,)."""
    order = np.lexsort((numbers, series))
    periods = _open_periods(numbers, Clock(time.unit, time.step))
    return SeriesOrder(order, series[order], numbers[order], periods[order], time)


def _open_periods(numbers: Integers, clock: Clock) -> Integers:
    """Number periods consecutively, without weekdays and times of day that never have rows."""
    if clock.unit in ("period", "month", "week") or (clock.unit == "day" and clock.step > 1):
        return clock.periods(numbers)
    days = numbers // DAY
    # 1970 began on a Thursday.
    open_days = np.bincount((days + 3) % 7, minlength=7) > 0
    opened = np.busday_count(np.datetime64(0, "D"), days.astype("datetime64[D]"), weekmask=open_days)
    if clock.unit == "day":
        return np.asarray(opened, dtype=np.int64)
    moments, ranks = np.unique(numbers % DAY, return_inverse=True)
    return np.asarray(opened, dtype=np.int64) * len(moments) + ranks


# levels

# Stretches that a history is cut into to see whether its level moves.
STRETCHES = 20


def levels(values: Floats, rows: SeriesOrder) -> tuple[Integers, Floats]:
    """Return the periods that have rows, and how far each lies on average above the means of the series of its rows."""
    counts = np.bincount(rows.series)
    means = np.bincount(rows.series, values) / np.maximum(counts, 1)
    periods, codes = np.unique(rows.periods, return_inverse=True)
    return periods, np.bincount(codes, values - means[rows.series]) / np.bincount(codes)


def has_shifted(before: Floats, after: Floats, spread: float) -> bool:
    """Check whether the mean over some stretches clearly differs from the mean before.

    It must differ by more than 3.3 standard errors, by the scatter of the stretches before, and by more than a fifth of
    the spread of all periods.
    """
    shift = abs(float(after.mean() - before.mean()))
    scatter = float(before.std(ddof=1)) * np.sqrt(1 / len(before) + 1 / len(after))
    return shift != 0 and shift >= max(3.3 * scatter, 0.2 * spread)
