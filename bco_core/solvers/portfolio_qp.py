"""Portfolio QPs under any linear rules: groups, turnover, limits on long and short sums, a budget to be used up.

Variables x are positions z followed by auxiliary variables (:mod:`bco_core.problems.portfolio.rules`), so that every
rule is a row; only z has a variance. daqp solves small well-conditioned programs in tens of microseconds, and Clarabel
the others. CVaR_α(target − y'x) ≤ 0 is stated as

    η − Σ_k w_k v_k / (1 − α) ≥ target,   v_k ≥ η − y_k'x,   v ≥ 0.

The multipliers of its rows, q in {0 ≤ q ≤ w/(1 − α), Σ_k q_k = 1}, give one row Σ_k q_k y_k'x ≥ target that every x
that reaches the target keeps. Under this row linear programs by HiGHS prove a lower bound of the variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import clarabel
import daqp
import numpy as np
from scipy import sparse

from bco_core import deadlines
from bco_core.errors import SolverFailure
from bco_core.solvers import highs
from bco_core.solvers.cvar_cuts import tail_mean
from bco_core.solvers.dual_newton import Array
from bco_core.status import Status

_INFINITE = 1e30
_TOLERANCE = 1e-11
# Proximal weight of daqp for variables without a variance, and the length of its last step.
_PROXIMAL, _SETTLED = 1e-3, 1e-12
_OPTIMAL = 1
# A return missed by less than this share of the returns' scale counts as reached.
_ROUNDING = 1e-10
# Relative difference of variances at which two solvers agree.
_RELATIVE = 1e-6


@dataclass(frozen=True)
class LiftedQP:
    """low ≤ matrix·x ≤ high (r, n) and lower ≤ x ≤ upper (n,); ½ z'Hz (m, m) is the variance of the first m.

    H is the covariance in units of ``unit``, and x is in units of ``size``. ``price`` (n,) is what a unit of each
    variable subtracts from the return.
    """

    hessian: Array
    unit: float
    size: float
    matrix: Array
    low: Array
    high: Array
    lower: Array
    upper: Array
    price: Array

    @property
    def assets(self) -> int:
        return len(self.hessian)

    def lifted(self, returns: Array) -> Array:
        """Return returns (..., m), minus prices, as rows over x (..., n)."""
        price = np.broadcast_to(self.price[self.assets :], (*returns.shape[:-1], len(self.price) - self.assets))
        return np.concatenate([returns, -price], axis=-1)

    def linear(self, returns: Array, aversion: float) -> Array:
        """Return −y'z + charge/γ as a row over x (n,), in the units of ½ z'Hz, for returns y (m,) divided by γ."""
        return np.concatenate([-returns, self.price[self.assets :] / aversion]) / (self.unit * self.size)

    def positions(self, x: Array) -> Array:
        """Return the portfolio (m,) of a solution, clipped to its bounds."""
        m = self.assets
        portfolio: Array = np.clip(x[:m], self.lower[:m], self.upper[:m]) * self.size
        return portfolio


# Arguments of ``highs.model_of``: costs, rows with their bounds, and bounds of variables.
_Model = tuple[Array, Any, Array, Array, Array, Array]


class QPSolution(NamedTuple):
    """A solution (n,) and the multipliers of the rows added to the program's."""

    x: Array
    multipliers: Array


def quick(program: LiftedQP, linear: Array, rows: Array, bounds: Array) -> Array | None:
    """Return x (n,) of nearly least ½ z'Hz + linear'x with rows·x ≥ bounds; None if daqp finds none, which proves
    nothing."""
    extra = len(program.lower) - program.assets
    hessian = np.pad(program.hessian, ((0, extra), (0, extra)))
    x, _, flag, _ = daqp.solve(
        hessian,
        linear,
        np.vstack([program.matrix, rows]),
        np.concatenate([program.upper, program.high, np.full(len(rows), math.inf)]).clip(max=_INFINITE),
        np.concatenate([program.lower, program.low, bounds]).clip(min=-_INFINITE),
        primal_tol=_TOLERANCE,
        dual_tol=1e-12,
        eps_prox=_PROXIMAL if extra else -1e-6,
        eta_prox=_SETTLED if extra else -1.0,
        eq_reduction=-1,
    )
    if flag != _OPTIMAL or not np.isfinite(x).all():
        return None
    solution: Array = x
    return solution


def least(program: LiftedQP, linear: Array, rows: Array, bounds: Array) -> QPSolution | None:
    """Solve the same by Clarabel to the last digits, with the multipliers of rows; None if there is no solution."""
    deadlines.check()
    extra = len(program.lower) - program.assets
    hessian = sparse.block_diag([program.hessian, sparse.csc_matrix((extra, extra))], format="csc")
    matrix = sparse.vstack([sparse.eye(len(program.lower)), program.matrix, rows], format="csr")
    low = np.concatenate([program.lower, program.low, bounds])
    high = np.concatenate([program.upper, program.high, np.full(len(rows), math.inf)])
    return _by_clarabel(hessian, linear, matrix, low, high, len(rows))


def _by_clarabel(hessian: Any, linear: Array, matrix: Any, low: Array, high: Array, rows: int) -> QPSolution | None:
    """Minimise ½ x'Hx + linear'x with low ≤ matrix·x ≤ high; also return the multipliers of the last ``rows`` rows,
    which have no upper bound."""
    equal = low == high
    above, below = ~equal & np.isfinite(high), ~equal & np.isfinite(low)
    stacked = sparse.vstack([matrix[equal], matrix[above], -matrix[below]], format="csc")
    right = np.concatenate([high[equal], high[above], -low[below]])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    if deadlines.seconds_left() < math.inf:
        settings.time_limit = max(deadlines.seconds_left(), 1e-3)
    cones = [clarabel.ZeroConeT(int(equal.sum())), clarabel.NonnegativeConeT(int(above.sum() + below.sum()))]
    upper = sparse.triu(hessian, format="csc")
    answer = clarabel.DefaultSolver(
        upper, np.asarray(linear, dtype=np.float64), stacked, right, cones, settings
    ).solve()
    deadlines.check()
    if answer.status not in (clarabel.SolverStatus.Solved, clarabel.SolverStatus.AlmostSolved):
        return None
    return QPSolution(np.array(answer.x), np.array(answer.z)[len(right) - rows :] if rows else np.empty(0))


class TailSolution(NamedTuple):
    """x (n,), the shortfall of its worst tail, and a row (n,): row·x ≥ bound for every x that reaches the target."""

    x: Array
    shortfall: float
    row: Array
    bound: float


def keep_tail(program: LiftedQP, returns: Array, weights: Array, level: float, target: float) -> TailSolution:
    """Return the x of least variance whose worst tail over returns (K, m) reaches the target, or comes nearest."""
    scale = max(float(np.abs(returns).max()), abs(target) / program.size) or 1.0
    scenarios, goal = program.lifted(returns) / scale, target / program.size / scale
    shares = weights / weights.sum()
    if level == 0.0:
        scenarios, shares = (shares @ scenarios)[None], np.ones(1)
    solved = _tail(program, scenarios, shares, level, goal)
    short = 0.0
    if solved is None:
        best, most = best_tail(program, scenarios, shares, level)
        short = max(goal - most, 0.0)
        # Leave room for rounding, so that a portfolio exists.
        solved = _tail(program, scenarios, shares, level, min(goal, most) - _ROUNDING)
        if solved is None:
            solved = QPSolution(best, shares)
        short = short if short > 10 * _ROUNDING else 0.0
    row = _tail_row(scenarios, shares, level, solved)
    x = solved.x if short else _sharpen_tail(program, scenarios, shares, level, goal, solved.x, row)
    return TailSolution(x, short * scale * program.size, row * scale, goal * scale)


def _sharpen_tail(
    program: LiftedQP, scenarios: Array, weights: Array, level: float, goal: float, x: Array, row: Array
) -> Array:
    """Return the solution under the one binding row if it reaches the goal at less variance; otherwise x, which is
    inexact where the least variance is tiny."""
    m, other = program.assets, quick(program, np.zeros(len(x)), row[None], np.array([goal]))
    if other is None or tail_mean(scenarios, weights, level, other) @ other < goal - _ROUNDING:
        return x
    variance, exact = (float(one[:m] @ program.hessian @ one[:m]) for one in (x, other))
    return other if exact < (1 - _RELATIVE) * variance else x


def _tail(program: LiftedQP, scenarios: Array, weights: Array, level: float, goal: float) -> QPSolution | None:
    """Minimise the variance with the worst tail at or above the goal; None if there is no solution."""
    if len(scenarios) == 1:
        return least(program, np.zeros(len(program.lower)), scenarios, np.array([goal]))
    count, n, m = len(scenarios), len(program.lower), program.assets
    hessian = sparse.block_diag([program.hessian, sparse.csc_matrix((n - m + 1 + count,) * 2)], format="csc")
    own = sparse.hstack(
        [sparse.vstack([sparse.eye(n), program.matrix]), sparse.csr_matrix((n + len(program.low), 1 + count))]
    )
    matrix = sparse.vstack([own, _tail_rows(scenarios, weights, level)], format="csr")
    low = np.concatenate([program.lower, program.low, np.zeros(count), [goal], np.zeros(count)])
    high = np.concatenate([program.upper, program.high, np.full(2 * count + 1, math.inf)])
    solution = _by_clarabel(hessian, np.zeros(n + 1 + count), matrix, low, high, count)
    return None if solution is None else QPSolution(solution.x[:n], solution.multipliers)


def _tail_rows(scenarios: Array, weights: Array, level: float) -> Any:
    """Return rows over (x, η, v), each with a lower bound: v; η − Σ w v/(1 − α); and y_k'x − η + v_k."""
    count, n = scenarios.shape
    identity = sparse.eye(count)
    free = sparse.hstack([sparse.csr_matrix((count, n + 1)), identity])
    mean = sparse.csr_matrix(np.concatenate([np.zeros(n), [1.0], -weights / (1 - level)])[None])
    return sparse.vstack([free, mean, sparse.hstack([scenarios, -np.ones((count, 1)), identity])])


def _tail_row(scenarios: Array, weights: Array, level: float, solved: QPSolution) -> Array:
    """Return Σ_k q_k y_k (n,), with the multipliers q corrected to be shares of the worst 1 − level of the weight."""
    total = solved.multipliers.sum()
    shares = solved.multipliers / total if total > 0 else weights
    shares = np.minimum(shares, weights / (1 - level))
    missing = 1 - shares.sum()
    room = weights / (1 - level) - shares
    shares = shares + (missing * room / room.sum() if missing > 0 and room.sum() > 0 else 0.0)
    row: Array = (shares / shares.sum()) @ scenarios
    return row


def best_tail(program: LiftedQP, scenarios: Array, weights: Array, level: float) -> tuple[Array, float]:
    """Return the x (n,) whose worst tail over lifted scenarios (K, n) has the largest return, and that return."""
    count, n = scenarios.shape
    if count == 1:
        x = most(program, scenarios[0])
        return x, float(scenarios[0] @ x)
    rows = _tail_rows(scenarios, weights, level).tocsr()[count:]
    own = sparse.hstack([program.matrix, sparse.csr_matrix((len(program.low), 1 + count))])
    matrix = sparse.csr_array(sparse.vstack([own, rows[1:]]))
    cost = -rows[[0]].toarray()[0]
    free = np.full(count, math.inf)
    solver = highs.model_of(
        cost,
        matrix,
        np.concatenate([program.low, np.zeros(count)]),
        np.concatenate([program.high, free]),
        np.concatenate([program.lower, [-math.inf], np.zeros(count)]),
        np.concatenate([program.upper, [math.inf], free]),
    )
    answer = highs.run(solver)
    if answer.status is not Status.OPTIMAL:
        raise SolverFailure("no portfolio was found, not even a best effort: check the returns")
    return answer.values[:n], -answer.objective


def most(program: LiftedQP, direction: Array) -> Array:
    """Return the x (n,) of largest direction'x."""
    unit = float(np.abs(direction).max()) or 1.0
    answer = _linear(program, -direction / unit, np.empty((0, len(direction))), np.empty(0))[1]
    if answer.status is not Status.OPTIMAL:
        raise SolverFailure("no portfolio keeps all rules")
    return answer.values


def lower_bound(program: LiftedQP, slope: Array, rows: Array, bounds: Array) -> float:
    """Return a lower bound of slope'x over all x with rows·x ≥ bounds, proven by duals; NaN if none is proven."""
    unit = float(np.abs(slope).max()) or 1.0
    scales = np.abs(rows).max(axis=1, initial=1e-300)
    model, answer = _linear(program, slope / unit, rows / scales[:, None], bounds / scales)
    if answer.status is not Status.OPTIMAL:
        return math.nan
    return unit * highs.lower_bound(*model, answer)


def _linear(program: LiftedQP, cost: Array, rows: Array, bounds: Array) -> tuple[_Model, highs.HighsAnswer]:
    model = (
        cost,
        sparse.csr_array(np.vstack([program.matrix, rows])),
        np.concatenate([program.low, bounds]),
        np.concatenate([program.high, np.full(len(bounds), math.inf)]),
        program.lower,
        program.upper,
    )
    solver = highs.model_of(*model)
    for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
        solver.setOptionValue(name, 1e-10)
    return model, highs.run(solver)
