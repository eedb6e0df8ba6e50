"""One cost after another over one polyhedron, each from a basis that is near: the loop around the pivots, compiled.

A vertex stays feasible when the cost changes, so the primal simplex method goes on from any basis. Costs are nudged
first, by a billionth and always by the same share for a column, so that one vertex is best whatever the start; then the
nudge is taken off, the columns are priced by A and the costs themselves, and what is then still wrong is pivoted away.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numba.core.options import DefaultOptions
from numpy.typing import NDArray

from bco_core import deadline
from bco_core.solvers.dual_simplex import FAILED, NONE, OPTIMAL, Index, piece
from bco_core.solvers.linear_form import Array
from bco_core.solvers.polyhedron import Polyhedron, certify, certify_plainly, proves_unbounded
from bco_core.solvers.primal_pivots import PIVOTS_MORE, PIVOTS_PER_ROW, STALE, UNBOUNDED, pivot_until_done
from bco_core.solvers.primal_tableau import (
    BASIC,
    UPPER,
    ZERO,
    add_rows,
    factorise,
    price_slots,
    rest_of,
    room_of,
    set_dual,
    tableau_of,
)

# References to arrays need not be counted where none are made, which saves a quarter of the time; numba's types do not
# know the option, and a numba without it counts.
_UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
loop = njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"}, **_UNCOUNTED)
# The share of the largest cost by which costs are nudged, and what reduced costs may be below zero beside it.
NUDGE, _TOLERANCE = 1e-9, 1e-13
# The same once the nudge is off: shares of the cost, of its terms and of the largest price; and while pivoting.
_EXACT, _EXACT_ROUNDING, _EXACT_ERROR, _EXACT_TOLERANCE = 1e-12, 1e-14, 1e-15, 1e-16
# How often columns may be priced again, or a basis inverted again, before HiGHS has to help.
_ROUNDS = 12
# Entries of a direction below this are rounding; what they leave of the rows is checked.
_RAY_ENTRY = 1e-8


class Pool(NamedTuple):
    """P bases, as in :class:`Tableau`, with a first axis each, and their vertices (P, d) in the planner's units."""

    status: NDArray[np.int8]
    basic: Index
    slots: Index
    table: Array
    inverse: Array
    level: Array
    vertices: Array


class Answers(NamedTuple):
    """For n costs: values (n, d), objective, status, whether it is proven (n,), bases (n, d + m) and pivots (n,)."""

    values: Array
    objective: Array
    status: NDArray[np.int8]
    certified: NDArray[np.bool_]
    bases: NDArray[np.int8]
    pivots: Index

    @staticmethod
    def of(total: int, count: int, columns: int) -> Answers:
        return Answers(
            np.full((total, count), np.nan),
            np.full(total, np.nan),
            np.full(total, FAILED, dtype=np.int8),
            np.zeros(total, dtype=bool),
            np.zeros((total, columns), dtype=np.int8),
            np.zeros(total, dtype=np.int64),
        )

    def part(self, some: slice) -> Answers:
        """Some of the rows, to write to."""
        return Answers._make(column[some] for column in self)


def solve_all(
    polyhedron: Polyhedron,
    unit: Array,
    nudge: Array,
    costs: Array,
    pool: Pool,
    answers: Answers,
    rung: deadline.Flag,
) -> None:
    """Write the answer for each of ``costs`` (n, d), from the basis of the pool whose vertex costs least.

    Stops when ``rung``; a row that is neither proven nor ruled out keeps FAILED.
    """
    _, rows, width = pool.table.shape
    shape = int(rows), costs.shape[1], int(width)
    across = np.ascontiguousarray(pool.vertices.T)
    own, room, prices = tableau_of(*shape), room_of(*shape), np.empty(len(pool.vertices))
    _solve_all(polyhedron, unit, nudge, costs, pool, across, answers, own, room, prices, rung)


@loop
def _solve_all(polyhedron, unit, nudge, costs, pool, across, answers, own, room, prices, rung):  # type: ignore[no-untyped-def]  # pragma: no cover
    """See above; ``across`` (d, P) are the pool's vertices, and ``own``, ``room`` and ``prices`` (P,) are room."""
    total, count = costs.shape
    rows = pool.table.shape[1]
    for n in range(total):
        if rung[0]:
            break
        if not _take_cost(costs[n], unit, nudge, room):
            continue
        at = _closest(across, costs[n], prices)
        _copy(pool, at, own)
        status, proven, pivots = _solve(polyhedron, own, pool.inverse[at], room, answers.values[n], rung)
        answers.status[n] = status
        answers.certified[n] = proven
        answers.pivots[n] = pivots
        for j in range(count + rows):
            answers.bases[n, j] = own.status[j]
        if status == OPTIMAL:
            objective = 0.0
            for j in range(count):
                answers.values[n, j] *= unit[j]
                objective += costs[n, j] * answers.values[n, j]
            answers.objective[n] = objective
        else:
            answers.objective[n] = -np.inf if status == UNBOUNDED else np.nan
            for j in range(count):
                answers.values[n, j] = np.nan


@piece
def _take_cost(cost, unit, nudge, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The cost in the kernel's units, over a power of two that leaves the largest near one; whether it is finite."""
    largest = 0.0
    finite = True
    for j in range(len(cost)):
        amount = cost[j] * unit[j]
        room.cost[j] = amount
        if not abs(amount) < np.inf:
            finite = False
        largest = max(largest, abs(amount))
    if finite and largest > 0.0:
        factor = math.ldexp(1.0, -max(min(math.frexp(largest)[1], 1000), -1000))
        for j in range(len(cost)):
            room.cost[j] *= factor
    for j in range(len(cost)):
        room.nudged[j] = room.cost[j] + nudge[j]
    return finite


@piece
def _closest(across, cost, prices):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The cheapest vertex of the pool."""
    for p in range(len(prices)):
        prices[p] = 0.0
    add_rows(cost, across, prices)
    chosen = 0
    for p in range(len(prices)):
        if prices[p] < prices[chosen]:
            chosen = p
    return chosen


@piece
def _copy(pool, at, own):  # type: ignore[no-untyped-def]  # pragma: no cover
    """A basis of the pool to pivot from; its inverse stays where it is."""
    rows, width = own.table.shape
    for j in range(len(own.status)):
        own.status[j] = pool.status[at, j]
    for k in range(width):
        own.slots[k] = pool.slots[at, k]
    for i in range(rows):
        own.basic[i] = pool.basic[at, i]
        own.level[i] = pool.level[at, i]
        for k in range(width):
            own.table[i, k] = pool.table[at, i, k]


@piece
def _solve(polyhedron, own, inverse, room, values, rung):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Pivot to the optimum and prove it, or a direction without end: status, whether it is proven, and the pivots."""
    most = PIVOTS_PER_ROW * len(own.basic) + PIVOTS_MORE
    left = most
    pivots = 0
    exact = False
    status = FAILED
    proven = False
    price_slots(own, room.nudged, room)
    rounds = 0
    while left > 0 and rounds < _ROUNDS:
        tolerance = _EXACT_TOLERANCE if exact else _TOLERANCE
        outcome, pivots, left, slot = pivot_until_done(polyhedron, own, room, tolerance, pivots, left, rung)
        if outcome == FAILED:
            break
        if outcome == STALE:
            if not factorise(polyhedron, own, room):
                break
            inverse = own.inverse
            pivots = 0
            price_slots(own, room.cost if exact else room.nudged, room)
            continue
        if outcome == UNBOUNDED:
            _set_ray(own, slot, room)
            if proves_unbounded(polyhedron, room.cost, room.ray, room.activity, room.terms):
                status = UNBOUNDED
                proven = True
                break
        rounds += 1
        set_dual(own, inverse, room.cost, pivots, room)
        if outcome == OPTIMAL:
            set_values(polyhedron, own, values)
            if certify_plainly(polyhedron, room.cost, values, room.dual, room.activity):
                status = OPTIMAL
                proven = True
                break
        right = _price_again(polyhedron, own, room)
        exact = True
        if outcome == OPTIMAL and right:
            if certify(polyhedron, room.cost, values, room.dual, room.activity, room.terms):
                status = OPTIMAL
                proven = True
                break
            if pivots == 0 or not factorise(polyhedron, own, room):
                break
            inverse = own.inverse
            pivots = 0
            price_slots(own, room.cost, room)
    return status, proven, most - left


@piece
def _set_ray(own, slot, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """``room.ray`` becomes the direction in which the slot's column moves."""
    step = 1.0 if room.reduced[slot] < 0.0 else -1.0
    count = len(room.ray)
    for j in range(count):
        room.ray[j] = 0.0
    if own.slots[slot] < count:
        room.ray[own.slots[slot]] = step
    for i in range(len(own.basic)):
        if own.basic[i] < count and abs(own.table[i, slot]) > _RAY_ENTRY:
            room.ray[own.basic[i]] = -step * own.table[i, slot]


@piece
def _price_again(polyhedron, own, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Reduced costs from A, the costs without nudge and their dual prices; whether none is wrong by more than rounding.

    What may be rounding is zero afterwards: it is not worth a pivot.
    """
    count = len(room.cost)
    largest = 0.0
    for i in range(len(room.dual)):
        largest = max(largest, abs(room.dual[i]))
    right = True
    for k in range(len(own.slots)):
        j = own.slots[k]
        room.reduced[k] = 0.0
        if j == NONE:
            continue
        room_for = _EXACT_ERROR * largest
        if j < count:
            price = room.cost[j]
            room_for += _EXACT * abs(price)
            for at in range(polyhedron.begins[j], polyhedron.begins[j + 1]):
                part = polyhedron.entries[at] * room.dual[polyhedron.places[at]]
                price -= part
                room_for += _EXACT_ROUNDING * abs(part)
        else:
            price = room.dual[j - count]
        wrong = -price
        if own.status[j] == UPPER or (own.status[j] == ZERO and wrong < 0.0):
            wrong = -wrong
        if not 0.0 <= wrong <= room_for:
            room.reduced[k] = price
            right = right and wrong < 0.0
    return right


@piece
def set_values(polyhedron, own, values):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The vertex."""
    count = len(values)
    for j in range(count):
        if own.status[j] != BASIC:
            values[j] = rest_of(polyhedron, own.status, j)
    for i in range(len(own.basic)):
        if own.basic[i] < count:
            values[own.basic[i]] = own.level[i]
