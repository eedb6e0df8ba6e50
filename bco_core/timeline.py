"""Time as a history counts it: periods of its own spacing, blocks of them, and the rows known at a decision.

A :class:`Clock` numbers periods and turns numbers back into moments. A :class:`Timeline` holds the period and the
series of every row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bco_core.arrays import Integers, Moments
from bco_core.errors import InvalidInput

_SECONDS = {"minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
# Units after which time repeats itself: the shorter cycle and the longer one.
_CYCLES = {"minute": (1_440, 10_080), "hour": (24, 168), "day": (7, 7), "week": (52, 52), "month": (12, 12)}
UNITS = (*_SECONDS, "month", "period")
YEAR_DAYS = 365.2425


@dataclass(frozen=True)
class Clock:
    """Number periods of ``step`` units so that consecutive ones differ by 1.

    ``phase``, in units (in days for weeks), is the offset at which a period begins. Times that are integers have the
    unit ``period`` and no calendar.
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
        """Return the clock on which a period begins at ``first``, a moment or an integer."""
        moments = np.array([first], dtype=np.int64 if unit == "period" else "datetime64[s]")
        days_a_period = 7 * step if unit == "week" else step
        return Clock(unit, step, int(_units(unit, moments)[0]) % days_a_period)

    @property
    def has_calendar(self) -> bool:
        return self.unit != "period"

    @property
    def seconds(self) -> float:
        """Length of a period; months have their average length."""
        return self.step * _SECONDS.get(self.unit, YEAR_DAYS * 7_200)

    def periods(self, moments: Moments | Integers) -> Integers:
        """Return the periods (n,) of moments (n,): datetime64[s], seconds since 1970, or integers that are periods."""
        length = 7 * self.step if self.unit == "week" else self.step
        numbers: Integers = (_units(self.unit, moments) - self.phase) // length
        return numbers

    def moments(self, periods: Integers) -> Moments:
        """Return the moments (n,) at which periods (n,) begin, datetime64[s]."""
        if not self.has_calendar:
            raise InvalidInput("times that are integers have no calendar")
        length = 7 * self.step if self.unit == "week" else self.step
        units = periods * length + self.phase
        if self.unit == "month":
            return (units - 1970 * 12).astype("datetime64[M]").astype("datetime64[s]")
        return (units * _SECONDS["day" if self.unit == "week" else self.unit]).astype("datetime64[s]")

    def text(self, period: int) -> str:
        """Write a period as people do: a date, a date with a time of day, or the integer itself."""
        if not self.has_calendar:
            return str(period * self.step + self.phase)
        moment = self.moments(np.array([period]))[0]
        return str(moment.astype("datetime64[m]" if self.unit in ("minute", "hour") else "datetime64[D]"))

    def cycles(self, periods: int) -> tuple[int, ...]:
        """Return the cycles in periods, shorter first, that fit at least twice into a history of ``periods``."""
        lengths = {math.lcm(units, self.step) // self.step for units in _CYCLES.get(self.unit, ())}
        return tuple(sorted(length for length in lengths if 1 < length <= periods // 2))

    def season(self, periods: int) -> int:
        """Return the longest cycle that fits at least twice into a history of ``periods``; 0 without one."""
        return max(self.cycles(periods), default=0)


def _units(unit: str, moments: Moments | Integers) -> Integers:
    """Return whole units since a fixed epoch; weeks are counted in days."""
    if unit == "period":
        return moments.astype(np.int64)
    seconds = moments.astype("datetime64[s]")
    if unit == "month":
        return seconds.astype("datetime64[M]").astype(np.int64) + 1970 * 12
    return seconds.astype(np.int64) // _SECONDS["day" if unit == "week" else unit]


@dataclass(frozen=True)
class Timeline:
    """Period (n,) and series number (n,) of each row.

    Decisions are made ``lead`` periods ahead. ``season`` is the length of the seasonal cycle in periods, 0 without one.
    ``levels`` has, for each outcome, the context column that holds the level of its series as known at the decision; it
    is empty where contexts hold none.
    """

    periods: Tensor
    series: Tensor
    lead: int = 1
    season: int = 0
    levels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, values in (("periods", self.periods), ("series", self.series)):
            if values.dtype != torch.int64 or values.ndim != 1:
                raise InvalidInput(f"{name} must be a list of integers")
        if len(self.periods) != len(self.series):
            raise InvalidInput(f"{len(self.periods)} periods but {len(self.series)} series")
        if self.lead < 1:
            raise InvalidInput("a decision is made at least one period ahead", ("lead",))

    def __len__(self) -> int:
        return len(self.periods)

    def rows(self, index: Tensor) -> Timeline:
        return replace(self, periods=self.periods[index], series=self.series[index])


# Blocks of time that a history is cut into; the first has no past to be judged from.
BLOCKS = 6
_FIRST_SHARE = 0.3


def blocks(timeline: Timeline) -> Tensor:
    """Return the block (n,) of every row: 0 for the first three tenths of the rows, then five of equal size.

    A period is never cut. Where there are few periods, a block may be empty.
    """
    shares = _FIRST_SHARE + (1 - _FIRST_SHARE) * torch.arange(BLOCKS - 1, dtype=torch.float64) / (BLOCKS - 1)
    ordered = timeline.periods.sort().values
    first = ordered[(shares * len(ordered)).round().long().clamp_max(len(ordered) - 1)]
    return torch.searchsorted(first, timeline.periods, right=True)


def known_before(timeline: Timeline, rows: Tensor) -> Tensor:
    """Mark the rows (n,) that are known at the decision for the first of the rows in a mask (n,)."""
    return timeline.periods <= timeline.periods[rows].min() - timeline.lead


def apart(timeline: Timeline, rows: Tensor) -> Tensor:
    """Mark the rows (n,) that are at least ``lead`` periods away from all rows of a block, a mask (n,)."""
    first, last = timeline.periods[rows].min(), timeline.periods[rows].max()
    return (timeline.periods <= first - timeline.lead) | (timeline.periods >= last + timeline.lead)
