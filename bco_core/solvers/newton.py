"""Projected Newton steps on the dual of a portfolio QP, compiled; the maths is in :mod:`bco_core.solvers.dual_newton`.

``columns`` (capacity, m) are the rows of A', of which ``size`` are in use: the budget, ``rank`` factors, then returns.
``value`` (size,) are their multipliers, those of budget and returns non-negative, and ``point`` (m,) is x. Where the
budget is to be used up (``full``), its multiplier may have either sign.
"""

from __future__ import annotations

import math
from typing import Any

import numba

OPTIMAL, BEST_EFFORT, UNSOLVED = 0, 1, 2
_ITERATIONS = 100
_HALVINGS = 60
# The gradient counts as zero up to this share of its terms; where no descent is left, up to the second.
_EXACT, _SETTLED = 1e-13, 1e-10
# A step must gain this share of what the slope promises, or all but rounding.
_ENOUGH, _ROUNDING = 1e-4, 1e-15
# Pivots below this share of a row's norm count as vanished, and are replaced by the second.
_VANISHED, _PIVOT_FLOOR = 1e-13, 1e-9
_TINY = 1e-300


_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}


def compiled(function: Any) -> Any:
    """Compiled at its first call, without the interpreter's lock; kept on disk where some place can be written to.

    Sums may be reordered, so that they run in vectors; nothing else about the arithmetic is loosened.
    """
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:
        return numba.njit(**_OPTIONS)(function)


def inlined(function: Any) -> Any:
    """A part of compiled functions: its source is put wherever it is called.

    A function of its own would be added up in another order where it is compiled with its caller than where one of the
    two comes from the disk, and last digits would depend on that.
    """
    return numba.njit(inline="always", **_OPTIONS)(function)


@inlined
def norm(row):  # type: ignore[no-untyped-def]
    """The sum of squares, never zero."""
    total = _TINY
    for j in range(len(row)):
        total += row[j] * row[j]
    return total


@inlined
def _dual(columns, size, rank, linear, low, high, value, point):  # type: ignore[no-untyped-def]
    """The dual objective at ``value``; ``point`` becomes the x it goes with."""
    assets = len(point)
    for j in range(assets):
        point[j] = columns[0, j] * value[0]
    total = linear[0] * value[0]
    for a in range(1, size):
        for j in range(assets):
            point[j] += columns[a, j] * value[a]
        total += 0.5 * value[a] * value[a] if a <= rank else linear[a] * value[a]
    for j in range(assets):
        w = point[j]
        x = min(max(w, low[j]), high[j])
        total += (w - 0.5 * x) * x
        point[j] = x
    return total


@inlined
def _slope(columns, rank, linear, value, point, a, tolerance, full):  # type: ignore[no-untyped-def]
    """Entry a of the gradient; what rounding leaves of its sum counts as zero."""
    total, magnitude = 0.0, 0.0
    for j in range(len(point)):
        term = columns[a, j] * point[j]
        total += term
        magnitude += abs(term)
    more = value[a] if 1 <= a <= rank else linear[a]
    total += more
    magnitude += abs(more)
    if abs(total) <= tolerance * magnitude:
        return 0.0
    # A multiplier at zero cannot go lower.
    if ((a == 0 and not full) or a > rank) and value[a] <= 0.0 and total > 0.0:
        return 0.0
    return total


@inlined
def newton(  # type: ignore[no-untyped-def]
    columns, size, rank, linear, fixed, low, high, value, norms, small, large, hessian, floor, full
):
    """Minimise from ``value``. A dual below ``floor`` proves that there is no portfolio: UNSOLVED."""
    gradient, step, trial = small[0], small[1], small[2]
    point, free, row = large[0], large[1], large[2]
    current = _dual(columns, size, rank, linear, low, high, value, point)
    for _ in range(_ITERATIONS):
        done = True
        for a in range(size):
            gradient[a] = 0.0 if a == fixed else _slope(columns, rank, linear, value, point, a, _EXACT, full)
            done = done and gradient[a] == 0.0
        if done:
            return OPTIMAL
        _hessian(columns, size, rank, low, high, point, hessian, free, row)
        for a in range(size):
            if gradient[a] == 0.0 and (a == fixed or (((a == 0 and not full) or a > rank) and value[a] <= 0.0)):
                for b in range(size):
                    hessian[a, b] = 0.0
                    hessian[b, a] = 0.0
                hessian[a, a] = norms[a]
        _solve_positive(hessian, size, gradient, step, norms)
        length, found, reached = 1.0, False, current
        for _ in range(_HALVINGS):
            slope = 0.0
            for a in range(size):
                trial[a] = value[a] - length * step[a]
                if (a == 0 and not full) or a > rank:
                    trial[a] = max(trial[a], 0.0)
                slope += gradient[a] * (trial[a] - value[a])
            reached = _dual(columns, size, rank, linear, low, high, trial, point)
            # A step so small that only rounding is left to gain is taken as it is.
            if reached <= current + _ENOUGH * slope + _ROUNDING * abs(current):
                found = True
                break
            length *= 0.5
        if not found:
            break
        current = reached
        for a in range(size):
            value[a] = trial[a]
        if current < floor:
            return UNSOLVED
    # No descent is left above rounding: the point stands if its conditions hold nearly.
    _dual(columns, size, rank, linear, low, high, value, point)
    for a in range(size):
        if a != fixed and _slope(columns, rank, linear, value, point, a, _SETTLED, full) != 0.0:
            return UNSOLVED
    return OPTIMAL


@inlined
def _hessian(columns, size, rank, low, high, point, hessian, free, row):  # type: ignore[no-untyped-def]
    assets = len(point)
    for j in range(assets):
        free[j] = 1.0 if low[j] < point[j] < high[j] else 0.0
    for a in range(size):
        for j in range(assets):
            row[j] = columns[a, j] * free[j]
        for b in range(a + 1):
            total = 0.0
            for j in range(assets):
                total += row[j] * columns[b, j]
            hessian[a, b] = total
            hessian[b, a] = total
        if 1 <= a <= rank:
            hessian[a, a] += 1.0


@inlined
def _solve_positive(hessian, size, right, solution, norms):  # type: ignore[no-untyped-def]
    """Cholesky in place, with a floor under pivots that vanish because too few positions are free to move."""
    for a in range(size):
        pivot = hessian[a, a]
        for c in range(a):
            pivot -= hessian[a, c] * hessian[a, c]
        if pivot < _VANISHED * norms[a]:
            pivot = _PIVOT_FLOOR * norms[a]
        root = math.sqrt(pivot)
        hessian[a, a] = root
        for b in range(a + 1, size):
            total = hessian[b, a]
            for c in range(a):
                total -= hessian[b, c] * hessian[a, c]
            hessian[b, a] = total / root
    for a in range(size):
        total = right[a]
        for c in range(a):
            total -= hessian[a, c] * solution[c]
        solution[a] = total / hessian[a, a]
    for a in range(size - 1, -1, -1):
        total = solution[a]
        for c in range(a + 1, size):
            total -= hessian[c, a] * solution[c]
        solution[a] = total / hessian[a, a]
