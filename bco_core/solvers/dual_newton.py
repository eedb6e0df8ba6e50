"""Portfolio QPs by the thousand: Newton's method on a dual of few variables, exact in a few iterations.

For a covariance Σ = EE' + diag(s²), with E (m, r) of low rank, and return vectors ŷ_1 … ŷ_c, solve

    min ½ z'Σz   s.t.   ŷ_k'z ≥ target for every k,  1'z ≤ budget,  l ≤ z ≤ u.

In x = s∘z, with Ẽ = E/s, ŷ/s and b = 1/s, and u = Ẽ'x a variable of its own, the multipliers λ ≥ 0 of the returns and
μ ≥ 0 of the budget leave a dual that is separable in x: x = clip(w) to its bounds at w = Σ_k λ_k ŷ_k − μb − Ẽu, and

    minimise  ½‖u‖² + Σ_j (w_j x_j − ½x_j²) − Σ_k λ_k target + μ·budget,
    gradient  (budget − b'x,  u − Ẽ'x,  ŷ_k'x − target),   Hessian  A'MA + diag(0, I, 0),  A = [−b, −Ẽ, ŷ_1, …],

where M marks the x strictly between their bounds. The dual is piecewise quadratic, so projected Newton steps end at the
exact solution. If the budget must be used up (``full``), μ may have either sign. With λ fixed at one and no target, the
same iteration solves min ½z'Σz − ŷ'z.

For one ŷ and a target that no portfolio reaches, the answer is the portfolio of largest return, filled greedily. For
scenarios, CVaR_α(target − y'z) ≤ 0 is a number of rows ŷ (see :mod:`bco_core.solvers.cvar_cuts`), found one by one from
the worst tail of the current portfolio.

In the kernels, ``columns`` (capacity, m) are the rows of A', of which ``size`` are in use: the budget, ``rank``
factors, then returns. ``value`` (size,) are their multipliers, and ``point`` (m,) is x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numba
import numpy as np

from bco_core import deadlines

__all__ = [
    "BEST_EFFORT",
    "MAXIMUM_RANK",
    "OPTIMAL",
    "UNSOLVED",
    "Array",
    "FactorQP",
    "least_variance",
    "mean_variance",
    "tail_portfolio",
    "tail_rows",
]

Array = np.ndarray[Any, np.dtype[np.float64]]
Codes = np.ndarray[Any, np.dtype[np.int64]]

# Up to this rank Newton's method is faster than the dense solver: with 20 assets and as many factors a row takes about
# 10 µs here and 300 µs there; with 40 about half as long as there; with 80 four times as long.
MAXIMUM_RANK = 40
# A target missed by less than this share of the scale of returns counts as reached.
_ROUNDING = 1e-12
# Most rows of a tail before another solver takes over, and their tolerance.
_CUTS = 40
_TAIL_TOLERANCE = 1e-10
# Share of the returns' scale: soft enough for Newton to converge, hard enough for nearly the rows of the best effort.
_SOFTNESS = 0.03
# Rows between two checks of the deadline.
_CHUNK = 4096
# A dual below minus the largest value times this factor proves that there is no portfolio.
_BEYOND = 1.0001
OPTIMAL, BEST_EFFORT, UNSOLVED = 0, 1, 2
_ITERATIONS = 100
_HALVINGS = 60
# The gradient counts as zero up to the first share of its terms; where no descent is left, up to the second.
_EXACT, _SETTLED = 1e-13, 1e-10
# A step must gain this share of the predicted gain, up to rounding.
_ENOUGH, _STEP_ROUNDING = 1e-4, 1e-15
# Pivots below the first share of a row's norm count as zero and are replaced by the second share.
_VANISHED, _PIVOT_FLOOR = 1e-13, 1e-9
_TINY = 1e-300


_OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}


def compiled(function: Any) -> Any:
    """Compile at the first call, without the interpreter's lock; cache on disk if a directory is writable.

    Sums may be reordered, so that they are vectorised; the arithmetic is otherwise strict.
    """
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:
        return numba.njit(**_OPTIONS)(function)


def inlined(function: Any) -> Any:
    """Inline a function's source at every call from compiled functions.

    A separate function would be summed in another order when it is compiled together with its caller than when one of
    the two comes from the cache, and last digits would depend on that.
    """
    return numba.njit(inline="always", **_OPTIONS)(function)


@dataclass(frozen=True)
class FactorQP:
    """Feasible portfolios and their risk: loadings E (m, r), deviations s (m,), bounds l and u (m,), and the budget,
    which must be used up if ``full``."""

    loadings: Array
    deviations: Array
    lower: Array
    upper: Array
    budget: float
    full: bool = False

    @staticmethod
    def of(covariance: Array, lower: Array, upper: Array, budget: float, full: bool = False) -> FactorQP:
        """Split a covariance matrix as EE' + λ_min I; E has a column for each eigenvalue above the smallest."""
        values, vectors = np.linalg.eigh(covariance)
        above = values - values[0] > 1e-12 * values[-1]
        loadings = vectors[:, above] * np.sqrt(values[above] - values[0])
        return FactorQP(loadings, np.full(len(covariance), math.sqrt(values[0])), lower, upper, budget, full)

    @property
    def rank(self) -> int:
        return int(self.loadings.shape[1])

    @cached_property
    def largest_value(self) -> float:
        """Upper bound of ½ z'Σz over all portfolios."""
        total = max(self.budget, 0.0) + 2 * np.abs(np.minimum(self.lower, 0)).sum()
        variances = (self.loadings**2).sum(axis=1) + self.deviations**2
        return 0.5 * float(variances.max()) * float(total) ** 2

    @cached_property
    def prepared(self) -> tuple[Array, Array, Array, bool]:
        """1/s; the rows of A', of which the last is free for a return; bounds on z and on x; and whether every
        nonnegative z within the budget is feasible."""
        scale = 1 / self.deviations
        columns = np.vstack([-scale, -(self.loadings * scale[:, None]).T, np.zeros_like(scale)])
        bounds = np.vstack([self.lower, self.upper, self.lower / scale, self.upper / scale])
        return scale, columns, bounds, bool((self.lower == 0).all() and (self.upper >= self.budget).all())


def least_variance(qp: FactorQP, returns: Array, target: float) -> tuple[Array, Codes]:
    """Return the portfolio of least variance that returns the target, for each row of returns (n, m).

    Portfolios are (n, m), with a code each: OPTIMAL; BEST_EFFORT if no portfolio reaches the target; or UNSOLVED if the
    iteration did not converge, which happens only for degenerate rows.
    """
    return _solve(qp, returns, target, False)


def mean_variance(qp: FactorQP, returns: Array) -> tuple[Array, Codes]:
    """Return the portfolio (n, m) of least ½ z'Σz − ŷ'z for each row of returns (n, m), and a code each (n,)."""
    return _solve(qp, returns, 0.0, True)


def _solve(qp: FactorQP, returns: Array, target: float, given_price: bool) -> tuple[Array, Codes]:
    returns = np.ascontiguousarray(returns, dtype=np.float64)
    portfolios = np.empty_like(returns)
    codes = np.empty(len(returns), dtype=np.int64)
    scale, columns, bounds, long_only = qp.prepared
    for first in range(0, len(returns), _CHUNK):
        deadlines.check()
        chunk = slice(first, first + _CHUNK)
        _solve_rows(
            returns[chunk],
            columns.copy(),
            scale,
            bounds,
            float(qp.budget),
            float(target),
            given_price,
            long_only,
            qp.full,
            portfolios[chunk],
            codes[chunk],
        )
    return portfolios, codes


@compiled
def _solve_rows(  # type: ignore[no-untyped-def]
    returns, columns, scale, bounds, budget, target, given_price, long_only, full, portfolios, codes
):
    rows, assets = returns.shape
    size = len(columns)
    lower, upper, low, high = bounds[0], bounds[1], bounds[2], bounds[3]
    value, linear, norms = np.empty(size), np.zeros(size), np.zeros(size)
    small, large, hessian = np.empty((3, size)), np.empty((3, assets)), np.empty((size, size))
    linear[0], linear[size - 1] = budget, -target
    for a in range(size - 1):
        norms[a] = norm(columns[a])
    for i in range(rows):
        y, row = returns[i], columns[size - 1]
        largest = 0.0
        for j in range(assets):
            row[j] = y[j] * scale[j]
            largest = max(largest, abs(y[j]))
        norms[size - 1] = norm(row)
        if not given_price:
            best = _largest_return(y, lower, upper, budget, long_only, full, portfolios[i])
            if best < target - _ROUNDING * (abs(target) + largest):
                codes[i] = BEST_EFFORT
                continue
        value[:] = 0.0
        if given_price:
            value[size - 1] = 1.0
        elif target > 0:
            # Free of factors and budget, assets of positive return share the target in proportion to their return.
            total = 0.0
            for j in range(assets):
                total += max(row[j], 0.0) ** 2
            value[size - 1] = target / total
        fixed = size - 1 if given_price else -1
        codes[i] = newton(
            columns, size, size - 2, linear, fixed, low, high, value, norms, small, large, hessian, -math.inf, full
        )
        for j in range(assets):
            portfolios[i, j] = large[0, j] * scale[j]


def tail_portfolio(
    qp: FactorQP, scenarios: Array, weights: Array, level: float, target: float
) -> tuple[Array, int, Array]:
    """Return the portfolio (m,) of least variance whose worst tail over scenarios (K, m) reaches the target, its code,
    and the rows (c, m) that were used. Weights (K,) sum to one. UNSOLVED: there is none, or it was not found."""
    code, portfolio, rows = _cut(qp, scenarios, weights, level, target, 0.0)
    return portfolio, code, rows


def tail_rows(qp: FactorQP, scenarios: Array, weights: Array, level: float, target: float) -> Array:
    """Return rows (c, m) that nearly bind when the worst tail falls short of the target by as little as possible."""
    largest = max(float(np.abs(scenarios).max()), abs(target))
    softness = _SOFTNESS * largest / math.sqrt(qp.largest_value)
    return _cut(qp, scenarios, weights, level, target, softness)[2]


def _cut(
    qp: FactorQP, scenarios: Array, weights: Array, level: float, target: float, softness: float
) -> tuple[int, Array, Array]:
    """Return code, portfolio and rows; a softness above zero lets rows be missed by a slack at a quadratic price."""
    scale, columns, bounds, _ = qp.prepared
    portfolio = np.zeros(len(scale))
    matrix = np.zeros((qp.rank + 1 + _CUTS, len(scale) + 1))
    matrix[: qp.rank + 1, :-1] = columns[:-1]
    limits = np.hstack([bounds[2:], [[0.0], [math.inf]]])
    floor = -math.inf if softness else -_BEYOND * qp.largest_value
    code, rows = _cut_tail(
        np.ascontiguousarray(scenarios),
        np.ascontiguousarray(weights),
        float(level),
        float(target),
        matrix,
        qp.rank,
        scale,
        limits,
        float(qp.budget),
        floor,
        float(softness),
        qp.full,
        portfolio,
    )
    return int(code), portfolio, matrix[qp.rank + 1 : rows, :-1] / scale


@compiled
def _cut_tail(  # type: ignore[no-untyped-def]
    scenarios, weights, level, target, columns, rank, scale, limits, budget, floor, softness, full, portfolio
):
    """Add rows until none is violated; return the code and the number of rows of ``columns`` in use.

    The slack is one more position, bounded below by zero, which enters every row of returns.
    """
    count, assets = scenarios.shape
    capacity = len(columns)
    low, high = limits[0], limits[1]
    value, linear, norms = np.zeros(capacity), np.full(capacity, -target), np.zeros(capacity)
    small, large, hessian = np.empty((3, capacity)), np.empty((3, assets + 1)), np.empty((capacity, capacity))
    returns, mean = np.empty(count), np.zeros(assets)
    linear[0] = budget
    for a in range(rank + 1):
        norms[a] = norm(columns[a])
    largest = abs(target)
    for k in range(count):
        for j in range(assets):
            mean[j] += weights[k] * scenarios[k, j]
            largest = max(largest, abs(scenarios[k, j]))
    for size in range(rank + 2, capacity + 1):
        for j in range(assets):
            columns[size - 1, j] = mean[j] * scale[j]
        columns[size - 1, assets] = softness
        norms[size - 1] = norm(columns[size - 1])
        code = newton(columns, size, rank, linear, -1, low, high, value, norms, small, large, hessian, floor, full)
        if code != OPTIMAL:
            return UNSOLVED, size
        for j in range(assets):
            portfolio[j] = large[0, j] * scale[j]
        for k in range(count):
            total = 0.0
            for j in range(assets):
                total += scenarios[k, j] * portfolio[j]
            returns[k] = total
        order = np.argsort(returns)
        left, tail = 1.0 - level, 0.0
        mean[:] = 0.0
        for k in order:
            taken = min(weights[k], left)
            if taken > 0.0:
                left -= taken
                tail += taken * returns[k]
                for j in range(assets):
                    mean[j] += taken * scenarios[k, j] / (1.0 - level)
            if left <= 0.0:
                break
        slack = softness * large[0, assets]
        if tail / (1.0 - level) >= target - slack - _TAIL_TOLERANCE * largest:
            return OPTIMAL, size
    return UNSOLVED, capacity


@inlined
def _largest_return(y, lower, upper, budget, long_only, full, portfolio):  # type: ignore[no-untyped-def]
    """Set the portfolio of largest return, filled from the best asset on; return its return."""
    assets = len(y)
    remaining, total, bar = budget, 0.0, math.inf
    for j in range(assets):
        portfolio[j] = lower[j]
        remaining -= lower[j]
        total += lower[j] * y[j]
    while remaining > 0:
        # A budget that must be used up also takes assets that lose.
        least = -math.inf if full else 0.0
        best = least
        for j in range(assets):
            if best < y[j] < bar:
                best = y[j]
        if best <= least:
            break
        bar = best
        for j in range(assets):
            if y[j] == best:
                more = min(upper[j] - lower[j], remaining)
                portfolio[j] += more
                remaining -= more
                total += more * y[j]
        if long_only:
            break
    return total


@inlined
def norm(row):  # type: ignore[no-untyped-def]
    """Return the sum of squares, never zero."""
    total = _TINY
    for j in range(len(row)):
        total += row[j] * row[j]
    return total


@inlined
def _dual(columns, size, rank, linear, low, high, value, point):  # type: ignore[no-untyped-def]
    """Return the dual objective at ``value``; set ``point`` to its x."""
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
    """Return entry a of the gradient; values of the size of rounding count as zero."""
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
    """Minimise the dual, starting at ``value``; return a code. A dual below ``floor`` proves that there is no
    portfolio: UNSOLVED."""
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
        length, result, reached = 1.0, False, current
        for _ in range(_HALVINGS):
            slope = 0.0
            for a in range(size):
                trial[a] = value[a] - length * step[a]
                if (a == 0 and not full) or a > rank:
                    trial[a] = max(trial[a], 0.0)
                slope += gradient[a] * (trial[a] - value[a])
            reached = _dual(columns, size, rank, linear, low, high, trial, point)
            # Accept a step whose gain is only rounding.
            if reached <= current + _ENOUGH * slope + _STEP_ROUNDING * abs(current):
                result = True
                break
            length *= 0.5
        if not result:
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
    """Solve by Cholesky in place, with a floor under pivots that vanish because too few positions can move."""
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
