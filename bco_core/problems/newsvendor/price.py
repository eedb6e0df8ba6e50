"""One row across all items, by its price: the least expected cost with Σ uses·order ≤ limit, for all contexts at once.

At a price λ of a unit of the row items part: item j orders the quantile at level (u_j − λ uses_j)/(u_j + o_j). The
higher the price the less is used, in jumps at the prices where a level meets a share of the scenarios. Halving finds
the price at which use jumps past the limit. Every order on the way between the two sides of the jump costs the same at
that price, so the one that uses the limit exactly is optimal. Where orders are packs that all use the row alike, as
many whole packs as fit are taken of the jump. The least of cost + λ·(use − limit) is a lower bound at any price, and so
proves it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bco_core.batch_kernels import sum_of_rows
from bco_core.problems.newsvendor.atoms import ItemCosts, grid_bounds

# Halvings until the two prices are next to each other, however small they are beside the largest.
_HALVINGS = 160


@dataclass(frozen=True)
class Row:
    """What each item uses of the row, (B, d), and what there is, (B,); packs use ``pack`` each, 0 for any amount."""

    uses: Tensor
    limit: Tensor
    pack: float = 0.0


@dataclass(frozen=True)
class Priced:
    """Orders (B, d), the price of the row (B,) and what no expected cost is below, (B,)."""

    orders: Tensor
    price: Tensor
    bound: Tensor


@dataclass(frozen=True)
class _Side:
    """One side of the jump: its price (B,), where items are (B, d), their orders and what they use (B,)."""

    price: Tensor
    place: Tensor
    orders: Tensor
    use: Tensor

    def where(self, taken: Tensor, other: _Side) -> _Side:
        each = taken[:, None]
        return _Side(
            torch.where(taken, other.price, self.price),
            torch.where(each, other.place, self.place),
            torch.where(each, other.orders, self.orders),
            torch.where(taken, other.use, self.use),
        )


def best_within(costs: ItemCosts, low: Tensor, high: Tensor, steps: Tensor, row: Row) -> Priced:
    """The orders of least expected cost that keep the row, which the bounds (B, d) leave possible."""
    low, high = _finite_bounds(costs, low, high, row)
    if row.pack:
        low, high = grid_bounds(low, high, steps)
        # Packs use no part of a pack.
        fits = row.limit / row.pack
        row = replace(row, limit=(fits + 1e-12 * fits.abs() + 1e-9).floor() * row.pack)

    def side(price: Tensor) -> _Side:
        levels = (costs.underage - price[:, None] * row.uses) / (costs.underage + costs.overage)
        place = costs.place(levels)
        orders = costs.at(place, low, high)
        if row.pack:
            orders = costs.on_grid(orders, low, high, steps, price[:, None] * row.uses)
        return _Side(price, place, orders, sum_of_rows(row.uses * orders))

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
    orders = _packed(row, over, under, steps) if row.pack else _between(row, over, under)
    proof = side(price)
    bound = sum_of_rows(costs.cost(proof.orders)) + price * (proof.use - row.limit)
    return Priced(torch.where(binds[:, None], orders, free.orders), price, bound)


def _between(row: Row, over: _Side, under: _Side) -> Tensor:
    step = over.use - under.use
    share = ((row.limit - under.use) / torch.where(step > 0, step, 1.0)).clamp(0, 1)
    return under.orders + share[:, None] * (over.orders - under.orders)


def _packed(row: Row, over: _Side, under: _Side, steps: Tensor) -> Tensor:
    """As many packs as fit, item by item: at the price of the jump they are all worth the same."""
    fit = ((row.limit - under.use) / row.pack * (1 + 1e-12) + 1e-9).floor()[:, None]
    unit = torch.where(steps > 0, steps, 1.0)
    packs = ((over.orders - under.orders) / unit).round()
    size = torch.where(row.uses != 0, packs.abs(), 0.0)
    before = size.cumsum(-1) - size
    return under.orders + packs.sign() * torch.minimum((fit - before).clamp_min(0), size) * unit


def _price_of_the_jump(costs: ItemCosts, row: Row, over: _Side, under: _Side) -> Tensor:
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


def _finite_bounds(costs: ItemCosts, low: Tensor, high: Tensor, row: Row) -> tuple[Tensor, Tensor]:
    """Bounds further away than the row can push any order, in place of none."""
    first, last = costs.needs[..., 0], costs.needs[..., -1]
    size = torch.maximum(first.abs(), last.abs())
    size = torch.maximum(size, torch.where(low.isfinite(), low.abs(), 0.0))
    size = torch.maximum(size, torch.where(high.isfinite(), high.abs(), 0.0))
    reach = 2 * (row.limit.abs() + sum_of_rows(row.uses.abs() * size))[:, None]
    reach = torch.where(row.uses != 0, reach / row.uses.abs(), 0.0)
    near, far = torch.minimum(first - reach, high), torch.maximum(last + reach, low)
    return torch.where(low.isfinite(), low, near), torch.where(high.isfinite(), high, far)
