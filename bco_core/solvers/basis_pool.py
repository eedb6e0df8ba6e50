"""Linear programs of which only the right-hand side changes, solved by the thousand.

For min c'x, A x − s = b, x, s ≥ 0, whether a basis is dual feasible does not depend on b. So bases that were optimal
once are kept in a pool, and a new b starts from the basis whose dual value π'b is the largest: if its x_B = B⁻¹b is
non-negative it is optimal, and otherwise the dual simplex method goes on from there.

Every answer carries its own certificate, for which x_B and π are computed and refined from the program's own numbers:
x ≥ 0 keeps the rows, π is dual feasible for the costs without perturbation, and what both leave open is nothing beside
the value. The rare answer that fails is solved by HiGHS, and no basis enters the pool before its own part of the
certificate, all that does not depend on b, holds.

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

from bco_core import deadline
from bco_core.solvers import highs
from bco_core.solvers.basis_certificate import (
    SHARP,
    certify,
    certify_basis,
    certify_dual,
    certify_ray,
    is_clean,
    program_of,
)
from bco_core.solvers.dual_simplex import (
    FAILED,
    INFEASIBLE,
    NONE,
    OPTIMAL,
    TOLERANCE,
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
from bco_core.solvers.linear_form import Array, LinearForm

# More bases start closer to the optimum but take longer to compare: 64 was fastest for programs of 7 to 60 rows.
CAPACITY = 64
_CHUNK = 4096


class Bases(NamedTuple):
    """P bases: basic columns (P, m), B⁻¹ (P, m, m), π (P, m), reduced costs of all columns (P, N + m).

    ``certified`` (P,) says that π is dual feasible, and B B⁻¹ the identity so nearly that a non-negative B⁻¹b is
    optimal whatever b: no need to check each.
    """

    columns: Index
    inverse: Array
    dual: Array
    reduced: Array
    certified: NDArray[np.bool_]

    def closest(self, rhs: Tensor) -> Tensor:
        """The basis of largest dual value for each right-hand side (n, m)."""
        return (rhs @ torch.from_numpy(self.dual).T).max(dim=1).indices


class Solved(NamedTuple):
    """For n right-hand sides: value (n,), π (n, m), x of the watched columns (n, w), ∂x/∂b (n, w, m) if asked for.

    ``status`` is OPTIMAL or INFEASIBLE; an infeasible one has value ∞ and in π a ray: σ ≥ 0, σ'A ≤ 0, σ'b > 0.
    ``certified`` (n,) is False where neither the pool nor HiGHS could prove the answer: it is what HiGHS says.
    """

    value: Array
    dual: Array
    primal: Array
    jacobian: Array
    status: NDArray[np.int8]
    certified: NDArray[np.bool_]


@dataclass
class BasisPool:
    """The bases known so far of one program; ``solve`` may be called from many threads at once.

    Readers take whatever immutable ``bases`` there are; writers replace them under the lock.
    """

    form: LinearForm
    watched: Index
    bases: Bases
    fallbacks: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @staticmethod
    def of(form: LinearForm, watched: Index | None = None) -> BasisPool:
        """A pool with one basis to begin with; ``watched`` are the columns whose values are wanted."""
        columns = np.empty(0, dtype=np.int64) if watched is None else watched
        bases = _bases(form, highs.dual_feasible_basis(form)[None])
        if not len(bases.columns):
            # A basis that cannot be inverted is no start; from the slacks' no answer passes by itself, and HiGHS helps.
            rows, count = form.matrix.shape
            bases = _bases(form, np.arange(count, count + rows)[None])
        return BasisPool(form, columns, bases)

    def solve(self, rhs: Tensor, size: Tensor, jacobian: bool = False) -> Solved:
        """Solve for right-hand sides (n, m) that are sums of terms of this ``size`` (n, m)."""
        chunks = zip(rhs.contiguous().split(_CHUNK), size.contiguous().split(_CHUNK), strict=True)
        parts = [self._solve_chunk(*chunk, jacobian) for chunk in chunks]
        return parts[0] if len(parts) == 1 else Solved(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _solve_chunk(self, chunk: Tensor, sizes: Tensor, jacobian: bool) -> Solved:
        deadline.check()
        form, bases = self.form, self.bases
        rhs, start = chunk.numpy(), bases.closest(chunk).numpy()
        place = np.full(sum(form.matrix.shape), NONE)
        place[self.watched] = np.arange(len(self.watched))
        program = program_of(form)
        answers = _Answers.of(len(rhs), len(form.matrix), len(self.watched), jacobian)
        _solve_all(rhs, sizes.numpy(), start, bases, program, place, TOLERANCE, answers)
        value, dual, primal, by_rhs, status, columns, pivots = answers
        certified = np.ones(len(rhs), dtype=bool)
        if not (pivots.any() or status.any()):
            return Solved(value, dual, primal, by_rhs, status, certified)
        new = columns[(pivots > 0) & (status == OPTIMAL)]
        failed = np.flatnonzero(status == FAILED)
        for row in failed:
            deadline.check()
            one = self._by_highs(rhs[row], sizes[row].numpy(), jacobian)
            value[row], dual[row], primal[row], by_rhs[row], status[row], certified[row] = one
        if len(failed) or len(new):
            self._learn(new, len(failed))
        return Solved(value, dual, primal, by_rhs, status, certified)

    def _by_highs(self, rhs: Array, size: Array, jacobian: bool) -> tuple[float, Array, Array, Array, int, bool]:
        """One right-hand side (m,) by HiGHS: its basis if that passes the certificate, else its numbers as they are."""
        form = self.form
        rows, count = form.matrix.shape
        found = highs.solve_form(form, rhs)
        derivatives = np.zeros((len(self.watched), rows if jacobian else 0))
        if found.status == INFEASIBLE:
            proof = bool(certify_ray(-found.dual, program_of(form), rhs, size))
            return np.inf, found.dual, np.full(len(self.watched), np.nan), derivatives, INFEASIBLE, proof
        inverse = inverses(form, found.columns[None])[0]
        if not np.isfinite(inverse).all():
            return found.value, found.dual, found.primal[self.watched], derivatives, OPTIMAL, False
        if jacobian:
            at = {column: row for row, column in enumerate(found.columns.tolist())}
            for index, column in enumerate(self.watched.tolist()):
                if column in at:
                    derivatives[index] = inverse[at[column]]
        basic, dual = inverse @ rhs, np.append(form.cost, np.zeros(rows))[found.columns] @ inverse
        if not certify_basis(found.columns, inverse, basic, dual, rhs, size, program_of(form)):
            return found.value, found.dual, found.primal[self.watched], derivatives, OPTIMAL, False
        primal = np.zeros(count + rows)
        primal[found.columns] = np.maximum(basic, 0.0)
        return float(dual @ rhs), dual, primal[self.watched], derivatives, OPTIMAL, True

    def _learn(self, columns: Index, failures: int) -> None:
        """Keep new bases (n, m) while there is room."""
        with self._lock:
            self.fallbacks += failures
            room = CAPACITY - len(self.bases.columns)
            if room <= 0 or not len(columns):
                return
            known = {row.tobytes() for row in np.sort(self.bases.columns, axis=1)}
            fresh, counts = np.unique(np.sort(columns, axis=1), axis=0, return_counts=True)
            often = fresh[np.argsort(-counts, kind="stable")]
            keep = [row for row in often if row.tobytes() not in known][:room]
            if keep:
                more = _bases(self.form, np.array(keep), certified_only=True)
                self.bases = Bases(*(np.concatenate(pair) for pair in zip(self.bases, more, strict=True)))


def inverses(form: LinearForm, columns: Index) -> Array:
    """B⁻¹ (P, m, m) of bases (P, m), refined; NaN where a basis is singular."""
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
    """What the kernel needs to know, from scratch, of those of the bases (P, m) that have an inverse, or pass."""
    rows = len(form.matrix)
    inverse = inverses(form, columns)
    kept = np.isfinite(inverse).all(axis=(1, 2))
    columns, inverse = columns[kept], inverse[kept]
    whole = np.concatenate([form.matrix, -np.eye(rows)], axis=1)
    perturbed = np.concatenate([form.perturbed, np.zeros(rows)])
    reduced = perturbed - np.einsum("pi,pij->pj", perturbed[columns], inverse) @ whole
    np.put_along_axis(reduced, columns, 0.0, axis=1)
    cost = np.concatenate([form.cost, np.zeros(rows)])
    dual = np.einsum("pi,pij->pj", cost[columns], inverse)
    error = np.abs(whole[:, columns].transpose(1, 0, 2) @ inverse - np.eye(rows)).max(axis=(1, 2))
    program = program_of(form)
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


class _Answers(NamedTuple):
    """:class:`Solved` while the kernel writes it, with the final bases (n, m) and how many pivots led there (n,)."""

    value: Array
    dual: Array
    primal: Array
    jacobian: Array
    status: NDArray[np.int8]
    columns: Index
    pivots: Index

    @staticmethod
    def of(total: int, rows: int, watched: int, jacobian: bool) -> _Answers:
        return _Answers(
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
    """Write the answer for each right-hand side (n, m); ``place`` (N + m,) is where a column is watched, or NONE."""
    total, rows = rhs.shape
    columns = program.matrix.shape[1] + rows
    own = Tableaus(np.empty((1, rows), dtype=np.int64), np.empty((1, rows, rows)), np.empty((1, columns)))
    room = Room(np.empty(rows), np.empty(columns), np.empty(rows), np.empty(columns))
    for n in range(total):
        at = start[n]
        moved = not is_optimal(bases.inverse[at], rhs[n], size[n], tolerance, room.basic)
        if moved:
            _copy(bases, at, own)
            status, number = continue_dual_simplex(own, 0, size[n], program.matrix, tolerance, room)
            _write(own, status, number, program.cost, n, answers)
            if status == INFEASIBLE and not proves_infeasible(
                own.inverse[0, number], program.matrix, rhs[n], size[n], room
            ):
                answers.status[n] = FAILED
            if status != OPTIMAL:
                continue
        else:
            _take(bases, at, n, answers)
        inverse = own.inverse[0] if moved else bases.inverse[at]
        if moved or not (bases.certified[at] and is_clean(inverse, room.basic, size[n])):
            kept = certify(answers.columns[n], inverse, room.basic, answers.dual[n], rhs[n], size[n], program, room)
            if not kept:
                answers.status[n] = FAILED
        amount = 0.0
        for k in range(rows):
            amount += answers.dual[n, k] * rhs[n, k]
        answers.value[n] = amount
        _watch(inverse, room.basic, place, n, answers)


@piece
def _take(bases, at, n, answers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The pool's basis is the answer."""
    for i in range(answers.dual.shape[1]):
        answers.dual[n, i] = bases.dual[at, i]
        answers.columns[n, i] = bases.columns[at, i]


@piece
def _copy(bases, at, own):  # type: ignore[no-untyped-def]  # pragma: no cover
    """A basis of the pool to pivot from."""
    rows = own.columns.shape[1]
    for i in range(rows):
        own.columns[0, i] = bases.columns[at, i]
        for k in range(rows):
            own.inverse[0, i, k] = bases.inverse[at, i, k]
    for j in range(own.reduced.shape[1]):
        own.reduced[0, j] = bases.reduced[at, j]


@piece
def _write(own, status, number, cost, n, answers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The basis that the pivots led to: its duals, or the ray that proves infeasibility."""
    rows = own.columns.shape[1]
    answers.status[n] = status
    for i in range(rows):
        answers.columns[n, i] = own.columns[0, i]
    if status == OPTIMAL:
        answers.pivots[n] = number
        set_dual(own.columns[0], own.inverse[0], cost, answers.dual[n])
    elif status == INFEASIBLE:
        # The row of B⁻¹ is non-negative on every column and negative on b: no x can do it.
        answers.value[n] = np.inf
        for i in range(rows):
            answers.dual[n, i] = -own.inverse[0, number, i]
        for j in range(answers.primal.shape[1]):
            answers.primal[n, j] = np.nan


@piece
def _watch(inverse, basic, place, n, answers):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The watched columns' values and, if asked for, their derivatives."""
    for i in range(len(basic)):
        j = place[answers.columns[n, i]]
        if j != NONE:
            answers.primal[n, j] = max(basic[i], 0.0)
            for k in range(answers.jacobian.shape[2]):
                answers.jacobian[n, j, k] = inverse[i, k]
