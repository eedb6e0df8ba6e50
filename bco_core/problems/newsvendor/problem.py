"""The newsvendor, one item or several: c(z; y) = Σ_j u_j (y_j − s_j − z_j)⁺ + o_j (s_j + z_j − y_j)⁺, l_j ≤ z_j ≤ m_j,
where z_j is ordered and s_j is on hand.

Where items do not interact, every answer has a closed form: the decision for a point prediction is that prediction less
the stock, clipped to the order bounds, and over weighted scenarios it is the weighted τ-quantile, τ = u/(u + o),
likewise (the cost is convex in each z_j, so clipping the free optimum is optimal). Of packs or whole numbers one of the
two neighbours of that is best. A service level of an item asks for demand to be met in so many scenarios, so the
quantile is at least at that level. One row across items is a search over its price (:mod:`.price`). Several rows, a
share of all demand that must be met, CVaR, and packs that use a row unlike each other go to HiGHS (:mod:`.program`).

``relaxation`` forgets packs and whole numbers; rows are kept while learning, by the decision for a point prediction.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bco_core import deadline
from bco_core.batch_kernels import sum_of_rows
from bco_core.problems.base import EXPECTATION, Breach, DecisionProblem, Prescription, Price, Risk
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.newsvendor import description as describe
from bco_core.problems.newsvendor.atoms import ItemCosts, grid_bounds
from bco_core.problems.newsvendor.description import ROUNDING, Rows
from bco_core.problems.newsvendor.point import kept_either_way, several_rows
from bco_core.problems.newsvendor.price import Row, best_within
from bco_core.problems.newsvendor.program import Instance
from bco_core.problems.newsvendor.promise import broken, missed, prices_of
from bco_core.problems.newsvendor.solutions import demoted, judged, prescription, put, risk_of, solve_all
from bco_core.weighted_stats import weighted_quantile

# By how much a service level may be missed, and noise beside it, under scenarios that were not decided over.
_SERVICE_ROOM = 0.02


@dataclass(frozen=True)
class Newsvendor(DecisionProblem):
    """Unit costs, order bounds, the most demand there can be, stock on hand, what orders are multiples of (0 for any
    amount) and the service levels of items, each (d_y,), float64; rows across items; and the share of all demand that
    must be met."""

    names: tuple[str, ...]
    underage: Tensor
    overage: Tensor
    minimum: Tensor
    maximum: Tensor
    most: Tensor
    stock: Tensor
    steps: Tensor
    service: Tensor
    rows: Rows
    fill_rate: float = 0.0

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> Newsvendor:
        """Build from ``{"items": [{"underage_cost": 3, "overage_cost": 1, "minimum_order": 0}]}``, as the API takes
        it."""
        items = describe.items_of(spec)
        names, stock = describe.names_of(items), describe.stock_of(items)
        underage, overage = describe.unit_costs(items)
        low, high = describe.order_bounds(items, stock)
        steps, rows = describe.steps_of(items, low, high), describe.rows_of(spec, names)
        describe.check_rows(rows, low.numpy(), high.numpy(), steps.numpy())
        return Newsvendor(
            names,
            underage,
            overage,
            low,
            high,
            describe.most_of(items),
            stock,
            steps,
            describe.service_of(items),
            rows,
            describe.fill_rate_of(spec),
        )

    @property
    def outcome_dim(self) -> int:
        return len(self.underage)

    @property
    def cost_bound(self) -> float | None:
        """With demand from 0 to its stated most and orders between bounds, each item's cost is largest at a corner."""
        short = self.underage * (self.most - (self.stock + self.minimum)).clamp_min(0)
        left = self.overage * (self.stock + self.maximum).clamp_min(0)
        bound = torch.maximum(short, left).sum().item()
        return bound if math.isfinite(bound) and bool((self.minimum >= 0).all()) else None

    @property
    def cost_bound_remedy(self) -> str:
        return "give every item a maximum_order and a maximum_demand"

    @property
    def cost_bound_breach(self) -> str:
        return "demand beyond the bounds that the problem states, from 0 to maximum_demand"

    @property
    def outcome_bounds(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.most), self.most

    @property
    def relaxation(self) -> Self:
        return replace(self, steps=torch.zeros_like(self.steps)) if self._packed else self

    @property
    def fractiles(self) -> Tensor | None:
        """Stock and order together are the quantile at this level, unless items share a row or a promise."""
        return None if len(self.rows) or self.fill_rate else self._levels

    @property
    def _levels(self) -> Tensor:
        return torch.maximum(self.underage / (self.underage + self.overage), self.service)

    @cached_property
    def _packed(self) -> bool:
        return bool((self.steps > 0).any())

    @cached_property
    def _stocked(self) -> bool:
        return bool(self.stock.any())

    @property
    def decides_alone(self) -> bool:
        return len(self.rows) < 2 and not self.fill_rate and (not self._packed or self._one_pack is not None)

    @property
    def promises(self) -> bool:
        return bool(self.fill_rate) or bool((self.service > 0).any())

    def decide(self, outcomes: Tensor) -> Tensor:
        if len(self.rows) > 1:
            return self._point.decide(outcomes)
        needed = outcomes - self.stock if self._stocked else outcomes
        wanted = needed.clamp(self.minimum, self.maximum)
        if not len(self.rows):
            return wanted
        return kept_either_way(wanted, self.minimum, self.maximum, self.underage, self.overage, self.rows)

    @cached_property
    def _point(self) -> TwoStageLinear:
        return several_rows(
            self.minimum.numpy(),
            self.maximum.numpy(),
            self.underage.numpy(),
            self.overage.numpy(),
            self.stock.numpy(),
            self.rows,
        )

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        short = outcomes - (self.stock + decisions)
        return torch.where(short > 0, self.underage * short, -self.overage * short).sum(-1)

    def within(self, decisions: Tensor) -> Tensor:
        inside = (decisions >= self.minimum) & (decisions <= self.maximum)
        if self._packed:
            unit = torch.where(self.steps > 0, self.steps, 1.0)
            away = (decisions - (decisions / unit).round() * unit).abs()
            inside &= (away <= ROUNDING * (unit + decisions.abs())) | (self.steps <= 0)
        if not len(self.rows):
            return inside.all(-1)
        by, rounding = self.rows.excess(decisions.detach().double().numpy())
        return inside.all(-1) & torch.from_numpy(np.asarray((by <= rounding).all(-1)))

    def covered(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Whether stock and order meet each demand, but for rounding."""
        there = self.stock + decisions
        return outcomes <= there + ROUNDING * (1 + there.abs())

    def breaches(self, decision: Tensor) -> list[Breach]:
        return broken(self.names, self.minimum, self.maximum, self.steps, self.rows, decision)

    def missed(self, decisions: Tensor, outcomes: Tensor, weights: Tensor, sure: bool = True) -> list[str]:
        if not self.promises:
            return []
        served = self.covered(decisions[:, None], outcomes)
        short = (outcomes - self.stock - decisions[:, None]).clamp_min(0)
        noise = 2 * (self.service * (1 - self.service) / outcomes.shape[1]).sqrt() + _SERVICE_ROOM
        room = torch.zeros_like(noise) if sure else noise
        return missed(self.names, self.service, self.fill_rate, served, short, outcomes, weights, room)

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """Of the best orders over these scenarios, packs and whole numbers relaxed."""
        free, outcomes = self.relaxation, outcomes[None].double()
        floors = free._floors(free._sorted(outcomes, weights))
        (found,) = solve_all(free._instances(outcomes, weights, floors, EXPECTATION), 1, None)
        dearest = torch.maximum(self.underage, self.overage).max().item()
        return prices_of(found, floors[0], self.minimum, dearest)

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit: float | None = None
    ) -> Prescription:
        weights = weights.to(outcomes)
        coupled = bool(risk.cvar_weight) or bool(self.fill_rate) or len(self.rows) > 1
        if not coupled and not len(self.rows) and not self._packed:
            decisions = self.decide(weighted_quantile(outcomes, weights, self._levels))
            return self._kept(self.optimal(decisions, outcomes, weights), outcomes, weights)
        outcomes = outcomes.detach().double()
        if not coupled and not len(self.rows):
            return self._kept(self._neighbours(outcomes, weights), outcomes, weights)
        if not coupled and (not self._packed or self._one_pack is not None):
            return self._by_price(outcomes, weights, time_limit)
        return self._by_program(outcomes, weights, risk, time_limit)

    def _sorted(self, outcomes: Tensor, weights: Tensor) -> ItemCosts:
        return ItemCosts.of(outcomes, weights, self.stock, self.underage, self.overage)

    def _floors(self, costs: ItemCosts) -> Tensor:
        """What service levels make the least orders, (B, d); −∞ where there is none."""
        none = torch.full_like(costs.needs[..., 0], -torch.inf)
        if not (self.service > 0).any():
            return none
        place = costs.place(self.service.expand_as(none))
        return torch.where(self.service > 0, costs.at(place, none, -none), none)

    def _bounds(self, costs: ItemCosts) -> tuple[Tensor, Tensor]:
        """The order bounds (B, d) that service levels leave, as far as the largest orders allow."""
        low, high = torch.maximum(self._floors(costs), self.minimum), self.maximum.expand_as(costs.needs[..., 0])
        low, high = grid_bounds(low, high, self.steps)
        return torch.minimum(low, high), high

    def _neighbours(self, outcomes: Tensor, weights: Tensor) -> Prescription:
        costs = self._sorted(outcomes, weights)
        low, high = self._bounds(costs)
        best = costs.at(costs.place(self._levels.expand_as(low)), low, high)
        return self.optimal(costs.on_grid(best, low, high, self.steps, torch.zeros(())), outcomes, weights)

    @cached_property
    def _one_pack(self) -> float | None:
        """What a pack uses of the only row, if all use it alike, and so none fits better than another."""
        if len(self.rows) != 1 or self.rows.senses[0] == 0:
            return None
        use = (self.rows.matrix[0] * self.steps.numpy())[self.rows.matrix[0] != 0]
        return abs(float(use[0])) if len(use) and use[0] and (use == use[0]).all() else None

    def _by_price(self, outcomes: Tensor, weights: Tensor, time_limit: float | None) -> Prescription:
        deadline.check()
        costs = self._sorted(outcomes, weights)
        low, high = self._bounds(costs)
        limit, sense = float(self.rows.limits[0]), int(self.rows.senses[0])
        uses = torch.from_numpy(self.rows.matrix[0]).expand_as(low)
        free = costs.at(costs.place(self._levels.expand_as(low)), low, high)
        # An equality is the inequality that the free optimum breaks.
        at_least = sum_of_rows(uses * free) < limit if sense == 0 else torch.full((len(low),), sense > 0)
        side = torch.where(at_least, -1.0, 1.0).double()
        row = Row(uses * side[:, None], limit * side, self._one_pack or 0.0)
        found = best_within(costs, low, high, self.steps, row)
        orders = torch.minimum(torch.maximum(found.orders, low), high)
        answer = judged(
            orders, (self.cost(orders[:, None], outcomes) * weights).sum(-1), found.bound, self._size(outcomes)
        )
        by, rounding = self.rows.excess(orders.numpy())
        over = torch.from_numpy((by > rounding)[:, 0])
        if over.any():
            # Service levels ask for more than the row has.
            each = weights.expand(outcomes.shape[:2])
            answer = put(answer, over, self._by_program(outcomes[over], each[over], EXPECTATION, time_limit))
        return self._kept(answer, outcomes, weights)

    def _by_program(self, outcomes: Tensor, weights: Tensor, risk: Risk, time_limit: float | None) -> Prescription:
        floors = self._floors(self._sorted(outcomes, weights))
        until = None if time_limit is None else time.monotonic() + time_limit
        found = solve_all(self._instances(outcomes, weights, floors, risk), len(outcomes), until)
        orders = torch.from_numpy(np.stack([one.orders for one in found]))
        objective = risk_of(self.cost(orders[:, None], outcomes), weights, risk)
        return self._kept(prescription(found, orders, objective, self._size(outcomes)), outcomes, weights)

    def _instances(self, outcomes: Tensor, weights: Tensor, floors: Tensor, risk: Risk) -> Iterator[Instance]:
        needs, shares = outcomes - self.stock, weights.double().expand(outcomes.shape[:2])
        own = (self.underage, self.overage, self.minimum, self.maximum)
        underage, overage, low, high = (part.numpy() for part in own)
        short = torch.full((len(outcomes),), math.inf, dtype=torch.float64)
        if self.fill_rate:
            short = (1 - self.fill_rate) * (outcomes.clamp_min(0).sum(-1) * shares).sum(-1)
        for need, share, floor, lacking in zip(needs, shares, floors, short.tolist(), strict=True):
            parts = (need.numpy(), share.numpy(), underage, overage, low, high, floor.numpy(), self.steps.numpy())
            yield Instance(*parts, self.rows, lacking, risk)

    def _size(self, outcomes: Tensor) -> Tensor:
        """How large costs (B,) can be over outcomes (B, K, d)."""
        return ((outcomes.abs().amax(dim=1) + self.stock) * (self.underage + self.overage)).sum(-1)

    def _kept(self, found: Prescription, outcomes: Tensor, weights: Tensor) -> Prescription:
        return demoted(found, self.missed(found.decisions, outcomes, weights))
