"""The dual simplex method on min c'x, A x − s = b, x, s ≥ 0 with dense B⁻¹, compiled; slack i is column N + i.

Kernels copy arrays entry by entry: slices are as fast but take seconds to compile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from bco_core.solvers.linear_form import Array

Index = NDArray[np.int64]

# How a solve ended.
OPTIMAL, INFEASIBLE, FAILED, UNBOUNDED = 0, 1, 2, 3
# How far below zero a basic variable may be, relative to the size of its terms.
TOLERANCE = 1e-11
# Sums may be reordered, so that the processor adds several terms at once; infinities keep their meaning. The order
# depends on the code around a loop, so moving loops between functions may change last digits.
kernel = njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
# Part of a kernel: its source is inlined at every call, which avoids passing arrays and counting references.
piece = njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"}, inline="always")

NONE = -1
# Error of entries of B⁻¹: this share of the row's largest entry, in units of the tolerance.
ENTRY_ERROR = 1e-3
# A column may enter if its entry in the leaving row is below minus this.
_LEAST_PIVOT = 1e-9
# Tolerances of certificates: how far a reduced cost may be below zero, as a share of its column's cost, and as a share
# of its terms; and for a ray that proves infeasibility.
_DUAL, _DUAL_ROUNDING, _RAY = 1e-8, 2e-15, 1e-9
# Most pivots of one solve.
_PIVOTS_PER_ROW, _PIVOTS_MORE = 50, 100


class Tableaus(NamedTuple):
    """K dual feasible bases to pivot: columns (K, m), B⁻¹ (K, m, m) and reduced costs of all columns (K, N + m)."""

    columns: Index
    inverse: Array
    reduced: Array


class PivotWorkspace(NamedTuple):
    """Arrays for one right-hand side: x_B = B⁻¹b (m,), the leaving row over all columns (N + m,), the entering column
    (m,), and the size of terms (N + m,)."""

    basic: Array
    row: Array
    column: Array
    terms: Array


@piece
def below_zero(amount, row, size, tolerance):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return whether ``amount``, the product of ``row`` of B⁻¹ with b, is negative by more than rounding."""
    if not amount < 0.0:
        return False
    scale = 0.0
    entry = 0.0
    largest = 0.0
    for k in range(len(row)):
        scale += abs(row[k]) * size[k]
        entry = max(entry, abs(row[k]))
        largest = max(largest, size[k])
    return amount < -tolerance * (scale + ENTRY_ERROR * entry * largest)


@piece
def is_optimal(inverse, rhs, size, tolerance, basic):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return whether a dual feasible basis is optimal for b; set ``basic`` (m,) to B⁻¹b."""
    rows = len(rhs)
    optimal = True
    for i in range(rows):
        amount = 0.0
        for k in range(rows):
            amount += inverse[i, k] * rhs[k]
        basic[i] = amount
        if optimal and amount < 0.0 and below_zero(amount, inverse[i], size, tolerance):
            optimal = False
    return optimal


@piece
def set_dual(columns, inverse, cost, dual):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``dual`` (m,) to π = c_B'B⁻¹; slacks cost nothing."""
    rows = len(columns)
    for k in range(rows):
        dual[k] = 0.0
    for i in range(rows):
        if columns[i] < len(cost):
            price = cost[columns[i]]
            for k in range(rows):
                dual[k] += price * inverse[i, k]


@piece
def dual_feasible(dual, matrix, cost, least_cost, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return whether π ≥ 0 and A'π ≤ c, without perturbation: π'b is then a lower bound for every b."""
    rows, count = matrix.shape
    feasible = True
    largest = 0.0
    for j in range(count):
        workspace.row[j] = cost[j]
    for i in range(rows):
        price = dual[i]
        largest = max(largest, abs(price))
        if price != 0.0:
            for j in range(count):
                workspace.row[j] -= price * matrix[i, j]
    for i in range(rows):
        if not dual[i] >= -_DUAL * least_cost - _DUAL_ROUNDING * largest:
            feasible = False
    passed = 0.0
    for j in range(count):
        passed += 1.0 if workspace.row[j] >= -_DUAL * (abs(cost[j]) + least_cost) else 0.0
    if passed < count:
        # The size of rounding is computed for the few columns that need it.
        for j in range(count):
            below = -workspace.row[j] - _DUAL * (abs(cost[j]) + least_cost)
            if not below <= 0.0:
                terms = 0.0
                for i in range(rows):
                    terms += abs(dual[i] * matrix[i, j])
                if not below <= _DUAL_ROUNDING * terms:
                    feasible = False
    return feasible


@piece
def proves_infeasible(row, matrix, rhs, size, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return whether σ = −``row`` of B⁻¹ proves that A x ≥ b, x ≥ 0 has no solution: σ ≥ 0, A'σ ≤ 0, b'σ > 0
    (Farkas)."""
    rows, count = matrix.shape
    proof = True
    largest = 0.0
    amount = 0.0
    scale = 0.0
    for j in range(count):
        workspace.row[j] = 0.0
        workspace.terms[j] = 0.0
    for i in range(rows):
        factor = -row[i]
        largest = max(largest, abs(factor))
        amount += factor * rhs[i]
        scale += abs(factor) * size[i]
        if factor != 0.0:
            for j in range(count):
                part = factor * matrix[i, j]
                workspace.row[j] += part
                workspace.terms[j] += abs(part)
    for j in range(count):
        # Rounding of entries that should be zero is small relative to the largest entry, not to their own terms.
        if not workspace.row[j] <= _RAY * (workspace.terms[j] + ENTRY_ERROR * largest):
            proof = False
    for i in range(rows):
        if not -row[i] >= -_RAY * largest:
            proof = False
    return proof and amount > _RAY * scale


@piece
def set_row(tableaus, at, leaving, matrix, row):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``row`` (N + m,) to a row of B⁻¹[A −I]."""
    rows, count = matrix.shape
    for j in range(count):
        row[j] = 0.0
    for i in range(rows):
        factor = tableaus.inverse[at, leaving, i]
        row[count + i] = -factor
        if factor != 0.0:
            for j in range(count):
                row[j] += factor * matrix[i, j]


@piece
def set_column(tableaus, at, entering, matrix, column):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``column`` (m,) to B⁻¹ times the entering column."""
    rows, count = matrix.shape
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


@piece
def exchange(tableaus, at, leaving, entering, column, basic):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Update columns, B⁻¹ and x_B, where ``column`` (m,) is B⁻¹ times the entering column."""
    columns, inverse, _ = tableaus
    rows = len(column)
    pivot = column[leaving]
    for k in range(rows):
        inverse[at, leaving, k] /= pivot
    basic[leaving] /= pivot
    for i in range(rows):
        if i != leaving and column[i] != 0.0:
            factor = column[i]
            for k in range(rows):
                inverse[at, i, k] -= factor * inverse[at, leaving, k]
            basic[i] -= factor * basic[leaving]
    columns[at, leaving] = entering


@piece
def continue_dual_simplex(tableaus, at, size, matrix, tolerance, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Pivot basis ``at`` in place until B⁻¹b ≥ 0 up to rounding, where b is a sum of terms of this ``size`` (m,).

    Return OPTIMAL and the number of pivots, INFEASIBLE and the row of B⁻¹ that proves it, or FAILED after too many
    pivots.
    """
    most = _PIVOTS_PER_ROW * len(size) + _PIVOTS_MORE
    for pivots in range(most):
        leaving = _leaving(tableaus, at, size, tolerance, workspace)
        if leaving == NONE:
            return OPTIMAL, pivots
        entering = _entering(tableaus, at, leaving, matrix, workspace)
        if entering == NONE:
            return INFEASIBLE, leaving
        _pivot(tableaus, at, leaving, entering, matrix, workspace)
    return FAILED, most


@piece
def _leaving(tableaus, at, size, tolerance, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the row whose basic variable is furthest below zero, or NONE."""
    leaving = NONE
    worst = 0.0
    for i in range(len(size)):
        amount = workspace.basic[i]
        if amount < worst and below_zero(amount, tableaus.inverse[at, i], size, tolerance):
            worst = amount
            leaving = i
    return leaving


@piece
def _entering(tableaus, at, leaving, matrix, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the column that keeps all reduced costs nonnegative, or NONE; set ``workspace.row`` to the leaving row."""
    rows, count = matrix.shape
    row = workspace.row
    set_row(tableaus, at, leaving, matrix, row)
    entering = NONE
    best = np.inf
    largest = 0.0
    for j in range(count + rows):
        entry = row[j]
        if entry < -_LEAST_PIVOT:
            ratio = -tableaus.reduced[at, j] / entry
            if ratio < best or (ratio == best and -entry > largest):
                best = ratio
                largest = -entry
                entering = j
    return entering


@piece
def _pivot(tableaus, at, leaving, entering, matrix, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Exchange the two columns in the basis."""
    columns, _, reduced = tableaus
    basic, row, column = workspace.basic, workspace.row, workspace.column
    rows, count = matrix.shape
    step = reduced[at, entering] / row[entering]
    for j in range(count + rows):
        reduced[at, j] -= step * row[j]
        if reduced[at, j] < 0.0:
            reduced[at, j] = 0.0
    reduced[at, columns[at, leaving]] = -step
    reduced[at, entering] = 0.0
    set_column(tableaus, at, entering, matrix, column)
    exchange(tableaus, at, leaving, entering, column, basic)
