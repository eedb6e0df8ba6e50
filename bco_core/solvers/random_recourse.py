"""Linear programs of which costs and right-hand sides change, solved by the thousand: recourse at random prices.

For min c'x, A x − s = b, x, s ≥ 0 with one matrix A, a basis is a good start for costs and right-hand sides near those
it was optimal for. So a pool keeps bases together with the costs and right-hand sides they were found for, up to scale,
and a new pair (c, b) starts from the nearest one: primal pivots make the basis dual feasible for c, dual pivots
(:mod:`bco_core.solvers.dual_simplex`) make it optimal for b. Any basis can be a start; the first one is the slacks'.

Whether a basis is dual feasible for c does not depend on b. So the primal pivots may choose b freely: x_B begins at
max(B⁻¹b, 0) plus a small amount that differs by row. That is always feasible, no two rows reach zero together, and
values that fall below zero by rounding are lifted again. The resulting basis is near the optimum for the true b.

Every answer has its own certificate, computed from the unperturbed costs, and so have proofs that there is no solution
or that the cost is unbounded. HiGHS solves the rare pair whose answer fails.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bco_core import deadlines
from bco_core.solvers import highs
from bco_core.solvers.basis_certificate import (
    SHARP,
    FormArrays,
    arrays_of,
    certify,
    certify_basis,
    certify_ray,
)
from bco_core.solvers.basis_pool import inverses
from bco_core.solvers.dual_simplex import (
    FAILED,
    INFEASIBLE,
    NONE,
    OPTIMAL,
    TOLERANCE,
    UNBOUNDED,
    Index,
    PivotWorkspace,
    Tableaus,
    continue_dual_simplex,
    exchange,
    is_optimal,
    kernel,
    piece,
    proves_infeasible,
    set_column,
    set_dual,
    set_row,
)
from bco_core.solvers.linear_form import PERTURBATION, Array, LinearForm, LinearProgram, least_costs, linear_form

CAPACITY = 64
# Pairs are solved in chunks, small ones at first, so that a new pool learns early.
_FIRST_CHUNK, _GROWTH, _CHUNK = 8, 4, 2048
# A column enters if its reduced cost is below minus this share of its cost: more than rounding, and less than
# certificates allow.
_LEAST_GAIN = 1e-9
# Smallest entry to pivot on, and by how much basic variables are lifted, as a share of the largest one's terms.
_LEAST_PIVOT, _LIFT = 1e-9, 1e-6
# Tolerance for a ray that proves that the cost is unbounded.
_RAY = 1e-9
_PIVOTS_PER_ROW, _PIVOTS_MORE = 50, 200


class Pairs(NamedTuple):
    """n programs of one form: costs (n, N), perturbed costs (n, N), least cost (n,), right-hand sides (n, m), the size
    of their terms (n, m), and the cost that the form leaves out (n,)."""

    cost: Array
    perturbed: Array
    least_cost: Array
    rhs: Array
    size: Array
    base_cost: Array

    def part(self, at: slice) -> Pairs:
        return Pairs(*(column[at] for column in self))


class PairSolutions(NamedTuple):
    """For n pairs: value (n,), π (n, m), x (n, N), status (n,), final bases (n, m), and which are certified (n,)."""

    value: Array
    dual: Array
    primal: Array
    status: NDArray[np.int8]
    columns: Index
    certified: NDArray[np.bool_]

    def part(self, at: slice) -> PairSolutions:
        value, dual, primal, status, columns, certified = self
        return PairSolutions(value[at], dual[at], primal[at], status[at], columns[at], certified[at])


class RecourseSolutions(NamedTuple):
    """For n programs: optimal value (n,), its derivatives by the limits (n, rows), and the variables (n, columns).

    ``status`` is OPTIMAL, INFEASIBLE (value ∞, ``dual`` is a ray that proves it) or UNBOUNDED (value −∞). ``certified``
    is False where the answer is HiGHS's without a proof.
    """

    value: Array
    dual: Array
    primal: Array
    status: NDArray[np.int8]
    certified: NDArray[np.bool_]


class _PairPool(NamedTuple):
    """P bases: columns (P, m), B⁻¹ (P, m, m), and the directions of costs and right-hand sides they were optimal for,
    (P, N + m)."""

    columns: Index
    inverse: Array
    directions: Array


@dataclass
class RandomRecourse:
    """One program's matrix, senses and bounds, and a pool of bases; methods may be called from many threads at once."""

    form: LinearForm
    pool: _PairPool
    fallbacks: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @staticmethod
    def of(program: LinearProgram) -> RandomRecourse:
        """Build from a program, whose own cost is ignored."""
        form = linear_form(replace(program, cost=np.zeros_like(program.cost)))
        rows, count = form.matrix.shape
        slacks = np.arange(count, count + rows)[None]
        return RandomRecourse(form, _PairPool(slacks, -np.eye(rows)[None], np.zeros((1, count + rows))))

    def solve(self, costs: Array, limits: Array, more_size: Array | None = None) -> RecourseSolutions:
        """Solve for costs (n, columns) and limits (n, rows), whose terms have ``more_size`` (n, rows) besides."""
        form = self.form
        value, dual, primal, status, _, certified = self.solve_pairs(self.pairs(costs, limits, more_size))
        return RecourseSolutions(
            value, dual @ form.by_limit, form.offset + primal @ form.by_column.T, status, certified
        )

    def pairs(self, costs: Array, limits: Array, more_size: Array | None = None) -> Pairs:
        """Bring costs (n, columns) and limits (n, rows) to the linear form."""
        form = self.form
        cost = np.ascontiguousarray(costs @ form.by_column)
        least = least_costs(cost)
        raised = np.random.default_rng(0).uniform(0.5, 1.0, cost.shape[1])
        perturbed = cost + PERTURBATION * (np.abs(cost) + least[:, None]) * raised
        rhs, size = form.rhs(limits)
        if more_size is not None:
            size = size + more_size @ np.abs(form.by_limit.T)
        return Pairs(cost, perturbed, least, rhs, size, costs @ form.offset)

    def solve_pairs(self, pairs: Pairs, tableaus: Tableaus | None = None) -> PairSolutions:
        """Solve in chunks and add to the pool after each; ``tableaus`` of n receive the final bases, which are dual
        feasible where the answer is OPTIMAL or INFEASIBLE."""
        rows, count = self.form.matrix.shape
        total = len(pairs.rhs)
        answers = PairSolutions(
            np.empty(total),
            np.empty((total, rows)),
            np.zeros((total, count)),
            np.zeros(total, dtype=np.int8),
            np.empty((total, rows), dtype=np.int64),
            np.ones(total, dtype=bool),
        )
        done, chunk = 0, _CHUNK if len(self.pool.columns) > _FIRST_CHUNK else _FIRST_CHUNK
        while done < total:
            deadlines.check()
            at = slice(done, done + chunk)
            self._solve_chunk(pairs.part(at), answers.part(at), None if tableaus is None else _part(tableaus, at))
            done, chunk = done + chunk, min(_GROWTH * chunk, _CHUNK)
        answers.value[:] += pairs.base_cost
        return answers

    def _solve_chunk(self, pairs: Pairs, answers: PairSolutions, tableaus: Tableaus | None) -> None:
        rows, count = self.form.matrix.shape
        pool, program = self.pool, arrays_of(self.form)
        directions = _directions(pairs)
        start = (directions @ pool.directions.T).argmax(axis=1)
        workspace = (
            Tableaus(np.empty((1, rows), dtype=np.int64), np.empty((1, rows, rows)), np.empty((1, count + rows)))
            if tableaus is None
            else tableaus
        )
        lift = np.random.default_rng(1).uniform(0.5, 1.0, rows)
        _solve_all(pairs, start, pool, program, lift, TOLERANCE, workspace, tableaus is not None, answers)
        failed = np.flatnonzero(answers.status == FAILED)
        for row in failed:
            deadlines.check()
            self._by_highs(pairs, int(row), answers)
        new = (answers.status == OPTIMAL) & (answers.columns != pool.columns[start]).any(axis=1)
        self._learn(answers.columns[new], directions[new], len(failed))

    def _by_highs(self, pairs: Pairs, row: int, answers: PairSolutions) -> None:
        """Solve one pair by HiGHS: use its basis if that passes the certificate, otherwise HiGHS's own numbers."""
        form = replace(self.form, cost=pairs.cost[row], perturbed=pairs.perturbed[row])
        rows, count = form.matrix.shape
        rhs, size = pairs.rhs[row], pairs.size[row]
        result = highs.solve_form(form, rhs)
        answers.status[row], answers.value[row] = result.status, result.value
        answers.dual[row], answers.primal[row], answers.certified[row] = result.dual, result.primal, False
        if result.status == INFEASIBLE:
            answers.certified[row] = certify_ray(-result.dual, arrays_of(form), rhs, size)
        if result.status != OPTIMAL:
            return
        answers.columns[row] = result.columns
        inverse = inverses(form, result.columns[None])[0]
        if not np.isfinite(inverse).all():
            return
        basic, dual = inverse @ rhs, np.append(form.cost, np.zeros(rows))[result.columns] @ inverse
        if certify_basis(result.columns, inverse, basic, dual, rhs, size, arrays_of(form)):
            primal = np.zeros(count + rows)
            primal[result.columns] = np.maximum(basic, 0.0)
            answers.value[row], answers.dual[row], answers.primal[row] = float(dual @ rhs), dual, primal[:count]
            answers.certified[row] = True

    def _learn(self, columns: Index, directions: Array, failures: int) -> None:
        """Add new bases (n, m) up to the capacity, the most frequent first."""
        with self._lock:
            self.fallbacks += failures
            free = CAPACITY - len(self.pool.columns)
            if free <= 0 or not len(columns):
                return
            present = {row.tobytes() for row in np.sort(self.pool.columns, axis=1)}
            fresh, index, counts = np.unique(np.sort(columns, axis=1), axis=0, return_inverse=True, return_counts=True)
            often = np.argsort(-counts, kind="stable")
            keep = [at for at in often if fresh[at].tobytes() not in present][:free]
            if not keep:
                return
            inverse = inverses(self.form, fresh[keep])
            whole = np.concatenate([self.form.matrix, -np.eye(len(self.form.matrix))], axis=1)
            with np.errstate(invalid="ignore", over="ignore"):
                unlike = whole[:, fresh[keep]].transpose(1, 0, 2) @ inverse - np.eye(len(whole))
            sharp = len(whole) * np.abs(unlike).max(axis=(1, 2)) <= SHARP * 10
            means = np.array([directions[index.ravel() == at].mean(axis=0) for at in keep])
            more = _PairPool(fresh[keep][sharp], inverse[sharp], means[sharp])
            self.pool = _PairPool(
                *(np.ascontiguousarray(np.concatenate(pair)) for pair in zip(self.pool, more, strict=True))
            )


def _part(tableaus: Tableaus, at: slice) -> Tableaus:
    return Tableaus(tableaus.columns[at], tableaus.inverse[at], tableaus.reduced[at])


def _directions(pairs: Pairs) -> Array:
    """Return costs and right-hand sides (n, N + m), each of length one: scale does not change the optimal basis."""
    parts = [part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-300) for part in (pairs.cost, pairs.rhs)]
    return np.concatenate(parts, axis=1)


@kernel
def _solve_all(pairs, start, pool, program, lift, tolerance, tableaus, keep, answers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the answer for each pair; each pair has its own tableau if ``keep``."""
    total, rows = pairs.rhs.shape
    matrix = program.matrix
    columns = matrix.shape[1] + rows
    workspace = PivotWorkspace(np.empty(rows), np.empty(columns), np.empty(rows), np.empty(columns))
    for n in range(total):
        at = n if keep else 0
        rhs, size, dual, basis = pairs.rhs[n], pairs.size[n], answers.dual[n], answers.columns[n]
        _copy(pool, start[n], tableaus, at)
        status, number = make_dual_feasible(
            tableaus, at, rhs, size, matrix, pairs.perturbed[n], pairs.least_cost[n], lift, workspace
        )
        if status == UNBOUNDED and not proves_unbounded(
            tableaus.columns[at], number, matrix, pairs.cost[n], pairs.least_cost[n], workspace
        ):
            status = FAILED
        if status == OPTIMAL and not is_optimal(tableaus.inverse[at], rhs, size, tolerance, workspace.basic):
            status, number = continue_dual_simplex(tableaus, at, size, matrix, tolerance, workspace)
            if status == INFEASIBLE and not proves_infeasible(
                tableaus.inverse[at, number], matrix, rhs, size, workspace
            ):
                status = FAILED
        for i in range(rows):
            basis[i] = tableaus.columns[at, i]
        if status == OPTIMAL:
            set_dual(basis, tableaus.inverse[at], pairs.cost[n], dual)
            own = FormArrays(matrix, program.transposed, pairs.cost[n], pairs.least_cost[n])
            if certify(basis, tableaus.inverse[at], workspace.basic, dual, rhs, size, own, workspace):
                amount = 0.0
                for k in range(rows):
                    amount += dual[k] * rhs[k]
                answers.value[n] = amount
                for i in range(rows):
                    if basis[i] < matrix.shape[1]:
                        answers.primal[n, basis[i]] = workspace.basic[i]
            else:
                status = FAILED
        else:
            answers.value[n] = np.inf if status == INFEASIBLE else -np.inf
            for k in range(rows):
                dual[k] = -tableaus.inverse[at, number, k] if status == INFEASIBLE else np.nan
            for j in range(matrix.shape[1]):
                answers.primal[n, j] = np.nan
        answers.status[n] = status


@piece
def _copy(pool, start, tableaus, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy a basis of the pool to tableau ``at``."""
    rows = tableaus.columns.shape[1]
    for i in range(rows):
        tableaus.columns[at, i] = pool.columns[start, i]
        for k in range(rows):
            tableaus.inverse[at, i, k] = pool.inverse[start, i, k]


@piece
def make_dual_feasible(tableaus, at, rhs, size, matrix, cost, least_cost, lift, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Pivot basis ``at`` in place until it is dual feasible for ``cost`` (N,), and recompute its reduced costs.

    ``lift`` (m,) are numbers between 0.5 and 1. Return OPTIMAL and the number of pivots; UNBOUNDED and the column along
    which the cost is unbounded, with B⁻¹ times it in ``workspace.column``; or FAILED after too many pivots.
    """
    most = _PIVOTS_PER_ROW * len(rhs) + _PIVOTS_MORE
    set_reduced(tableaus, at, matrix, cost, workspace)
    entering = _entering(tableaus, at, cost, least_cost)
    if entering == NONE:
        _clear(tableaus, at)
        return OPTIMAL, 0
    unit = _lift_basic(tableaus, at, rhs, size, lift, workspace)
    for pivots in range(1, most):
        leaving = _leaving(tableaus, at, entering, matrix, unit, workspace)
        if leaving == NONE:
            return UNBOUNDED, entering
        _pivot(tableaus, at, leaving, entering, matrix, unit, lift, workspace)
        entering = _entering(tableaus, at, cost, least_cost)
        if entering == NONE:
            # Updates have left rounding in the reduced costs; recompute them to see whether this is the end.
            set_reduced(tableaus, at, matrix, cost, workspace)
            entering = _entering(tableaus, at, cost, least_cost)
            if entering == NONE:
                _clear(tableaus, at)
                return OPTIMAL, pivots
    return FAILED, most


@piece
def set_reduced(tableaus, at, matrix, cost, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Compute the reduced costs of basis ``at`` from scratch."""
    rows, count = matrix.shape
    dual = workspace.column
    for k in range(rows):
        dual[k] = 0.0
    for i in range(rows):
        if tableaus.columns[at, i] < count:
            price = cost[tableaus.columns[at, i]]
            if price != 0.0:
                for k in range(rows):
                    dual[k] += price * tableaus.inverse[at, i, k]
    for j in range(count):
        tableaus.reduced[at, j] = cost[j]
    for i in range(rows):
        factor = dual[i]
        tableaus.reduced[at, count + i] = factor
        if factor != 0.0:
            for j in range(count):
                tableaus.reduced[at, j] -= factor * matrix[i, j]
    for i in range(rows):
        tableaus.reduced[at, tableaus.columns[at, i]] = 0.0


@piece
def _clear(tableaus, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set negative reduced costs, which are rounding, to zero."""
    for j in range(tableaus.reduced.shape[1]):
        tableaus.reduced[at, j] = max(tableaus.reduced[at, j], 0.0)


@piece
def _entering(tableaus, at, cost, least_cost):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the column of least reduced cost, or NONE if none is below zero."""
    entering = NONE
    least = 0.0
    for j in range(tableaus.reduced.shape[1]):
        gain = tableaus.reduced[at, j]
        if gain < least:
            own = abs(cost[j]) if j < len(cost) else 0.0
            if gain < -_LEAST_GAIN * (own + least_cost):
                least = gain
                entering = j
    return entering


@piece
def _lift_basic(tableaus, at, rhs, size, lift, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``workspace.basic`` to max(B⁻¹b, 0) plus a small amount; return the unit of that amount."""
    rows = len(rhs)
    unit = 0.0
    for i in range(rows):
        amount = 0.0
        scale = 0.0
        for k in range(rows):
            amount += tableaus.inverse[at, i, k] * rhs[k]
            scale += abs(tableaus.inverse[at, i, k]) * size[k]
        workspace.basic[i] = max(amount, 0.0)
        unit = max(unit, scale)
    unit = _LIFT * unit if unit > 0.0 else 1.0
    for i in range(rows):
        workspace.basic[i] += unit * lift[i]
    return unit


@piece
def _leaving(tableaus, at, entering, matrix, unit, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the row with the largest entry among those that nearly tie for reaching zero first, or NONE."""
    rows = len(matrix)
    column = workspace.column
    set_column(tableaus, at, entering, matrix, column)
    furthest = np.inf
    for i in range(rows):
        if column[i] > _LEAST_PIVOT:
            furthest = min(furthest, (workspace.basic[i] + 0.1 * unit) / column[i])
    leaving = NONE
    largest = 0.0
    for i in range(rows):
        if column[i] > max(_LEAST_PIVOT, largest) and workspace.basic[i] <= furthest * column[i]:
            largest = column[i]
            leaving = i
    return leaving


@piece
def _pivot(tableaus, at, leaving, entering, matrix, unit, lift, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Exchange the two columns in the basis."""
    columns, _, reduced = tableaus
    basic, row, column = workspace.basic, workspace.row, workspace.column
    rows, count = matrix.shape
    set_row(tableaus, at, leaving, matrix, row)
    pivot = column[leaving]
    step = reduced[at, entering] / pivot
    for j in range(count + rows):
        reduced[at, j] -= step * row[j]
    for i in range(rows):
        reduced[at, columns[at, i]] = 0.0
    reduced[at, columns[at, leaving]] = -step
    reduced[at, entering] = 0.0
    exchange(tableaus, at, leaving, entering, column, basic)
    for i in range(rows):
        if i != leaving and column[i] != 0.0 and basic[i] <= 0.0:
            basic[i] = unit * lift[i]


@piece
def proves_unbounded(columns, entering, matrix, cost, least_cost, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return whether the ray r, ``entering`` minus ``workspace.column`` in the basis, proves that the cost is
    unbounded: r ≥ 0, A r ≥ 0 and c'r < 0."""
    rows, count = matrix.shape
    ray = workspace.row
    for j in range(count):
        ray[j] = 0.0
    if entering < count:
        ray[entering] = 1.0
    largest = 1.0
    for i in range(rows):
        largest = max(largest, abs(workspace.column[i]))
        if columns[i] < count:
            ray[columns[i]] -= workspace.column[i]
    proof = True
    total = 0.0
    terms = 0.0
    for j in range(count):
        if ray[j] < 0.0:
            proof = proof and ray[j] >= -_RAY * largest
            ray[j] = 0.0
        total += cost[j] * ray[j]
        terms += (abs(cost[j]) + least_cost) * ray[j]
    for i in range(rows):
        amount = 0.0
        scale = 0.0
        for j in range(count):
            part = matrix[i, j] * ray[j]
            amount += part
            scale += abs(part)
        proof = proof and amount >= -_RAY * (scale + largest * 1e-3)
    return proof and total < -_RAY * terms
