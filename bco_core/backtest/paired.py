"""Paired differences of cost with intervals that neighbouring days, and series on one day, cannot fool.

Rows that err together are one cluster: blocks of time hold all series, because a warm day is warm for all of them; and
where there are at least eight series, each is a cluster of all its rows, because a rule may suit one and not another.
Both ways give a variance of the mean, and together (Cameron, Gelbach and Miller) V = V_time + V_series − V_both,
taken to be no less than either. The interval is mean ± t·√V, t of as many degrees of freedom as the fewer clusters less
one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CONFIDENCE = 0.95
# Blocks of time are as long as the lead, the season and the root of the periods, but there are so many if possible;
# fewer series, or fewer blocks where there are series enough, tell nothing of how much they differ.
_FEWEST = 8


@dataclass(frozen=True)
class Mean:
    """The mean of some rows and its interval, infinite where there is nothing to tell it by."""

    mean: float
    standard_error: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True)
class Clusters:
    """Which block of time (n,) and which series (n,) each row is of; None where these are no clusters."""

    block: Tensor | None
    series: Tensor | None
    block_periods: int = 0

    @staticmethod
    def of(periods: Tensor | None, series: Tensor | None, lead: int = 1, season: int = 0) -> Clusters:
        """Clusters of rows with periods and series, each (n,)."""
        if periods is None:
            return Clusters(None, None)
        first, span = int(periods.min()), int(periods.max() - periods.min()) + 1
        length = min(max(lead, season, math.ceil(math.sqrt(span))), max(1, span // _FEWEST))
        block: Tensor | None = (periods - first) // length
        if series is not None and len(series.unique()) < _FEWEST:
            series = None
        if block is not None and series is not None and len(block.unique()) < _FEWEST:
            block = None
        return Clusters(block, series, length)

    def rows(self, index: Tensor) -> Clusters:
        block = None if self.block is None else self.block[index]
        return Clusters(block, None if self.series is None else self.series[index], self.block_periods)

    @property
    def sentence(self) -> str:
        """How intervals are made."""
        blocks = f"blocks of {self.block_periods} period(s) with all their rows"
        if self.block is None and self.series is None:
            return "95 % intervals take the rows to be independent."
        if self.series is None:
            return f"95 % intervals are over {blocks}: neighbouring rows do not count as independent."
        if self.block is None:
            return (
                "95 % intervals are over series with all their rows: those of one series do not count as independent."
            )
        return (
            f"95 % intervals are clustered two ways, by {blocks} and by series: neither neighbouring rows nor those of "
            "one series count as independent."
        )


def mean_of(values: Tensor, clusters: Clusters) -> Mean:
    """The mean of values (n,), NaN left out, with an interval by clusters."""
    there = (~values.isnan()).nonzero().flatten()
    if not len(there):
        return Mean(math.nan, math.inf, -math.inf, math.inf, 0)
    values, clusters = values[there], clusters.rows(there)
    mean = values.mean()
    ways = [way for way in (clusters.block, clusters.series) if way is not None]
    single = torch.arange(len(values))
    found = [_variance(values - mean, way) for way in ways or [single]]
    variance, groups = max(one for one, _ in found), min(groups for _, groups in found)
    if len(ways) == 2:
        both = ways[0] * (int(ways[1].max()) + 1) + ways[1]
        variance = max(variance, found[0][0] + found[1][0] - _variance(values - mean, both)[0])
    error = math.sqrt(variance)
    reach = error * student(groups - 1) if groups > 1 else math.inf
    return Mean(mean.item(), error, mean.item() - reach, mean.item() + reach, len(values))


def difference(costs: Tensor, reference: Tensor, clusters: Clusters) -> Mean:
    """How much more ``costs`` are than ``reference`` on the same rows (n,), on those that have both."""
    return mean_of(costs - reference, clusters)


def _variance(residuals: Tensor, cluster: Tensor) -> tuple[float, int]:
    """The variance of the mean whose residuals (n,) are these, and the number of clusters."""
    numbers, place = cluster.unique(return_inverse=True)
    groups = len(numbers)
    if groups < 2:
        return math.inf, groups
    sums = torch.zeros(groups, dtype=torch.float64).index_add_(0, place, residuals)
    return groups / (groups - 1) * sums.square().sum().item() / len(residuals) ** 2, groups


def student(freedom: int) -> float:
    """How many standard errors an interval reaches to either side."""
    # scipy.stats is slow to import, and has it from here.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
