"""One basis of min c'x, [A −I] x = 0, lower ≤ x ≤ upper as a dense tableau, compiled.

x is v and then the rows' activities. The tableau B⁻¹N has columns only for what may move: an activity of an equality is
gone once it leaves the basis. So a grid's shortest path has few columns, and a pivot takes a tenth of a microsecond.
Dual prices come from the start's B⁻¹ and the pivots since (product form).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bco_core.solvers.dual_simplex import NONE, Index, kernel, piece
from bco_core.solvers.linear_form import Array

# Where a column is; numbers as HiGHS has them.
LOWER, BASIC, UPPER, ZERO = 0, 1, 2, 3
# Pivots until B⁻¹ is computed afresh.
REFRESH = 64
# The least pivot while a basis is inverted.
_LEAST_PIVOT = 1e-8
# How far basic variables may be beyond their bounds at a start, as a share of the terms they are the sum of.
_FEASIBLE = 1e-9


class Tableau(NamedTuple):
    """One basis: where columns are (d + m,), the basic column of each row (m,), the column of each slot or NONE (K,),
    B⁻¹N over slots (m, K), B⁻¹ of the start (m, m), and the basic variables' values (m,)."""

    status: NDArray[np.int8]
    basic: Index
    slots: Index
    table: Array
    inverse: Array
    level: Array


class Room(NamedTuple):
    """For one cost: reduced costs of slots (K,), dual prices (m,), entering columns of the pivots (REFRESH, m) and
    their rows (REFRESH,), the rows that a step touches (m + 1,), two arrays by rows (m,), the cost as it is and nudged
    (d,), and a direction (d,)."""

    reduced: Array
    dual: Array
    etas: Array
    eta_rows: Index
    touched: Index
    activity: Array
    terms: Array
    cost: Array
    nudged: Array
    ray: Array


def room_of(rows: int, count: int, width: int) -> Room:
    return Room(
        np.empty(width),
        np.empty(rows),
        np.empty((REFRESH, rows)),
        np.empty(REFRESH, dtype=np.int64),
        np.empty(rows + 1, dtype=np.int64),
        np.empty(rows),
        np.empty(rows),
        np.empty(count),
        np.empty(count),
        np.empty(count),
    )


def tableau_of(rows: int, count: int, width: int) -> Tableau:
    """Room for a tableau."""
    return Tableau(
        np.zeros(count + rows, dtype=np.int8),
        np.empty(rows, dtype=np.int64),
        np.empty(width, dtype=np.int64),
        np.empty((rows, width)),
        np.empty((rows, rows)),
        np.empty(rows),
    )


@piece
def rest_of(polyhedron, status, j):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The value of a column that is not basic."""
    value = 0.0
    if status[j] == LOWER:
        value = polyhedron.lower[j]
    elif status[j] == UPPER:
        value = polyhedron.upper[j]
    return value


@piece
def _set_column(polyhedron, inverse, j, column):  # type: ignore[no-untyped-def]  # pragma: no cover
    """``column`` (m,) becomes B⁻¹ times column j."""
    rows = len(column)
    count = len(polyhedron.begins) - 1
    for i in range(rows):
        column[i] = 0.0
    if j < count:
        for at in range(polyhedron.begins[j], polyhedron.begins[j + 1]):
            entry = polyhedron.entries[at]
            row = polyhedron.places[at]
            for i in range(rows):
                column[i] += inverse[i, row] * entry
    else:
        for i in range(rows):
            column[i] = -inverse[i, j - count]


@kernel
def factorise(polyhedron, tableau, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Everything in the tableau from ``status`` alone; whether that is a basis, and its vertex within all bounds."""
    status, basic, slots, table, inverse, _ = tableau
    rows, count = len(basic), len(polyhedron.begins) - 1
    column = room.activity
    for i in range(rows):
        basic[i] = NONE
        for k in range(rows):
            inverse[i, k] = 0.0
        inverse[i, i] = -1.0
    found = 0
    filled = 0
    for k in range(len(slots)):
        slots[k] = NONE
    for j in range(count + rows):
        lower, upper = polyhedron.lower[j], polyhedron.upper[j]
        if status[j] == BASIC:
            found += 1
            if j >= count:
                basic[j - count] = j
            continue
        if not (status[j] == UPPER and upper < np.inf):
            status[j] = LOWER if lower > -np.inf else (UPPER if upper < np.inf else ZERO)
        if lower < upper:
            if filled < len(slots):
                slots[filled] = j
            filled += 1
    if found != rows or filled > len(slots):
        return False
    for j in range(count):
        if status[j] != BASIC:
            continue
        _set_column(polyhedron, inverse, j, column)
        pivot = NONE
        largest = _LEAST_PIVOT
        for i in range(rows):
            if basic[i] == NONE and abs(column[i]) > largest:
                largest = abs(column[i])
                pivot = i
        if pivot == NONE:
            return False
        basic[pivot] = j
        factor = 1.0 / column[pivot]
        for k in range(rows):
            inverse[pivot, k] *= factor
        for i in range(rows):
            factor = column[i]
            if i != pivot and factor != 0.0:
                for k in range(rows):
                    inverse[i, k] -= factor * inverse[pivot, k]
    for k in range(len(slots)):
        if slots[k] == NONE:
            for i in range(rows):
                table[i, k] = 0.0
        else:
            _set_column(polyhedron, inverse, slots[k], column)
            for i in range(rows):
                table[i, k] = column[i]
    return _set_level(polyhedron, tableau, column, room.terms)


@piece
def _set_level(polyhedron, tableau, rhs, terms):  # type: ignore[no-untyped-def]  # pragma: no cover
    """x_B = −B⁻¹ N x_N; whether it is within bounds."""
    status, basic, level = tableau.status, tableau.basic, tableau.level
    rows, count = len(basic), len(polyhedron.begins) - 1
    for i in range(rows):
        rhs[i] = 0.0 if status[count + i] == BASIC else rest_of(polyhedron, status, count + i)
        terms[i] = abs(rhs[i])
    for j in range(count):
        if status[j] != BASIC:
            value = rest_of(polyhedron, status, j)
            if value != 0.0:
                for at in range(polyhedron.begins[j], polyhedron.begins[j + 1]):
                    part = polyhedron.entries[at] * value
                    rhs[polyhedron.places[at]] -= part
                    terms[polyhedron.places[at]] += abs(part)
    inside = True
    for i in range(rows):
        value = 0.0
        size = 0.0
        for k in range(rows):
            value += tableau.inverse[i, k] * rhs[k]
            size += abs(tableau.inverse[i, k]) * terms[k]
        level[i] = value
        lower, upper = polyhedron.lower[basic[i]], polyhedron.upper[basic[i]]
        if not (value >= lower - _FEASIBLE * size and value <= upper + _FEASIBLE * size):
            inside = False
    return inside


@piece
def add_rows(weights, matrix, total):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add ``weights`` (m,) times ``matrix`` (m, K) to ``total`` (K,), four rows for each time that it is written."""
    rows, width = matrix.shape
    fours = rows - rows % 4
    for i in range(0, fours, 4):
        a, b, c, d = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        if a != 0.0 or b != 0.0 or c != 0.0 or d != 0.0:
            for k in range(width):
                total[k] += (a * matrix[i, k] + b * matrix[i + 1, k]) + (c * matrix[i + 2, k] + d * matrix[i + 3, k])
    for i in range(fours, rows):
        a = weights[i]
        for k in range(width):
            total[k] += a * matrix[i, k]


@piece
def price_slots(tableau, cost, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Reduced costs from the tableau; activities cost nothing."""
    count = len(cost)
    for k in range(len(room.reduced)):
        j = tableau.slots[k]
        room.reduced[k] = cost[j] if 0 <= j < count else 0.0
    for i in range(len(tableau.basic)):
        j = tableau.basic[i]
        room.activity[i] = -cost[j] if j < count else 0.0
    add_rows(room.activity, tableau.table, room.reduced)


@piece
def set_dual(tableau, inverse, cost, pivots, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """``room.dual`` becomes c_B'B⁻¹, from the start's ``inverse`` and the pivots since."""
    dual, price = room.dual, room.activity
    rows, count = len(dual), len(cost)
    for i in range(rows):
        price[i] = cost[tableau.basic[i]] if tableau.basic[i] < count else 0.0
        dual[i] = 0.0
    for back in range(pivots):
        e = pivots - 1 - back
        at = room.eta_rows[e]
        pivot = room.etas[e, at]
        amount = price[at] * (1.0 + pivot)
        for i in range(rows):
            amount -= price[i] * room.etas[e, i]
        price[at] = amount / pivot
    add_rows(price, inverse, dual)
