"""Features of time by a recipe: lags, rolling means and quantiles of a series' outcomes up to ``lead`` periods before a
decision, with calendar and trend.

Learning and prescribing use the same function. It reads no cell of the grid that is younger than ``period − lead``, so
a feature never uses what was unknown at the decision.

A gap in a lag is filled by the mean of its same-season window, one in a window by the level. The level is the mean over
a window that ends at the newest row that is old enough; a series without such a row has none, and all its columns of
history are then NaN.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bco_core.arrays import Floats, Integers
from bco_core.errors import InvalidInput
from bco_core.features.calendar import CALENDAR_PARTS, calendar_columns, calendar_names, check_country
from bco_core.features.grid import Grid
from bco_core.timeline import Clock

QUANTILES = (0.5, 0.75, 0.9)
# A lag in a gap is the mean of this many same-season lags before it.
_SEASONS_BACK = 3
LONGEST_LAG = 100_000
LONGEST_WINDOW = 1_000
MOST_COLUMNS = 2_000
# Cells that are gathered at a time.
_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class TimeRecipe:
    """Recipe of features of time and of the outcomes of a series, for decisions ``lead`` periods ahead.

    - ``calendar``: parts of :data:`CALENDAR_PARTS`; ``holidays``: a country whose public holidays are marked, or None.
    - ``trend``: whether the time since ``origin`` is a column, counted in seasons.
    - for each of ``outcomes``: values ``lags`` periods ago; mean and quantiles over the last ``windows`` periods; mean
      and quantiles over the last k values of the same season, for each (season, k) in ``same``; the mean over ``level``
      periods.
    """

    clock: Clock
    lead: int
    season: int
    outcomes: tuple[str, ...]
    origin: int = 0
    calendar: tuple[str, ...] = ()
    lags: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    same: tuple[tuple[int, int], ...] = ()
    trend: bool = False
    level: int = 28
    holidays: str | None = None

    def __post_init__(self) -> None:
        if self.lead < 1:
            raise InvalidInput("a decision is made at least one period ahead", ("lead",))
        if unknown := set(self.calendar) - set(CALENDAR_PARTS):
            detail = f"parts of the calendar are {', '.join(CALENDAR_PARTS)}; '{min(unknown)}' is none of them"
            raise InvalidInput(detail, ("calendar",))
        if not self.clock.has_calendar and (self.calendar or self.holidays):
            where = "calendar" if self.calendar else "holidays"
            raise InvalidInput("times are integers here, which have no calendar", (where,))
        if self.holidays:
            check_country(self.holidays)
        if early := [lag for lag in self.lags if not self.lead <= lag <= LONGEST_LAG]:
            detail = f"decisions are made {self.lead} period(s) ahead, so lags are from {self.lead} to {LONGEST_LAG:,}"
            raise InvalidInput(f"{detail}, not {early[0]}", ("lags",))
        if any(not 1 <= width <= LONGEST_WINDOW for width in (*self.windows, self.level)):
            raise InvalidInput(f"windows hold 1 to {LONGEST_WINDOW:,} periods", ("windows",))
        if any(season < 1 or not 1 <= count <= LONGEST_WINDOW for season, count in self.same):
            raise InvalidInput(f"a same-season window holds 1 to {LONGEST_WINDOW:,} values", ("same",))
        if self.width > MOST_COLUMNS:
            raise InvalidInput(f"the recipe makes {self.width} columns, and at most {MOST_COLUMNS} are allowed")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(stored: dict[str, Any]) -> TimeRecipe:
        lists = {name: tuple(stored[name]) for name in ("outcomes", "calendar", "lags", "windows")}
        same = tuple((season, count) for season, count in stored["same"])
        return TimeRecipe(**stored | lists | {"clock": Clock(**stored["clock"]), "same": same})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of :func:`make_features`, in order; the level is the last one of each outcome."""
        names = calendar_names(self.calendar, self.holidays) + (("trend",) if self.trend else ())
        return names + tuple(f"{outcome} {what}" for outcome in self.outcomes for what in self._of_an_outcome)

    @property
    def width(self) -> int:
        return self._known_ahead + len(self.outcomes) * len(self._of_an_outcome)

    @property
    def depth(self) -> int:
        """Number of periods that the recipe looks back from a decision, unless the series has a longer gap there."""
        ages, _ = self._ages
        return max(int(ages.max(initial=0)), self.lead + self.level)

    @property
    def columns_an_outcome(self) -> int:
        return len(self._of_an_outcome)

    @property
    def levels(self) -> tuple[int, ...]:
        """Column of each outcome's level."""
        each = len(self._of_an_outcome)
        return tuple(self._known_ahead + each * number - 1 for number in range(1, len(self.outcomes) + 1))

    @cached_property
    def _known_ahead(self) -> int:
        return len(calendar_names(self.calendar, self.holidays)) + self.trend

    @cached_property
    def _of_an_outcome(self) -> tuple[str, ...]:
        spread = ("mean", *(f"quantile {level:g}" for level in QUANTILES))
        return (
            *(f"lag {lag}" for lag in self.lags),
            *(f"{what} of {width}" for width in self.windows for what in spread),
            *(f"{what} of {count} every {season}" for season, count in self.same for what in spread),
            "level",
        )

    @cached_property
    def _ages(self) -> tuple[Integers, tuple[Integers, ...]]:
        """Ages of all cells that lags and windows use, in order, and the places of each feature's ages among them."""
        back = self.season * np.arange(_SEASONS_BACK + 1 if self.season else 1)
        used = [lag + back for lag in self.lags]
        used += [self.lead + np.arange(width) for width in self.windows]
        used += [-(-self.lead // season) * season + season * np.arange(count) for season, count in self.same]
        ages = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *used]))
        return ages, tuple(np.searchsorted(ages, of) for of in used)


def make_features(
    recipe: TimeRecipe, grid: Grid, periods: Integers, series: Integers, fallback: Floats | None = None
) -> tuple[Floats, tuple[str, ...]]:
    """Return features (n, k) of periods (n,) of series (n,), and their names (k,).

    Where a series has no row that is old enough, its columns of history are NaN, or all the level in ``fallback``
    (n, d_y). A series below 0 has no rows.
    """
    matrix = np.empty((len(periods), recipe.width))
    ahead = recipe._known_ahead
    gathered = (len(recipe._ages[0]) + recipe.level) * len(recipe.outcomes)
    size = max(1, _AT_ONCE // gathered)
    for begin in range(0, len(periods), size):
        rows = slice(begin, begin + size)
        at, of = periods[rows], series[rows]
        calendar = calendar_columns(recipe.clock, recipe.calendar, recipe.holidays, at)
        matrix[rows, : calendar.shape[1]] = calendar
        if recipe.trend:
            matrix[rows, ahead - 1] = (at - recipe.origin) / max(recipe.season, 1)
        level = levels(recipe, grid, at, of)
        if fallback is not None:
            level = np.where(np.isnan(level), fallback[rows], level)
        matrix[rows, ahead:] = _history(recipe, grid, at, of, level)
    return matrix, recipe.names


def levels(recipe: TimeRecipe, grid: Grid, periods: Integers, series: Integers) -> Floats:
    """Return the level (n, d_y) of series (n,), known ``lead`` before periods (n,); NaN where no row is old enough."""
    newest = grid.newest_before(periods, series, recipe.lead)
    return _mean(grid.before(newest, series, np.arange(recipe.level)))


def _history(recipe: TimeRecipe, grid: Grid, periods: Integers, series: Integers, level: Floats) -> Floats:
    """Return the columns (n, d_y · f) of history, outcome by outcome."""
    ages, places = recipe._ages
    cells = grid.before(periods, series, ages)
    # np.take keeps a window's values contiguous: sums have the same digits however many rows there are.
    columns = [_lag(np.take(cells, where, axis=-1)) for where in places[: len(recipe.lags)]]
    for where in places[len(recipe.lags) :]:
        columns += _spread(np.take(cells, where, axis=-1))
    columns.append(level)
    table = np.stack(columns, axis=2)
    return np.where(np.isnan(table), level[:, :, None], table).reshape(len(periods), -1)


def _lag(values: Floats) -> Floats:
    """Return the first of values (n, d_y, m), or the mean of the others where it is missing."""
    own = values[..., 0]
    missing = np.isnan(own)
    return np.where(missing, _mean(values), own) if missing.any() else own


def _mean(values: Floats) -> Floats:
    """Return the mean over the last axis, NaN left out; NaN where nothing is left."""
    there = ~np.isnan(values)
    count = there.sum(axis=-1)
    total: Floats = np.where(there, values, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _spread(values: Floats) -> list[Floats]:
    """Return mean and quantiles over the last axis, NaN left out; NaN where nothing is left."""
    ordered = np.sort(values, axis=-1)  # NaN last
    last = np.maximum((~np.isnan(ordered)).sum(axis=-1) - 1, 0)[..., None]
    position = last * np.array(QUANTILES)
    low = position.astype(np.int64)
    at = np.concatenate([low, np.minimum(low + 1, last)], axis=-1)
    below, above = np.split(np.take_along_axis(ordered, at, axis=-1), 2, axis=-1)
    quantiles = below + (above - below) * (position - low)
    return [_mean(values), *np.moveaxis(quantiles, -1, 0)]


# automatic recipe

# Windows and the width of the level by unit; those of minutes depend on the step.
_WINDOWS = {"hour": (24, 168), "day": (7, 28), "week": (4, 13), "month": (3, 12), "period": (7, 28)}
_LEVELS = {"hour": 168, "day": 28, "week": 13, "month": 12, "period": 28}
_NEAR, _SAME = 3, 8
# With more outcomes, each has only a lag and its level.
_MANY_OUTCOMES = 10


def auto_recipe(
    clock: Clock,
    lead: int,
    periods_per_series: int,
    *,
    outcomes: tuple[str, ...] = ("outcome",),
    origin: int = 0,
    holidays: str | None = None,
) -> TimeRecipe:
    """Choose a recipe for series of about ``periods_per_series`` periods, which begin at period ``origin``.

    Lags are the newest known periods and those one to four seasons back. Features that would look back over more than
    half of a series are left out.
    """
    unit = clock.unit
    cycles = clock.cycles(periods_per_series)
    lags = {lead + near for near in range(_NEAR)}
    for cycle in cycles:
        lags |= {-(-lead // cycle) * cycle + cycle * back for back in range(4 // len(cycles))}
    if unit == "day" and clock.step == 1 and periods_per_series >= 3 * 364:
        lags.add(-(-lead // 364) * 364)
    day = round(86_400 / clock.seconds)
    windows = _WINDOWS.get(unit) or tuple(width for width in (max(day // 24, 4), day) if 1 < width <= 200)
    room = max(1, periods_per_series // 2)
    season = cycles[-1] if cycles else 0
    many = len(outcomes) > _MANY_OUTCOMES
    if many:
        lags = {-(-lead // season) * season if season else lead}
    return TimeRecipe(
        clock,
        lead,
        season,
        outcomes=outcomes,
        origin=origin,
        calendar=_auto_calendar(clock, periods_per_series),
        lags=tuple(sorted(lag for lag in lags if many or lag == lead or lag <= room)),
        windows=() if many else tuple(width for width in windows if lead + width <= room),
        same=() if many else tuple((cycle, _SAME) for cycle in cycles if lead + 3 * cycle <= room),
        trend=periods_per_series >= 28,
        level=min(_LEVELS.get(unit) or max(min(day, 200), 12), max(room, 4)),
        holidays=holidays,
    )


def _auto_calendar(clock: Clock, periods: int) -> tuple[str, ...]:
    if not clock.has_calendar:
        return ()
    days = clock.seconds * periods / 86_400
    if clock.unit == "month":
        return ("month",) if clock.step < 12 and days >= 2 * 365 else ()
    parts = []
    if clock.seconds < 86_400:
        parts += ["hour", "day"] if clock.seconds <= 3_600 else ["day"]
    if clock.seconds % (7 * 86_400) and days >= 14:
        parts.append("weekday")
    # Over less than a year and a half, the time of the year cannot be told from a trend.
    if days >= 548:
        parts.append("year")
    return tuple(parts)
