"""The master program of cutting planes: min c'z + t over rows of Z, an artificial box, and cuts t ≥ a'z + b.

The primal simplex method with a dense B⁻¹ solves its dual, whose basis has only d + 1 rows and to which a cut is one
more column. The multipliers of the d + 1 rows are z and the value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bco_core.solvers.dual_simplex import NONE, Index, piece
from bco_core.solvers.linear_form import Array

# State of the master: no z keeps the rows, gap open, gap closed, box too large.
BROKEN, WIDE, CLOSED, BOUNDLESS = 0, 1, 2, 3

# The box begins this many reaches from the first point, and moves away by the second number of them.
_BOX, _FURTHER = 4.0, 8.0
_LARGEST_REACH = 1e15
# A side of the box binds if its multiplier is above this share of the costs.
_BINDS = 1e-9
# Most pivots of one solve, and after how many of them the first column that gains enters, which prevents cycling.
_PIVOTS_PER_ROW, _PIVOTS_MORE, _FIRST_AFTER_PER_ROW = 200, 1000, 50
# Smallest relative gain of an entering column, and smallest entry to pivot on.
_LEAST_GAIN, _LEAST_PIVOT = 1e-11, 1e-11
# Entries of z that should be zero have errors in proportion to its largest entry.
_POINT_ERROR = 1e-3
_TINY = 1e-300
# Gaps are relative to at least this value.
_LEAST_VALUE = 1e-9
# To price rounding, the optimum is assumed to lie within this many times the largest entry of the points visited.
_WITHIN = 10.0


class FirstStage(NamedTuple):
    """c (d,), Z as ``rows`` (r, d) z ≥ ``limits`` (r,) including bounds, a first point ``begin`` (d,) of Z, and the
    ``fixed`` cost that no decision changes, which gaps exclude."""

    cost: Array
    rows: Array
    limits: Array
    begin: Array
    fixed: float


class Master(NamedTuple):
    """Columns of the dual (capacity, d + 1) and their profits: 2d sides of the box, the rows of Z, then the cuts.

    ``right`` is the right-hand side, ``basis`` and ``inverse`` are the state of the simplex method, ``multipliers``
    (d + 1,) its solution, z and the value, and ``entering`` (d + 1,) is scratch for one column.
    """

    columns: Array
    profit: Array
    right: Array
    basis: Index
    inverse: Array
    multipliers: Array
    entering: Array


@piece
def new_master(first, maximum_cuts):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return a master without cuts, the number of its columns in use, and the reach of its box."""
    dim = len(first.cost)
    used = 2 * dim + len(first.limits)
    columns = np.zeros((used + maximum_cuts, dim + 1))
    profit = np.zeros(used + maximum_cuts)
    right = np.ones(dim + 1)
    reach = 1.0
    for j in range(dim):
        right[j] = first.cost[j]
        reach = max(reach, abs(first.begin[j]))
    for j in range(dim):
        columns[2 * j, j] = 1.0
        columns[2 * j + 1, j] = -1.0
        profit[2 * j] = first.begin[j] - _BOX * reach
        profit[2 * j + 1] = -first.begin[j] - _BOX * reach
    for r in range(len(first.limits)):
        for j in range(dim):
            columns[2 * dim + r, j] = first.rows[r, j]
        profit[2 * dim + r] = first.limits[r]
    basis = np.zeros(dim + 1, dtype=np.int64)
    inverse = np.zeros((dim + 1, dim + 1))
    return Master(columns, profit, right, basis, inverse, np.zeros(dim + 1), np.zeros(dim + 1)), used, reach


@piece
def begin_with_cut(master, cut):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set the first basis: the first cut and, in every coordinate, the side of the box that it pushes towards."""
    dim = len(master.basis) - 1
    master.basis[dim] = cut
    for j in range(dim):
        amount = master.right[j] - master.columns[cut, j]
        side = 1.0 if amount >= 0.0 else -1.0
        master.basis[j] = 2 * j if side > 0 else 2 * j + 1
        master.inverse[j, j] = side
        master.inverse[j, dim] = -side * master.columns[cut, j]
    master.inverse[dim, dim] = 1.0


@piece
def sharpen(inverse, whole, scratch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take one step of Newton's iteration X ← X + (I − X B) X, which squares the error of B⁻¹ after many pivots."""
    size = len(whole)
    for i in range(size):
        for k in range(size):
            total = 1.0 if i == k else 0.0
            for j in range(size):
                total -= inverse[i, j] * whole[j, k]
            scratch[i, k] = total
    for k in range(size):
        for i in range(size):
            total = 0.0
            for j in range(size):
                total += scratch[i, j] * inverse[j, k]
            whole[i, k] = total
    for i in range(size):
        for k in range(size):
            inverse[i, k] += whole[i, k]


@piece
def sharpen_master(master, whole, scratch):  # type: ignore[no-untyped-def]  # pragma: no cover
    for i in range(len(master.basis)):
        for k in range(len(master.basis)):
            whole[k, i] = master.columns[master.basis[i], k]
    sharpen(master.inverse, whole, scratch)


@piece
def certified_bound(master, best, whole, scratch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the master's value, recomputed from the basis' cuts and rows without the box, in nonnegative shares, minus
    the cost of what these miss of a constant in z."""
    size = len(master.right)
    sharpen_master(master, whole, scratch)
    reach = 0.0
    for k in range(size - 1):
        reach = max(reach, abs(master.multipliers[k]), abs(best[k]))
    bound = 0.0
    missing = scratch[0]
    for k in range(size):
        missing[k] = master.right[k]
    for i in range(size):
        share = 0.0
        for k in range(size):
            share += master.inverse[i, k] * master.right[k]
        if share > 0.0 and master.basis[i] >= 2 * (size - 1):
            bound += share * master.profit[master.basis[i]]
            for k in range(size):
                missing[k] -= share * master.columns[master.basis[i], k]
    for k in range(size - 1):
        bound -= abs(missing[k]) * _WITHIN * reach
    return bound - abs(missing[size - 1] * master.multipliers[size - 1]) * _WITHIN


@piece
def close_gap(master, used, first, best_value, gap, reach):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Solve the master over the columns in use; if it meets ``best_value``, move the box away and solve again.

    Return its state, its value and the reach of the box. The state is WIDE if there is a gap, CLOSED if there is none
    and the box does not bind, BROKEN if no z keeps the rows, BOUNDLESS if the box became too large.
    """
    while True:
        if not _solve(master, used):
            return BROKEN, -np.inf, reach
        bound = 0.0
        for k in range(len(master.right)):
            bound += master.multipliers[k] * master.right[k]
        if best_value - bound > gap * max(abs(best_value - first.fixed), _LEAST_VALUE):
            return WIDE, bound, reach
        if not _move_box(master, first.cost, reach):
            return CLOSED, bound, reach
        reach *= _FURTHER
        if reach > _LARGEST_REACH:
            return BOUNDLESS, -np.inf, reach


@piece
def _move_box(master, first_cost, reach):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Move away the sides of the box that bind; return whether there were any."""
    size = len(master.basis)
    binds = False
    for i in range(size):
        side = master.basis[i]
        if side < 2 * len(first_cost):
            amount = 0.0
            for k in range(size):
                amount += master.inverse[i, k] * master.right[k]
            if amount > _BINDS * (1.0 + abs(first_cost[side // 2])):
                binds = True
                master.profit[side] -= _FURTHER * reach
    return binds


@piece
def _solve(master, used):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Solve the dual in place by the primal simplex method; return False if it is unbounded: no z keeps the rows."""
    size = len(master.right)
    for pivots in range(_PIVOTS_PER_ROW * size + _PIVOTS_MORE):
        _set_multipliers(master)
        entering = _entering(master, used, pivots > _FIRST_AFTER_PER_ROW * size)
        if entering == NONE:
            return True
        leaving = _leaving(master, entering)
        if leaving == NONE:
            return False
        _pivot(master, leaving, entering)
    return True


@piece
def _set_multipliers(master):  # type: ignore[no-untyped-def]  # pragma: no cover
    size = len(master.right)
    for k in range(size):
        total = 0.0
        for i in range(size):
            total += master.profit[master.basis[i]] * master.inverse[i, k]
        master.multipliers[k] = total


@piece
def _entering(master, used, take_first):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the column of most relative gain, or the first that gains, or NONE."""
    columns, profit, multipliers = master.columns, master.profit, master.multipliers
    size = len(multipliers)
    reach = 0.0
    for k in range(size - 1):
        reach = max(reach, abs(multipliers[k]))
    entering = NONE
    best = 0.0
    for j in range(used):
        gain = profit[j]
        scale = abs(profit[j])
        for k in range(size):
            part = multipliers[k] * columns[j, k]
            gain -= part
            scale += abs(part)
            if k < size - 1:
                scale += _POINT_ERROR * reach * abs(columns[j, k])
        gain /= _TINY + scale
        if gain > _LEAST_GAIN and gain > best:
            entering = j
            best = gain
            if take_first:
                break
    return entering


@piece
def _leaving(master, entering):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the first row to reach zero, or NONE; set ``master.entering`` to the column's entries."""
    size = len(master.right)
    leaving = NONE
    least = np.inf
    for i in range(size):
        total = 0.0
        for k in range(size):
            total += master.inverse[i, k] * master.columns[entering, k]
        master.entering[i] = total
        if total > _LEAST_PIVOT:
            amount = 0.0
            for k in range(size):
                amount += master.inverse[i, k] * master.right[k]
            ratio = max(amount, 0.0) / total
            if ratio < least or (ratio == least and total > master.entering[leaving]):
                least = ratio
                leaving = i
    return leaving


@piece
def _pivot(master, leaving, entering):  # type: ignore[no-untyped-def]  # pragma: no cover
    size = len(master.right)
    inverse, column = master.inverse, master.entering
    pivot = column[leaving]
    for k in range(size):
        inverse[leaving, k] /= pivot
    for i in range(size):
        if i != leaving:
            for k in range(size):
                inverse[i, k] -= column[i] * inverse[leaving, k]
    master.basis[leaving] = entering
