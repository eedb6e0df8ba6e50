"""Linear programs of which only the right-hand side changes, solved by the thousand.

For min c'x, A x − s = b, x, s ≥ 0, whether a basis is dual feasible does not depend on b. So bases that were optimal
once are kept in a pool, and a new b starts from the basis whose dual value π'b is the largest: if its x_B = B⁻¹b is
non-negative it is optimal, and otherwise the dual simplex method goes on from there. Every answer therefore carries its
own certificate, primal and dual feasibility, and the rare one that fails it is solved by HiGHS.

The optimal basis gives exact derivatives almost everywhere: value π'b, ∂value/∂b = π, ∂x_B/∂b = B⁻¹.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array, LinearForm

Index = NDArray[np.int64]

# More bases start closer to the optimum but take longer to compare: 64 was fastest for programs of 7 to 60 rows.
CAPACITY = 64
OPTIMAL, INFEASIBLE, FAILED = 0, 1, 2
# How far below zero a basic variable may be, relative to the size of the terms it is the sum of.
TOLERANCE = 1e-9
# A basis must reproduce b to 1e-8 of each row's terms and 1e-13 of the largest; so it does if B B⁻¹ − I is this small.
_SHARP = 1e-13
_CHUNK = 4096


class Bases(NamedTuple):
    """P dual feasible bases: basic columns (P, m), B⁻¹ (P, m, m), π (P, m), reduced costs of all columns (P, N + m).

    ``sharp`` (P,) says that B B⁻¹ is the identity so nearly that B⁻¹b reproduces every b: no need to check each.
    """

    columns: Index
    inverse: Array
    dual: Array
    reduced: Array
    sharp: NDArray[np.bool_]

    def closest(self, rhs: Tensor) -> Tensor:
        """The basis of largest dual value for each right-hand side (n, m)."""
        return (rhs @ torch.from_numpy(self.dual).T).max(dim=1).indices


class Solved(NamedTuple):
    """For n right-hand sides: value (n,), π (n, m), x of the watched columns (n, w), ∂x/∂b (n, w, m) if asked for.

    ``status`` is OPTIMAL or INFEASIBLE; an infeasible one has value ∞ and in π a ray: σ ≥ 0, σ'A ≤ 0, σ'b > 0.
    """

    value: Array
    dual: Array
    primal: Array
    jacobian: Array
    status: NDArray[np.int8]


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
        return BasisPool(form, columns, _bases(form, highs.dual_feasible_basis(form)[None]))

    def solve(self, rhs: Tensor, size: Tensor, jacobian: bool = False) -> Solved:
        """Solve for right-hand sides (n, m) that are sums of terms of this ``size`` (n, m)."""
        chunks = zip(rhs.contiguous().split(_CHUNK), size.contiguous().split(_CHUNK), strict=True)
        parts = [self._solve_chunk(*chunk, jacobian) for chunk in chunks]
        return parts[0] if len(parts) == 1 else Solved(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _solve_chunk(self, chunk: Tensor, sizes: Tensor, jacobian: bool) -> Solved:
        form, bases = self.form, self.bases
        rhs, start = chunk.numpy(), bases.closest(chunk).numpy()
        place = np.full(sum(form.matrix.shape), -1)
        place[self.watched] = np.arange(len(self.watched))
        count = len(self.watched)
        program = form.matrix, form.transposed, form.cost
        found = _solve_all(rhs, sizes.numpy(), start, *bases, *program, place, count, jacobian, TOLERANCE)
        value, dual, primal, by_rhs, status, columns, pivots = found
        if not (pivots.any() or status.any()):
            return Solved(value, dual, primal, by_rhs, status)
        failed = np.flatnonzero(status == FAILED)
        for row in failed:
            value[row], dual[row], primal[row], by_rhs[row], status[row] = highs.solve_form(
                form, rhs[row], self.watched, jacobian
            )
        new = columns[(pivots > 0) & (status == OPTIMAL)]
        if len(failed) or len(new):
            self._learn(new, len(failed))
        return Solved(value, dual, primal, by_rhs, status)

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
                more = _bases(self.form, np.array(keep))
                self.bases = Bases(*(np.concatenate(pair) for pair in zip(self.bases, more, strict=True)))


def _bases(form: LinearForm, columns: Index) -> Bases:
    """What the kernel needs to know of bases (P, m), from scratch."""
    rows = len(form.matrix)
    whole = np.concatenate([form.matrix, -np.eye(rows)], axis=1)
    perturbed = np.concatenate([form.perturbed, np.zeros(rows)])
    inverse = np.linalg.inv(whole[:, columns].transpose(1, 0, 2))
    reduced = perturbed - np.einsum("pi,pij->pj", perturbed[columns], inverse) @ whole
    np.put_along_axis(reduced, columns, 0.0, axis=1)
    cost = np.concatenate([form.cost, np.zeros(rows)])
    dual = np.einsum("pi,pij->pj", cost[columns], inverse)
    error = np.abs(whole[:, columns].transpose(1, 0, 2) @ inverse - np.eye(rows)).max(axis=(1, 2))
    sharp = rows * error <= _SHARP
    return Bases(columns.astype(np.int64), np.ascontiguousarray(inverse), dual, np.maximum(reduced, 0.0), sharp)


# Sums may be reordered, which lets the processor take several terms at once; infinities keep their meaning.
FAST = {"reassoc", "contract", "nsz"}


@njit(cache=True, nogil=True, fastmath=FAST)
def below_zero(amount, row, size, tolerance):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Whether ``amount``, the product of ``row`` of B⁻¹ with b, is negative by more than rounding.

    Entries of B⁻¹ have errors of their own, in proportion to the row's largest; the last term is for these.
    """
    if not amount < 0.0:
        return False
    scale = 0.0
    entry = 0.0
    largest = 0.0
    for k in range(len(row)):
        scale += abs(row[k]) * size[k]
        entry = max(entry, abs(row[k]))
        largest = max(largest, size[k])
    return amount < -tolerance * (scale + 1e-5 * entry * largest)


# In kernels arrays are copied entry by entry: slices are as fast but take seconds to compile.
@njit(cache=True, nogil=True, fastmath=FAST)
def continue_dual_simplex(columns, inverse, reduced, basic, size, matrix, tolerance, row_entries, column_entries):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Pivot in place from a dual feasible basis until ``basic`` = B⁻¹b ≥ 0 up to rounding; the number of pivots, or
    −1 − row when that row of B⁻¹ proves infeasibility, or −1000000 when it takes too long."""
    rows = len(basic)
    count = matrix.shape[1]
    for pivots in range(50 * rows + 100):
        leaving = -1
        worst = 0.0
        for i in range(rows):
            if basic[i] < worst and below_zero(basic[i], inverse[i], size, tolerance):
                worst = basic[i]
                leaving = i
        if leaving < 0:
            return pivots
        entering = -1
        best = np.inf
        largest = 0.0
        for j in range(count):
            row_entries[j] = 0.0
        for i in range(rows):
            factor = inverse[leaving, i]
            row_entries[count + i] = -factor
            if factor != 0.0:
                for j in range(count):
                    row_entries[j] += factor * matrix[i, j]
        for j in range(count + rows):
            entry = row_entries[j]
            if entry < -1e-9:
                ratio = -reduced[j] / entry
                if ratio < best or (ratio == best and -entry > largest):
                    best = ratio
                    largest = -entry
                    entering = j
        if entering < 0:
            return -1 - leaving
        step = reduced[entering] / row_entries[entering]
        for j in range(count + rows):
            reduced[j] -= step * row_entries[j]
            if reduced[j] < 0.0:
                reduced[j] = 0.0
        reduced[columns[leaving]] = -step
        reduced[entering] = 0.0
        if entering < count:
            for i in range(rows):
                column_entries[i] = 0.0
            for k in range(rows):
                factor = matrix[k, entering]
                if factor != 0.0:
                    for i in range(rows):
                        column_entries[i] += inverse[i, k] * factor
        else:
            for i in range(rows):
                column_entries[i] = -inverse[i, entering - count]
        pivot = column_entries[leaving]
        for k in range(rows):
            inverse[leaving, k] /= pivot
        basic[leaving] /= pivot
        for i in range(rows):
            if i != leaving and column_entries[i] != 0.0:
                factor = column_entries[i]
                for k in range(rows):
                    inverse[i, k] -= factor * inverse[leaving, k]
                basic[i] -= factor * basic[leaving]
        columns[leaving] = entering
    return -1000000


@njit(cache=True, nogil=True, fastmath=FAST)
def _solve_all(  # type: ignore[no-untyped-def]  # pragma: no cover
    rhs,
    size,
    start,
    columns,
    inverse,
    dual,
    reduced,
    sharp,
    matrix,
    transposed,
    cost,
    place,
    watched,
    jacobian,
    tolerance,
):
    total, rows = rhs.shape
    count = matrix.shape[1]
    value = np.empty(total)
    duals = np.empty((total, rows))
    primal = np.zeros((total, watched))
    by_rhs = np.zeros((total, watched, rows if jacobian else 0))
    status = np.zeros(total, dtype=np.int8)
    final = np.empty((total, rows), dtype=np.int64)
    pivots = np.zeros(total, dtype=np.int64)
    own_columns = np.empty(rows, dtype=np.int64)
    own_inverse = np.empty((rows, rows))
    own_reduced = np.empty(count + rows)
    basic = np.empty(rows)
    row_entries = np.empty(count + rows)
    column_entries = np.empty(rows)
    scale = np.empty(rows)
    for n in range(total):
        at = start[n]
        feasible = True
        for i in range(rows):
            amount = 0.0
            for k in range(rows):
                amount += inverse[at, i, k] * rhs[n, k]
            basic[i] = amount
            if feasible and below_zero(amount, inverse[at, i], size[n], tolerance):
                feasible = False
        taken = 0
        if feasible:
            for i in range(rows):
                duals[n, i] = dual[at, i]
                final[n, i] = columns[at, i]
        else:
            for i in range(rows):
                own_columns[i] = columns[at, i]
                for k in range(rows):
                    own_inverse[i, k] = inverse[at, i, k]
            for j in range(count + rows):
                own_reduced[j] = reduced[at, j]
            taken = continue_dual_simplex(
                own_columns, own_inverse, own_reduced, basic, size[n], matrix, tolerance, row_entries, column_entries
            )
            for i in range(rows):
                final[n, i] = own_columns[i]
            if taken < 0:
                if taken == -1000000:
                    status[n] = 2
                    continue
                # Row r of B⁻¹ is non-negative on every column and negative on b: no x can do it.
                status[n] = 1
                value[n] = np.inf
                for i in range(rows):
                    duals[n, i] = -own_inverse[-1 - taken, i]
                for j in range(watched):
                    primal[n, j] = np.nan
                continue
            pivots[n] = taken
            for k in range(rows):
                duals[n, k] = 0.0
            for i in range(rows):
                if own_columns[i] < count:
                    price = cost[own_columns[i]]
                    for k in range(rows):
                        duals[n, k] += price * own_inverse[i, k]
        amount = 0.0
        for k in range(rows):
            amount += duals[n, k] * rhs[n, k]
        value[n] = amount
        if taken > 0 or not sharp[at]:
            # The certificate: the basis must reproduce b.
            for k in range(rows):
                column_entries[k] = -rhs[n, k]
                scale[k] = size[n, k]
            for i in range(rows):
                j = final[n, i]
                if j < count:
                    for k in range(rows):
                        part = basic[i] * transposed[j, k]
                        column_entries[k] += part
                        scale[k] += abs(part)
                else:
                    column_entries[j - count] -= basic[i]
                    scale[j - count] += abs(basic[i])
            largest = 0.0
            for k in range(rows):
                largest = max(largest, scale[k])
            for k in range(rows):
                if not abs(column_entries[k]) <= 1e-8 * (scale[k] + 1e-5 * largest):
                    status[n] = 2
        for i in range(rows):
            j = place[final[n, i]]
            if j >= 0:
                primal[n, j] = max(basic[i], 0.0)
                if jacobian:
                    for k in range(rows):
                        by_rhs[n, j, k] = inverse[at, i, k] if taken == 0 else own_inverse[i, k]
    return value, duals, primal, by_rhs, status, final, pivots
