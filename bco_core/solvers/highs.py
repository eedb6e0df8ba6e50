"""HiGHS: the reference, the fallback, and the solver for programs without a kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core import deadlines
from bco_core.errors import InvalidInput, OutOfTime, SolverFailure
from bco_core.solvers.dual_simplex import INFEASIBLE, OPTIMAL, UNBOUNDED
from bco_core.solvers.linear_form import Array, LinearForm, LinearProgram
from bco_core.status import Status

_STATUSES = {
    highspy.HighsModelStatus.kOptimal: Status.OPTIMAL,
    highspy.HighsModelStatus.kInfeasible: Status.INFEASIBLE,
    highspy.HighsModelStatus.kUnbounded: Status.UNBOUNDED,
    highspy.HighsModelStatus.kTimeLimit: Status.TIME_LIMIT,
}
# Number of variables below which an integer program takes about a millisecond.
_SMALL = 100


@dataclass(frozen=True)
class HighsAnswer:
    """Status, objective, variables and duals of rows (both empty without a solution).

    ``bound`` is the lower bound that branching has proven, NaN for continuous programs.
    """

    status: Status
    objective: float
    values: Array
    duals: Array
    bound: float = np.nan


def model_of(
    cost: Array,
    matrix: sparse.csr_array,
    row_lower: Array,
    row_upper: Array,
    lower: Array,
    upper: Array,
    integer: NDArray[np.bool_] | None = None,
    offset: float = 0.0,
) -> highspy.Highs:
    """Return a silent HiGHS with this model; ``offset`` is added to every objective."""
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(cost), len(row_lower)
    model.offset_ = offset
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, lower, upper
    model.row_lower_, model.row_upper_ = row_lower, row_upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = matrix.indptr
    model.a_matrix_.index_ = matrix.indices
    model.a_matrix_.value_ = matrix.data
    branches = integer is not None and bool(integer.any())
    if branches:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[int(whole)] for whole in np.asarray(integer)]
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    if branches and len(cost) < _SMALL:
        # This heuristic takes ten times as long as the whole search of a small program.
        solver.setOptionValue("mip_heuristic_run_feasibility_jump", False)
    solver.setOptionValue("threads", 1)
    # HiGHS would drop smaller coefficients and solve another program.
    solver.setOptionValue("small_matrix_value", 1e-12)
    if solver.passModel(model) != highspy.HighsStatus.kOk:
        raise SolverFailure("HiGHS refused the model")
    return solver


def begin_with(solver: highspy.Highs, values: Array) -> None:
    """Start an integer search from a solution (n,); HiGHS ignores an infeasible one."""
    start = highspy.HighsSolution()
    start.col_value = values.tolist()
    solver.setSolution(start)


def run(solver: highspy.Highs, time_limit_seconds: float | None = None) -> HighsAnswer:
    """Solve, and distinguish infeasible from unbounded programs.

    A solve that exceeds ``time_limit_seconds`` has status ``time_limit``; one that exceeds the deadline in force raises
    OutOfTime. An integer search may take arbitrarily long, so it counts as long work.
    """
    whole = bool(len(solver.getLp().integrality_))
    if whole:
        deadlines.before_long_work()
    deadline = math.inf if time_limit_seconds is None else monotonic() + time_limit_seconds
    cut_short = _run_until(solver, deadline)
    if solver.getModelStatus() in (
        highspy.HighsModelStatus.kUnboundedOrInfeasible,
        highspy.HighsModelStatus.kUnknown,
        highspy.HighsModelStatus.kSolveError,
    ):
        solver.setOptionValue("presolve", "off")
        cut_short = _run_until(solver, deadline)
    status = _STATUSES.get(solver.getModelStatus())
    if status is Status.TIME_LIMIT and cut_short:
        raise OutOfTime("the allowed time passed while HiGHS was solving")
    if status is None:
        raise SolverFailure(f"HiGHS ended with {solver.modelStatusToString(solver.getModelStatus())}")
    solution = solver.getSolution()
    info = solver.getInfo()
    # After a time limit the values need not keep the rows.
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    solved = status is Status.OPTIMAL or (status is Status.TIME_LIMIT and feasible)
    values = np.array(solution.col_value) if solved else np.empty(0)
    duals = np.array(solution.row_dual) if status is Status.OPTIMAL else np.empty(0)
    bound = info.mip_dual_bound if whole else np.nan
    return HighsAnswer(status, info.objective_function_value if solved else np.nan, values, duals, bound)


def _run_until(solver: highspy.Highs, deadline: float) -> bool:
    """Run until ``deadline`` or the deadline in force; return whether the latter is the sooner."""
    own, common = deadline - monotonic(), deadlines.seconds_left()
    if min(own, common) < math.inf:
        # HiGHS counts from its first run.
        solver.setOptionValue("time_limit", solver.getRunTime() + max(min(own, common), 1e-3))
    solver.run()
    return common < own


def lower_bound(
    cost: Array,
    matrix: sparse.csr_array,
    row_lower: Array,
    row_upper: Array,
    lower: Array,
    upper: Array,
    answer: HighsAnswer,
) -> float:
    """Recompute a lower bound from the rows' duals y: with d = c − A'y, the least of every term of y'(A v) + d'v over
    the bounds of rows and variables. An unbounded variable is taken at ten times its value in the answer."""
    duals, values = answer.duals, answer.values
    duals = np.where(duals > 0, np.where(np.isfinite(row_lower), duals, 0.0), duals)
    duals = np.where(duals < 0, np.where(np.isfinite(row_upper), duals, 0.0), duals)
    used = duals != 0
    limits = np.where(duals > 0, row_lower, row_upper)[used]
    reduced = cost - matrix.T @ duals
    ends = np.where(reduced > 0, lower, upper)
    far = 10 * np.maximum(np.abs(values), np.abs(values).max(initial=0) * 1e-3)
    ends = np.where(np.isfinite(ends), ends, -np.sign(reduced) * far)
    return float(duals[used] @ limits + np.where(reduced == 0, 0.0, reduced * ends).sum())


def solve_program(program: LinearProgram, limits: Array) -> HighsAnswer:
    """Solve a planner's program with these limits (m,) of its rows."""
    lower = np.where(program.senses >= 0, limits, -np.inf)
    upper = np.where(program.senses <= 0, limits, np.inf)
    matrix = sparse.csr_array(program.matrix)
    return run(model_of(program.cost, matrix, lower, upper, program.lower, program.upper))


def dual_feasible_basis(form: LinearForm) -> NDArray[np.int64]:
    """Return the basic columns (m,) of a dual feasible basis; slack i is column N + i."""
    rows, count = form.matrix.shape
    if (form.cost >= 0).all():
        return np.arange(count, count + rows)
    # x = 1 is feasible for this right-hand side, so a program without optimum is unbounded.
    rhs = form.matrix.sum(axis=1) - 1
    solver = _model_of_form(form.matrix, form.perturbed, rhs)
    if run(solver).status is not Status.OPTIMAL:
        raise InvalidInput("the cost can fall without limit: no row or bound limits a direction of negative cost")
    return _basic_columns(solver, count)


class FormAnswer(NamedTuple):
    """For one right-hand side: OPTIMAL, INFEASIBLE or UNBOUNDED, value, π (m,) or a ray, x (N,) and basic columns
    (m,)."""

    status: int
    value: float
    dual: Array
    primal: Array
    columns: NDArray[np.int64]


def solve_form(form: LinearForm, rhs: Array) -> FormAnswer:
    """Solve one right-hand side (m,) with the unperturbed costs."""
    rows, count = form.matrix.shape
    solver = _model_of_form(form.matrix, form.cost, rhs)
    answer = run(solver)
    if answer.status is Status.UNBOUNDED:
        nothing, basis = np.full(count, np.nan), np.empty(0, dtype=np.int64)
        return FormAnswer(UNBOUNDED, -np.inf, np.full(rows, np.nan), nothing, basis)
    if answer.status is not Status.OPTIMAL:
        solver.setOptionValue("presolve", "off")
        solver.run()
        ray = solver.getDualRay()  # type: ignore[attr-defined]
        direction = np.abs(np.array(ray[2])) if len(ray) > 2 and ray[1] else np.zeros(rows)
        return FormAnswer(INFEASIBLE, np.inf, direction, np.full(count, np.nan), np.empty(0, dtype=np.int64))
    unit, price = _unit(rhs), _unit(form.cost)
    primal, dual = np.maximum(answer.values, 0.0) * unit, np.maximum(answer.duals, 0.0) * price
    return FormAnswer(OPTIMAL, float(form.cost @ primal), dual, primal, _basic_columns(solver, count))


def _unit(part: Array) -> float:
    return float(np.abs(part).max(initial=0)) or 1.0


def _model_of_form(matrix: Array, cost: Array, rhs: Array) -> highspy.Highs:
    """Return a model with costs and right-hand side scaled to at most one, which keeps the optimal basis."""
    rows, count = matrix.shape
    free, zero = np.full(rows, np.inf), np.zeros(count)
    solver = model_of(
        cost / _unit(cost), sparse.csr_array(matrix), rhs / _unit(rhs), free, zero, np.full(count, np.inf)
    )
    solver.setOptionValue("primal_feasibility_tolerance", 1e-10)
    solver.setOptionValue("dual_feasibility_tolerance", 1e-10)
    return solver


def _basic_columns(solver: highspy.Highs, count: int) -> NDArray[np.int64]:
    """Return the basic columns, slack i being column ``count`` + i; HiGHS numbers rows from −1 downwards."""
    basic = np.array(solver.getBasicVariables()[1], dtype=np.int64)  # type: ignore[attr-defined]
    return np.where(basic >= 0, basic, count - 1 - basic)
