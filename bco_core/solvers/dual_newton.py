"""Portfolio QPs by the thousand: Newton's method on a dual of r + 2 variables, exact in a few iterations.

For a covariance Σ = EE' + diag(s²), with E (m, r) of low rank, and returns ŷ, solve

    min ½ z'Σz   s.t.   ŷ'z ≥ target,  1'z ≤ budget,  l ≤ z ≤ u.

In x = s∘z, with Ẽ = E/s, ŷ/s and b = 1/s, and u = Ẽ'x a variable of its own, the multipliers λ ≥ 0 of the return and
μ ≥ 0 of the budget leave a dual that is separable in x: x = clip(w) to its bounds at w = λŷ − μb − Ẽu, and

    minimise  ½‖u‖² + Σ_j (w_j x_j − ½x_j²) − λ·target + μ·budget,
    gradient  (ŷ'x − target,  budget − b'x,  u − Ẽ'x),   Hessian  A'MA + diag(0, 0, I),  A = [ŷ, −b, −Ẽ],

where M marks the x strictly between their bounds. It is piecewise quadratic, so projected Newton steps end exactly.
With λ held at one and no target, the same iteration solves min ½z'Σz − ŷ'z.

A target that no portfolio reaches is answered by the portfolio of largest return, filled greedily.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numba
import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Codes = np.ndarray[Any, np.dtype[np.int64]]

OPTIMAL, BEST_EFFORT, UNSOLVED = 0, 1, 2
MAXIMUM_RANK = 16
_ITERATIONS = 100
_HALVINGS = 60
# A target missed by less than this share of the scale of returns counts as reached.
_ROUNDING = 1e-12


def _compiled(function: Any) -> Any:
    """Compiled at its first call, without the interpreter's lock; kept on disk where some place can be written to.

    Sums may be reordered, so that they run in vectors; nothing else about the arithmetic is loosened.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)


@dataclass(frozen=True)
class FactorQP:
    """The portfolios to choose from: loadings E (m, r), deviations s (m,), bounds l and u (m,), and the budget."""

    loadings: Array
    deviations: Array
    lower: Array
    upper: Array
    budget: float

    @staticmethod
    def of(covariance: Array, lower: Array, upper: Array, budget: float) -> FactorQP:
        """Split a covariance matrix as EE' + λ_min I; E has a column for each eigenvalue above the smallest."""
        values, vectors = np.linalg.eigh(covariance)
        above = values - values[0] > 1e-12 * values[-1]
        loadings = vectors[:, above] * np.sqrt(values[above] - values[0])
        return FactorQP(loadings, np.full(len(covariance), math.sqrt(values[0])), lower, upper, budget)

    @property
    def rank(self) -> int:
        return int(self.loadings.shape[1])

    @cached_property
    def prepared(self) -> tuple[Array, Array, Array, bool]:
        """1/s, the rows of A' with room for returns in the first, bounds on z and on x, and whether z may be any
        non-negative portfolio within the budget."""
        scale = 1 / self.deviations
        columns = np.vstack([np.zeros_like(scale), -scale, -(self.loadings * scale[:, None]).T])
        bounds = np.vstack([self.lower, self.upper, self.lower / scale, self.upper / scale])
        return scale, columns, bounds, bool((self.lower == 0).all() and (self.upper >= self.budget).all())


def least_variance(qp: FactorQP, returns: Array, target: float) -> tuple[Array, Codes]:
    """The portfolio of least variance that returns the target, for each row of returns (n, m).

    Gives portfolios (n, m) and a code for each: OPTIMAL; BEST_EFFORT, where no portfolio reaches the target; UNSOLVED,
    where the iteration did not end, which only degenerate rows can cause.
    """
    return _solved(qp, returns, target, False)


def mean_variance(qp: FactorQP, returns: Array) -> tuple[Array, Codes]:
    """The portfolio of least ½ z'Σz − ŷ'z for each row of returns (n, m), and whether each was found."""
    return _solved(qp, returns, 0.0, True)


def _solved(qp: FactorQP, returns: Array, target: float, given_price: bool) -> tuple[Array, Codes]:
    returns = np.ascontiguousarray(returns, dtype=np.float64)
    portfolios = np.empty_like(returns)
    codes = np.empty(len(returns), dtype=np.int64)
    scale, columns, bounds, long_only = qp.prepared
    _solve_rows(
        returns,
        columns.copy(),
        scale,
        bounds,
        float(qp.budget),
        float(target),
        given_price,
        long_only,
        portfolios,
        codes,
    )
    return portfolios, codes


@_compiled
def _solve_rows(  # type: ignore[no-untyped-def]
    returns, columns, scale, bounds, budget, target, given_price, long_only, portfolios, codes
):
    rows, assets = returns.shape
    size = len(columns)
    lower, upper, low, high = bounds[0], bounds[1], bounds[2], bounds[3]
    value, trial, gradient, step = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    norms, hessian = np.zeros(size), np.empty((size, size))
    point, free, row = np.empty(assets), np.empty(assets), np.empty(assets)
    for a in range(1, size):
        for j in range(assets):
            norms[a] += columns[a, j] * columns[a, j]
    for i in range(rows):
        y = returns[i]
        largest, norm = 0.0, 1e-300
        for j in range(assets):
            columns[0, j] = y[j] * scale[j]
            norm += columns[0, j] * columns[0, j]
            largest = max(largest, abs(y[j]))
        norms[0] = norm
        if not given_price:
            best = _largest_return(y, lower, upper, budget, long_only, portfolios[i])
            if best < target - _ROUNDING * (abs(target) + largest):
                codes[i] = BEST_EFFORT
                continue
        _start(columns, target, given_price, value)
        codes[i] = _newton(
            columns,
            low,
            high,
            budget,
            target,
            given_price,
            value,
            trial,
            gradient,
            step,
            hessian,
            point,
            free,
            row,
            norms,
        )
        for j in range(assets):
            portfolios[i, j] = point[j] * scale[j]


@_compiled
def _largest_return(y, lower, upper, budget, long_only, portfolio):  # type: ignore[no-untyped-def]
    """Fill the portfolio of largest return, best asset first, and say what it returns."""
    assets = len(y)
    room, total, bar = budget, 0.0, math.inf
    for j in range(assets):
        portfolio[j] = lower[j]
        room -= lower[j]
        total += lower[j] * y[j]
    while room > 0:
        best = 0.0
        for j in range(assets):
            if best < y[j] < bar:
                best = y[j]
        if best <= 0.0:
            break
        bar = best
        for j in range(assets):
            if y[j] == best:
                more = min(upper[j] - lower[j], room)
                portfolio[j] += more
                room -= more
                total += more * y[j]
        if long_only:
            break
    return total


@_compiled
def _start(columns, target, given_price, value):  # type: ignore[no-untyped-def]
    """Free of factors and budget, assets of positive return share the target in proportion to their return."""
    value[:] = 0.0
    if given_price:
        value[0] = 1.0
        return
    total = 0.0
    for w in columns[0]:
        if w > 0:
            total += w * w
    if total > 0 and target > 0:
        value[0] = target / total


@_compiled
def _dual(columns, low, high, budget, target, value, point):  # type: ignore[no-untyped-def]
    """The dual objective at ``value``; ``point`` becomes the x it goes with."""
    size, assets = columns.shape
    for j in range(assets):
        point[j] = columns[0, j] * value[0]
    for a in range(1, size):
        for j in range(assets):
            point[j] += columns[a, j] * value[a]
    total = -value[0] * target + value[1] * budget
    for a in range(2, size):
        total += 0.5 * value[a] * value[a]
    for j in range(assets):
        w = point[j]
        x = min(max(w, low[j]), high[j])
        total += (w - 0.5 * x) * x
        point[j] = x
    return total


@_compiled
def _newton(  # type: ignore[no-untyped-def]
    columns, low, high, budget, target, given_price, value, trial, gradient, step, hessian, point, free, row, norms
):
    size, assets = columns.shape
    current = _dual(columns, low, high, budget, target, value, point)
    for _ in range(_ITERATIONS):
        for a in range(size):
            total, magnitude = 0.0, 0.0
            for j in range(assets):
                term = columns[a, j] * point[j]
                total += term
                magnitude += abs(term)
            if a == 0:
                total -= target
                magnitude += abs(target)
            elif a == 1:
                total += budget
                magnitude += abs(budget)
            else:
                total += value[a]
                magnitude += abs(value[a])
            # What rounding leaves of a sum counts as zero.
            gradient[a] = total if abs(total) > 1e-13 * magnitude else 0.0
        for a in range(2):
            if value[a] <= 0.0 and gradient[a] > 0.0:
                gradient[a] = 0.0
        if given_price:
            gradient[0] = 0.0
        worst = 0.0
        for a in range(size):
            worst = max(worst, abs(gradient[a]))
        if worst == 0.0:
            return OPTIMAL
        _hessian(columns, low, high, point, hessian, free, row)
        for a in range(2):
            if gradient[a] == 0.0 and (value[a] <= 0.0 or (a == 0 and given_price)):
                hessian[a, :] = 0.0
                hessian[:, a] = 0.0
                hessian[a, a] = 1.0
        _solve_positive(hessian, gradient, step, norms)
        length, found = 1.0, False
        for _ in range(_HALVINGS):
            slope = 0.0
            for a in range(size):
                trial[a] = value[a] - length * step[a]
                if a < 2 and not (a == 0 and given_price):
                    trial[a] = max(trial[a], 0.0)
                slope += gradient[a] * (trial[a] - value[a])
            reached = _dual(columns, low, high, budget, target, trial, point)
            # A step so small that only rounding is left to gain is taken as it is.
            if reached <= current + 1e-4 * slope + 1e-15 * abs(current):
                found = True
                break
            length *= 0.5
        if not found:
            # No descent is left above rounding: the last point stands if its gradient is at rounding level.
            _dual(columns, low, high, budget, target, value, point)
            return _verdict(columns, budget, target, given_price, value, point)
        current = reached
        value[:] = trial
    return _verdict(columns, budget, target, given_price, value, point)


@_compiled
def _verdict(columns, budget, target, given_price, value, point):  # type: ignore[no-untyped-def]
    """Whether a point that could not be improved is optimal: its conditions hold to a relative 1e-10."""
    size, assets = columns.shape
    for a in range(size):
        total, magnitude = 0.0, 0.0
        for j in range(assets):
            term = columns[a, j] * point[j]
            total += term
            magnitude += abs(term)
        if a == 0:
            if given_price:
                continue
            total, magnitude = total - target, magnitude + abs(target)
        elif a == 1:
            total, magnitude = total + budget, magnitude + abs(budget)
        else:
            total, magnitude = total + value[a], magnitude + abs(value[a])
        if a < 2 and value[a] <= 0.0 and total > 0.0:
            continue
        if abs(total) > 1e-10 * magnitude:
            return UNSOLVED
    return OPTIMAL


@_compiled
def _hessian(columns, low, high, point, hessian, free, row):  # type: ignore[no-untyped-def]
    size, assets = columns.shape
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
        if a >= 2:
            hessian[a, a] += 1.0


@_compiled
def _solve_positive(hessian, right, solution, norms):  # type: ignore[no-untyped-def]
    """Cholesky in place, with a floor under pivots that vanish because too few positions are free to move."""
    size = len(right)
    for a in range(size):
        pivot = hessian[a, a]
        for c in range(a):
            pivot -= hessian[a, c] * hessian[a, c]
        if pivot < 1e-13 * norms[a]:
            pivot = 1e-9 * norms[a]
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
