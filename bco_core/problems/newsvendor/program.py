"""The newsvendor as a program for HiGHS, one context at a time, where no formula applies.

For expected cost, each item is its convex piecewise-linear cost: the order is the first kink plus a part of each
segment, cheaper segments first. This takes a row per item, not per scenario. Orders lie on multiples of a pack, so the
kinks are then the multiples around the demands, which leaves little to branch on. A fill rate over all items is one
more row, since the expected shortage is piecewise linear on the same segments. CVaR couples the items of a scenario and
takes a row per scenario.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core import deadlines
from bco_core.errors import SolverFailure
from bco_core.problems.base import EXPECTATION, Risk, Status
from bco_core.problems.newsvendor.description import ROUNDING, OrderRows
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array
from bco_core.status import GAP

# Scenarios × items from which branching, or CVaR, counts as long work.
_LONG = 1_000
# Price of missing a service level by a unit, relative to the largest unit cost, if it cannot be kept.
_MISSED = 1e3
_ATTEMPTS = (("choose", 1e-9), ("off", 1e-9), ("choose", 1e-7))


@dataclass(frozen=True)
class OrderProgram:
    """One context: needs (K, d), which are demands minus the stock, their weights (K,), bounds (d,), and ``short``, the
    largest expected shortage of all items together, infinite for no limit.

    ``floors`` (d,) are the least orders that keep service levels; −∞ for items without one.
    """

    needs: Array
    weights: Array
    underage: Array
    overage: Array
    low: Array
    high: Array
    floors: Array
    steps: Array
    rows: OrderRows
    short: float = math.inf
    risk: Risk = EXPECTATION

    @property
    def size(self) -> float:
        """The largest amount, by which all amounts are divided for HiGHS."""
        parts = (self.needs, self.low, self.floors, self.steps)
        return max(float(np.abs(part[np.isfinite(part)]).max(initial=0)) for part in parts) or 1.0


@dataclass(frozen=True)
class OrderSolution:
    """Orders (d,), NaN if there are none; a lower bound of the objective, NaN if none is proven; prices of rows (R,),
    of order bounds (d,) and of the shortage limit, empty or NaN if orders are whole numbers."""

    status: Status
    orders: Array
    bound: float
    rows: Array = field(default_factory=lambda: np.empty(0))
    bounds: Array = field(default_factory=lambda: np.empty(0))
    short: float = math.nan


@dataclass(frozen=True)
class _HighsProgram:
    """min cost'v + offset; the first d variables are orders, counted in packs if there are any."""

    cost: Array
    matrix: sparse.csr_array
    least: Array
    most: Array
    lower: Array
    upper: Array
    offset: float


def solve(instance: OrderProgram, time_limit_seconds: float | None = None) -> OrderSolution:
    """Return the best orders; if service levels cannot be kept, those that miss them least, as ``best_effort``."""
    deadline = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds
    used = instance.weights > 0
    instance = replace(instance, needs=instance.needs[used], weights=instance.weights[used])
    whole, risky = bool(instance.steps.any()), bool(instance.risk.cvar_weight)
    long = (whole or risky) and instance.needs.size >= _LONG
    (deadlines.before_long_work if long else deadlines.check)()
    solution = _run(instance, deadline, soft=False)
    if solution.status is not Status.INFEASIBLE:
        return solution
    solution = _run(instance, deadline, soft=True)
    if solution.status is not Status.OPTIMAL:
        return solution
    return replace(solution, status=Status.BEST_EFFORT, bound=np.nan)


def _run(instance: OrderProgram, deadline: float | None, soft: bool) -> OrderSolution:
    unit, dearest = instance.size, float(max(instance.underage.max(), instance.overage.max()))
    small = _in_units(instance, unit, dearest)
    program = _risky(small, soft) if instance.risk.cvar_weight else _segments(small, soft)
    count, dim = len(program.cost), len(instance.low)
    whole: NDArray[np.bool_] = np.zeros(count, dtype=bool)
    whole[:dim] = instance.steps > 0
    if (program.lower > program.upper).any():
        return OrderSolution(Status.INFEASIBLE, np.full(dim, np.nan), np.nan)
    parts = (program.cost, program.matrix, program.least, program.most, program.lower, program.upper)
    answer, failed = None, SolverFailure("HiGHS found no answer")
    for presolve, tolerance in _ATTEMPTS:
        solver = highs.model_of(*parts, whole, program.offset)
        solver.setOptionValue("presolve", presolve)
        solver.setOptionValue("mip_rel_gap", GAP.relative / 10)
        solver.setOptionValue("mip_abs_gap", 0.0)
        solver.setOptionValue("mip_feasibility_tolerance", 1e-9)
        solver.setOptionValue("primal_feasibility_tolerance", tolerance)
        solver.setOptionValue("dual_feasibility_tolerance", tolerance)
        try:
            answer = highs.run(solver, None if deadline is None else max(deadline - time.monotonic(), 0.0))
            break
        except SolverFailure as failure:
            failed = failure
    if answer is None:
        raise failed
    if not len(answer.values):
        return OrderSolution(answer.status, np.full(dim, np.nan), np.nan)
    orders = answer.values[:dim].copy()
    orders[whole[:dim]] = np.round(orders[whole[:dim]]) * instance.steps[whole[:dim]]
    orders[~whole[:dim]] = np.clip(orders * unit, _hard_low(instance, soft), instance.high)[~whole[:dim]]
    if whole.any():
        return OrderSolution(answer.status, orders + 0.0, answer.bound * unit * dearest)
    bound, prices = np.nan, answer.duals
    if answer.status is Status.OPTIMAL:
        bound = (highs.lower_bound(*parts, answer) + program.offset) * unit * dearest
    if not len(prices):
        return OrderSolution(answer.status, orders + 0.0, bound)
    count = len(instance.rows)
    reduced = (program.cost - program.matrix.T @ prices)[:dim]
    short = -prices[count] if math.isfinite(instance.short) else 0.0
    of_rows = np.abs(prices[:count]) / _largest(instance.rows) * dearest
    return OrderSolution(answer.status, orders + 0.0, bound, of_rows, reduced * dearest, short * dearest)


def _hard_low(instance: OrderProgram, soft: bool) -> Array:
    return instance.low if soft else np.maximum(instance.low, instance.floors)


def _in_units(instance: OrderProgram, unit: float, dearest: float) -> OrderProgram:
    rows, largest = instance.rows, _largest(instance.rows)
    return replace(
        instance,
        needs=instance.needs / unit,
        underage=instance.underage / dearest,
        overage=instance.overage / dearest,
        low=instance.low / unit,
        high=instance.high / unit,
        floors=instance.floors / unit,
        steps=instance.steps / unit,
        rows=replace(rows, matrix=rows.matrix / largest[:, None], limits=rows.limits / largest / unit),
        short=instance.short / unit,
    )


def _largest(rows: OrderRows) -> Array:
    """Return the largest coefficient of each row (R,), one for an empty row."""
    largest = np.abs(rows.matrix).max(axis=1, initial=0)
    return np.where(largest > 0, largest, 1.0)


def _orders_bounds(instance: OrderProgram, soft: bool) -> tuple[Array, Array, Array]:
    """Return the unit of each order variable (d,) and its bounds (d,) in these units."""
    step = np.where(instance.steps > 0, instance.steps, 1.0)
    low, high = _hard_low(instance, soft) / step, instance.high / step
    whole = instance.steps > 0
    near_low, near_high = (ROUNDING * np.maximum(1.0, np.abs(edge)) for edge in (low, high))
    low = np.where(whole & np.isfinite(low), np.ceil(low - near_low), low)
    return step, low, np.where(whole & np.isfinite(high), np.floor(high + near_high), high)


def _missing(instance: OrderProgram, soft: bool) -> tuple[NDArray[np.int64], float]:
    """Return the items whose floor may be missed at a price, and that price."""
    floored = np.flatnonzero(instance.floors > instance.low) if soft else np.empty(0, dtype=np.int64)
    return floored, _MISSED * len(instance.low)


def _segments(instance: OrderProgram, soft: bool) -> _HighsProgram:
    """Return the program for expected cost, by segments of each item's cost."""
    step, low, high = _orders_bounds(instance, soft)
    dim, rows = len(low), instance.rows
    pieces = [_pieces(instance, j) for j in range(dim)]
    widths, slopes, shorts = (np.concatenate([piece[i] for piece in pieces]) for i in range(3))
    sizes = [len(piece[0]) for piece in pieces]
    owner = np.repeat(np.arange(dim), sizes)
    first = np.array([piece[3] for piece in pieces])
    limited = math.isfinite(instance.short)
    floored, missed = _missing(instance, soft)
    total = len(widths)
    # Columns: orders, segments, missed floors, and shortage beyond its limit.
    link = [
        sparse.diags_array(step, format="csr"),
        sparse.csr_array((np.full(total, -1.0), (owner, np.arange(total))), shape=(dim, total)),
    ]
    blank = sparse.csr_array
    blocks = [
        [sparse.csr_array(rows.matrix * step), blank((len(rows), total)), blank((len(rows), len(floored) + 1))],
        [blank((1, dim)), blank(shorts[None]), blank(([-1.0], ([0], [len(floored)])), shape=(1, len(floored) + 1))],
        [*link, blank((dim, len(floored) + 1))],
        [
            blank((step[floored], (np.arange(len(floored)), floored)), shape=(len(floored), dim)),
            blank((len(floored), total)),
            sparse.eye_array(len(floored), len(floored) + 1, format="csr"),
        ],
    ]
    if not limited:
        del blocks[1]
    before = float(sum(piece[5] for piece in pieces))
    row_least, row_most = rows.ends
    room = [np.array([instance.short - before])] if limited else []
    none = [np.array([-np.inf])] if limited else []
    ended = np.array([widths_of[0] for widths_of in (piece[0] for piece in pieces)])
    lower = np.zeros(total)
    # The first segment of an item extends downwards from its first kink.
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    lower[starts], upper = ended, widths.copy()
    upper[starts] = 0.0
    matrix = sparse.csr_array(sparse.block_array([block for block in blocks if block[0].shape[0]]))
    matrix.sort_indices()
    return _HighsProgram(
        np.concatenate([np.zeros(dim), slopes, np.full(len(floored) + 1, missed)]),
        matrix,
        np.concatenate([row_least, *none, first, instance.floors[floored]]),
        np.concatenate([row_most, *room, first, np.full(len(floored), np.inf)]),
        np.concatenate([low, lower, np.zeros(len(floored) + 1)]),
        np.concatenate([high, upper, np.full(len(floored), np.inf), [np.inf if soft else 0.0]]),
        float(sum(piece[4] for piece in pieces)),
    )


def _pieces(instance: OrderProgram, j: int) -> tuple[Array, Array, Array, float, float, float]:
    """Return an item's segments: widths (−∞ first, ∞ last), slopes of its expected cost and of its expected shortage,
    and its first kink with cost and shortage there."""
    needs, weights, step = instance.needs[:, j], instance.weights, instance.steps[j]
    kinks = np.unique(needs)
    if step:
        count = needs / step
        close = np.abs(count - np.round(count)) <= ROUNDING * np.maximum(1.0, np.abs(count))
        count = np.where(close, np.round(count), count)
        kinks = np.unique(np.concatenate([np.floor(count), np.ceil(count)])) * step
    order = np.argsort(needs, kind="stable")
    sorted_needs, sorted_weights = needs[order], weights[order]
    first, widths = float(kinks[0]), np.diff(kinks)
    share = np.concatenate([[0.0], np.cumsum(sorted_weights)])
    sums = np.concatenate([[0.0], np.cumsum(sorted_weights * (sorted_needs - first))])
    if step:
        below = np.searchsorted(sorted_needs, kinks, side="right")
        short = (sums[-1] - sums[below]) - (kinks - first) * (share[-1] - share[below])
        short_slopes = np.clip(np.diff(short) / np.where(widths > 0, widths, 1.0), -1.0, 0.0)
        # Keep the cost convex despite rounding.
        short_slopes = np.maximum.accumulate(short_slopes)
    else:
        short_slopes = share[np.searchsorted(sorted_needs, kinks[:-1], side="right")] - share[-1]
    under, over = instance.underage[j], instance.overage[j]
    # One more unit reduces the shortage or is left over.
    slopes = under * short_slopes + over * (1 + short_slopes)
    lacking = float(sums[-1])
    left = float(weights @ np.maximum(first - needs, 0.0))
    at_first = under * float(weights @ np.maximum(needs - first, 0.0)) + over * left
    return (
        np.concatenate([[-np.inf], widths, [np.inf]]),
        np.concatenate([[-under], slopes, [over]]),
        np.concatenate([[-1.0], short_slopes, [0.0]]),
        first,
        at_first,
        lacking + left,
    )


def _risky(instance: OrderProgram, soft: bool) -> _HighsProgram:
    """Return the program with CVaR. Columns: orders, shortage by scenario and item, η, excesses, missed floors, and
    shortage beyond its limit."""
    step, low, high = _orders_bounds(instance, soft)
    (count, dim), rows, risk = instance.needs.shape, instance.rows, instance.risk
    weights, needs = instance.weights, instance.needs
    floored, missed = _missing(instance, soft)
    total, extra = count * dim, len(floored) + 1
    both = instance.underage + instance.overage
    blank = sparse.csr_array
    shorts = [sparse.csr_array(np.tile(np.eye(dim) * step, (count, 1))), sparse.eye_array(total, format="csr")]
    tail = [
        blank(np.tile(-instance.overage * step, (count, 1))),
        sparse.kron(sparse.eye_array(count), -both[None], format="csr"),
        sparse.hstack([np.ones((count, 1)), sparse.eye_array(count)], format="csr"),
    ]
    blocks = [
        [blank(rows.matrix * step), blank((len(rows), total)), blank((len(rows), count + 1 + extra))],
        [
            blank((1, dim)),
            blank(np.repeat(weights, dim)[None]),
            blank(([-1.0], ([0], [count + extra])), shape=(1, count + 1 + extra)),
        ],
        [*shorts, blank((total, count + 1 + extra))],
        [tail[0], tail[1], sparse.hstack([tail[2], blank((count, extra))], format="csr")],
        [
            blank((step[floored], (np.arange(len(floored)), floored)), shape=(len(floored), dim)),
            blank((len(floored), total)),
            sparse.hstack(
                [blank((len(floored), count + 1)), sparse.eye_array(len(floored), extra, format="csr")], format="csr"
            ),
        ],
    ]
    limited = math.isfinite(instance.short)
    if not limited:
        del blocks[1]
    mean, row_least, row_most = 1 - risk.cvar_weight, *rows.ends
    free = [np.full(1, np.inf)] if limited else []
    matrix = sparse.csr_array(sparse.block_array([block for block in blocks if block[0].shape[0]]))
    matrix.sort_indices()
    return _HighsProgram(
        np.concatenate(
            [
                mean * instance.overage * step * weights.sum(),
                mean * np.outer(weights, both).ravel(),
                [risk.cvar_weight],
                risk.cvar_weight * weights / (1 - risk.cvar_level),
                np.full(extra, missed),
            ]
        ),
        matrix,
        np.concatenate(
            [row_least, *(-one for one in free), needs.ravel(), -needs @ instance.overage, instance.floors[floored]]
        ),
        np.concatenate(
            [
                row_most,
                *([np.array([instance.short])] if limited else []),
                np.full(total + count + len(floored), np.inf),
            ]
        ),
        np.concatenate([low, np.zeros(total), [-np.inf], np.zeros(count + extra)]),
        np.concatenate([high, np.full(total + 1 + count + len(floored), np.inf), [np.inf if soft else 0.0]]),
        -mean * float(weights @ needs @ instance.overage),
    )
