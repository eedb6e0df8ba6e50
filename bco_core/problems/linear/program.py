"""Sparse linear programs in HiGHS: solutions with a proven bound, exact integers and a stated gap."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from bco_core.errors import SolverFailure
from bco_core.problems.base import Prescription, Risk, Status
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array
from bco_core.status import HIGHS, Gap

REASONS = {
    Status.OPTIMAL: "",
    Status.INFEASIBLE: "no decision leaves every scenario with a recourse that keeps the rows and bounds",
    Status.UNBOUNDED: "the cost can fall without limit over these scenarios",
    Status.TIME_LIMIT: "the time limit passed before a decision was proven optimal; this is the best one found, if any",
}
NO_TIME = "the time limit passed before this context was reached; there is no decision"
# HiGHS's presolve option, and its tolerance of rows and reduced costs.
_ATTEMPTS = (("choose", 1e-9), ("off", 1e-9), ("choose", 1e-7))
# HiGHS's tolerance of integers.
_WHOLE = 1e-9
# Seconds for the continuous variables once an integer search was cut off.
_LAST_SECONDS = 0.2


@dataclass(frozen=True)
class Solution:
    """A decision (d_z,) over scenarios, its risk, how the solve ended and which solver found it.

    ``bound`` is a lower bound on the risk of any decision, ``gap`` the relative optimality gap, fixed cost excluded;
    both are NaN where nothing is proven.
    """

    decision: Array
    objective: float
    status: Status
    reason: str
    solver: str
    bound: float = np.nan
    gap: float = np.nan


@dataclass(frozen=True)
class SparseProgram:
    """A linear program with a sparse matrix and its limits; decisions are its first variables."""

    cost: Array
    matrix: sparse.csr_array
    senses: NDArray[np.int64]
    limits: Array
    lower: Array
    upper: Array

    @property
    def rows_and_bounds(self) -> tuple[Array, sparse.csr_array, Array, Array, Array, Array]:
        """Return cost, matrix, bounds of rows and bounds of variables: the arguments of HiGHS."""
        least = np.where(self.senses >= 0, self.limits, -np.inf)
        most = np.where(self.senses <= 0, self.limits, np.inf)
        return self.cost, self.matrix, least, most, self.lower, self.upper

    def with_fixed_decision(self, decision: Array, which: NDArray[np.bool_]) -> SparseProgram:
        """Return the program with the marked variables fixed at the decision's."""
        at = np.pad(decision, (0, len(which) - len(decision)))
        return replace(self, lower=np.where(which, at, self.lower), upper=np.where(which, at, self.upper))


def to_prescription(solutions: Sequence[Solution]) -> Prescription:
    """Return the solutions of several contexts as one prescription."""
    return Prescription(
        torch.from_numpy(np.stack([one.decision for one in solutions])),
        torch.tensor([one.objective for one in solutions], dtype=torch.float64),
        [one.status for one in solutions],
        tuple(one.reason for one in solutions),
        tuple(one.solver for one in solutions),
        torch.tensor([one.gap for one in solutions], dtype=torch.float64),
        torch.tensor([one.bound for one in solutions], dtype=torch.float64),
    )


def time_share(deadline: float | None, contexts: int) -> float | None:
    """Return when the first of several contexts must be decided for each to have an equal share of the time left."""
    return None if deadline is None else deadline - max(deadline - time.monotonic(), 0.0) * (1 - 1 / contexts)


def risk_of(costs: Array, weights: Array, risk: Risk) -> float:
    """Return (1 − w)·E + w·CVaR of costs (K,) with weights (K,) that sum to one."""
    mean = float(costs @ weights)
    if not risk.cvar_weight:
        return mean
    order = np.argsort(-costs, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    taken = np.clip(1 - risk.cvar_level - before, 0.0, weights[order])
    tail = float(taken @ costs[order]) / (1 - risk.cvar_level)
    return (1 - risk.cvar_weight) * mean + risk.cvar_weight * tail


def minimize_program(
    program: SparseProgram,
    whole: NDArray[np.bool_],
    fixed: float,
    deadline: float | None,
    gap: Gap,
    start: Array | None = None,
) -> Solution:
    """Solve a program by HiGHS: all its variables (n,), with a proven bound. A search may ``start`` from some (n,).

    The fixed cost is subtracted, so that HiGHS measures its gap without it.
    """
    model = program.rows_and_bounds
    decision, bound = np.full(len(program.cost), np.nan), np.nan
    answer: highs.HighsAnswer | None = None
    failed = SolverFailure("HiGHS found no answer")
    # Where presolve leaves a gap, try without it; where HiGHS fails at that, try its default tolerances.
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
            answer = _exactly_whole(program, whole, fixed, highs.run(solver, _left(deadline)))
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


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


def _exactly_whole(
    program: SparseProgram, whole: NDArray[np.bool_], fixed: float, answer: highs.HighsAnswer
) -> highs.HighsAnswer:
    """Round the integers of an answer exactly, and optimise all other variables for them.

    HiGHS accepts nearly integral numbers, and a row with a large coefficient magnifies the difference.
    """
    rounded = np.round(answer.values) if len(answer.values) else answer.values
    if not len(rounded) or (rounded == answer.values)[whole].all():
        return answer
    timely = None if answer.status is Status.OPTIMAL else _LAST_SECONDS
    held = highs.run(
        highs.model_of(*program.with_fixed_decision(rounded, whole).rows_and_bounds, offset=-fixed), timely
    )
    if held.status is Status.TIME_LIMIT:
        # An answer cut off by the time limit claims no optimality.
        return replace(answer, values=np.where(whole, rounded, answer.values) + 0.0)
    if held.status is not Status.OPTIMAL:
        raise SolverFailure("HiGHS's integers are only approximate: no integer decision near them satisfies all rows")
    # Adding zero turns −0 into 0.
    values = np.where(whole, rounded, held.values) + 0.0
    return replace(answer, objective=held.objective, values=values)


def with_gap(solution: Solution, fixed: float, gap: Gap) -> Solution:
    """Return the solution with its gap; ``optimal`` only where the gap is closed."""
    status, reason = solution.status, solution.reason
    share = gap.share(solution.objective, solution.bound, fixed)
    if status is Status.OPTIMAL and not gap.closes(solution.objective, solution.bound, fixed):
        status = Status.BEST_EFFORT
        reason = (
            f"this decision costs {solution.objective:.6g}, and it is proven only that none costs less than "
            f"{solution.bound:.6g}: the optimality gap was not closed"
        )
    return Solution(solution.decision, solution.objective, status, reason, solution.solver, solution.bound, share)
