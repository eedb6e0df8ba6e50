"""Paired differences of cost summed up over time, with a band for what chance may have added to them.

At the end of each stretch of time, the band is the interval of the sum so far. Its variance is that of
:mod:`bco_core.backtest.paired`: deviations from the overall mean difference are summed up within each cluster as far as
time has come, and these sums are squared and added. So the band begins with nothing and ends at the interval of the
mean difference times the number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.backtest.paired import Clusters, student


@dataclass(frozen=True)
class Cumulated:
    """At the end of each of b stretches: rows so far that have both costs, the sum of their differences, its standard
    error and its interval, all (b,); the last three infinite where there is nothing to tell them by."""

    rows: Tensor
    sum: Tensor
    standard_error: Tensor
    low: Tensor
    high: Tensor


def cumulated(costs: Tensor, reference: Tensor, clusters: Clusters, stretch: Tensor, count: int) -> Cumulated:
    """How much more ``costs`` are than ``reference`` (n,), NaN where there is none, summed up over ``count`` stretches;
    ``stretch`` (n,) is the one that each row is in."""
    values = costs - reference
    there = (~values.isnan()).nonzero().flatten()
    values, stretch, clusters = values[there], stretch[there], clusters.rows(there)
    rows = torch.bincount(stretch, minlength=count).cumsum(0)
    total = _sums(values, stretch, count).cumsum(0)
    if not len(there):
        nothing = torch.full((count,), math.inf, dtype=torch.float64)
        return Cumulated(rows, total, nothing, -nothing, nothing)
    residuals = values - values.mean()
    ways = [way for way in (clusters.block, clusters.series) if way is not None]
    found = [_variances(residuals, way, stretch, count) for way in ways or [torch.arange(len(values))]]
    variance, groups = found[0]
    if len(ways) == 2:
        both = ways[0] * (int(ways[1].max()) + 1) + ways[1]
        together = found[0][0] + found[1][0] - _variances(residuals, both, stretch, count)[0]
        variance = torch.stack([found[0][0], found[1][0], together]).amax(dim=0)
        groups = min(groups, found[1][1])
    error = variance.sqrt()
    reach = error * student(groups - 1) if groups > 1 else torch.full_like(error, math.inf)
    return Cumulated(rows, total, error, total - reach, total + reach)


def _sums(values: Tensor, stretch: Tensor, count: int) -> Tensor:
    """The sum of values (n,) in each stretch, (count,)."""
    return torch.zeros(count, dtype=torch.float64).index_add_(0, stretch, values)


def _variances(residuals: Tensor, cluster: Tensor, stretch: Tensor, count: int) -> tuple[Tensor, int]:
    """The variance of the sum at the end of each stretch, (count,), and the number of clusters over all of them."""
    numbers, place = cluster.unique(return_inverse=True)
    groups = len(numbers)
    if groups < 2:
        return torch.full((count,), math.inf, dtype=torch.float64), groups
    sums = torch.zeros(groups, dtype=torch.float64)
    order = stretch.argsort(stable=True)
    pieces = order.split(torch.bincount(stretch, minlength=count).tolist())
    found = []
    for piece in pieces:
        sums.index_add_(0, place[piece], residuals[piece])
        found.append(sums.square().sum())
    return groups / (groups - 1) * torch.stack(found), groups


def stretches(places: Tensor, most: int) -> tuple[Tensor, int]:
    """Up to ``most`` stretches of equal length over places (n,), such as periods: which one each row is in, (n,), and
    how many there are. Stretches without rows are left out."""
    first, span = places.min(), int(places.max() - places.min()) + 1
    cut = (places - first) * min(most, span) // span
    numbers, place = cut.unique(return_inverse=True)
    return place, len(numbers)
