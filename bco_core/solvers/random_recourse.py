"""Linear programs of which costs and right-hand sides change, solved by the thousand: recourse at random prices.

For min c'x, A x − s = b, x, s ≥ 0 with one matrix A, a basis is a good start for costs and right-hand sides near those
it was optimal for. So a pool keeps bases with what they were found for, up to scale, and a new pair (c, b) starts from
the nearest one: primal pivots make it dual feasible for c (:mod:`bco_core.solvers.cost_simplex`), dual pivots optimal
for b (:mod:`bco_core.solvers.dual_simplex`). Any basis is a start, the slacks' the first.

Every answer carries its own certificate, from the costs as they are, as do proofs that there is no solution or that
the cost falls without limit. The rare answer that fails is solved by HiGHS.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bco_core import deadline
from bco_core.solvers import highs
from bco_core.solvers.basis_certificate import (
    SHARP,
    Program,
    certify,
    certify_basis,
    certify_ray,
    program_of,
)
from bco_core.solvers.basis_pool import inverses
from bco_core.solvers.cost_simplex import make_dual_feasible, proves_unbounded
from bco_core.solvers.dual_simplex import (
    FAILED,
    INFEASIBLE,
    OPTIMAL,
    TOLERANCE,
    UNBOUNDED,
    Index,
    Room,
    Tableaus,
    continue_dual_simplex,
    is_optimal,
    kernel,
    piece,
    proves_infeasible,
    set_dual,
)
from bco_core.solvers.linear_form import PERTURBATION, Array, LinearForm, LinearProgram, least_costs, linear_form

CAPACITY = 64
# A pool that knows little learns from few pairs first; so large are the pieces that pairs are solved in.
_FIRST_CHUNK, _GROWTH, _CHUNK = 8, 4, 2048


class Pairs(NamedTuple):
    """n programs of one form: costs (n, N), perturbed ones, their least (n,), right-hand sides (n, m) and the size of
    their terms, and what each program costs more than its form (n,)."""

    cost: Array
    perturbed: Array
    least_cost: Array
    rhs: Array
    size: Array
    base_cost: Array

    def part(self, at: slice) -> Pairs:
        return Pairs(*(column[at] for column in self))


class Answers(NamedTuple):
    """For n pairs: value (n,), π (n, m), x (n, N), how each ended, the final bases (n, m), and which are certified."""

    value: Array
    dual: Array
    primal: Array
    status: NDArray[np.int8]
    columns: Index
    certified: NDArray[np.bool_]

    def part(self, at: slice) -> Answers:
        value, dual, primal, status, columns, certified = self
        return Answers(value[at], dual[at], primal[at], status[at], columns[at], certified[at])


class Solved(NamedTuple):
    """For n programs: the optimal value (n,), its derivatives by the limits (n, rows), and the variables (n, columns).

    ``status`` is OPTIMAL, INFEASIBLE (value ∞, in ``dual`` a ray that proves it) or UNBOUNDED (value −∞). ``certified``
    is False where the answer is what HiGHS says, without a proof.
    """

    value: Array
    dual: Array
    primal: Array
    status: NDArray[np.int8]
    certified: NDArray[np.bool_]


class _Pool(NamedTuple):
    """P bases: columns (P, m), B⁻¹ (P, m, m), and the costs and right-hand sides they were found for, (P, N + m)."""

    columns: Index
    inverse: Array
    found_for: Array


@dataclass
class RandomRecourse:
    """One program's matrix, senses and bounds, and the bases known so far; may be asked from many threads at once."""

    form: LinearForm
    pool: _Pool
    fallbacks: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @staticmethod
    def of(program: LinearProgram) -> RandomRecourse:
        """The program's own cost is not looked at."""
        form = linear_form(replace(program, cost=np.zeros_like(program.cost)))
        rows, count = form.matrix.shape
        slacks = np.arange(count, count + rows)[None]
        return RandomRecourse(form, _Pool(slacks, -np.eye(rows)[None], np.zeros((1, count + rows))))

    def solve(self, costs: Array, limits: Array, more_size: Array | None = None) -> Solved:
        """For costs (n, columns) and limits (n, rows) of the program, which may be sums of terms of ``more_size``."""
        form = self.form
        value, dual, primal, status, _, certified = self.solve_pairs(self.pairs(costs, limits, more_size))
        return Solved(value, dual @ form.by_limit, form.offset + primal @ form.by_column.T, status, certified)

    def pairs(self, costs: Array, limits: Array, more_size: Array | None = None) -> Pairs:
        """Costs (n, columns) and limits (n, rows) in the form; ``more_size`` (n, rows) are sizes of limits' terms."""
        form = self.form
        cost = np.ascontiguousarray(costs @ form.by_column)
        least = least_costs(cost)
        raised = np.random.default_rng(0).uniform(0.5, 1.0, cost.shape[1])
        perturbed = cost + PERTURBATION * (np.abs(cost) + least[:, None]) * raised
        rhs, size = form.rhs(limits)
        if more_size is not None:
            size = size + more_size @ np.abs(form.by_limit.T)
        return Pairs(cost, perturbed, least, rhs, size, costs @ form.offset)

    def solve_pairs(self, pairs: Pairs, tableaus: Tableaus | None = None) -> Answers:
        """Solve in pieces, learning on the way; ``tableaus`` of n are left with the final bases, dual feasible where
        the answer is OPTIMAL or INFEASIBLE."""
        rows, count = self.form.matrix.shape
        total = len(pairs.rhs)
        answers = Answers(
            np.empty(total),
            np.empty((total, rows)),
            np.zeros((total, count)),
            np.zeros(total, dtype=np.int8),
            np.empty((total, rows), dtype=np.int64),
            np.ones(total, dtype=bool),
        )
        done, chunk = 0, _CHUNK if len(self.pool.columns) > _FIRST_CHUNK else _FIRST_CHUNK
        while done < total:
            deadline.check()
            at = slice(done, done + chunk)
            self._solve_chunk(pairs.part(at), answers.part(at), None if tableaus is None else _part(tableaus, at))
            done, chunk = done + chunk, min(_GROWTH * chunk, _CHUNK)
        answers.value[:] += pairs.base_cost
        return answers

    def _solve_chunk(self, pairs: Pairs, answers: Answers, tableaus: Tableaus | None) -> None:
        rows, count = self.form.matrix.shape
        pool, program = self.pool, program_of(self.form)
        sought = _directions(pairs)
        start = (sought @ pool.found_for.T).argmax(axis=1)
        room = (
            Tableaus(np.empty((1, rows), dtype=np.int64), np.empty((1, rows, rows)), np.empty((1, count + rows)))
            if tableaus is None
            else tableaus
        )
        lift = np.random.default_rng(1).uniform(0.5, 1.0, rows)
        _solve_all(pairs, start, pool, program, lift, TOLERANCE, room, tableaus is not None, answers)
        failed = np.flatnonzero(answers.status == FAILED)
        for row in failed:
            deadline.check()
            self._by_highs(pairs, int(row), answers)
        new = (answers.status == OPTIMAL) & (answers.columns != pool.columns[start]).any(axis=1)
        self._learn(answers.columns[new], sought[new], len(failed))

    def _by_highs(self, pairs: Pairs, row: int, answers: Answers) -> None:
        """One pair by HiGHS: its basis if that passes the certificate, else its numbers as they are."""
        form = replace(self.form, cost=pairs.cost[row], perturbed=pairs.perturbed[row])
        rows, count = form.matrix.shape
        rhs, size = pairs.rhs[row], pairs.size[row]
        found = highs.solve_form(form, rhs)
        answers.status[row], answers.value[row] = found.status, found.value
        answers.dual[row], answers.primal[row], answers.certified[row] = found.dual, found.primal, False
        if found.status == INFEASIBLE:
            answers.certified[row] = certify_ray(-found.dual, program_of(form), rhs, size)
        if found.status != OPTIMAL:
            return
        answers.columns[row] = found.columns
        inverse = inverses(form, found.columns[None])[0]
        if not np.isfinite(inverse).all():
            return
        basic, dual = inverse @ rhs, np.append(form.cost, np.zeros(rows))[found.columns] @ inverse
        if certify_basis(found.columns, inverse, basic, dual, rhs, size, program_of(form)):
            primal = np.zeros(count + rows)
            primal[found.columns] = np.maximum(basic, 0.0)
            answers.value[row], answers.dual[row], answers.primal[row] = float(dual @ rhs), dual, primal[:count]
            answers.certified[row] = True

    def _learn(self, columns: Index, sought: Array, failures: int) -> None:
        """Keep new bases (n, m) while there is room, those that were found most often first."""
        with self._lock:
            self.fallbacks += failures
            room = CAPACITY - len(self.pool.columns)
            if room <= 0 or not len(columns):
                return
            known = {row.tobytes() for row in np.sort(self.pool.columns, axis=1)}
            fresh, index, counts = np.unique(np.sort(columns, axis=1), axis=0, return_inverse=True, return_counts=True)
            often = np.argsort(-counts, kind="stable")
            keep = [at for at in often if fresh[at].tobytes() not in known][:room]
            if not keep:
                return
            inverse = inverses(self.form, fresh[keep])
            whole = np.concatenate([self.form.matrix, -np.eye(len(self.form.matrix))], axis=1)
            with np.errstate(invalid="ignore", over="ignore"):
                unlike = whole[:, fresh[keep]].transpose(1, 0, 2) @ inverse - np.eye(len(whole))
            sharp = len(whole) * np.abs(unlike).max(axis=(1, 2)) <= SHARP * 10
            found_for = np.array([sought[index.ravel() == at].mean(axis=0) for at in keep])
            more = _Pool(fresh[keep][sharp], inverse[sharp], found_for[sharp])
            self.pool = _Pool(
                *(np.ascontiguousarray(np.concatenate(pair)) for pair in zip(self.pool, more, strict=True))
            )


def _part(tableaus: Tableaus, at: slice) -> Tableaus:
    return Tableaus(tableaus.columns[at], tableaus.inverse[at], tableaus.reduced[at])


def _directions(pairs: Pairs) -> Array:
    """Costs and right-hand sides (n, N + m), each of length one: their size does not change which basis is optimal."""
    parts = [part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-300) for part in (pairs.cost, pairs.rhs)]
    return np.concatenate(parts, axis=1)


@kernel
def _solve_all(pairs, start, pool, program, lift, tolerance, tableaus, keep, answers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the answer for each pair; each has a tableau of its own if ``keep``."""
    total, rows = pairs.rhs.shape
    matrix = program.matrix
    columns = matrix.shape[1] + rows
    room = Room(np.empty(rows), np.empty(columns), np.empty(rows), np.empty(columns))
    for n in range(total):
        at = n if keep else 0
        rhs, size, dual, basis = pairs.rhs[n], pairs.size[n], answers.dual[n], answers.columns[n]
        _copy(pool, start[n], tableaus, at)
        status, number = make_dual_feasible(
            tableaus, at, rhs, size, matrix, pairs.perturbed[n], pairs.least_cost[n], lift, room
        )
        if status == UNBOUNDED and not proves_unbounded(
            tableaus.columns[at], number, matrix, pairs.cost[n], pairs.least_cost[n], room
        ):
            status = FAILED
        if status == OPTIMAL and not is_optimal(tableaus.inverse[at], rhs, size, tolerance, room.basic):
            status, number = continue_dual_simplex(tableaus, at, size, matrix, tolerance, room)
            if status == INFEASIBLE and not proves_infeasible(tableaus.inverse[at, number], matrix, rhs, size, room):
                status = FAILED
        for i in range(rows):
            basis[i] = tableaus.columns[at, i]
        if status == OPTIMAL:
            set_dual(basis, tableaus.inverse[at], pairs.cost[n], dual)
            own = Program(matrix, program.transposed, pairs.cost[n], pairs.least_cost[n])
            if certify(basis, tableaus.inverse[at], room.basic, dual, rhs, size, own, room):
                amount = 0.0
                for k in range(rows):
                    amount += dual[k] * rhs[k]
                answers.value[n] = amount
                for i in range(rows):
                    if basis[i] < matrix.shape[1]:
                        answers.primal[n, basis[i]] = room.basic[i]
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
    """A basis of the pool to pivot from."""
    rows = tableaus.columns.shape[1]
    for i in range(rows):
        tableaus.columns[at, i] = pool.columns[start, i]
        for k in range(rows):
            tableaus.inverse[at, i, k] = pool.inverse[start, i, k]
