"""Each item's expected cost over scenarios, and the best orders under one row across items.

An item's expected cost is convex and piecewise linear in its order; its kinks are the sorted demands minus the stock.
Arrays are batched over contexts B, items d and scenarios K.

The least expected cost with Σ uses·order ≤ limit is found by a search over the price of the row, for all contexts at
once. At a price λ the items separate: item j orders the quantile at level (u_j − λ uses_j)/(u_j + o_j). The higher the
price, the less is used, in jumps at the prices where a level meets a share of the scenarios. Bisection finds the price
at which use jumps past the limit. All orders between the two sides of the jump cost the same at that price, so the one
that uses the limit exactly is optimal. If orders are packs that use the same amount of the row, as many packs as fit
are taken from the jump. At any price, the least of cost + λ·(use − limit) is a lower bound, which proves the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bco_core.batch_kernels import sum_of_rows
from bco_core.problems.newsvendor.description import ROUNDING
from bco_core.weighted_stats import sort_atoms

# As in ``sorted_quantile``: a share that misses a level by rounding alone counts as reaching it.
_REACHED = 1 - 1e-12
# Enough bisections to bring two prices next to each other, however small they are.
_HALVINGS = 160


@dataclass(frozen=True)
class ItemCosts:
    """Sorted needs (B, d, K), which are demands minus stock, the share of weight up to each, and unit costs (d,)."""

    needs: Tensor
    share: Tensor
    underage: Tensor
    overage: Tensor

    @staticmethod
    def of(outcomes: Tensor, weights: Tensor, stock: Tensor, underage: Tensor, overage: Tensor) -> ItemCosts:
        """Build from outcomes (B, K, d) with weights (K,) or (B, K)."""
        columns = (outcomes.double() - stock).transpose(1, 2).contiguous()
        weights = weights.double()
        needs, share = sort_atoms(columns, weights if weights.ndim == 1 else weights[:, None])
        return ItemCosts(needs, share.contiguous(), underage, overage)

    def place(self, levels: Tensor) -> Tensor:
        """Return the place of the quantile at each level (B, d): 0 if smaller orders are always better, 1 + k for need
        k, K + 1 if larger orders are always better."""
        count = self.needs.shape[-1]
        place = torch.searchsorted(self.share, (levels * _REACHED)[..., None].contiguous()).squeeze(-1)
        return torch.where(levels <= 0, 0, torch.where(levels > 1, count + 1, place.clamp_max(count - 1) + 1))

    def at(self, place: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return the order (B, d) at a place, clipped to bounds."""
        count = self.needs.shape[-1]
        inside = self.needs.gather(-1, (place - 1).clamp(0, count - 1)[..., None]).squeeze(-1)
        inside = torch.where(place == 0, low, torch.where(place == count + 1, high, inside))
        return torch.minimum(torch.maximum(inside, low), high)

    def share_below(self, place: Tensor) -> Tensor:
        """Return the level (B, d) up to which a place is the quantile."""
        last = self.needs.shape[-1] - 1
        share = self.share.gather(-1, (place - 1).clamp(0, last)[..., None]).squeeze(-1)
        return torch.where(place == 0, 0.0, share)

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor]:
        """Σ of weight · (need − least need) up to each of the sorted needs, and the least need."""
        least = self.needs[..., :1]
        each = torch.diff(self.share, dim=-1, prepend=torch.zeros_like(least))
        return ((self.needs - least) * each).cumsum(-1), least

    def cost(self, orders: Tensor) -> Tensor:
        """Return the expected cost of each item (B, d) at orders (B, d)."""
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
        """Return the best multiples (B, d) of the steps (d,) within bounds if a unit costs ``price`` (B, d) more.

        ``orders`` (B, d) are the best of any amount: a convex cost is least at one of their neighbours. Of equals it is
        the smaller.
        """
        unit = torch.where(steps > 0, steps, 1.0)
        count = orders / unit
        near = (count - count.round()).abs() <= ROUNDING * count.abs().clamp_min(1.0)
        count = torch.where(near, count.round(), count)
        down, up = (edge * unit for edge in (count.floor(), count.ceil()))
        down, up = (torch.minimum(torch.maximum(edge, low), high) for edge in (down, up))
        rise = self.cost(up) - self.cost(down) + price * (up - down)
        return torch.where(steps > 0, torch.where(rise < 0, up, down), orders)


def grid_bounds(low: Tensor, high: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Return bounds (..., d) moved inwards to multiples of the steps (d,)."""
    unit = torch.where(steps > 0, steps, 1.0)

    def round_inwards(bound: Tensor, up: bool) -> Tensor:
        count = bound / unit
        near = (count - count.round()).abs() <= ROUNDING * count.abs().clamp_min(1.0)
        edge = torch.where(near, count.round(), count.ceil() if up else count.floor()) * unit
        return torch.where((steps > 0) & bound.isfinite(), edge, bound)

    return round_inwards(low, up=True), round_inwards(high, up=False)


@dataclass(frozen=True)
class PricedRow:
    """Use of the row per unit of each item (B, d) and its limit (B,); a pack uses ``pack``, 0 for any amount."""

    uses: Tensor
    limit: Tensor
    pack: float = 0.0


@dataclass(frozen=True)
class PricedOrders:
    """Orders (B, d), the price of the row (B,) and a lower bound of the expected cost (B,)."""

    orders: Tensor
    price: Tensor
    bound: Tensor


@dataclass(frozen=True)
class _PriceSide:
    """One side of the jump: price (B,), places of items (B, d), their orders (B, d) and what they use (B,)."""

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
    """Return the orders of least expected cost that keep the row; some orders within the bounds (B, d) must keep it."""
    low, high = _finite_bounds(costs, low, high, row)
    if row.pack:
        low, high = grid_bounds(low, high, steps)
        # Round the limit down to whole packs.
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
    price = torch.where(binds, _jump_price(costs, row, over, under), 0.0)
    orders = _fill_with_packs(row, over, under, steps) if row.pack else _interpolate(row, over, under)
    proof = side(price)
    bound = sum_of_rows(costs.cost(proof.orders)) + price * (proof.use - row.limit)
    return PricedOrders(torch.where(binds[:, None], orders, free.orders), price, bound)


def _interpolate(row: PricedRow, over: _PriceSide, under: _PriceSide) -> Tensor:
    step = over.use - under.use
    share = ((row.limit - under.use) / torch.where(step > 0, step, 1.0)).clamp(0, 1)
    return under.orders + share[:, None] * (over.orders - under.orders)


def _fill_with_packs(row: PricedRow, over: _PriceSide, under: _PriceSide, steps: Tensor) -> Tensor:
    """Add as many packs as fit, item by item: at the price of the jump all are worth the same."""
    fit = ((row.limit - under.use) / row.pack * (1 + 1e-12) + 1e-9).floor()[:, None]
    unit = torch.where(steps > 0, steps, 1.0)
    packs = ((over.orders - under.orders) / unit).round()
    size = torch.where(row.uses != 0, packs.abs(), 0.0)
    before = size.cumsum(-1) - size
    return under.orders + packs.sign() * torch.minimum((fit - before).clamp_min(0), size) * unit


def _jump_price(costs: ItemCosts, row: PricedRow, over: _PriceSide, under: _PriceSide) -> Tensor:
    """Return the price of the jump, exact if a single item jumps, otherwise within rounding."""
    if row.pack:
        return under.price
    moves = (over.place - under.place).abs()
    item = moves.argmax(dim=-1, keepdim=True)
    level = costs.share_below(torch.minimum(over.place, under.place))
    prices = (costs.underage - (costs.underage + costs.overage) * level) / row.uses
    exact = prices.gather(-1, item).squeeze(-1)
    usable = exact.isfinite() & (exact >= over.price) & (exact <= under.price)
    return torch.where(usable, exact, under.price)


def _finite_bounds(costs: ItemCosts, low: Tensor, high: Tensor, row: PricedRow) -> tuple[Tensor, Tensor]:
    """Replace missing bounds by bounds farther away than the row can push any order."""
    first, last = costs.needs[..., 0], costs.needs[..., -1]
    size = torch.maximum(first.abs(), last.abs())
    size = torch.maximum(size, torch.where(low.isfinite(), low.abs(), 0.0))
    size = torch.maximum(size, torch.where(high.isfinite(), high.abs(), 0.0))
    reach = 2 * (row.limit.abs() + sum_of_rows(row.uses.abs() * size))[:, None]
    reach = torch.where(row.uses != 0, reach / row.uses.abs(), 0.0)
    near, far = torch.minimum(first - reach, high), torch.maximum(last + reach, low)
    return torch.where(low.isfinite(), low, near), torch.where(high.isfinite(), high, far)
