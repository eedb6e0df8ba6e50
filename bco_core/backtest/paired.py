"""Paired differences of cost, with intervals that allow for dependent rows: neighbouring days, series on one day.

Rows that err together are one cluster. A block of time holds all series, because a warm day is warm for all of them.
Where there are at least eight series, each is a cluster too, because a rule may suit one and not another. With both,
the variance of the mean is V = V_time + V_series − V_both (Cameron, Gelbach and Miller), but no less than either. The
interval is mean ± t·√V, with one degree of freedom less than the smaller number of clusters.

Differences summed up over time have a band: the interval of the sum at the end of each stretch. Deviations from the
overall mean difference are summed within each cluster up to then; the variance is the sum of their squares. The band
starts at zero width and ends at the interval of the mean difference times the number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CONFIDENCE = 0.95
# Clusters that are needed to tell how much they differ. Blocks of time are as long as the lead, the season and the root
# of the number of periods, but shorter where there would be fewer blocks than this.
_FEWEST = 8


@dataclass(frozen=True)
class Mean:
    """Mean over rows and its interval, infinite where there are too few clusters."""

    mean: float
    standard_error: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True)
class Clusters:
    """Block of time (n,) and series (n,) of each row; None where these are not used as clusters."""

    block: Tensor | None
    series: Tensor | None
    block_periods: int = 0

    @staticmethod
    def of(periods: Tensor | None, series: Tensor | None, lead: int = 1, season: int = 0) -> Clusters:
        """Choose the clusters of rows with these periods and series, each (n,)."""
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
        """Sentence about how intervals are computed."""
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
    """Return the mean of values (n,), NaN left out, with its interval by clusters."""
    there = (~values.isnan()).nonzero().flatten()
    if not len(there):
        return Mean(math.nan, math.inf, -math.inf, math.inf, 0)
    values, clusters = values[there], clusters.rows(there)
    mean = values.mean()
    ways = [way for way in (clusters.block, clusters.series) if way is not None]
    single = torch.arange(len(values))
    variances = [_variance(values - mean, way) for way in ways or [single]]
    variance, groups = max(one for one, _ in variances), min(groups for _, groups in variances)
    if len(ways) == 2:
        both = ways[0] * (int(ways[1].max()) + 1) + ways[1]
        variance = max(variance, variances[0][0] + variances[1][0] - _variance(values - mean, both)[0])
    error = math.sqrt(variance)
    reach = error * student(groups - 1) if groups > 1 else math.inf
    return Mean(mean.item(), error, mean.item() - reach, mean.item() + reach, len(values))


def difference(costs: Tensor, reference: Tensor, clusters: Clusters) -> Mean:
    """Return the mean of ``costs`` − ``reference`` over the rows (n,) that have both."""
    return mean_of(costs - reference, clusters)


def _variance(residuals: Tensor, cluster: Tensor) -> tuple[float, int]:
    """Return the variance of a mean with these residuals (n,), and the number of clusters."""
    numbers, place = cluster.unique(return_inverse=True)
    groups = len(numbers)
    if groups < 2:
        return math.inf, groups
    sums = torch.zeros(groups, dtype=torch.float64).index_add_(0, place, residuals)
    return groups / (groups - 1) * sums.square().sum().item() / len(residuals) ** 2, groups


def student(freedom: int) -> float:
    """Return the half-width of an interval in standard errors."""
    # scipy.stats is slow to import.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


# differences summed up over time


@dataclass(frozen=True)
class DifferenceSums:
    """Sum of differences at the end of each of b stretches, over the rows so far that have both costs.

    All are (b,); standard error and interval are infinite where there are too few clusters.
    """

    rows: Tensor
    sum: Tensor
    standard_error: Tensor
    low: Tensor
    high: Tensor


def cumulate(costs: Tensor, reference: Tensor, clusters: Clusters, stretch: Tensor, count: int) -> DifferenceSums:
    """Sum up ``costs`` − ``reference`` (n,), NaN where there is none, over ``count`` stretches of time.

    ``stretch`` (n,) is the stretch of each row.
    """
    values = costs - reference
    there = (~values.isnan()).nonzero().flatten()
    values, stretch, clusters = values[there], stretch[there], clusters.rows(there)
    rows = torch.bincount(stretch, minlength=count).cumsum(0)
    total = _sums(values, stretch, count).cumsum(0)
    if not len(there):
        nothing = torch.full((count,), math.inf, dtype=torch.float64)
        return DifferenceSums(rows, total, nothing, -nothing, nothing)
    residuals = values - values.mean()
    ways = [way for way in (clusters.block, clusters.series) if way is not None]
    result = [_variances(residuals, way, stretch, count) for way in ways or [torch.arange(len(values))]]
    variance, groups = result[0]
    if len(ways) == 2:
        both = ways[0] * (int(ways[1].max()) + 1) + ways[1]
        together = result[0][0] + result[1][0] - _variances(residuals, both, stretch, count)[0]
        variance = torch.stack([result[0][0], result[1][0], together]).amax(dim=0)
        groups = min(groups, result[1][1])
    error = variance.sqrt()
    reach = error * student(groups - 1) if groups > 1 else torch.full_like(error, math.inf)
    return DifferenceSums(rows, total, error, total - reach, total + reach)


def _sums(values: Tensor, stretch: Tensor, count: int) -> Tensor:
    """Return the sum of values (n,) in each stretch, (count,)."""
    return torch.zeros(count, dtype=torch.float64).index_add_(0, stretch, values)


def _variances(residuals: Tensor, cluster: Tensor, stretch: Tensor, count: int) -> tuple[Tensor, int]:
    """Return the variance of the sum at the end of each stretch, (count,), and the number of clusters."""
    numbers, place = cluster.unique(return_inverse=True)
    groups = len(numbers)
    if groups < 2:
        return torch.full((count,), math.inf, dtype=torch.float64), groups
    sums = torch.zeros(groups, dtype=torch.float64)
    order = stretch.argsort(stable=True)
    pieces = order.split(torch.bincount(stretch, minlength=count).tolist())
    result = []
    for piece in pieces:
        sums.index_add_(0, place[piece], residuals[piece])
        result.append(sums.square().sum())
    return groups / (groups - 1) * torch.stack(result), groups


def cut_stretches(places: Tensor, most: int) -> tuple[Tensor, int]:
    """Cut places (n,), such as periods, into up to ``most`` stretches of equal length.

    Returns the stretch (n,) of each row, and the number of stretches; those without rows are left out.
    """
    numbers, stretch = equal_stretches(places, most).unique(return_inverse=True)
    return stretch, len(numbers)


def equal_stretches(places: Tensor, most: int) -> Tensor:
    """Return the stretch (n,) of each place (n,), of up to ``most`` of equal length."""
    first, span = places.min(), int(places.max() - places.min()) + 1
    return (places - first) * min(most, span) // span
