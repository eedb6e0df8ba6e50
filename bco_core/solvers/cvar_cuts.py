"""Portfolios whose mean return over the worst scenarios reaches a target: cutting planes over a small QP by daqp.

With scenarios y_k of weight w_k, CVaR_α(target − y'z) ≤ 0 says that

    Σ_k q_k y_k'z ≥ target   for all q in {0 ≤ q ≤ w/(1 − α), Σ_k q_k = 1}:

the mean return of the worst (1 − α) of the weight reaches the target. At any z the binding q sorts the scenarios by
their return and fills up from the worst, so each round adds one row, the tail's mean scenario, until none is violated.
The mean of all scenarios is such a row too, and the first one.

If no z keeps all rows, the best effort minimises a slack s ≥ 0 shared by all rows; the variance decides only among
portfolios with the same s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import daqp
import numpy as np

from bco_core import deadlines
from bco_core.errors import SolverFailure

Array = np.ndarray[Any, np.dtype[np.float64]]

_INFINITE = 1e30
_ROUNDS = 500
_TOLERANCE = 1e-10
# Price of a unit of slack relative to a variance scaled to one.
_SLACK_PRICE = 1e6
_OPTIMAL, _INFEASIBLE = 1, -1


@dataclass(frozen=True)
class DenseQP:
    """Minimise ½ z'Hz over lower ≤ z ≤ upper, 1'z ≤ budget, Σ z⁺ ≤ longest and Σ z⁻ ≤ shortest (None: no limit).

    H is a covariance in units of ``unit``, its mean variance.
    """

    unit: float
    hessian: Array
    lower: Array
    upper: Array
    budget: float
    longest: float | None = None
    shortest: float | None = None

    @staticmethod
    def of(
        covariance: Array,
        lower: Array,
        upper: Array,
        budget: float,
        longest: float | None = None,
        shortest: float | None = None,
    ) -> DenseQP:
        """Build with the covariance scaled to a mean variance of one, which changes no decision."""
        upper = np.minimum(upper, _INFINITE)
        unit = float(covariance.diagonal().mean())
        return DenseQP(unit, covariance / unit, lower, upper, budget, longest, shortest)

    def broken_limits(self, portfolio: Array) -> list[tuple[Array, float]]:
        """Return rows a'z ≥ b that cut off a portfolio whose long or short positions sum to more than their limit."""
        rows: list[tuple[Array, float]] = []
        for limit, sign in ((self.longest, 1.0), (self.shortest, -1.0)):
            taken = np.where(sign * portfolio > 0, sign, 0.0)
            if limit is not None and taken @ portfolio > limit + _TOLERANCE * max(1.0, self.budget):
                rows.append((-taken, -limit))
        return rows


class Tail(NamedTuple):
    """A portfolio (m,), the shortfall of its worst tail below the target, and whether it keeps every row.

    Every portfolio that reaches the target has rows·z ≥ bounds, with ``rows`` (c, m) and ``bounds`` (c,). ``solver`` is
    "" for Newton's method.
    """

    portfolio: Array
    shortfall: float
    verified: bool
    rows: Array
    bounds: Array
    solver: str = ""


def tail_mean(scenarios: Array, weights: Array, level: float, portfolio: Array) -> Array:
    """Return the mean scenario (m,) of the worst (1 − level) of the weight under this portfolio."""
    order = np.argsort(scenarios @ portfolio, kind="stable")
    sorted_weights = weights[order]
    before = np.cumsum(sorted_weights) - sorted_weights
    taken = np.minimum(sorted_weights, 1 - level - before)
    counts = taken > 0
    mean: Array = (taken[counts] @ scenarios[order[counts]]) / taken[counts].sum()
    return mean


def cvar_portfolio(
    qp: DenseQP, scenarios: Array, weights: Array, level: float, target: float, rows: Array | None = None
) -> Tail:
    """Return the portfolio of least variance whose worst tail over scenarios (K, m) reaches the target, or the best
    effort.

    ``rows`` (c, m) are tail means found before, which need not be searched again.
    """
    scale = max(float(np.abs(scenarios).max()), abs(target)) or 1.0
    scenarios, goal = scenarios / scale, target / scale
    weights = weights / weights.sum()
    cuts = [weights @ scenarios, *([] if rows is None else rows / scale)]
    limits = [(-np.ones(scenarios.shape[1]), -qp.budget)]
    for soft in (False, True):
        solution = _cut(qp, scenarios, weights, level, goal, cuts, limits, soft)
        if solution is not None:
            tail = float(tail_mean(scenarios, weights, level, solution.portfolio) @ solution.portfolio)
            short = goal - tail
            short = short * scale if short > 10 * _TOLERANCE else 0.0
            return solution._replace(shortfall=short)
    raise SolverFailure("no portfolio was found, not even a best effort: check the returns and the covariance")


def _cut(
    qp: DenseQP,
    scenarios: Array,
    weights: Array,
    level: float,
    goal: float,
    cuts: list[Array],
    limits: list[tuple[Array, float]],
    soft: bool,
) -> Tail | None:
    """Add rows to ``cuts`` and ``limits`` until the portfolio violates none; return None if no portfolio keeps them.

    A best effort (``soft``) always exists: if rounding makes the solver fail, it is the best portfolio so far.
    """
    start: Array | None = None
    best: Array | None = None
    best_tail = -np.inf
    for _ in range(_ROUNDS):
        deadlines.check()
        start = _master(qp, cuts, limits, goal, soft, start)
        if start is None:
            if best is None or not soft:
                return None
            return Tail(best, goal - best_tail, False, *_rows_and_bounds(cuts, limits, goal))
        # Rounding must not carry a position past its bounds.
        portfolio = np.clip(start[: len(qp.lower)], qp.lower, qp.upper)
        slack = float(start[-1]) if soft else 0.0
        broken = qp.broken_limits(portfolio)
        worst = tail_mean(scenarios, weights, level, portfolio)
        tail = float(worst @ portfolio)
        if tail < goal - slack - _TOLERANCE:
            cuts.append(worst)
            # A second row from half-way to the best portfolio so far: both may violate it.
            if best is not None:
                cuts.append(tail_mean(scenarios, weights, level, (portfolio + best) / 2))
        elif not broken:
            return Tail(portfolio, slack, True, *_rows_and_bounds(cuts, limits, goal))
        if tail > best_tail:
            best, best_tail = portfolio, tail
        limits += broken
    return Tail(portfolio, slack, False, *_rows_and_bounds(cuts, limits, goal))


def _rows_and_bounds(cuts: list[Array], limits: list[tuple[Array, float]], goal: float) -> tuple[Array, Array]:
    rows = np.array([*(row for row, _ in limits), *cuts])
    return rows, np.array([*(bound for _, bound in limits), *([goal] * len(cuts))])


def _master(
    qp: DenseQP,
    cuts: list[Array],
    limits: list[tuple[Array, float]],
    goal: float,
    soft: bool,
    start: Array | None,
) -> Array | None:
    """Minimise the variance under limits and cuts·z ≥ goal, or (soft) under cuts·z + s ≥ goal with least s, the last
    entry; return None if that fails."""
    rows = np.array([*(row for row, _ in limits), *cuts])
    lower = np.concatenate([qp.lower, [bound for _, bound in limits], np.full(len(cuts), goal)])
    upper = np.concatenate([qp.upper, np.full(len(rows), _INFINITE)])
    hessian, linear = qp.hessian, np.zeros(len(qp.lower))
    if soft:
        size = len(qp.lower)
        hessian = np.pad(qp.hessian, ((0, 1), (0, 1)))
        hessian[-1, -1] = 1.0
        linear = np.append(linear, _SLACK_PRICE)
        relaxed = np.r_[np.zeros(len(limits)), np.ones(len(cuts))]
        rows = np.hstack([rows, relaxed[:, None]])
        lower, upper = np.insert(lower, size, 0.0), np.insert(upper, size, _INFINITE)
    for tolerance in (_TOLERANCE / 10, 1e-9, 1e-7):
        x, _, flag, _ = daqp.solve(
            hessian,
            linear,
            rows,
            upper,
            lower,
            primal_start=start,
            primal_tol=tolerance,
            dual_tol=1e-12,
            eq_reduction=-1,
        )
        if flag == _OPTIMAL:
            solution: Array = x
            return solution
        if flag == _INFEASIBLE:
            return None
        start = None
    return None


def mean_variance_portfolio(qp: DenseQP, returns: Array) -> Array | None:
    """Return the portfolio (m,) of least ½ z'Σz − y'z within bounds and budget for one return vector (m,), or None."""
    rows = np.ones((1, len(returns)))
    upper = np.append(qp.upper, qp.budget)
    lower = np.append(qp.lower, -_INFINITE)
    for tolerance in (_TOLERANCE / 10, 1e-9, 1e-7):
        x, _, flag, _ = daqp.solve(
            qp.hessian, -returns / qp.unit, rows, upper, lower, primal_tol=tolerance, dual_tol=1e-12, eq_reduction=-1
        )
        if flag == _OPTIMAL:
            portfolio: Array = np.clip(x, qp.lower, qp.upper)
            return portfolio
    return None


def point_portfolio(qp: DenseQP, returns: Array, target: float) -> Tail:
    """Return the portfolio of least variance that returns the target at one return vector (m,), or the best effort."""
    return cvar_portfolio(qp, returns[None], np.ones(1), 0.0, target)
