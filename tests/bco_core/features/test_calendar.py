"""Calendar columns and public holidays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from bco_core.features.calendar import CALENDAR_PARTS, calendar_columns, calendar_names
from bco_core.timeline import Clock


def moments(*texts: str) -> np.ndarray:
    return np.array(texts, dtype="datetime64[s]")


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
    # A year later the waves have the same phase, also across leap years.
    year = calendar_columns(Clock("day"), ("year",), None, np.array([0, 365, 365 * 40 + 10]))
    assert np.abs(year - year[0]).max() < 0.05


def test_holidays_mark_their_day_and_the_days_before_and_after() -> None:
    days = Clock("day").periods(moments("2024-10-02", "2024-10-03", "2024-10-04", "2024-12-31", "2025-01-02"))
    found = calendar_columns(Clock("day"), (), "DE", days)
    assert found.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]
