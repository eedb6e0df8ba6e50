"""Bases made optimal for other costs: primal simplex pivots on min c'x, A x − s = b, x, s ≥ 0, compiled.

Whether a basis is dual feasible for c does not depend on b. So on the way there b may be chosen freely: x_B begins at
max(B⁻¹b, 0) and a little more, another amount for every row, whatever B⁻¹b is. That is always feasible, no two rows
reach zero together, and what falls below zero by rounding is lifted again. The basis found is near the optimum for b
as it is, and the dual simplex method goes on from there.
"""

from __future__ import annotations

import numpy as np

from bco_core.solvers.dual_simplex import FAILED, NONE, OPTIMAL, UNBOUNDED, piece

# A column enters if its reduced cost is below minus this share of its cost: more than rounding leaves, and less than
# certificates allow.
_LEAST_GAIN = 1e-9
# The least entry to pivot on, and by how much basic variables are lifted, as a share of the largest one's terms.
_LEAST_PIVOT, _LIFT = 1e-9, 1e-6
# How far a ray may be from proving that the cost has no limit.
_RAY = 1e-9
_PIVOTS_PER_ROW, _PIVOTS_MORE = 50, 200


@piece
def make_dual_feasible(tableaus, at, rhs, size, matrix, cost, least_cost, lift, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Pivot basis ``at`` in place until it is dual feasible for ``cost`` (N,); its reduced costs are set anew.

    ``lift`` (m,) are numbers between 0.5 and 1. Gives OPTIMAL and the number of pivots; UNBOUNDED and the column along
    which the cost falls for ever, with B⁻¹ times it in ``room.column``; or FAILED when it takes too long.
    """
    most = _PIVOTS_PER_ROW * len(rhs) + _PIVOTS_MORE
    set_reduced(tableaus, at, matrix, cost, room)
    entering = _entering(tableaus, at, cost, least_cost)
    if entering == NONE:
        _clear(tableaus, at)
        return OPTIMAL, 0
    unit = _lifted(tableaus, at, rhs, size, lift, room)
    for pivots in range(1, most):
        leaving = _leaving(tableaus, at, entering, matrix, unit, room)
        if leaving == NONE:
            return UNBOUNDED, entering
        _pivot(tableaus, at, leaving, entering, matrix, unit, lift, room)
        entering = _entering(tableaus, at, cost, least_cost)
        if entering == NONE:
            # Many updates have left rounding in the reduced costs; from scratch they say whether this is the end.
            set_reduced(tableaus, at, matrix, cost, room)
            entering = _entering(tableaus, at, cost, least_cost)
            if entering == NONE:
                _clear(tableaus, at)
                return OPTIMAL, pivots
    return FAILED, most


@piece
def set_reduced(tableaus, at, matrix, cost, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The reduced costs of basis ``at`` from scratch."""
    rows, count = matrix.shape
    dual = room.column
    for k in range(rows):
        dual[k] = 0.0
    for i in range(rows):
        if tableaus.columns[at, i] < count:
            price = cost[tableaus.columns[at, i]]
            if price != 0.0:
                for k in range(rows):
                    dual[k] += price * tableaus.inverse[at, i, k]
    for j in range(count):
        tableaus.reduced[at, j] = cost[j]
    for i in range(rows):
        factor = dual[i]
        tableaus.reduced[at, count + i] = factor
        if factor != 0.0:
            for j in range(count):
                tableaus.reduced[at, j] -= factor * matrix[i, j]
    for i in range(rows):
        tableaus.reduced[at, tableaus.columns[at, i]] = 0.0


@piece
def _clear(tableaus, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """What is below zero is rounding."""
    for j in range(tableaus.reduced.shape[1]):
        tableaus.reduced[at, j] = max(tableaus.reduced[at, j], 0.0)


@piece
def _entering(tableaus, at, cost, least_cost):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The column of least reduced cost, or NONE where none is below zero."""
    entering = NONE
    least = 0.0
    for j in range(tableaus.reduced.shape[1]):
        gain = tableaus.reduced[at, j]
        if gain < least:
            own = abs(cost[j]) if j < len(cost) else 0.0
            if gain < -_LEAST_GAIN * (own + least_cost):
                least = gain
                entering = j
    return entering


@piece
def _lifted(tableaus, at, rhs, size, lift, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """``room.basic`` becomes max(B⁻¹b, 0) and a little more; gives the unit of that little."""
    rows = len(rhs)
    unit = 0.0
    for i in range(rows):
        amount = 0.0
        scale = 0.0
        for k in range(rows):
            amount += tableaus.inverse[at, i, k] * rhs[k]
            scale += abs(tableaus.inverse[at, i, k]) * size[k]
        room.basic[i] = max(amount, 0.0)
        unit = max(unit, scale)
    unit = _LIFT * unit if unit > 0.0 else 1.0
    for i in range(rows):
        room.basic[i] += unit * lift[i]
    return unit


@piece
def _leaving(tableaus, at, entering, matrix, unit, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The row to leave, or NONE: of those that reach zero first, nearly, the one with the largest entry."""
    rows, count = matrix.shape
    column = room.column
    if entering < count:
        for i in range(rows):
            column[i] = 0.0
        for k in range(rows):
            factor = matrix[k, entering]
            if factor != 0.0:
                for i in range(rows):
                    column[i] += tableaus.inverse[at, i, k] * factor
    else:
        for i in range(rows):
            column[i] = -tableaus.inverse[at, i, entering - count]
    furthest = np.inf
    for i in range(rows):
        if column[i] > _LEAST_PIVOT:
            furthest = min(furthest, (room.basic[i] + 0.1 * unit) / column[i])
    leaving = NONE
    largest = 0.0
    for i in range(rows):
        if column[i] > max(_LEAST_PIVOT, largest) and room.basic[i] <= furthest * column[i]:
            largest = column[i]
            leaving = i
    return leaving


@piece
def _pivot(tableaus, at, leaving, entering, matrix, unit, lift, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Exchange the two columns in the basis."""
    columns, inverse, reduced = tableaus
    basic, row, column = room.basic, room.row, room.column
    rows, count = matrix.shape
    for j in range(count):
        row[j] = 0.0
    for i in range(rows):
        factor = inverse[at, leaving, i]
        row[count + i] = -factor
        if factor != 0.0:
            for j in range(count):
                row[j] += factor * matrix[i, j]
    pivot = column[leaving]
    step = reduced[at, entering] / pivot
    for j in range(count + rows):
        reduced[at, j] -= step * row[j]
    for i in range(rows):
        reduced[at, columns[at, i]] = 0.0
    reduced[at, columns[at, leaving]] = -step
    reduced[at, entering] = 0.0
    for k in range(rows):
        inverse[at, leaving, k] /= pivot
    basic[leaving] /= pivot
    for i in range(rows):
        if i != leaving and column[i] != 0.0:
            factor = column[i]
            for k in range(rows):
                inverse[at, i, k] -= factor * inverse[at, leaving, k]
            basic[i] -= factor * basic[leaving]
            if basic[i] <= 0.0:
                basic[i] = unit * lift[i]
    columns[at, leaving] = entering


@piece
def proves_unbounded(columns, entering, matrix, cost, least_cost, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Whether x may go on for ever along ``entering`` less ``room.column`` in the basis, at falling cost: r ≥ 0,
    A r ≥ 0 and c'r < 0."""
    rows, count = matrix.shape
    ray = room.row
    for j in range(count):
        ray[j] = 0.0
    if entering < count:
        ray[entering] = 1.0
    largest = 1.0
    for i in range(rows):
        largest = max(largest, abs(room.column[i]))
        if columns[i] < count:
            ray[columns[i]] -= room.column[i]
    proof = True
    total = 0.0
    terms = 0.0
    for j in range(count):
        if ray[j] < 0.0:
            proof = proof and ray[j] >= -_RAY * largest
            ray[j] = 0.0
        total += cost[j] * ray[j]
        terms += (abs(cost[j]) + least_cost) * ray[j]
    for i in range(rows):
        amount = 0.0
        scale = 0.0
        for j in range(count):
            part = matrix[i, j] * ray[j]
            amount += part
            scale += abs(part)
        proof = proof and amount >= -_RAY * (scale + largest * 1e-3)
    return proof and total < -_RAY * terms
