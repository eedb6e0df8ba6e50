"""Time counted in periods of a history's own spacing, and what the calendar says of a period.

A :class:`Clock` numbers periods so that consecutive ones differ by 1, and turns numbers back into the moments at which
periods begin. Calendar parts are columns that are known for every period, however far ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import holidays as holiday_calendars
import numpy as np

from bco_core.errors import InvalidInput

Whole = np.ndarray[Any, np.dtype[np.int64]]
Moments = np.ndarray[Any, np.dtype[np.datetime64]]
Table = np.ndarray[Any, np.dtype[np.float64]]

_SECONDS = {"minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
# What is alike after how many units: the shorter cycle and the longer one.
_CYCLES = {"minute": (1_440, 10_080), "hour": (24, 168), "day": (7, 7), "week": (52, 52), "month": (12, 12)}
UNITS = (*_SECONDS, "month", "period")
_MONDAY = 4  # 1970-01-05 was a Monday
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_YEAR_DAYS = 365.2425


@dataclass(frozen=True)
class Clock:
    """Periods of ``step`` units. ``phase``, in units (in days for weeks), is where a period begins.

    Integer periods have the unit ``period``; they know no calendar.
    """

    unit: str
    step: int = 1
    phase: int = 0

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise InvalidInput(f"the unit of time must be one of {', '.join(UNITS)}", ("unit",))
        if self.step < 1:
            raise InvalidInput("periods are at least one unit long", ("step",))

    @staticmethod
    def starting(unit: str, step: int, first: np.datetime64 | int) -> Clock:
        """The clock on which a period begins at ``first``, a moment or a whole number."""
        moments = np.array([first], dtype=np.int64 if unit == "period" else "datetime64[s]")
        days_a_period = 7 * step if unit == "week" else step
        return Clock(unit, step, int(_units(unit, moments)[0]) % days_a_period)

    @property
    def has_calendar(self) -> bool:
        return self.unit != "period"

    @property
    def seconds(self) -> float:
        """How long a period lasts; months as they are on average."""
        return self.step * _SECONDS.get(self.unit, _YEAR_DAYS * 7_200)

    def periods(self, moments: Moments | Whole) -> Whole:
        """The numbers (n,) of the periods that hold these moments (n,): datetime64[s], or whole numbers."""
        length = 7 * self.step if self.unit == "week" else self.step
        numbers: Whole = (_units(self.unit, moments) - self.phase) // length
        return numbers

    def moments(self, periods: Whole) -> Moments:
        """When periods (n,) begin, datetime64[s]."""
        if not self.has_calendar:
            raise InvalidInput("whole numbers as time know no calendar")
        length = 7 * self.step if self.unit == "week" else self.step
        units = periods * length + self.phase
        if self.unit == "month":
            return (units - 1970 * 12).astype("datetime64[M]").astype("datetime64[s]")
        return (units * _SECONDS["day" if self.unit == "week" else self.unit]).astype("datetime64[s]")

    def text(self, period: int) -> str:
        """A period as people write it: a date, a moment, or the number itself."""
        if not self.has_calendar:
            return str(period * self.step + self.phase)
        moment = self.moments(np.array([period]))[0]
        return str(moment.astype("datetime64[m]" if self.unit in ("minute", "hour") else "datetime64[D]"))

    def cycles(self, periods: int) -> tuple[int, ...]:
        """After how many periods things are alike, shorter cycle first, as far as ``periods`` hold them twice."""
        lengths = {math.lcm(units, self.step) // self.step for units in _CYCLES.get(self.unit, ())}
        return tuple(sorted(length for length in lengths if 1 < length <= periods // 2))


def _units(unit: str, moments: Moments | Whole) -> Whole:
    """Whole units since some fixed moment; days for weeks."""
    if unit == "period":
        return moments.astype(np.int64)
    if unit == "month":
        return moments.astype("datetime64[M]").astype(np.int64) + 1970 * 12
    return moments.astype("datetime64[s]").astype(np.int64) // _SECONDS["day" if unit == "week" else unit]


# what the calendar says


def _days(moments: Moments) -> Whole:
    return moments.astype("datetime64[D]").astype(np.int64)


def _one_hot(codes: Whole, count: int) -> Table:
    table: Table = (codes[:, None] == np.arange(count)).astype(np.float64)
    return table


def _waves(turns: Table, order: int) -> Table:
    """Sine and cosine (n, 2 · order) of positions (n,) in a cycle, for 1 to ``order`` waves a cycle."""
    angles = 2 * np.pi * turns[:, None] * np.arange(1, order + 1)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _wave_names(cycle: str, order: int) -> tuple[str, ...]:
    return tuple(f"{cycle} {wave}{n}" for wave in ("sin", "cos") for n in range(1, order + 1))


def _day_turns(moments: Moments) -> Table:
    turns: Table = moments.astype("datetime64[s]").astype(np.int64) % 86_400 / 86_400
    return turns


@dataclass(frozen=True)
class _Part:
    """Columns of the calendar: their names and how they come from the moments (n,) at which periods begin."""

    names: tuple[str, ...]
    of: Callable[[Moments], Table]


_PARTS = {
    "weekday": _Part(tuple(f"weekday {day}" for day in _WEEKDAYS), lambda m: _one_hot((_days(m) - _MONDAY) % 7, 7)),
    "month": _Part(
        tuple(f"month {n}" for n in range(1, 13)),
        lambda m: _one_hot(m.astype("datetime64[M]").astype(np.int64) % 12, 12),
    ),
    "year": _Part(_wave_names("year", 2), lambda m: _waves(_days(m) / _YEAR_DAYS, 2)),
    "hour": _Part(
        tuple(f"hour {n}" for n in range(24)),
        lambda m: _one_hot(m.astype("datetime64[h]").astype(np.int64) % 24, 24),
    ),
    "day": _Part(_wave_names("day", 4), lambda m: _waves(_day_turns(m), 4)),
}
CALENDAR_PARTS = tuple(_PARTS)
HOLIDAY_NAMES = ("holiday", "day before a holiday", "day after a holiday")


def calendar_names(parts: tuple[str, ...], country: str | None) -> tuple[str, ...]:
    names = tuple(name for part in parts for name in _PARTS[part].names)
    return names + HOLIDAY_NAMES if country else names


def calendar_columns(clock: Clock, parts: tuple[str, ...], country: str | None, periods: Whole) -> Table:
    """What the calendar says of periods (n,), a column for each of :func:`calendar_names`."""
    if not parts and not country:
        return np.empty((len(periods), 0))
    moments = clock.moments(periods)
    columns = [_PARTS[part].of(moments) for part in parts]
    if country:
        columns.append(_holiday_columns(country, _days(moments)))
    return np.concatenate(columns, axis=1)


def check_country(country: str) -> None:
    """Refuse a country whose holidays are not known."""
    if country not in holiday_calendars.list_supported_countries():
        detail = "holidays are known by countries' ISO codes of two letters, such as DE or US; this one is not known"
        raise InvalidInput(detail, ("holidays",))


def _holiday_columns(country: str, days: Whole) -> Table:
    """Whether a day is a public holiday, the day before one, the day after one: (n, 3)."""
    years = days.astype("datetime64[D]").astype("datetime64[Y]").astype(np.int64) + 1970
    known = np.concatenate([_holidays(country, year) for year in range(int(years.min()) - 1, int(years.max()) + 2)])
    return np.stack([np.isin(days + shift, known) for shift in (0, 1, -1)], axis=1).astype(np.float64)


@lru_cache(maxsize=4_096)
def _holidays(country: str, year: int) -> Whole:
    dates = sorted(holiday_calendars.country_holidays(country, years=year))
    return np.array(dates, dtype="datetime64[D]").astype(np.int64)
