"""Calendar features of periods: weekday, month, hour, waves over day and year, and public holidays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import holidays as holiday_calendars
import numpy as np

from bco_core.arrays import Floats, Integers, Moments
from bco_core.errors import InvalidInput
from bco_core.timeline import YEAR_DAYS, Clock

_MONDAY = 4  # 1970-01-05 was a Monday
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def _days(moments: Moments) -> Integers:
    return moments.astype("datetime64[D]").astype(np.int64)


def _one_hot(codes: Integers, count: int) -> Floats:
    table: Floats = (codes[:, None] == np.arange(count)).astype(np.float64)
    return table


def _waves(turns: Floats, order: int) -> Floats:
    """Return sine and cosine (n, 2 · order) of positions (n,) in a cycle, for 1 to ``order`` waves a cycle."""
    angles = 2 * np.pi * turns[:, None] * np.arange(1, order + 1)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _wave_names(cycle: str, order: int) -> tuple[str, ...]:
    return tuple(f"{cycle} {wave}{n}" for wave in ("sin", "cos") for n in range(1, order + 1))


def _day_turns(moments: Moments) -> Floats:
    turns: Floats = moments.astype("datetime64[s]").astype(np.int64) % 86_400 / 86_400
    return turns


@dataclass(frozen=True)
class _Part:
    """Columns of the calendar: their names, and a function of the moments (n,) at which periods begin."""

    names: tuple[str, ...]
    of: Callable[[Moments], Floats]


_PARTS = {
    "weekday": _Part(tuple(f"weekday {day}" for day in _WEEKDAYS), lambda m: _one_hot((_days(m) - _MONDAY) % 7, 7)),
    "month": _Part(
        tuple(f"month {n}" for n in range(1, 13)),
        lambda m: _one_hot(m.astype("datetime64[M]").astype(np.int64) % 12, 12),
    ),
    "year": _Part(_wave_names("year", 2), lambda m: _waves(_days(m) / YEAR_DAYS, 2)),
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


def calendar_columns(clock: Clock, parts: tuple[str, ...], country: str | None, periods: Integers) -> Floats:
    """Return calendar columns of periods (n,), one for each of :func:`calendar_names`."""
    if not parts and not country:
        return np.empty((len(periods), 0))
    moments = clock.moments(periods)
    columns = [_PARTS[part].of(moments) for part in parts]
    if country:
        columns.append(_holiday_columns(country, _days(moments)))
    return np.concatenate(columns, axis=1)


def check_country(country: str) -> None:
    """Refuse a country whose holidays are unknown."""
    if country not in holiday_calendars.list_supported_countries():
        detail = "this country is unknown; countries are two-letter ISO codes, such as DE or US"
        raise InvalidInput(detail, ("holidays",))


def _holiday_columns(country: str, days: Integers) -> Floats:
    """Mark days that are a public holiday, the day before one, the day after one: (n, 3)."""
    years = days.astype("datetime64[D]").astype("datetime64[Y]").astype(np.int64) + 1970
    known = np.concatenate([_holidays(country, year) for year in range(int(years.min()) - 1, int(years.max()) + 2)])
    return np.stack([np.isin(days + shift, known) for shift in (0, 1, -1)], axis=1).astype(np.float64)


@lru_cache(maxsize=4_096)
def _holidays(country: str, year: int) -> Integers:
    dates = sorted(holiday_calendars.country_holidays(country, years=year))
    return np.array(dates, dtype="datetime64[D]").astype(np.int64)
