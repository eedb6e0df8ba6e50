"""The simplex method in fractions: optima without rounding, for small programs that two solvers disagree on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core.errors import SolverFailure
from bco_core.problems.linear.program import SparseProgram
from bco_core.solvers import highs

Array = NDArray[np.float64]

_ROUNDING = Fraction(1, 10**15)


def model_of(program: SparseProgram, whole: NDArray[np.bool_] | None = None) -> highspy.Highs:
    solver = highs.model_of(*program.rows_and_bounds, whole)
    solver.setOptionValue("primal_feasibility_tolerance", 1e-10)
    solver.setOptionValue("dual_feasibility_tolerance", 1e-10)
    solver.setOptionValue("mip_rel_gap", 1e-9)
    solver.setOptionValue("mip_abs_gap", 1e-9)
    return solver


def exact_optimum(program: SparseProgram, pivots: int = 200) -> Fraction | None:
    """Return the optimum without rounding, or None: the simplex method in fractions, from the last basis of HiGHS.

    Rows are A v − s = 0 with s within the rows' limits. A nonbasic variable is at a bound, or at zero.
    """
    solver = model_of(program)
    solver.setOptionValue("presolve", "off")
    with suppress(SolverFailure):
        # If HiGHS fails, its last basis still serves as a start.
        highs.run(solver)
    if not solver.getBasis().valid:
        return None
    cost, matrix, row_lower, row_upper, lower, upper = program.rows_and_bounds
    tableau = _Tableau.of(cost, sparse.csr_array(matrix).toarray(), (lower, row_lower), (upper, row_upper))
    basic = np.array(solver.getBasicVariables()[1], dtype=np.int64)  # type: ignore[attr-defined]
    values = np.concatenate([solver.getSolution().col_value, solver.getSolution().row_value])
    columns = [int(b) if b >= 0 else len(cost) - 1 - int(b) for b in basic]
    return tableau.solve(columns, values, pivots)


@dataclass
class _Tableau:
    """min cost'w, rows w = 0, low ≤ w ≤ high in fractions; None for no bound."""

    cost: list[Fraction]
    columns: list[list[Fraction]]
    low: list[Fraction | None]
    high: list[Fraction | None]

    @staticmethod
    def of(cost: Array, matrix: Array, lower: tuple[Array, ...], upper: tuple[Array, ...]) -> _Tableau:
        rows = len(matrix)
        whole = np.concatenate([matrix, -np.eye(rows)], axis=1)

        def bounds(parts: tuple[Array, ...]) -> list[Fraction | None]:
            return [Fraction(float(b)) if np.isfinite(b) else None for b in np.concatenate(parts)]

        prices = [Fraction(float(c)) for c in np.concatenate([cost, np.zeros(rows)])]
        columns = [[Fraction(float(entry)) for entry in column] for column in whole.T]
        return _Tableau(prices, columns, bounds(lower), bounds(upper))

    def solve(self, basic: list[int], near: Array, pivots: int) -> Fraction | None:
        """Run both phases of the simplex method by Bland's rule, from a basis and values (N + m,) near the optimum."""
        rows, count = len(basic), len(self.cost)
        value = [self._at_bound(j, float(near[j])) for j in range(count)]
        inverse = _inverse([self.columns[j] for j in basic])
        if inverse is None:
            return None
        for _ in range(pivots):
            inside = set(basic)
            right = [Fraction(0)] * rows
            for j in range(count):
                if j not in inside and value[j]:
                    for i, entry in enumerate(self.columns[j]):
                        if entry:
                            right[i] -= entry * value[j]
            x = [_dot(row, right) for row in inverse]
            for i, j in enumerate(basic):
                value[j] = x[i]
            # Phase one while a basic variable violates its bounds: the cost is then the violation.
            broken = [self._side(j, value[j]) for j in basic]
            one = any(broken)
            prices = [Fraction(side) for side in broken] if one else [self.cost[j] for j in basic]
            dual = [sum((p * inverse[i][k] for i, p in enumerate(prices) if p), Fraction(0)) for k in range(rows)]
            entering, direction = self._entering(inside, value, dual, one)
            if entering is None:
                return None if one else sum((c * v for c, v in zip(self.cost, value, strict=True) if c), Fraction(0))
            move = [_dot(row, self.columns[entering]) for row in inverse]
            step, leaving = self._step(basic, value, broken, move, entering, direction)
            if step is None:
                return None
            if leaving is None:
                value[entering] += direction * step
                continue
            value[entering] += direction * step
            j = basic[leaving]
            after = value[j] - direction * step * move[leaving]
            value[j] = after
            _exchange(inverse, move, leaving)
            basic[leaving] = entering
        return None

    def _at_bound(self, j: int, near: float) -> Fraction:
        ends = [end for end in (self.low[j], self.high[j]) if end is not None]
        return min(ends, key=lambda end: abs(float(end) - near)) if ends else Fraction(0)

    def _side(self, j: int, value: Fraction) -> int:
        low, high = self.low[j], self.high[j]
        return -1 if low is not None and value < low else 1 if high is not None and value > high else 0

    def _entering(
        self, inside: set[int], value: list[Fraction], dual: list[Fraction], one: bool
    ) -> tuple[int | None, int]:
        """Return the first column whose move lowers the cost (Bland), and its direction."""
        largest = Fraction(1) if one else max(abs(price) for price in self.cost)
        for j in range(len(self.cost)):
            low, high = self.low[j], self.high[j]
            if j in inside or (low is not None and low == high):
                continue
            price = Fraction(0) if one else self.cost[j]
            slope = price - _dot(dual, self.columns[j])
            # Where a cost was computed as a combination of rows, a tiny slope is rounding, not descent.
            terms = sum((abs(x * y) for x, y in zip(dual, self.columns[j], strict=True)), largest)
            if abs(slope) <= _ROUNDING * terms:
                continue
            if slope < 0 and (high is None or value[j] < high):
                return j, 1
            if slope > 0 and (low is None or value[j] > low):
                return j, -1
        return None, 0

    def _step(
        self,
        basic: list[int],
        value: list[Fraction],
        broken: list[int],
        move: list[Fraction],
        entering: int,
        direction: int,
    ) -> tuple[Fraction | None, int | None]:
        """Return the step length and the row that limits it; no row if the column's own other bound does."""
        low, high = self.low[entering], self.high[entering]
        best: Fraction | None = high - low if low is not None and high is not None else None
        leaving: int | None = None
        for i, j in enumerate(basic):
            change = -direction * move[i]
            if not change:
                continue
            # A variable beyond a bound stops where it returns to that bound; one within stops at the bound ahead.
            end = (self.low[j] if broken[i] < 0 else self.high[j]) if change > 0 else None
            if change < 0:
                end = self.high[j] if broken[i] > 0 else self.low[j]
            if end is None or (broken[i] and (change > 0) != (broken[i] < 0)):
                continue
            length = (end - value[j]) / change
            if best is None or length < best or (length == best and leaving is not None and j < basic[leaving]):
                best, leaving = length, i
        return best, leaving


def _dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True) if x and y), Fraction(0))


def _inverse(columns: list[list[Fraction]]) -> list[list[Fraction]] | None:
    """Invert by elimination; return None if the columns are linearly dependent."""
    size = len(columns)
    rows = [[columns[j][i] for j in range(size)] + [Fraction(int(i == k)) for k in range(size)] for i in range(size)]
    for c in range(size):
        pivot = next((r for r in range(c, size) if rows[r][c]), None)
        if pivot is None:
            return None
        rows[c], rows[pivot] = rows[pivot], rows[c]
        lead = rows[c][c]
        rows[c] = [entry / lead if entry else entry for entry in rows[c]]
        for r in range(size):
            factor = rows[r][c]
            if r != c and factor:
                rows[r] = [x - factor * y if y else x for x, y in zip(rows[r], rows[c], strict=True)]
    return [row[size:] for row in rows]


def _exchange(inverse: list[list[Fraction]], move: list[Fraction], leaving: int) -> None:
    lead = move[leaving]
    inverse[leaving] = [entry / lead if entry else entry for entry in inverse[leaving]]
    for i, factor in enumerate(move):
        if i != leaving and factor:
            inverse[i] = [x - factor * y if y else x for x, y in zip(inverse[i], inverse[leaving], strict=True)]
