"""Linear programs of which only the right-hand side changes, solved by the thousand.

For min c'x, A x − s = b, x, s ≥ 0, whether a basis is dual feasible does not depend on b. So a pool keeps bases that
were optimal before, and a new b starts from the basis whose dual value π'b is the largest: if its x_B = B⁻¹b is
nonnegative it is optimal, and otherwise the dual simplex method continues from there.

Every answer has its own certificate, for which x_B and π are computed and refined from the program's own numbers:
x ≥ 0 keeps the rows, π is dual feasible for the unperturbed costs, and the gap between the two is negligible. HiGHS
solves the rare right-hand side whose answer fails. A basis enters the pool only if it passes the part of the
certificate that does not depend on b.

The optimal basis gives exact derivatives almost everywhere: value π'b, ∂value/∂b = π, ∂x_B/∂b = B⁻¹.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bco_core import deadlines
from bco_core.solvers import highs
from bco_core.solvers.basis_certificate import (
    SHARP,
    arrays_of,
    certify,
    certify_basis,
    certify_dual,
    certify_ray,
    is_clean,
)
from bco_core.solvers.dual_simplex import (
    FAILED,
    INFEASIBLE,
    NONE,
    OPTIMAL,
    TOLERANCE,
    Index,
    PivotWorkspace,
    Tableaus,
    continue_dual_simplex,
    is_optimal,
    kernel,
    piece,
    proves_infeasible,
    set_dual,
)
from bco_core.solvers.linear_form import Array, LinearForm

# More bases start closer to the optimum but take longer to compare: 64 was fastest for programs of 7 to 60 rows.
CAPACITY = 64
_CHUNK = 4096


class Bases(NamedTuple):
    """P bases: basic columns (P, m), B⁻¹ (P, m, m), π (P, m), reduced costs of all columns (P, N + m).

    ``certified`` (P,): π is dual feasible, and B B⁻¹ is so close to the identity that a nonnegative B⁻¹b is optimal for
    every b without another check.
    """

    columns: Index
    inverse: Array
    dual: Array
    reduced: Array
    certified: NDArray[np.bool_]

    def closest(self, rhs: Tensor) -> Tensor:
        """Return the basis of largest dual value for each right-hand side (n, m)."""
        return (rhs @ torch.from_numpy(self.dual).T).max(dim=1).indices

    def tableaus(self, start: Index) -> Tableaus:
        """Return copies (n, …) of the bases ``start`` (n,) to pivot."""
        return Tableaus(self.columns[start], self.inverse[start], self.reduced[start])


class PoolSolutions(NamedTuple):
    """For n right-hand sides: value (n,), π (n, m), x of the watched columns (n, w), and on request ∂x/∂b (n, w, m).

    ``status`` is OPTIMAL or INFEASIBLE; an infeasible one has value ∞ and a ray as π: σ ≥ 0, σ'A ≤ 0, σ'b > 0.
    ``certified`` (n,) is False where the answer is HiGHS's and nothing proves it.
    """

    value: Array
    dual: Array
    primal: Array
    jacobian: Array
    status: NDArray[np.int8]
    certified: NDArray[np.bool_]


@dataclass
class BasisPool:
    """A pool of bases of one program; ``solve`` may be called from many threads at once.

    Readers use the current immutable ``bases``; writers replace them under the lock.
    """

    form: LinearForm
    watched: Index
    bases: Bases
    fallbacks: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @staticmethod
    def of(form: LinearForm, watched: Index | None = None) -> BasisPool:
        """Build a pool of one basis; ``watched`` are the columns whose values solutions report."""
        columns = np.empty(0, dtype=np.int64) if watched is None else watched
        bases = _bases(form, highs.dual_feasible_basis(form)[None])
        if not len(bases.columns):
            # A singular basis is no start. From the slacks' basis no answer passes its certificate, and HiGHS solves.
            rows, count = form.matrix.shape
            bases = _bases(form, np.arange(count, count + rows)[None])
        return BasisPool(form, columns, bases)

    def solve(self, rhs: Tensor, size: Tensor, jacobian: bool = False) -> PoolSolutions:
        """Solve for right-hand sides (n, m) that are sums of terms of this ``size`` (n, m)."""
        chunks = zip(rhs.contiguous().split(_CHUNK), size.contiguous().split(_CHUNK), strict=True)
        parts = [self._solve_chunk(*chunk, jacobian) for chunk in chunks]
        return (
            parts[0]
            if len(parts) == 1
            else PoolSolutions(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        )

    def _solve_chunk(self, chunk: Tensor, sizes: Tensor, jacobian: bool) -> PoolSolutions:
        deadlines.check()
        form, bases = self.form, self.bases
        rhs, start = chunk.numpy(), bases.closest(chunk).numpy()
        place = np.full(sum(form.matrix.shape), NONE)
        place[self.watched] = np.arange(len(self.watched))
        program = arrays_of(form)
        answers = _PoolAnswers.of(len(rhs), len(form.matrix), len(self.watched), jacobian)
        _solve_all(rhs, sizes.numpy(), start, bases, program, place, TOLERANCE, answers)
        value, dual, primal, by_rhs, status, columns, pivots = answers
        certified = np.ones(len(rhs), dtype=bool)
        if not (pivots.any() or status.any()):
            return PoolSolutions(value, dual, primal, by_rhs, status, certified)
        new = columns[(pivots > 0) & (status == OPTIMAL)]
        failed = np.flatnonzero(status == FAILED)
        for row in failed:
            deadlines.check()
            one = self._by_highs(rhs[row], sizes[row].numpy(), jacobian)
            value[row], dual[row], primal[row], by_rhs[row], status[row], certified[row] = one
        if len(failed) or len(new):
            self._learn(new, len(failed))
        return PoolSolutions(value, dual, primal, by_rhs, status, certified)

    def _by_highs(self, rhs: Array, size: Array, jacobian: bool) -> tuple[float, Array, Array, Array, int, bool]:
        """Solve one right-hand side (m,) by HiGHS: use its basis if that passes the certificate, otherwise HiGHS's own
        numbers."""
        form = self.form
        rows, count = form.matrix.shape
        result = highs.solve_form(form, rhs)
        derivatives = np.zeros((len(self.watched), rows if jacobian else 0))
        if result.status == INFEASIBLE:
            proof = bool(certify_ray(-result.dual, arrays_of(form), rhs, size))
            return np.inf, result.dual, np.full(len(self.watched), np.nan), derivatives, INFEASIBLE, proof
        inverse = inverses(form, result.columns[None])[0]
        if not np.isfinite(inverse).all():
            return result.value, result.dual, result.primal[self.watched], derivatives, OPTIMAL, False
        if jacobian:
            at = {column: row for row, column in enumerate(result.columns.tolist())}
            for index, column in enumerate(self.watched.tolist()):
                if column in at:
                    derivatives[index] = inverse[at[column]]
        basic, dual = inverse @ rhs, np.append(form.cost, np.zeros(rows))[result.columns] @ inverse
        if not certify_basis(result.columns, inverse, basic, dual, rhs, size, arrays_of(form)):
            return result.value, result.dual, result.primal[self.watched], derivatives, OPTIMAL, False
        primal = np.zeros(count + rows)
        primal[result.columns] = np.maximum(basic, 0.0)
        return float(dual @ rhs), dual, primal[self.watched], derivatives, OPTIMAL, True

    def _learn(self, columns: Index, failures: int) -> None:
        """Add new bases (n, m) up to the capacity, the most frequent first."""
        with self._lock:
            self.fallbacks += failures
            free = CAPACITY - len(self.bases.columns)
            if free <= 0 or not len(columns):
                return
            present = {row.tobytes() for row in np.sort(self.bases.columns, axis=1)}
            fresh, counts = np.unique(np.sort(columns, axis=1), axis=0, return_counts=True)
            often = fresh[np.argsort(-counts, kind="stable")]
            keep = [row for row in often if row.tobytes() not in present][:free]
            if keep:
                more = _bases(self.form, np.array(keep), certified_only=True)
                self.bases = Bases(*(np.concatenate(pair) for pair in zip(self.bases, more, strict=True)))


def inverses(form: LinearForm, columns: Index) -> Array:
    """Return refined B⁻¹ (P, m, m) of bases (P, m); NaN where a basis is singular."""
    rows = len(form.matrix)
    whole = np.concatenate([form.matrix, -np.eye(rows)], axis=1)[:, columns].transpose(1, 0, 2)
    inverse = np.full(whole.shape, np.nan)
    for index, basis in enumerate(whole):
        try:
            inverse[index] = np.linalg.inv(basis)
        except np.linalg.LinAlgError:
            continue
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(inverse + inverse @ (np.eye(rows) - whole @ inverse))


def _bases(form: LinearForm, columns: Index, certified_only: bool = False) -> Bases:
    """Compute the arrays of those bases (P, m) that are regular, or that are certified."""
    rows = len(form.matrix)
    inverse = inverses(form, columns)
    regular = np.isfinite(inverse).all(axis=(1, 2))
    columns, inverse = columns[regular], inverse[regular]
    whole = np.concatenate([form.matrix, -np.eye(rows)], axis=1)
    perturbed = np.concatenate([form.perturbed, np.zeros(rows)])
    reduced = perturbed - np.einsum("pi,pij->pj", perturbed[columns], inverse) @ whole
    np.put_along_axis(reduced, columns, 0.0, axis=1)
    cost = np.concatenate([form.cost, np.zeros(rows)])
    dual = np.einsum("pi,pij->pj", cost[columns], inverse)
    error = np.abs(whole[:, columns].transpose(1, 0, 2) @ inverse - np.eye(rows)).max(axis=(1, 2))
    program = arrays_of(form)
    feasible = np.array([certify_dual(one, program) for one in dual], dtype=bool)
    certified = (rows * error <= SHARP) & feasible
    keep = certified if certified_only else np.ones_like(certified)
    return Bases(
        columns[keep].astype(np.int64),
        np.ascontiguousarray(inverse[keep]),
        dual[keep],
        np.maximum(reduced, 0.0)[keep],
        certified[keep],
    )


class _PoolAnswers(NamedTuple):
    """Output of the kernel: fields of :class:`PoolSolutions`, final bases (n, m), and the pivots to each (n,)."""

    value: Array
    dual: Array
    primal: Array
    jacobian: Array
    status: NDArray[np.int8]
    columns: Index
    pivots: Index

    @staticmethod
    def of(total: int, rows: int, watched: int, jacobian: bool) -> _PoolAnswers:
        return _PoolAnswers(
            np.empty(total),
            np.empty((total, rows)),
            np.zeros((total, watched)),
            np.zeros((total, watched, rows if jacobian else 0)),
            np.zeros(total, dtype=np.int8),
            np.empty((total, rows), dtype=np.int64),
            np.zeros(total, dtype=np.int64),
        )


@kernel
def _solve_all(rhs, size, start, bases, program, place, tolerance, answers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the answer for each right-hand side (n, m); ``place`` (N + m,) is a column's index among the watched, or
    NONE."""
    total, rows = rhs.shape
    columns = program.matrix.shape[1] + rows
    own = Tableaus(np.empty((1, rows), dtype=np.int64), np.empty((1, rows, rows)), np.empty((1, columns)))
    workspace = PivotWorkspace(np.empty(rows), np.empty(columns), np.empty(rows), np.empty(columns))
    for n in range(total):
        at = start[n]
        moved = not is_optimal(bases.inverse[at], rhs[n], size[n], tolerance, workspace.basic)
        if moved:
            _copy(bases, at, own)
            status, number = continue_dual_simplex(own, 0, size[n], program.matrix, tolerance, workspace)
            _write(own, status, number, program.cost, n, answers)
            if status == INFEASIBLE and not proves_infeasible(
                own.inverse[0, number], program.matrix, rhs[n], size[n], workspace
            ):
                answers.status[n] = FAILED
            if status != OPTIMAL:
                continue
        else:
            _take(bases, at, n, answers)
        inverse = own.inverse[0] if moved else bases.inverse[at]
        if moved or not (bases.certified[at] and is_clean(inverse, workspace.basic, size[n])):
            kept = certify(
                answers.columns[n], inverse, workspace.basic, answers.dual[n], rhs[n], size[n], program, workspace
            )
            if not kept:
                answers.status[n] = FAILED
        amount = 0.0
        for k in range(rows):
            amount += answers.dual[n, k] * rhs[n, k]
        answers.value[n] = amount
        _watch(inverse, workspace.basic, place, n, answers)


@piece
def _take(bases, at, n, answers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write a basis of the pool as the answer."""
    for i in range(answers.dual.shape[1]):
        answers.dual[n, i] = bases.dual[at, i]
        answers.columns[n, i] = bases.columns[at, i]


@piece
def _copy(bases, at, own):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy a basis of the pool to pivot."""
    rows = own.columns.shape[1]
    for i in range(rows):
        own.columns[0, i] = bases.columns[at, i]
        for k in range(rows):
            own.inverse[0, i, k] = bases.inverse[at, i, k]
    for j in range(own.reduced.shape[1]):
        own.reduced[0, j] = bases.reduced[at, j]


@piece
def _write(own, status, number, cost, n, answers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the basis after the pivots: its duals, or the ray that proves infeasibility."""
    rows = own.columns.shape[1]
    answers.status[n] = status
    for i in range(rows):
        answers.columns[n, i] = own.columns[0, i]
    if status == OPTIMAL:
        answers.pivots[n] = number
        set_dual(own.columns[0], own.inverse[0], cost, answers.dual[n])
    elif status == INFEASIBLE:
        # The row of B⁻¹ is nonnegative on every column and negative on b: there is no solution.
        answers.value[n] = np.inf
        for i in range(rows):
            answers.dual[n, i] = -own.inverse[0, number, i]
        for j in range(answers.primal.shape[1]):
            answers.primal[n, j] = np.nan


@piece
def _watch(inverse, basic, place, n, answers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Write the watched columns' values and, on request, their derivatives."""
    for i in range(len(basic)):
        j = place[answers.columns[n, i]]
        if j != NONE:
            answers.primal[n, j] = max(basic[i], 0.0)
            for k in range(answers.jacobian.shape[2]):
                answers.jacobian[n, j, k] = inverse[i, k]
