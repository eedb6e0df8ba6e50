"""Each item's expected cost over scenarios: convex and piecewise linear in its order, with the sorted demands, less the
stock, as its kinks. Everything is batched: contexts B, items d, scenarios K."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bco_core.problems.newsvendor.description import ROUNDING
from bco_core.weighted_stats import sort_atoms

# As in ``sorted_quantile``: what a share misses of a level by rounding alone counts as reached.
_REACHED = 1 - 1e-12


@dataclass(frozen=True)
class ItemCosts:
    """Sorted needs (B, d, K), which are demands less the stock, the share of weight up to each, and unit costs (d,)."""

    needs: Tensor
    share: Tensor
    underage: Tensor
    overage: Tensor

    @staticmethod
    def of(outcomes: Tensor, weights: Tensor, stock: Tensor, underage: Tensor, overage: Tensor) -> ItemCosts:
        """Over outcomes (B, K, d) with weights (K,) or (B, K)."""
        columns = (outcomes.double() - stock).transpose(1, 2).contiguous()
        weights = weights.double()
        needs, share = sort_atoms(columns, weights if weights.ndim == 1 else weights[:, None])
        return ItemCosts(needs, share.contiguous(), underage, overage)

    def place(self, levels: Tensor) -> Tensor:
        """Where the quantile at each level (B, d) is: 0 where any order less is better, 1 + k for need k, K + 1 where
        any order more is better."""
        count = self.needs.shape[-1]
        found = torch.searchsorted(self.share, (levels * _REACHED)[..., None].contiguous()).squeeze(-1)
        return torch.where(levels <= 0, 0, torch.where(levels > 1, count + 1, found.clamp_max(count - 1) + 1))

    def at(self, place: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """The order (B, d) at a place, within bounds."""
        count = self.needs.shape[-1]
        inside = self.needs.gather(-1, (place - 1).clamp(0, count - 1)[..., None]).squeeze(-1)
        inside = torch.where(place == 0, low, torch.where(place == count + 1, high, inside))
        return torch.minimum(torch.maximum(inside, low), high)

    def share_below(self, place: Tensor) -> Tensor:
        """The level (B, d) above which a place is left for the next."""
        last = self.needs.shape[-1] - 1
        found = self.share.gather(-1, (place - 1).clamp(0, last)[..., None]).squeeze(-1)
        return torch.where(place == 0, 0.0, found)

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor]:
        """Σ of weight · (need − the least need) up to each of the sorted needs, and the least need."""
        least = self.needs[..., :1]
        each = torch.diff(self.share, dim=-1, prepend=torch.zeros_like(least))
        return ((self.needs - least) * each).cumsum(-1), least

    def cost(self, orders: Tensor) -> Tensor:
        """The expected cost of each item, (B, d), at orders (B, d)."""
        sums, least = self._sums
        count = torch.searchsorted(self.needs, orders[..., None].contiguous(), right=True)
        place = (count - 1).clamp_min(0)
        none = count == 0
        share = torch.where(none, 0.0, self.share.gather(-1, place))
        below = torch.where(none, 0.0, sums.gather(-1, place))
        away = orders[..., None] - least
        left, short = away * share - below, (sums[..., -1:] - below) - away * (1 - share)
        return (self.underage * short.squeeze(-1) + self.overage * left.squeeze(-1)).clamp_min(0)

    def on_grid(self, orders: Tensor, low: Tensor, high: Tensor, steps: Tensor, price: Tensor) -> Tensor:
        """The best multiples (B, d) of the steps (d,) within bounds, where a unit costs ``price`` (B, d) more, from the
        best orders of any amount: a convex cost is least at a neighbour of those. Of equals it is the lesser."""
        unit = torch.where(steps > 0, steps, 1.0)
        count = orders / unit
        near = (count - count.round()).abs() <= ROUNDING * count.abs().clamp_min(1.0)
        count = torch.where(near, count.round(), count)
        down, up = (edge * unit for edge in (count.floor(), count.ceil()))
        down, up = (torch.minimum(torch.maximum(edge, low), high) for edge in (down, up))
        rise = self.cost(up) - self.cost(down) + price * (up - down)
        return torch.where(steps > 0, torch.where(rise < 0, up, down), orders)


def grid_bounds(low: Tensor, high: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds (..., d) moved in to multiples of the steps (d,)."""
    unit = torch.where(steps > 0, steps, 1.0)

    def moved(bound: Tensor, up: bool) -> Tensor:
        count = bound / unit
        near = (count - count.round()).abs() <= ROUNDING * count.abs().clamp_min(1.0)
        edge = torch.where(near, count.round(), count.ceil() if up else count.floor()) * unit
        return torch.where((steps > 0) & bound.isfinite(), edge, bound)

    return moved(low, up=True), moved(high, up=False)
