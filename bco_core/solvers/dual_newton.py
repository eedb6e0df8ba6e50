"""Portfolio QPs by the thousand: Newton's method on a dual of few variables, exact in a few iterations.

For a covariance Σ = EE' + diag(s²), with E (m, r) of low rank, and return vectors ŷ_1 … ŷ_c, solve

    min ½ z'Σz   s.t.   ŷ_k'z ≥ target for every k,  1'z ≤ budget,  l ≤ z ≤ u.

In x = s∘z, with Ẽ = E/s, ŷ/s and b = 1/s, and u = Ẽ'x a variable of its own, the multipliers λ ≥ 0 of the returns and
μ ≥ 0 of the budget leave a dual that is separable in x: x = clip(w) to its bounds at w = Σ_k λ_k ŷ_k − μb − Ẽu, and

    minimise  ½‖u‖² + Σ_j (w_j x_j − ½x_j²) − Σ_k λ_k target + μ·budget,
    gradient  (budget − b'x,  u − Ẽ'x,  ŷ_k'x − target),   Hessian  A'MA + diag(0, I, 0),  A = [−b, −Ẽ, ŷ_1, …],

where M marks the x strictly between their bounds. It is piecewise quadratic, so projected Newton steps end exactly.
A budget that must be used up leaves μ its sign.
With λ held at one and no target, the same iteration solves min ½z'Σz − ŷ'z.

For one ŷ, a target that no portfolio reaches is answered by the portfolio of largest return, filled greedily.
For scenarios, CVaR_α(target − y'z) ≤ 0 is as many rows ŷ as it takes (see :mod:`bco_core.solvers.cvar_cuts`), found
one by one from the worst tail of the portfolio so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bco_core import deadline
from bco_core.solvers.newton import BEST_EFFORT, OPTIMAL, UNSOLVED, compiled, inlined, newton, norm

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

# Where Newton's method is the faster one: a row of 20 assets and as many factors takes about 10 µs here and 300 µs in
# the dense solver, one of 40 about half as long as there, one of 80 four times as long.
MAXIMUM_RANK = 40
# A target missed by less than this share of the scale of returns counts as reached.
_ROUNDING = 1e-12
# How many rows a tail may need before another solver takes over, and how nearly they are kept.
_CUTS = 40
_TAIL_TOLERANCE = 1e-10
# Of the returns' scale: soft enough for Newton to settle, hard enough for rows (nearly) those of the best effort.
_SOFTNESS = 0.03
# Rows between two looks at the deadline.
_CHUNK = 4096
# Duals below the negative of the largest value, by this factor, prove that there is no portfolio.
_BEYOND = 1.0001


@dataclass(frozen=True)
class FactorQP:
    """The portfolios to choose from: loadings E (m, r), deviations s (m,), bounds l and u (m,), and the budget,
    which is used up where ``full``."""

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
        """No portfolio's ½ z'Σz is above this."""
        total = max(self.budget, 0.0) + 2 * np.abs(np.minimum(self.lower, 0)).sum()
        variances = (self.loadings**2).sum(axis=1) + self.deviations**2
        return 0.5 * float(variances.max()) * float(total) ** 2

    @cached_property
    def prepared(self) -> tuple[Array, Array, Array, bool]:
        """1/s, the rows of A' with room for one return in the last, bounds on z and on x, and whether z may be any
        non-negative portfolio within the budget."""
        scale = 1 / self.deviations
        columns = np.vstack([-scale, -(self.loadings * scale[:, None]).T, np.zeros_like(scale)])
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
    for first in range(0, len(returns), _CHUNK):
        deadline.check()
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
    """The portfolio of least variance whose worst tail over scenarios (K, m), of weights that sum to one, reaches the
    target: (m,), its code and the rows (c, m) that it was found with. UNSOLVED says that there is none, or that it was
    not found."""
    code, portfolio, rows = _cut(qp, scenarios, weights, level, target, 0.0)
    return portfolio, code, rows


def tail_rows(qp: FactorQP, scenarios: Array, weights: Array, level: float, target: float) -> Array:
    """The rows (c, m) that bind when the worst tail falls short of the target by as little as can be, or nearly so."""
    largest = max(float(np.abs(scenarios).max()), abs(target))
    softness = _SOFTNESS * largest / math.sqrt(qp.largest_value)
    return _cut(qp, scenarios, weights, level, target, softness)[2]


def _cut(
    qp: FactorQP, scenarios: Array, weights: Array, level: float, target: float, softness: float
) -> tuple[int, Array, Array]:
    """Code, portfolio and rows; a softness above zero lets rows be missed by a slack, at a quadratic price."""
    scale, columns, bounds, _ = qp.prepared
    portfolio = np.zeros(len(scale))
    room = np.zeros((qp.rank + 1 + _CUTS, len(scale) + 1))
    room[: qp.rank + 1, :-1] = columns[:-1]
    limits = np.hstack([bounds[2:], [[0.0], [math.inf]]])
    floor = -math.inf if softness else -_BEYOND * qp.largest_value
    code, rows = _cut_tail(
        np.ascontiguousarray(scenarios),
        np.ascontiguousarray(weights),
        float(level),
        float(target),
        room,
        qp.rank,
        scale,
        limits,
        float(qp.budget),
        floor,
        float(softness),
        qp.full,
        portfolio,
    )
    return int(code), portfolio, room[qp.rank + 1 : rows, :-1] / scale


@compiled
def _cut_tail(  # type: ignore[no-untyped-def]
    scenarios, weights, level, target, columns, rank, scale, limits, budget, floor, softness, full, portfolio
):
    """Add rows until none is violated: the code, and how many rows of ``columns`` are then in use.

    The slack is one more position, bounded below by zero, that counts in every row of returns.
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
    """Fill the portfolio of largest return, best asset first, and say what it returns."""
    assets = len(y)
    room, total, bar = budget, 0.0, math.inf
    for j in range(assets):
        portfolio[j] = lower[j]
        room -= lower[j]
        total += lower[j] * y[j]
    while room > 0:
        # A budget that must be used up takes assets that lose, too.
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
                more = min(upper[j] - lower[j], room)
                portfolio[j] += more
                room -= more
                total += more * y[j]
        if long_only:
            break
    return total
