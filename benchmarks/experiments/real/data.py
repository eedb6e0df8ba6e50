"""Real histories with the features that every method gets: calendar, lags and levels by the service's own recipe.

Training rows come first in time and test rows last; nothing about test rows is used before they are judged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.csv
import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.errors import InvalidInput
from bco_core.features.grid import Grid
from bco_core.features.lags import auto_recipe, make_features
from bco_core.timeline import Clock, Timeline

ELECTRICITY_LEVELS = (0.6, 0.75, 0.9)
STORE_LEVELS = (0.75,)
STORE_LEAD, STORE_DAYS = 7, 90


@dataclass(frozen=True)
class Histories:
    """All rows of a data set in order of time, and a mask (n,) of the test rows."""

    name: str
    sample: Sample
    judged: Tensor
    levels: tuple[float, ...]

    @property
    def timeline(self) -> Timeline:
        if self.sample.timeline is None:
            raise RuntimeError("real histories have a time")
        return self.sample.timeline

    def known_rows(self) -> Sample:
        """Return the rows that are known at the time of the first test decision."""
        first = self.timeline.periods[self.judged].min()
        return self.sample.rows((self.timeline.periods <= first - self.timeline.lead).nonzero().flatten())

    def later(self) -> Sample:
        return self.sample.rows(self.judged.nonzero().flatten())

    def training(self, share: float = 0.75) -> Histories:
        """Return the training rows as histories of their own, for tuning: their last quarter stands for later rows."""
        known = self.known_rows()
        assert known.timeline is not None  # noqa: S101
        edge = known.timeline.periods.double().quantile(share) if len(known) < 1e6 else _edge(known.timeline, share)
        return replace(self, sample=known, judged=known.timeline.periods > edge)


def _edge(timeline: Timeline, share: float) -> Tensor:
    return timeline.periods.sort().values[int(share * len(timeline))]


def electricity(folder: Path) -> Histories:
    """Read hourly load, bought a day ahead; the last quarter of the hours is for testing."""
    table = _read(folder / "electricity" / "hourly_load.csv.gz")
    hours = _column(table, "time").astype("datetime64[h]").astype(np.int64)
    load = _column(table, "load").astype(np.float64)
    sample = _sample(hours, np.zeros(len(hours), np.int64), load, "hour", lead=24)
    return Histories("electricity", sample, _last(sample, int(np.quantile(hours, 0.75))), ELECTRICITY_LEVELS)


def store_item(folder: Path) -> Histories:
    """Read daily sales of 50 items in ten stores, ordered a week ahead; the last 90 days are for testing."""
    table = _read(folder / "store_item" / "store_item.csv.gz")
    days = _column(table, "date").astype("datetime64[D]").astype(np.int64)
    store, item = _column(table, "store").astype(np.int64), _column(table, "item").astype(np.int64)
    _, series = np.unique(store * 1000 + item, return_inverse=True)
    stores = np.eye(int(store.max()) + 1)[store][:, 1:]
    sales = _column(table, "demand").astype(np.float64)
    sample = _sample(days, series.astype(np.int64), sales, "day", STORE_LEAD, stores)
    return Histories("store_item", sample, _last(sample, int(days.max()) - STORE_DAYS), STORE_LEVELS)


def _last(sample: Sample, after: int) -> Tensor:
    assert sample.timeline is not None  # noqa: S101
    return sample.timeline.periods > after


def _sample(
    periods: np.ndarray, series: np.ndarray, outcome: np.ndarray, unit: str, lead: int, beside: np.ndarray | None = None
) -> Sample:
    """Join contexts known ahead, if any, and the recipe's time features; leave out rows without the past they need."""
    usual = len(outcome) // (int(series.max()) + 1)
    recipe = auto_recipe(Clock(unit, 1), lead, usual, origin=int(periods.min()))
    made, _ = make_features(recipe, Grid.of(periods, series, outcome[:, None]), periods, series)
    before = 0 if beside is None else beside.shape[1]
    contexts = made if beside is None else np.concatenate([beside, made], axis=1)
    kept = ~np.isnan(contexts).any(axis=1)
    order = np.flatnonzero(kept)[np.argsort(periods[kept], kind="stable")]
    timeline = Timeline(
        torch.from_numpy(periods[order]),
        torch.from_numpy(series[order]),
        lead,
        recipe.season,
        tuple(before + column for column in recipe.levels),
    )
    return Sample(torch.from_numpy(contexts[order]), torch.from_numpy(outcome[order])[:, None], timeline)


def _read(path: Path) -> pyarrow.Table:
    if not path.is_file():
        raise InvalidInput(f"there is no {path.name} in {path.parent}; give the folder of the data by --data")
    return pyarrow.csv.read_csv(path)


def _column(table: pyarrow.Table, name: str) -> np.ndarray:
    values: np.ndarray = table.column(name).to_numpy()
    return values


def random_walk(seed: int, days: int = 365, later: int = 90) -> Histories:
    """Draw demand whose level is a random walk: 200 + cumulated N(0, 6) a day, a weekday pattern, noise N(0, 8).

    Decisions are made for all later days at once, so ``lead`` is the number of later days.
    """
    draw = np.random.default_rng(seed)
    count = days + later
    day = np.arange(count)
    pattern = np.array([0, 5, 0, 10, 25, 40, -20.0])
    demand = 200 + np.cumsum(draw.normal(0, 6, count)) + pattern[day % 7] + draw.normal(0, 8, count)
    contexts = np.concatenate([day[:, None].astype(float), np.eye(7)[day % 7][:, 1:]], axis=1)
    timeline = Timeline(torch.from_numpy(day), torch.zeros(count, dtype=torch.int64), later, 7)
    sample = Sample(torch.from_numpy(contexts), torch.from_numpy(demand)[:, None], timeline)
    return Histories("drift", sample, torch.from_numpy(day >= days), (0.75,))


def bending(rows: int, columns: int = 20, seed: int = 0) -> Sample:
    """Draw rows without time, to measure learning time: nonlinear columns that interact, with little noise."""
    draw = torch.Generator().manual_seed(seed)
    contexts = torch.randn(rows, columns, generator=draw, dtype=torch.float64)
    a, b, c, d, e = contexts[:, :5].T
    signal = 10 * torch.sin(1.5 * a) + 6 * b.clamp_min(0) * c + 5 * d.abs() + 3 * e
    return Sample(contexts, (80 + signal + 2 * torch.randn(rows, generator=draw, dtype=torch.float64))[:, None])
