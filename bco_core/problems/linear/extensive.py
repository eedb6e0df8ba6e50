"""Two-stage problems as one linear program: for a single outcome, and for all scenarios, which HiGHS then solves."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core import deadline
from bco_core.errors import SolverFailure
from bco_core.problems.base import Risk, Status
from bco_core.problems.linear.description import Description
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array, LinearProgram
from bco_core.status import GAP, HIGHS, Gap

REASONS = {
    Status.OPTIMAL: "",
    Status.INFEASIBLE: "no decision leaves every scenario with a recourse that keeps the rows and bounds",
    Status.UNBOUNDED: "the cost can fall without limit over these scenarios",
    Status.TIME_LIMIT: "the time limit came before the best decision was proven; this is the best one found, if any",
}
NO_TIME = "the time limit came before this context's turn; there is no decision"
# Rows of the program from which on solving it counts as long work, and what HiGHS needs before it searches at all:
# seconds for each number in the matrix.
_LONG = 1_000
_READING_SECONDS = 3e-6
# Presolve, and how nearly HiGHS keeps rows and reduced costs.
_ATTEMPTS = (("choose", 1e-9), ("off", 1e-9), ("choose", 1e-7))
# How nearly whole HiGHS must keep whole numbers.
_WHOLE = 1e-9
# What the rest may take once a search for whole numbers was cut off.
_LAST_SECONDS = 0.2


@dataclass(frozen=True)
class Solution:
    """One decision (d_z,) over scenarios, its risk, how the solve ended and what found it.

    ``bound`` is what no decision's risk is below, ``gap`` what the risk is above it, as a share of what decisions can
    change; both NaN where nothing is proven.
    """

    decision: Array
    objective: float
    status: Status
    reason: str
    solver: str
    bound: float = np.nan
    gap: float = np.nan


def together(data: Description) -> LinearProgram:
    """First stage and recourse as one program in (z, x), whose limits are those of the first stage, then h + H y."""
    first, recourse = data.first, data.recourse
    top = np.concatenate([first.matrix, np.zeros((len(first.matrix), len(recourse.cost)))], axis=1)
    bottom = np.concatenate([data.by_decision, recourse.matrix], axis=1)
    return LinearProgram(
        np.concatenate([first.cost, recourse.cost]),
        np.concatenate([top, bottom]),
        np.concatenate([first.senses, recourse.senses]),
        np.concatenate([first.lower, recourse.lower]),
        np.concatenate([first.upper, recourse.upper]),
    )


def fixed_first_cost(data: Description) -> float:
    """What decisions cost at the value nearest to zero that their bounds, and rows of one decision, allow.

    A bound that is merely far away forces nothing, and must not make a gap look small.
    """
    first = data.first
    lower, upper = first.lower.copy(), first.upper.copy()
    for row, sense, limit in zip(first.matrix, first.senses, data.limits, strict=True):
        named = np.flatnonzero(row)
        if len(named) == 1:
            at, value = named[0], limit / row[named[0]]
            side = sense * np.sign(row[at])
            lower[at] = max(lower[at], value) if side >= 0 else lower[at]
            upper[at] = min(upper[at], value) if side <= 0 else upper[at]
    return float(first.cost @ np.clip(0.0, lower, upper))


def fixed_cost(data: Description) -> float:
    """What every decision costs, whatever it is; gaps are judged without it."""
    recourse = data.recourse
    return fixed_first_cost(data) + float(recourse.cost @ np.clip(0.0, recourse.lower, recourse.upper))


def risk_of(costs: Array, weights: Array, risk: Risk) -> float:
    """(1 − w)·E + w·CVaR of costs (K,) with weights (K,) that sum to one."""
    mean = float(costs @ weights)
    if not risk.cvar_weight:
        return mean
    order = np.argsort(-costs, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    taken = np.clip(1 - risk.cvar_level - before, 0.0, weights[order])
    tail = float(taken @ costs[order]) / (1 - risk.cvar_level)
    return (1 - risk.cvar_weight) * mean + risk.cvar_weight * tail


def is_long(data: Description, scenarios: int) -> bool:
    """Whether the program over so many scenarios takes more than some milliseconds."""
    return scenarios * len(data.constant) >= _LONG


def reading_seconds(data: Description, scenarios: int) -> float:
    """About how long it takes to write the program over so many scenarios and to look through it."""
    numbers = np.count_nonzero(data.by_decision) + np.count_nonzero(data.recourse.matrix)
    return float(scenarios * numbers * _READING_SECONDS)


def extensive(
    data: Description, atoms: Array, weights: Array, risk: Risk, until: float | None, gap: Gap = GAP
) -> Solution:
    """All scenarios as one program in HiGHS: variables z, then x_k for every scenario; for CVaR also η and excesses.

    HiGHS takes small numbers for zero: where all costs are small, it sees them in units of the largest.
    """
    (deadline.before_long_work if is_long(data, len(atoms)) else deadline.check)()
    if until is not None and time.monotonic() >= until:
        return Solution(np.full(len(data.first.cost), np.nan), np.nan, Status.TIME_LIMIT, NO_TIME, HIGHS)
    unit, first, recourse = cost_unit(data), data.first, data.recourse
    in_units = replace(
        data, first=replace(first, cost=first.cost / unit), recourse=replace(recourse, cost=recourse.cost / unit)
    )
    found = _by_highs(in_units, atoms, weights, risk, until, replace(gap, absolute=gap.absolute / unit))
    return judged(replace(found, objective=found.objective * unit, bound=found.bound * unit), fixed_cost(data), gap)


def cost_unit(data: Description) -> float:
    """The largest cost of a unit of anything where that is below one; one where nothing costs."""
    return min(float(np.abs(np.concatenate([data.first.cost, data.recourse.cost])).max()), 1.0) or 1.0


def _by_highs(data: Description, atoms: Array, weights: Array, risk: Risk, until: float | None, gap: Gap) -> Solution:
    program = program_of(data, atoms, weights, risk)
    whole = np.zeros(len(program.cost), dtype=bool)
    whole[: len(data.integer)] = data.integer
    found = solved(program, whole, fixed_cost(data), until, gap)
    return replace(found, decision=found.decision[: len(data.integer)])


def solved(
    program: Program,
    whole: NDArray[np.bool_],
    fixed: float,
    until: float | None,
    gap: Gap,
    start: Array | None = None,
) -> Solution:
    """The best of all variables (n,) of a program, with its bound, by HiGHS; a search may ``start`` from some (n,).

    A fixed cost is taken out, so that HiGHS judges its gap by what decisions can change.
    """
    model = program.rows_and_bounds
    decision, bound = np.full(len(program.cost), np.nan), np.nan
    answer: highs.HighsAnswer | None = None
    failed = SolverFailure("HiGHS found no answer")
    # What presolve has blurred, the program as it stands may tell; where HiGHS gives up at that, by its own tolerances.
    for presolve, tolerance in _ATTEMPTS:
        solver = highs.model_of(*model, whole, -fixed)
        solver.setOptionValue("presolve", presolve)
        solver.setOptionValue("mip_rel_gap", gap.relative / 2)
        solver.setOptionValue("mip_abs_gap", gap.absolute / 2)
        if whole.any():
            solver.setOptionValue("mip_feasibility_tolerance", _WHOLE)
            if start is not None:
                highs.begin_with(solver, start)
        else:
            solver.setOptionValue("primal_feasibility_tolerance", tolerance)
            solver.setOptionValue("dual_feasibility_tolerance", tolerance)
        try:
            answer = _exactly_whole(program, whole, fixed, highs.run(solver, _left(until)))
        except SolverFailure as failure:
            failed = failure
            continue
        bound = answer.bound + fixed
        if answer.status is Status.OPTIMAL and not whole.any():
            bound = highs.lower_bound(*model, answer)
        if answer.status is not Status.OPTIMAL or gap.closes(answer.objective + fixed, bound, fixed):
            break
    if answer is None:
        raise failed
    if len(answer.values):
        decision = answer.values
    return Solution(decision, answer.objective + fixed, answer.status, REASONS[answer.status], HIGHS, bound)


def _left(until: float | None) -> float | None:
    return None if until is None else until - time.monotonic()


def _exactly_whole(
    program: Program, whole: NDArray[np.bool_], fixed: float, answer: highs.HighsAnswer
) -> highs.HighsAnswer:
    """The answer with whole numbers that are exactly whole, and all else the best for them.

    HiGHS takes a number for whole that is nearly so, and a row with a large coefficient makes much of the difference.
    """
    rounded = np.round(answer.values) if len(answer.values) else answer.values
    if not len(rounded) or (rounded == answer.values)[whole].all():
        return answer
    timely = None if answer.status is Status.OPTIMAL else _LAST_SECONDS
    held = highs.run(highs.model_of(*program.held(rounded, whole).rows_and_bounds, offset=-fixed), timely)
    if held.status is Status.TIME_LIMIT:
        # Nothing is claimed of what a time limit cut off.
        return replace(answer, values=np.where(whole, rounded, answer.values) + 0.0)
    if held.status is not Status.OPTIMAL:
        raise SolverFailure(
            "HiGHS found whole numbers only nearly: no decision in whole numbers near them keeps all rows"
        )
    # Adding zero takes the sign off a zero.
    values = np.where(whole, rounded, held.values) + 0.0
    return replace(answer, objective=held.objective, values=values)


def judged(solution: Solution, fixed: float, gap: Gap) -> Solution:
    """The solution with its gap, ``optimal`` only where that is closed."""
    status, reason = solution.status, solution.reason
    share = gap.share(solution.objective, solution.bound, fixed)
    if status is Status.OPTIMAL and not gap.closes(solution.objective, solution.bound, fixed):
        status = Status.BEST_EFFORT
        reason = (
            f"this decision costs {solution.objective:.6g}, and it is proven only that none costs less than "
            f"{solution.bound:.6g}: the gap that optimal allows was not closed"
        )
    return Solution(solution.decision, solution.objective, status, reason, solution.solver, solution.bound, share)


@dataclass(frozen=True)
class Program:
    """A linear program with a sparse matrix, and its limits: variables z first."""

    cost: Array
    matrix: sparse.csr_array
    senses: NDArray[np.int64]
    limits: Array
    lower: Array
    upper: Array

    @property
    def rows_and_bounds(self) -> tuple[Array, sparse.csr_array, Array, Array, Array, Array]:
        """Cost, matrix, least and most of rows and of variables: what HiGHS takes."""
        least = np.where(self.senses >= 0, self.limits, -np.inf)
        most = np.where(self.senses <= 0, self.limits, np.inf)
        return self.cost, self.matrix, least, most, self.lower, self.upper

    def held(self, decision: Array, which: NDArray[np.bool_]) -> Program:
        """The program with the marked variables held at the decision's."""
        at = np.pad(decision, (0, len(which) - len(decision)))
        return replace(self, lower=np.where(which, at, self.lower), upper=np.where(which, at, self.upper))


def program_of(data: Description, atoms: Array, weights: Array, risk: Risk) -> Program:
    count = len(weights)
    first, recourse = data.first, data.recourse
    shares = weights * (1 - risk.cvar_weight)
    limits = data.constant + atoms @ data.by_outcome.T
    blocks = [
        [sparse.csr_array(first.matrix), None],
        [sparse.csr_array(np.tile(data.by_decision, (count, 1))), sparse.block_diag([recourse.matrix] * count)],
    ]
    cost = [first.cost * (1 - risk.cvar_weight), *(share * recourse.cost for share in shares)]
    lower, upper = [first.lower, np.tile(recourse.lower, count)], [first.upper, np.tile(recourse.upper, count)]
    senses = np.concatenate([first.senses, np.tile(recourse.senses, count)])
    right = np.concatenate([data.limits, limits.ravel()])
    if risk.cvar_weight:
        # w·CVaR = w·(η + Σ_k p_k v_k/(1 − α)) with v_k ≥ c'z + q'x_k − η, v ≥ 0.
        tail = sparse.hstack([sparse.csr_array(np.ones((count, 1))), sparse.eye_array(count)])
        spent = sparse.block_diag([-recourse.cost[None]] * count)
        blocks = [
            [blocks[0][0], None, None],
            [*blocks[1], None],
            [sparse.csr_array(np.tile(-first.cost, (count, 1))), spent, tail],
        ]
        cost += [np.array([risk.cvar_weight]), risk.cvar_weight * weights / (1 - risk.cvar_level)]
        lower += [np.array([-np.inf]), np.zeros(count)]
        upper += [np.full(1 + count, np.inf)]
        senses = np.concatenate([senses, np.ones(count, dtype=np.int64)])
        right = np.concatenate([right, np.zeros(count)])
    matrix = sparse.csr_array(sparse.block_array(blocks))
    return Program(np.concatenate(cost), matrix, senses, right, np.concatenate(lower), np.concatenate(upper))
