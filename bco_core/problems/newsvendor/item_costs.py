"""Each item's expected cost over scenarios: convex and piecewise linear in its order, with the sorted demands, less the
stock, as its kinks. Everything is batched: contexts B, items d, scenarios K."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bco_core.batch_kernels import sum_of_rows
from bco_core.problems.newsvendor.description import ROUNDING
from bco_core.weighted_stats import sort_atoms

# As in ``sorted_quantile``: what a share misses of a level by rounding alone counts as reached.
_REACHED = 1 - 1e-12
# Halvings until the two prices are next to each other, however small they are beside the largest.
_HALVINGS = 160


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


@dataclass(frozen=True)
class PricedRow:
    """What each item uses of the row, (B, d), and what there is, (B,); packs use ``pack`` each, 0 for any amount."""

    uses: Tensor
    limit: Tensor
    pack: float = 0.0


@dataclass(frozen=True)
class PricedOrders:
    """Orders (B, d), the price of the row (B,) and what no expected cost is below, (B,)."""

    orders: Tensor
    price: Tensor
    bound: Tensor


@dataclass(frozen=True)
class _PriceSide:
    """One side of the jump: its price (B,), where items are (B, d), their orders and what they use (B,)."""

    price: Tensor
    place: Tensor
    orders: Tensor
    use: Tensor

    def where(self, taken: Tensor, other: _PriceSide) -> _PriceSide:
        each = taken[:, None]
        return _PriceSide(
            torch.where(taken, other.price, self.price),
            torch.where(each, other.place, self.place),
            torch.where(each, other.orders, self.orders),
            torch.where(taken, other.use, self.use),
        )


def best_within(costs: ItemCosts, low: Tensor, high: Tensor, steps: Tensor, row: PricedRow) -> PricedOrders:
    """The orders of least expected cost that keep the row, which the bounds (B, d) leave possible."""
    low, high = _finite_bounds(costs, low, high, row)
    if row.pack:
        low, high = grid_bounds(low, high, steps)
        # Packs use no part of a pack.
        fits = row.limit / row.pack
        row = replace(row, limit=(fits + 1e-12 * fits.abs() + 1e-9).floor() * row.pack)

    def side(price: Tensor) -> _PriceSide:
        levels = (costs.underage - price[:, None] * row.uses) / (costs.underage + costs.overage)
        place = costs.place(levels)
        orders = costs.at(place, low, high)
        if row.pack:
            orders = costs.on_grid(orders, low, high, steps, price[:, None] * row.uses)
        return _PriceSide(price, place, orders, sum_of_rows(row.uses * orders))

    free = side(torch.zeros_like(row.limit))
    least = torch.where(row.uses > 0, costs.underage, costs.overage) / row.uses.abs()
    beyond = torch.where(row.uses != 0, least, 0.0).amax(dim=-1) * 2 + 1e-300
    over, under = free, side(beyond)
    binds = free.use > row.limit
    for _ in range(_HALVINGS):
        middle = over.price / 2 + under.price / 2
        moves = (over.place - under.place).abs().sum(-1)
        active = binds & (middle > over.price) & (middle < under.price)
        active &= (moves > 1) | bool(row.pack)
        if not active.any():
            break
        tried = side(middle)
        above = tried.use > row.limit
        over, under = over.where(active & above, tried), under.where(active & ~above, tried)
    price = torch.where(binds, _price_of_the_jump(costs, row, over, under), 0.0)
    orders = _fill_with_packs(row, over, under, steps) if row.pack else _interpolate(row, over, under)
    proof = side(price)
    bound = sum_of_rows(costs.cost(proof.orders)) + price * (proof.use - row.limit)
    return PricedOrders(torch.where(binds[:, None], orders, free.orders), price, bound)


def _interpolate(row: PricedRow, over: _PriceSide, under: _PriceSide) -> Tensor:
    step = over.use - under.use
    share = ((row.limit - under.use) / torch.where(step > 0, step, 1.0)).clamp(0, 1)
    return under.orders + share[:, None] * (over.orders - under.orders)


def _fill_with_packs(row: PricedRow, over: _PriceSide, under: _PriceSide, steps: Tensor) -> Tensor:
    """As many packs as fit, item by item: at the price of the jump they are all worth the same."""
    fit = ((row.limit - under.use) / row.pack * (1 + 1e-12) + 1e-9).floor()[:, None]
    unit = torch.where(steps > 0, steps, 1.0)
    packs = ((over.orders - under.orders) / unit).round()
    size = torch.where(row.uses != 0, packs.abs(), 0.0)
    before = size.cumsum(-1) - size
    return under.orders + packs.sign() * torch.minimum((fit - before).clamp_min(0), size) * unit


def _price_of_the_jump(costs: ItemCosts, row: PricedRow, over: _PriceSide, under: _PriceSide) -> Tensor:
    """Exactly where one item alone jumps; else within rounding of it."""
    if row.pack:
        return under.price
    moves = (over.place - under.place).abs()
    item = moves.argmax(dim=-1, keepdim=True)
    level = costs.share_below(torch.minimum(over.place, under.place))
    prices = (costs.underage - (costs.underage + costs.overage) * level) / row.uses
    found = prices.gather(-1, item).squeeze(-1)
    usable = found.isfinite() & (found >= over.price) & (found <= under.price)
    return torch.where(usable, found, under.price)


def _finite_bounds(costs: ItemCosts, low: Tensor, high: Tensor, row: PricedRow) -> tuple[Tensor, Tensor]:
    """Bounds further away than the row can push any order, in place of none."""
    first, last = costs.needs[..., 0], costs.needs[..., -1]
    size = torch.maximum(first.abs(), last.abs())
    size = torch.maximum(size, torch.where(low.isfinite(), low.abs(), 0.0))
    size = torch.maximum(size, torch.where(high.isfinite(), high.abs(), 0.0))
    reach = 2 * (row.limit.abs() + sum_of_rows(row.uses.abs() * size))[:, None]
    reach = torch.where(row.uses != 0, reach / row.uses.abs(), 0.0)
    near, far = torch.minimum(first - reach, high), torch.maximum(last + reach, low)
    return torch.where(low.isfinite(), low, near), torch.where(high.isfinite(), high, far)
