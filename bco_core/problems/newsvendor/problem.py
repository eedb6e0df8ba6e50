"""The newsvendor, one item or several: c(z; y) = Σ_j u_j (y_j − s_j − z_j)⁺ + o_j (s_j + z_j − y_j)⁺, l_j ≤ z_j ≤ m_j,
where z_j is ordered and s_j is on hand.

If items do not interact, every answer has a closed form. The decision for a point prediction is the prediction minus
the stock, clipped to the order bounds. Over weighted scenarios it is the weighted τ-quantile, τ = u/(u + o), minus the
stock and clipped likewise: the cost is convex in each z_j, so clipping the free optimum is optimal. With packs or whole
numbers, one of its two neighbours is best. An item's service level raises τ to at least that level. One row across
items is solved by a search over its price (:mod:`.item_costs`). HiGHS (:mod:`.program`) solves several rows, a fill
rate over all items, CVaR, and packs that use different amounts of a row.

For a point prediction under one row, orders give way in the order of what a unit of the row costs them, each as far as
its bound. That order does not depend on the prediction, so the decision is a differentiable formula of sums and clamps.
Under several rows it is a linear program of which only the right-hand side changes, solved as a
:class:`~bco_core.problems.linear.two_stage.TwoStageLinear`.

``relaxation`` drops packs and whole numbers; learning keeps the rows, through the decision for a point prediction.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.batch_kernels import sum_of_rows
from bco_core.problems.base import EXPECTATION, Breach, DecisionProblem, Prescription, Price, Risk, Status
from bco_core.problems.linear.model import SENSES
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.newsvendor import description as describe
from bco_core.problems.newsvendor.description import ROUNDING, OrderRows
from bco_core.problems.newsvendor.item_costs import ItemCosts, PricedRow, best_within, grid_bounds
from bco_core.problems.newsvendor.program import OrderProgram, OrderSolution, solve
from bco_core.solvers.linear_form import Array
from bco_core.status import GAP, HIGHS
from bco_core.status import ROUNDING as COST_ROUNDING
from bco_core.weighted_stats import sort_atoms, sorted_cvar, weighted_quantile

# How far a service level may be missed, besides sampling noise, in scenarios that the decision was not based on.
_SERVICE_TOLERANCE = 0.02
_SENSE_NAMES = {-1: "at most", 0: "exactly", 1: "at least"}
# Prices below this share of the largest unit cost are rounding.
_NOTHING = 1e-9
UNKEPT = "no orders keep the required service levels; these miss them by as little as possible"
CUT_OFF = "the time limit passed before the best orders were proven; these are the best found, if any"
_OPEN = "the allowed optimality gap was not closed"


@dataclass(frozen=True)
class Newsvendor(DecisionProblem):
    """Unit costs, order bounds, largest possible demand, stock on hand, order multiples (0 for any amount) and service
    levels of items, each (d_y,), float64; rows across items; and the fill rate over all items."""

    names: tuple[str, ...]
    underage: Tensor
    overage: Tensor
    minimum: Tensor
    maximum: Tensor
    most: Tensor
    stock: Tensor
    steps: Tensor
    service: Tensor
    rows: OrderRows
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
        """Largest cost: with demand from 0 to its stated maximum and orders within bounds, each item's cost is largest
        at a corner."""
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
        return replace(self, steps=torch.zeros_like(self.steps)) if self._has_packs else self

    @property
    def fractiles(self) -> Tensor | None:
        """Level (d,) of the quantile that stock and order together are; None if items share a row or a fill rate."""
        return None if len(self.rows) or self.fill_rate else self._levels

    @property
    def _levels(self) -> Tensor:
        return torch.maximum(self.underage / (self.underage + self.overage), self.service)

    @cached_property
    def _has_packs(self) -> bool:
        return bool((self.steps > 0).any())

    @cached_property
    def _has_stock(self) -> bool:
        return bool(self.stock.any())

    @property
    def decides_alone(self) -> bool:
        return len(self.rows) < 2 and not self.fill_rate and (not self._has_packs or self._one_pack is not None)

    @property
    def promises(self) -> bool:
        return bool(self.fill_rate) or bool((self.service > 0).any())

    def decide(self, outcomes: Tensor) -> Tensor:
        if len(self.rows) > 1:
            return self._point.decide(outcomes)
        needed = outcomes - self.stock if self._has_stock else outcomes
        wanted = needed.clamp(self.minimum, self.maximum)
        if not len(self.rows):
            return wanted
        return keep_only_row(wanted, self.minimum, self.maximum, self.underage, self.overage, self.rows)

    @cached_property
    def _point(self) -> TwoStageLinear:
        return as_two_stage(
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
        if self._has_packs:
            unit = torch.where(self.steps > 0, self.steps, 1.0)
            away = (decisions - (decisions / unit).round() * unit).abs()
            inside &= (away <= ROUNDING * (unit + decisions.abs())) | (self.steps <= 0)
        if not len(self.rows):
            return inside.all(-1)
        by, rounding = self.rows.excess(decisions.detach().double().numpy())
        return inside.all(-1) & torch.from_numpy(np.asarray((by <= rounding).all(-1)))

    def covered(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Return whether stock and order meet each demand, up to rounding."""
        there = self.stock + decisions
        return outcomes <= there + ROUNDING * (1 + there.abs())

    def breaches(self, decision: Tensor) -> list[Breach]:
        return broken_rules(self.names, self.minimum, self.maximum, self.steps, self.rows, decision)

    def missed(self, decisions: Tensor, outcomes: Tensor, weights: Tensor, sure: bool = True) -> list[str]:
        if not self.promises:
            return []
        served = self.covered(decisions[:, None], outcomes)
        short = (outcomes - self.stock - decisions[:, None]).clamp_min(0)
        noise = 2 * (self.service * (1 - self.service) / outcomes.shape[1]).sqrt() + _SERVICE_TOLERANCE
        tolerance = torch.zeros_like(noise) if sure else noise
        return missed_promises(self.names, self.service, self.fill_rate, served, short, outcomes, weights, tolerance)

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """Return the prices of rules that bind the best orders over these scenarios, without packs and integers."""
        free, outcomes = self.relaxation, outcomes[None].double()
        floors = free._floors(free._item_costs(outcomes, weights))
        (solution,) = solve_all(free._programs(outcomes, weights, floors, EXPECTATION), 1, None)
        dearest = torch.maximum(self.underage, self.overage).max().item()
        return prices_of(solution, floors[0], self.minimum, dearest)

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        weights = weights.to(outcomes)
        coupled = bool(risk.cvar_weight) or bool(self.fill_rate) or len(self.rows) > 1
        if not coupled and not len(self.rows) and not self._has_packs:
            decisions = self.decide(weighted_quantile(outcomes, weights, self._levels))
            return self._check_promises(self.optimal(decisions, outcomes, weights), outcomes, weights)
        outcomes = outcomes.detach().double()
        if not coupled and not len(self.rows):
            return self._check_promises(self._neighbours(outcomes, weights), outcomes, weights)
        if not coupled and (not self._has_packs or self._one_pack is not None):
            return self._by_price(outcomes, weights, time_limit_seconds)
        return self._by_program(outcomes, weights, risk, time_limit_seconds)

    def _item_costs(self, outcomes: Tensor, weights: Tensor) -> ItemCosts:
        return ItemCosts.of(outcomes, weights, self.stock, self.underage, self.overage)

    def _floors(self, costs: ItemCosts) -> Tensor:
        """Return the least orders (B, d) that keep the service levels; −∞ for items without one."""
        none = torch.full_like(costs.needs[..., 0], -torch.inf)
        if not (self.service > 0).any():
            return none
        place = costs.place(self.service.expand_as(none))
        return torch.where(self.service > 0, costs.at(place, none, -none), none)

    def _bounds(self, costs: ItemCosts) -> tuple[Tensor, Tensor]:
        """Return the order bounds (B, d), raised to keep the service levels as far as the largest orders allow."""
        low, high = torch.maximum(self._floors(costs), self.minimum), self.maximum.expand_as(costs.needs[..., 0])
        low, high = grid_bounds(low, high, self.steps)
        return torch.minimum(low, high), high

    def _neighbours(self, outcomes: Tensor, weights: Tensor) -> Prescription:
        costs = self._item_costs(outcomes, weights)
        low, high = self._bounds(costs)
        best = costs.at(costs.place(self._levels.expand_as(low)), low, high)
        return self.optimal(costs.on_grid(best, low, high, self.steps, torch.zeros(())), outcomes, weights)

    @cached_property
    def _one_pack(self) -> float | None:
        """Use of the only row by a pack if all packs use the same amount; otherwise None."""
        if len(self.rows) != 1 or self.rows.senses[0] == 0:
            return None
        use = (self.rows.matrix[0] * self.steps.numpy())[self.rows.matrix[0] != 0]
        return abs(float(use[0])) if len(use) and use[0] and (use == use[0]).all() else None

    def _by_price(self, outcomes: Tensor, weights: Tensor, time_limit_seconds: float | None) -> Prescription:
        deadlines.check()
        costs = self._item_costs(outcomes, weights)
        low, high = self._bounds(costs)
        limit, sense = float(self.rows.limits[0]), int(self.rows.senses[0])
        uses = torch.from_numpy(self.rows.matrix[0]).expand_as(low)
        free = costs.at(costs.place(self._levels.expand_as(low)), low, high)
        # An equality acts as the inequality that the free optimum breaks.
        at_least = sum_of_rows(uses * free) < limit if sense == 0 else torch.full((len(low),), sense > 0)
        side = torch.where(at_least, -1.0, 1.0).double()
        row = PricedRow(uses * side[:, None], limit * side, self._one_pack or 0.0)
        best = best_within(costs, low, high, self.steps, row)
        orders = torch.minimum(torch.maximum(best.orders, low), high)
        answer = judge(
            orders, (self.cost(orders[:, None], outcomes) * weights).sum(-1), best.bound, self._size(outcomes)
        )
        by, rounding = self.rows.excess(orders.numpy())
        over = torch.from_numpy((by > rounding)[:, 0])
        if over.any():
            # Service levels require more than the row allows.
            each = weights.expand(outcomes.shape[:2])
            answer = replace_contexts(
                answer, over, self._by_program(outcomes[over], each[over], EXPECTATION, time_limit_seconds)
            )
        return self._check_promises(answer, outcomes, weights)

    def _by_program(
        self, outcomes: Tensor, weights: Tensor, risk: Risk, time_limit_seconds: float | None
    ) -> Prescription:
        floors = self._floors(self._item_costs(outcomes, weights))
        solutions = solve_all(self._programs(outcomes, weights, floors, risk), len(outcomes), time_limit_seconds)
        orders = torch.from_numpy(np.stack([one.orders for one in solutions]))
        objective = risk_of(self.cost(orders[:, None], outcomes), weights, risk)
        return self._check_promises(
            judge_solutions(solutions, orders, objective, self._size(outcomes)), outcomes, weights
        )

    def _programs(self, outcomes: Tensor, weights: Tensor, floors: Tensor, risk: Risk) -> Iterator[OrderProgram]:
        needs, shares = outcomes - self.stock, weights.double().expand(outcomes.shape[:2])
        own = (self.underage, self.overage, self.minimum, self.maximum)
        underage, overage, low, high = (part.numpy() for part in own)
        short = torch.full((len(outcomes),), math.inf, dtype=torch.float64)
        if self.fill_rate:
            short = (1 - self.fill_rate) * (outcomes.clamp_min(0).sum(-1) * shares).sum(-1)
        for need, share, floor, lacking in zip(needs, shares, floors, short.tolist(), strict=True):
            parts = (need.numpy(), share.numpy(), underage, overage, low, high, floor.numpy(), self.steps.numpy())
            yield OrderProgram(*parts, self.rows, lacking, risk)

    def _size(self, outcomes: Tensor) -> Tensor:
        """Return the size of costs (B,) over outcomes (B, K, d), by which rounding is judged."""
        return ((outcomes.abs().amax(dim=1) + self.stock) * (self.underage + self.overage)).sum(-1)

    def _check_promises(self, answer: Prescription, outcomes: Tensor, weights: Tensor) -> Prescription:
        return demote(answer, self.missed(answer.decisions, outcomes, weights))


def keep_row(
    wanted: Tensor, low: Tensor, high: Tensor, underage: Tensor, overage: Tensor, uses: Tensor, limit: float
) -> Tensor:
    """Return orders (..., d) of least cost with Σ uses·order ≤ limit; ``wanted`` (..., d) are best without that row."""
    excess = ((wanted * uses).sum(-1, keepdim=True) - limit).clamp_min(0)
    order = torch.where(uses > 0, underage, overage).div(uses.abs()).argsort(stable=True)
    order = order[(uses != 0)[order]]
    # An order that uses the row shrinks, one that makes room grows.
    shrinks, use = (uses > 0)[order], uses.abs()[order]
    now = wanted[..., order]
    room = torch.where(shrinks, now - low[order], high[order] - now) * use
    before = torch.cat([torch.zeros_like(excess), room.cumsum(-1)[..., :-1]], dim=-1)
    change = torch.minimum((excess - before).clamp_min(0), room) / use
    moved = torch.where(shrinks, now - change, now + change)
    # An order that reaches its bound reaches it exactly.
    moved = torch.where(excess - before >= room, torch.where(shrinks, low[order], high[order]), moved)
    orders = wanted.clone()
    orders[..., order] = torch.where(excess > 0, moved, now)
    return orders


def keep_only_row(
    wanted: Tensor, low: Tensor, high: Tensor, underage: Tensor, overage: Tensor, rows: OrderRows
) -> Tensor:
    """Return the same orders for the only row, of any sense."""
    uses, limit, sense = torch.from_numpy(rows.matrix[0]), float(rows.limits[0]), int(rows.senses[0])
    if sense <= 0:
        wanted = keep_row(wanted, low, high, underage, overage, uses, limit)
    if sense >= 0:
        wanted = keep_row(wanted, low, high, underage, overage, -uses, -limit)
    return wanted


def as_two_stage(
    low: Array, high: Array, underage: Array, overage: Array, stock: Array, rows: OrderRows
) -> TwoStageLinear:
    """Return a two-stage problem with the same best decisions: c(z; y) = Σ o z + (u + o)·short, short ≥ y − stock − z.

    Its cost differs from the newsvendor's by Σ o (stock − y), which no decision changes.
    """
    signs = {number: sign for sign, number in SENSES.items()}
    names = [str(index) for index in range(len(low))]
    return TwoStageLinear.from_spec(
        {
            "decisions": [
                {
                    "name": name,
                    "cost": overage[j],
                    "minimum": low[j] if np.isfinite(low[j]) else None,
                    "maximum": high[j] if np.isfinite(high[j]) else None,
                }
                for j, name in enumerate(names)
            ],
            "decision_rows": [
                {
                    "coefficients": {names[j]: row[j] for j in np.flatnonzero(row)},
                    "sense": signs[int(sense)],
                    "limit": limit,
                }
                for row, sense, limit in zip(rows.matrix, rows.senses, rows.limits, strict=True)
            ],
            "outcomes": [{"name": name} for name in names],
            "recourse": [{"name": name, "cost": underage[j] + overage[j]} for j, name in enumerate(names)],
            "rows": [
                {
                    "recourse": {name: 1.0},
                    "decisions": {name: 1.0},
                    "sense": ">=",
                    "constant": -stock[j],
                    "outcomes": {name: 1.0},
                }
                for j, name in enumerate(names)
            ],
        }
    )


def broken_rules(
    names: tuple[str, ...], low: Tensor, high: Tensor, steps: Tensor, rows: OrderRows, decision: Tensor
) -> list[Breach]:
    """Return the bounds, packs and rows that a decision (d,) breaks."""
    breaches = []
    for j, (name, order, least, most, step) in enumerate(
        zip(names, decision.tolist(), low.tolist(), high.tolist(), steps.tolist(), strict=True)
    ):
        rounding = ROUNDING * (1 + abs(order))
        if order < least - rounding:
            sentence = f"{name}: an order of {order:g} is below its minimum of {least:g}"
            breaches.append(Breach(("items", j, "minimum_order"), least - order, sentence))
        if order > most + rounding:
            sentence = f"{name}: an order of {order:g} is above its maximum of {most:g}"
            breaches.append(Breach(("items", j, "maximum_order"), order - most, sentence))
        away = abs(order - round(order / step) * step) if step else 0.0
        if away > ROUNDING * (step + abs(order)):
            what, field = ("a whole number", "integer") if step == 1 else (f"a multiple of {step:g}", "pack_size")
            breaches.append(Breach(("items", j, field), away, f"{name}: an order of {order:g} is not {what}"))
    if not len(rows):
        return breaches
    for i, (excess, tolerance) in enumerate(zip(*rows.excess(decision.double().numpy()), strict=True)):
        if excess > tolerance:
            used = float(rows.matrix[i] @ decision.double().numpy())
            required = f"{_SENSE_NAMES[int(rows.senses[i])]} {rows.limits[i]:g}"
            sentence = f"{rows.names[i]} is {used:g}, and must be {required}"
            breaches.append(Breach(("decision_rows", i), float(excess), sentence))
    return breaches


def missed_promises(
    names: tuple[str, ...],
    levels: Tensor,
    fill_rate: float,
    served: Tensor,
    short: Tensor,
    outcomes: Tensor,
    weights: Tensor,
    tolerance: Tensor,
) -> list[str]:
    """Return a sentence per context about the service level that is missed by most, "" if all are kept.

    Served and short are (B, K, d), weights (K,) or (B, K), and levels may be missed by the tolerance (d,).
    """
    weights = weights.double().expand(outcomes.shape[:2])[..., None]
    shares = (served.double() * weights).sum(1)
    lacking = levels - shares
    lacking = torch.where((levels > 0) & (lacking > tolerance + 1e-9), lacking, 0.0)
    demand = (outcomes.double().clamp_min(0) * weights).sum((1, 2))
    met = torch.where(demand > 0, 1 - (short.double() * weights).sum((1, 2)) / demand, 1.0)
    sentences = []
    for item, by, share, filled in zip(
        lacking.argmax(-1).tolist(), lacking.amax(-1).tolist(), shares.tolist(), met.tolist(), strict=True
    ):
        if by > 0:
            required = f"{levels[item].item():.1%} is required"
            sentences.append(f"{names[item]}: demand is met in {share[item]:.1%} of the scenarios, and {required}")
        elif filled < fill_rate - tolerance.max().item() - 1e-6:
            sentences.append(f"{filled:.1%} of all demand is expected to be met, and {fill_rate:.1%} is required")
        else:
            sentences.append("")
    return sentences


def prices_of(solution: OrderSolution, floors: Tensor, low: Tensor, dearest: float) -> list[Price]:
    """Return the prices of binding rules in the solution of a program without whole numbers."""
    if solution.status is not Status.OPTIMAL or not len(solution.bounds):
        return []
    prices = [Price(("decision_rows", i), value) for i, value in enumerate(solution.rows.tolist())]
    bounds = zip(solution.bounds.tolist(), floors.tolist(), low.tolist(), strict=True)
    for j, (value, floor, least) in enumerate(bounds):
        at_least = "minimum_service_level" if floor > least else "minimum_order"
        prices.append(Price(("items", j, at_least if value > 0 else "maximum_order"), abs(value)))
    prices.append(Price(("minimum_service_level",), solution.short))
    return [price for price in prices if price.value > _NOTHING * dearest]


def risk_of(costs: Tensor, weights: Tensor, risk: Risk) -> Tensor:
    """Return (1 − w)·E + w·CVaR (B,) of costs (B, K) with weights (K,) or (B, K)."""
    mean = (costs * weights).sum(-1)
    if not risk.cvar_weight:
        return mean
    tail = sorted_cvar(*sort_atoms(costs, weights), risk.cvar_level)
    return (1 - risk.cvar_weight) * mean + risk.cvar_weight * tail


def judge(orders: Tensor, objective: Tensor, bound: Tensor, size: Tensor) -> Prescription:
    """Return orders (B, d) as a prescription, ``optimal`` where their cost (B,) meets its lower bound (B,).

    ``size`` (B,) is the size of the costs' terms, which distinguishes rounding from a gap.
    """
    above = (objective - bound).clamp_min(0)
    above = torch.where(above <= 10 * COST_ROUNDING * size, 0.0, above)
    gaps = torch.where(above > 0, above / objective.abs(), above)
    closed = above <= GAP.relative * objective.abs()
    proven = closed.tolist()
    status = [Status.OPTIMAL if one else Status.BEST_EFFORT for one in proven]
    reasons = tuple("" if one else _OPEN for one in proven)
    return Prescription(orders, objective, status, reasons, gaps=gaps, bounds=torch.minimum(bound, objective))


def solve_all(programs: Iterable[OrderProgram], count: int, time_limit_seconds: float | None) -> list[OrderSolution]:
    """Solve ``count`` programs one by one, each with an equal share of the time that is left."""
    deadline = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds
    solutions: list[OrderSolution] = []
    for program in programs:
        left = count - len(solutions)
        share = None if deadline is None else max(deadline - time.monotonic(), 0.0) / left
        solutions.append(solve(program, share))
    return solutions


def judge_solutions(solutions: list[OrderSolution], orders: Tensor, objective: Tensor, size: Tensor) -> Prescription:
    """Return the solutions of programs as a prescription, judged by what the orders (B, d) cost (B,)."""
    answer = judge(orders, objective, torch.tensor([one.bound for one in solutions], dtype=torch.float64), size)
    sentences = {Status.TIME_LIMIT: CUT_OFF, Status.BEST_EFFORT: UNKEPT}
    status = [
        mine if one.status is Status.OPTIMAL else one.status for one, mine in zip(solutions, answer.status, strict=True)
    ]
    reasons = tuple(sentences.get(one.status, mine) for one, mine in zip(solutions, answer.reasons, strict=True))
    return replace(answer, status=status, reasons=reasons, solvers=(HIGHS,) * len(solutions))


def replace_contexts(answer: Prescription, where: Tensor, other: Prescription) -> Prescription:
    """Return the answer with the marked contexts (B,) replaced by another answer's."""
    places = where.nonzero().flatten().tolist()
    status, reasons = list(answer.status), list(answer.reasons)
    solvers = list(answer.solvers or ("",) * len(status))
    for i, place in enumerate(places):
        status[place], reasons[place], solvers[place] = other.status[i], other.reasons[i], other.solvers[i]

    def mixed(mine: Tensor, its: Tensor) -> Tensor:
        return mine.index_put((where,), its)

    return Prescription(
        mixed(answer.decisions, other.decisions),
        mixed(answer.objective, other.objective),
        status,
        tuple(reasons),
        tuple(solvers),
        None if answer.gaps is None or other.gaps is None else mixed(answer.gaps, other.gaps),
        None if answer.bounds is None or other.bounds is None else mixed(answer.bounds, other.bounds),
    )


def demote(answer: Prescription, missed: list[str]) -> Prescription:
    """Return the answer without status ``optimal`` for contexts that miss a promise: a sentence each, "" if kept."""
    if not any(missed):
        return answer
    status = [
        Status.BEST_EFFORT if one is Status.OPTIMAL and sentence else one
        for one, sentence in zip(answer.status, missed, strict=True)
    ]
    reasons = tuple(
        sentence or reason for sentence, reason in zip(missed, answer.reasons or ("",) * len(missed), strict=True)
    )
    gaps = None if answer.gaps is None else answer.gaps.masked_fill(torch.tensor([bool(m) for m in missed]), np.nan)
    return replace(answer, status=status, reasons=reasons, gaps=gaps)
