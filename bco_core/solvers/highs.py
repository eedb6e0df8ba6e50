"""HiGHS: the referee, the fallback, and the solver of what no fast path covers."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core.errors import InvalidInput, SolverFailure
from bco_core.solvers.dual_simplex import INFEASIBLE, OPTIMAL
from bco_core.solvers.linear_form import Array, LinearForm, LinearProgram
from bco_core.status import Status

_STATUSES = {
    highspy.HighsModelStatus.kOptimal: Status.OPTIMAL,
    highspy.HighsModelStatus.kInfeasible: Status.INFEASIBLE,
    highspy.HighsModelStatus.kUnbounded: Status.UNBOUNDED,
    highspy.HighsModelStatus.kTimeLimit: Status.TIME_LIMIT,
}


@dataclass(frozen=True)
class Answer:
    """How a solve ended, its objective, the variables and the rows' duals (both empty without a solution)."""

    status: Status
    objective: float
    values: Array
    duals: Array


def model_of(
    cost: Array,
    matrix: sparse.csr_array,
    row_lower: Array,
    row_upper: Array,
    lower: Array,
    upper: Array,
    integer: NDArray[np.bool_] | None = None,
) -> highspy.Highs:
    """A silent HiGHS with a model in it."""
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(cost), len(row_lower)
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, lower, upper
    model.row_lower_, model.row_upper_ = row_lower, row_upper
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = matrix.indptr
    model.a_matrix_.index_ = matrix.indices
    model.a_matrix_.value_ = matrix.data
    if integer is not None and integer.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[int(whole)] for whole in integer]
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    solver.setOptionValue("threads", 1)
    if solver.passModel(model) != highspy.HighsStatus.kOk:
        raise SolverFailure("HiGHS refused the model")
    return solver


def run(solver: highspy.Highs, time_limit: float | None = None) -> Answer:
    """Solve, and tell infeasible from unbounded for certain."""
    if time_limit is not None:
        solver.setOptionValue("time_limit", max(time_limit, 1e-3))
    solver.run()
    if solver.getModelStatus() == highspy.HighsModelStatus.kUnboundedOrInfeasible:
        solver.setOptionValue("presolve", "off")
        solver.run()
    status = _STATUSES.get(solver.getModelStatus())
    if status is None:
        raise SolverFailure(f"HiGHS ended with {solver.modelStatusToString(solver.getModelStatus())}")
    solution = solver.getSolution()
    # What a time limit leaves behind need not keep the rows.
    known = solver.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    known = status is Status.OPTIMAL or (status is Status.TIME_LIMIT and known)
    values = np.array(solution.col_value) if known else np.empty(0)
    duals = np.array(solution.row_dual) if status is Status.OPTIMAL else np.empty(0)
    return Answer(status, solver.getInfo().objective_function_value if known else np.nan, values, duals)


def solve_program(program: LinearProgram, limits: Array, time_limit: float | None = None) -> Answer:
    """A planner's program as it stands."""
    lower = np.where(program.senses >= 0, limits, -np.inf)
    upper = np.where(program.senses <= 0, limits, np.inf)
    matrix = sparse.csr_array(program.matrix)
    return run(model_of(program.cost, matrix, lower, upper, program.lower, program.upper), time_limit)


def dual_feasible_basis(form: LinearForm) -> NDArray[np.int64]:
    """The basic columns (m,) of some dual feasible basis, slack i being column N + i."""
    rows, count = form.matrix.shape
    if (form.cost >= 0).all():
        return np.arange(count, count + rows)
    # With this right-hand side x = 1 is feasible, so what has no optimum is unbounded.
    rhs = form.matrix.sum(axis=1) - 1
    solver = _model_of_form(form, rhs)
    if run(solver).status is not Status.OPTIMAL:
        raise InvalidInput("the cost can fall without limit: a direction of negative cost is not bounded by any row")
    return _basic_columns(solver, count)


def solve_form(
    form: LinearForm, rhs: Array, watched: NDArray[np.int64], jacobian: bool
) -> tuple[float, Array, Array, Array, int]:
    """One right-hand side, in the terms of :class:`~bco_core.solvers.basis_pool.Solved`."""
    rows, count = form.matrix.shape
    solver = _model_of_form(form, rhs)
    answer = run(solver)
    by_rhs = np.zeros((len(watched), rows if jacobian else 0))
    if answer.status is not Status.OPTIMAL:
        solver.setOptionValue("presolve", "off")
        solver.run()
        ray = solver.getDualRay()  # type: ignore[attr-defined]
        direction = np.abs(np.array(ray[2])) if len(ray) > 2 and ray[1] else np.zeros(rows)
        return np.inf, direction, np.full(len(watched), np.nan), by_rhs, INFEASIBLE
    columns = _basic_columns(solver, count)
    whole = np.concatenate([form.matrix, -np.eye(rows)], axis=1)
    inverse = np.linalg.inv(whole[:, columns])
    prices = np.concatenate([form.cost, np.zeros(rows)])
    dual = prices[columns] @ inverse
    if jacobian:
        place = {column: row for row, column in enumerate(columns.tolist())}
        for index, column in enumerate(watched.tolist()):
            if column in place:
                by_rhs[index] = inverse[place[column]]
    basic = np.zeros(count + rows)
    basic[columns] = np.maximum(inverse @ rhs, 0)
    return float(dual @ rhs), dual, basic[watched], by_rhs, OPTIMAL


def _model_of_form(form: LinearForm, rhs: Array) -> highspy.Highs:
    """For the optimal basis, which costs and right-hand side have in common with multiples of them near one."""
    rows, count = form.matrix.shape
    matrix = sparse.csr_array(form.matrix)
    free, zero = np.full(rows, np.inf), np.zeros(count)
    cost, limits = (part / (np.abs(part).max(initial=0) or 1.0) for part in (form.perturbed, rhs))
    solver = model_of(cost, matrix, limits, free, zero, np.full(count, np.inf))
    solver.setOptionValue("primal_feasibility_tolerance", 1e-10)
    solver.setOptionValue("dual_feasibility_tolerance", 1e-10)
    return solver


def _basic_columns(solver: highspy.Highs, count: int) -> NDArray[np.int64]:
    """The optimal basis in which slack i is column ``count`` + i; HiGHS counts rows from −1 downwards."""
    basic = np.array(solver.getBasicVariables()[1], dtype=np.int64)  # type: ignore[attr-defined]
    return np.where(basic >= 0, basic, count - 1 - basic)
