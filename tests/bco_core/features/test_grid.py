"""The regular grid of a history, its clock and its calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from bco_core.errors import InvalidInput
from bco_core.features.grid import MOST_CELLS, Grid
from bco_core.features.time_features import CALENDAR_PARTS, calendar_columns, calendar_names
from bco_core.timeline import Clock


def moments(*texts: str) -> np.ndarray:
    return np.array(texts, dtype="datetime64[s]")


# the grid


def test_rows_come_back_from_a_grid_whatever_their_order() -> None:
    periods, series = np.array([5, 3, 9, 4]), np.array([1, 1, 0, 3])
    outcomes = np.array([[1.0], [2.0], [3.0], [4.0]])
    grid = Grid.of(periods, series, outcomes)
    assert grid.count == 4
    assert len(grid.values) == 1 + 3 + 0 + 1
    assert grid.first.tolist() == [9, 3, 0, 4]
    assert np.array_equal(grid.values[:, 0], [3.0, 2.0, np.nan, 1.0, 4.0], equal_nan=True)
    assert grid.last.tolist() == [9, 5, -1, 4]


def test_two_rows_of_a_series_at_one_time_are_refused() -> None:
    with pytest.raises(InvalidInput, match="same time"):
        Grid.of(np.array([1, 1]), np.array([0, 0]), np.zeros((2, 1)))


def test_a_grid_that_would_not_fit_is_refused_before_it_is_made() -> None:
    with pytest.raises(InvalidInput, match="wider spacing"):
        Grid.of(np.array([0, MOST_CELLS]), np.array([0, 0]), np.zeros((2, 1)))
    with pytest.raises(InvalidInput, match="wider spacing"):
        Grid.of(np.array([-(2**62), 2**62]), np.array([0, 0]), np.zeros((2, 1)))


# the clock


@pytest.mark.parametrize(
    ("unit", "step", "first", "later", "apart"),
    [
        ("day", 1, "2024-02-28", "2024-03-01", 2),
        ("day", 2, "2024-01-01", "2024-01-05", 2),
        ("hour", 1, "2024-01-01T23:00", "2024-01-02T01:00", 2),
        ("minute", 15, "2024-01-01T00:05", "2024-01-01T01:05", 4),
        ("week", 1, "2024-01-01", "2024-01-15", 2),
        ("week", 2, "2024-01-03", "2024-01-31", 2),
        ("month", 1, "2023-11-01", "2024-02-01", 3),
        ("month", 3, "2023-11-01", "2024-05-01", 2),
    ],
)
def test_consecutive_periods_differ_by_one_and_begin_when_rows_do(
    unit: str, step: int, first: str, later: str, apart: int
) -> None:
    given = moments(first, later)
    clock = Clock.starting(unit, step, given[0])
    periods = clock.periods(given)
    assert periods[1] - periods[0] == apart
    assert clock.moments(periods).tolist() == given.tolist()
    assert clock.text(int(periods[0])) == first


def test_a_moment_within_a_period_belongs_to_it() -> None:
    weekly = Clock.starting("week", 1, moments("2024-01-01")[0])
    assert np.ptp(weekly.periods(moments("2024-01-01", "2024-01-07"))) == 0
    assert np.ptp(weekly.periods(moments("2024-01-07", "2024-01-08"))) == 1
    daily = Clock.starting("day", 1, moments("2024-01-01T06:00")[0])
    assert np.ptp(daily.periods(moments("2024-01-02", "2024-01-02T23:59"))) == 0


def test_whole_numbers_are_periods_without_a_calendar() -> None:
    clock = Clock.starting("period", 5, 12)
    assert clock.periods(np.array([12, 17, 27])).tolist() == [2, 3, 5]
    assert clock.text(5) == "27"
    with pytest.raises(InvalidInput, match="no calendar"):
        clock.moments(np.array([1]))


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="minute, hour, day, week, month, period"):
        Clock("year")


# the calendar


def test_calendar_columns_agree_with_the_datetime_module() -> None:
    clock = Clock("hour")
    begin = datetime(2023, 12, 25, tzinfo=UTC)
    times = [begin + timedelta(hours=17 * n) for n in range(1200)]
    periods = np.array([int(time.timestamp()) // 3600 for time in times])
    names = calendar_names(CALENDAR_PARTS, None)
    table = dict(zip(names, calendar_columns(clock, CALENDAR_PARTS, None, periods).T, strict=True))
    for row, time in enumerate(times):
        weekday = f"weekday {time:%a}"
        assert [name for name in names if name.startswith("weekday") and table[name][row]] == [weekday]
        assert [name for name in names if name.startswith("month") and table[name][row]] == [f"month {time.month}"]
        assert [name for name in names if name.startswith("hour") and table[name][row]] == [f"hour {time.hour}"]
        assert table["day sin1"][row] == pytest.approx(np.sin(2 * np.pi * time.hour / 24), abs=1e-9)
        assert table["day cos3"][row] == pytest.approx(np.cos(6 * np.pi * time.hour / 24), abs=1e-9)
    # A year later the waves are where they were, leap years or not.
    year = calendar_columns(Clock("day"), ("year",), None, np.array([0, 365, 365 * 40 + 10]))
    assert np.abs(year - year[0]).max() < 0.05


def test_holidays_mark_their_day_the_day_before_and_the_day_after() -> None:
    days = Clock("day").periods(moments("2024-10-02", "2024-10-03", "2024-10-04", "2024-12-31", "2025-01-02"))
    found = calendar_columns(Clock("day"), (), "DE", days)
    assert found.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]
