"""Days of the Yaz restaurant: demand for seven ingredients, data known a week ahead, and contexts made from them.

Demand for all ingredients rises and falls with the number of guests. So the demand of ingredient j on day t is divided
by its level: its share of all demand (a moving average with a half-life of 60 days) times all demand (8 days), both
from days at least a week old. One rule for demand in units of its level is then learned from all ingredients together:
there are seven times as many rows, and each ingredient has the same weight.

Days on which the restaurant is closed are left out of rows and of levels, and nothing is ordered for them.
"""

from __future__ import annotations

import csv
import datetime
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.errors import InvalidInput

LEAD_DAYS = 7
# Days of history before levels are reliable enough to learn from.
WARM_UP_DAYS = 35
SHARE_HALF_LIFE = 60.0
TOTAL_HALF_LIFE = 8.0
SAME_WEEKDAYS = 8
WEATHER = ("wind", "clouds", "rain", "sunshine", "temperature")


@dataclass(frozen=True)
class Days:
    """T days in a row and J ingredients: demand (T, J), whether closed (T,) and holiday (T,), weather (T, 5)."""

    dates: tuple[datetime.date, ...]
    ingredients: tuple[str, ...]
    demand: Tensor
    closed: Tensor
    holiday: Tensor
    weather: Tensor

    def __len__(self) -> int:
        return len(self.dates)

    @property
    def weekday(self) -> Tensor:
        return torch.tensor([date.weekday() for date in self.dates])

    @property
    def month(self) -> Tensor:
        return torch.tensor([date.month - 1 for date in self.dates])


def read_days(folder: Path) -> Days:
    """Read ``yaz_data.csv`` and ``yaz_target.csv``, which have a line for each day."""
    tables = []
    for name in ("yaz_data.csv", "yaz_target.csv"):
        path = folder / name
        if not path.is_file():
            raise InvalidInput(f"there is no {name} in {folder}; give the folder with the Yaz data by --data")
        with path.open(newline="", encoding="utf-8") as file:
            tables.append(list(csv.DictReader(file)))
    known, demand = tables
    dates = tuple(datetime.date.fromisoformat(day["date"]) for day in known)
    if len(known) != len(demand) or (dates[-1] - dates[0]).days != len(dates) - 1:
        raise InvalidInput("the two Yaz files must have a line for each day, without gaps")
    ingredients = tuple(demand[0])
    return Days(
        dates,
        ingredients,
        torch.tensor([[float(day[name]) for name in ingredients] for day in demand], dtype=torch.float64),
        torch.tensor([day["is_closed"] == "1" for day in known]),
        torch.tensor([day["is_holiday"] == "1" for day in known]),
        torch.tensor([[float(day[name]) for name in WEATHER] for day in known], dtype=torch.float64),
    )


def levels(days: Days) -> Tensor:
    """Return the level (T, J) of each ingredient, the unit of its demand; NaN while no open day is a week old."""
    total = days.demand.sum(dim=1, keepdim=True)
    share = _moving_average(days, days.demand, SHARE_HALF_LIFE) / _moving_average(days, total, SHARE_HALF_LIFE)
    return share * _moving_average(days, total, TOTAL_HALF_LIFE)


def _moving_average(days: Days, values: Tensor, half_life: float) -> Tensor:
    """Return the exponentially weighted mean (T, k) of values (T, k) on open days, as known ``LEAD_DAYS`` ahead."""
    decay = 0.5 ** (1 / half_life)
    average = torch.full_like(values, torch.nan)
    weighted, weight = torch.zeros_like(values[0]), 0.0
    for day in range(LEAD_DAYS, len(days)):
        seen = day - LEAD_DAYS
        weighted, weight = weighted * decay, weight * decay
        if not days.closed[seen]:
            weighted, weight = weighted + values[seen], weight + 1
        if weight:
            average[day] = weighted / weight
    return average


def compact_contexts(days: Days) -> Tensor:
    """Return contexts (T, J, d_x): weekday, holiday, ingredient, its level's −½ power, its history in units of level.

    The power is there because larger counts vary relatively less. The history is of the same weekday: the last four
    demands, and the mean and the upper quartile of the last eight.
    """
    weekday = torch.nn.functional.one_hot(days.weekday, 7)[:, :6].double()
    shared = torch.cat([weekday, days.holiday[:, None].double()], dim=1)
    count, level = len(days.ingredients), levels(days)[..., None]
    ingredient = torch.eye(count, dtype=torch.float64).expand(len(days), count, count)
    lags = _same_weekdays(days) / level
    mean, quartile = lags.nanmean(dim=2, keepdim=True), lags.nanquantile(0.75, dim=2, keepdim=True)
    recent = torch.where(lags.isnan(), mean, lags)[..., :4]
    return torch.cat([_for_each(shared, count), ingredient, level.rsqrt(), recent, mean, quartile], dim=2)


def wide_contexts(days: Days) -> Tensor:
    """Return the compact contexts with month, weather and trend, which are the same for all ingredients."""
    month = torch.nn.functional.one_hot(days.month, 12).double()
    trend = torch.arange(len(days), dtype=torch.float64)[:, None] / 365.25
    shared = torch.cat([month, days.weather, trend], dim=1)
    return torch.cat([compact_contexts(days), _for_each(shared, len(days.ingredients))], dim=2)


def _same_weekdays(days: Days) -> Tensor:
    """Return the last eight demands on open days of the same weekday, (T, J, 8), newest first; NaN for missing ones."""
    lags = torch.full((*days.demand.shape, SAME_WEEKDAYS), torch.nan, dtype=torch.float64)
    for day in range(len(days)):
        seen = [before for before in range(day - LEAD_DAYS, -1, -7) if not days.closed[before]][:SAME_WEEKDAYS]
        if seen:
            lags[day, :, : len(seen)] = days.demand[seen].T
    return lags


def _for_each(shared: Tensor, count: int) -> Tensor:
    return shared[:, None].expand(-1, count, -1)


def relative_rows(days: Days, contexts: Tensor, chosen: Tensor) -> Sample:
    """Return rows of the chosen days, ingredient by ingredient: contexts (T, J, d_x), demand in units of its level."""
    relative = days.demand[chosen] / levels(days)[chosen]
    return Sample(contexts[chosen].transpose(0, 1).flatten(0, 1), relative.T.flatten()[:, None])
