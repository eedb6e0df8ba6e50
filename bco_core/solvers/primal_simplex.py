"""Linear programs of which only the cost changes, solved by the thousand: min c'v over one polyhedron.

A vertex of the polyhedron stays one when the cost changes. So bases that were optimal once are kept in a pool, with
their inverses, a new cost starts from the cheapest of their vertices, and the primal simplex method goes on from there
(:mod:`bco_core.solvers.primal_solve`). A cost's own last basis is nearer, but inverting it takes longer than pivoting.

Every answer carries its own certificate, from the program's numbers alone (:mod:`bco_core.solvers.polyhedron`): v keeps
rows and bounds, and dual prices prove that nothing costs less. The rare answer that fails is solved by HiGHS, and so
are programs too large for a dense tableau; their answers are certified likewise.

Where several vertices are optimal, the same one is the answer whatever the start, the rows beside and the pool, up to
rounding of its last digits: costs are nudged by a billionth to choose it. That does not hold for answers by HiGHS,
for free variables, which are not nudged, and for costs that differ from a tie by about that billionth.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core import deadline
from bco_core.errors import InvalidInput, SolverFailure
from bco_core.solvers import highs
from bco_core.solvers.dual_simplex import FAILED, OPTIMAL
from bco_core.solvers.linear_form import Array, LinearProgram
from bco_core.solvers.polyhedron import Polyhedron, Scaled, certify, polyhedron_of, proves_unbounded
from bco_core.solvers.primal_pivots import UNBOUNDED, drop_fixed
from bco_core.solvers.primal_solve import NUDGE, Answers, Pool, set_values, solve_all
from bco_core.solvers.primal_tableau import BASIC, factorise, room_of, tableau_of
from bco_core.status import Status

__all__ = ["FAILED", "OPTIMAL", "UNBOUNDED", "Oracle", "Solved"]

Bases = NDArray[np.int8]

# More bases start closer to the optimum but take longer to compare: of 8, 24 and 64 none was best for all programs.
CAPACITY = 16
# The most numbers of one tableau, and of a pool's.
_LARGEST, _POOLED = 1_000_000, 4_000_000
# Of one call, so many rows are looked at for new bases.
_LOOKED_AT = 256
_CHUNK = 4096


@dataclass(frozen=True)
class Solved:
    """For n costs: an optimum (n, d), what it costs (n,), how the solve ended (n,), and whether that is proven (n,).

    Where the cost falls without limit (UNBOUNDED), ``objective`` is −∞ and ``values`` are NaN. FAILED is a cost that is
    not finite, or one that neither the kernel nor HiGHS can solve: both are NaN.
    """

    values: Array
    objective: Array
    status: NDArray[np.int8]
    certified: NDArray[np.bool_]


class Oracle:
    """min cost'v over one polyhedron for many costs; ``solve`` may be called from many threads at once.

    Readers take whatever immutable pool there is; writers replace it under the lock. ``fallbacks`` counts the costs
    that HiGHS had to solve.
    """

    def __init__(self, scaled: Scaled, model: highspy.Highs) -> None:
        self._polyhedron, self._unit = scaled
        self._model = model
        self._lock = threading.Lock()
        count = len(self._unit)
        low, high = np.isfinite(self._polyhedron.lower[:count]), np.isfinite(self._polyhedron.upper[:count])
        random = np.random.default_rng(0).uniform(0.5, 1.0, count)
        # Towards the bound there is, so that no direction becomes cheap for ever.
        self._nudge = NUDGE * random * np.where(low, 1.0, np.where(high, -1.0, 0.0))
        self._pool = _first_pool(self._polyhedron, self._unit, _statuses(model))
        self.fallbacks = 0

    @staticmethod
    def of(program: LinearProgram, limits: Array) -> Oracle:
        """The program's rows with these limits (m,); its cost does not matter here."""
        matrix = sparse.csr_array(program.matrix)
        return Oracle.over(matrix, program.senses, limits, program.lower, program.upper)

    @staticmethod
    def over(matrix: sparse.csr_array, senses: NDArray[np.int64], limits: Array, lower: Array, upper: Array) -> Oracle:
        """Rows ``matrix`` (m, d) v (sense) limits, lower ≤ v ≤ upper; InvalidInput if nothing keeps them all."""
        scaled = polyhedron_of(matrix, senses, limits, lower, upper)
        polyhedron = scaled.polyhedron
        rows, count = matrix.shape
        columns = sparse.csc_array((polyhedron.entries, polyhedron.places, polyhedron.begins), shape=(rows, count))
        model = highs.model_of(
            np.zeros(count),
            columns.tocsr(),
            polyhedron.lower[count:],
            polyhedron.upper[count:],
            polyhedron.lower[:count],
            polyhedron.upper[:count],
        )
        model.setOptionValue("primal_feasibility_tolerance", 1e-10)
        model.setOptionValue("dual_feasibility_tolerance", 1e-10)
        if highs.run(model).status is not Status.OPTIMAL:
            raise InvalidInput("no decision keeps all rows and bounds: at least one limit must be relaxed")
        # From here on it starts from a basis, and presolve would prove unboundedness without a direction.
        model.setOptionValue("presolve", "off")
        return Oracle(scaled, model)

    def solve(self, costs: Array) -> Solved:
        """The cheapest v for each of ``costs`` (n, d)."""
        total, count = costs.shape
        if count != len(self._unit):
            raise InvalidInput(f"costs have {count} columns, the program has {len(self._unit)}")
        answers = Answers.of(total, count, len(self._polyhedron.lower))
        costs = np.ascontiguousarray(costs, dtype=np.float64)
        if self._pool is not None:
            for first in range(0, total, _CHUNK):
                some = slice(first, first + _CHUNK)
                self._solve_chunk(self._pool, costs[some], answers.part(some))
        self._ask_highs(costs, answers)
        return Solved(*answers[:4])

    def _solve_chunk(self, pool: Pool, costs: Array, answers: Answers) -> None:
        with deadline.alarm(None) as rung:
            solve_all(self._polyhedron, self._unit, self._nudge, costs, pool, answers, rung)
        deadline.check()
        if len(pool.vertices) < _capacity(pool):
            self._learn(answers)

    def _learn(self, answers: Answers) -> None:
        """Keep bases of new vertices while there is room, those met most often first."""
        moved = np.flatnonzero((answers.pivots > 0) & (answers.status == OPTIMAL))[:_LOOKED_AT]
        if not len(moved):
            return
        _, first, counts = np.unique(answers.values[moved], axis=0, return_index=True, return_counts=True)
        often = moved[first[np.argsort(-counts, kind="stable")]]
        with self._lock:
            pool = self._pool
            if pool is None:
                return
            room = _capacity(pool) - len(pool.vertices)
            known = {row.tobytes() for row in pool.vertices}
            new = [row for row in often if answers.values[row].tobytes() not in known][:room]
            more = [_entry(self._polyhedron, self._unit, answers.bases[row], pool.table.shape[2]) for row in new]
            kept = [pool, *(entry for entry in more if entry is not None)]
            if len(kept) > 1:
                self._pool = Pool._make(np.concatenate(parts) for parts in zip(*kept, strict=True))

    def _ask_highs(self, costs: Array, answers: Answers) -> None:
        """HiGHS for the costs without an answer."""
        open_rows = np.flatnonzero(answers.status == FAILED)
        asked = open_rows[np.isfinite(costs[open_rows] * self._unit).all(axis=1)]
        for n in asked:
            deadline.check()
            values, status, answers.certified[n] = self._by_highs(costs[n])
            answers.values[n], answers.status[n] = values, status
            answers.objective[n] = -np.inf if status == UNBOUNDED else costs[n] @ values
        if len(asked):
            with self._lock:
                self.fallbacks += len(asked)

    def _by_highs(self, cost: Array) -> tuple[Array, int, bool]:
        """One cost (d,) by HiGHS, from where it ended last."""
        count, rows = len(cost), len(self._polyhedron.lower) - len(cost)
        lower, upper = self._polyhedron.lower[:count], self._polyhedron.upper[:count]
        nothing, room = np.full(count, np.nan), (np.empty(rows), np.empty(rows))
        scaled = cost * self._unit
        scaled = np.ldexp(scaled, -np.frexp(np.abs(scaled).max(initial=0))[1])
        with self._lock:
            self._model.changeColsCost(count, np.arange(count, dtype=np.int32), scaled)
            try:
                answer = highs.run(self._model)
            except SolverFailure:
                self._model.clearSolver()
                return nothing, FAILED, False
            if answer.status is Status.UNBOUNDED:
                _, known, ray = self._model.getPrimalRay()  # type: ignore[attr-defined]
                # Without entries in any row, HiGHS names no direction.
                down = -np.sign(scaled) * np.isinf(np.where(scaled > 0, lower, upper))
                proven = proves_unbounded(self._polyhedron, scaled, np.array(ray) if known else down, *room)
                return nothing, UNBOUNDED, bool(proven)
            if answer.status is not Status.OPTIMAL:
                return nothing, FAILED, False
        values = answer.values.copy()
        proven = certify(self._polyhedron, scaled, values, answer.duals, *room)
        return values * self._unit, OPTIMAL, bool(proven)


def _statuses(model: highspy.Highs) -> Bases:
    """Where columns and rows are in the basis of HiGHS's last solve."""
    basis = model.getBasis()
    return np.array([int(one) for one in [*basis.col_status, *basis.row_status]], dtype=np.int8)


def _capacity(pool: Pool) -> int:
    _, rows, width = pool.table.shape
    return min(CAPACITY, max(_POOLED // max(int(rows * (rows + width)), 1), 1))


def _first_pool(polyhedron: Polyhedron, unit: Array, status: Bases) -> Pool | None:
    """A pool of one basis, without columns that cannot move if possible; None if the program is too large for it."""
    movable = polyhedron.lower < polyhedron.upper
    count = len(unit)
    rows, width = len(polyhedron.lower) - count, int(movable.sum())
    if rows * (rows + width) > _LARGEST:
        return None
    tableau, room = tableau_of(rows, count, width), room_of(rows, count, width)
    tableau.status[:] = status
    if not factorise(polyhedron, tableau, room):
        return None
    room.reduced[:] = 0.0
    drop_fixed(polyhedron, tableau, room)
    width = int((movable & (tableau.status != BASIC)).sum())
    return _entry(polyhedron, unit, tableau.status, width)


def _entry(polyhedron: Polyhedron, unit: Array, status: Bases, width: int) -> Pool | None:
    """One basis for the pool, computed from scratch."""
    count = len(unit)
    rows = len(polyhedron.lower) - count
    tableau = tableau_of(rows, count, width)
    tableau.status[:] = status
    if not factorise(polyhedron, tableau, room_of(rows, count, width)):
        return None
    values = np.empty(count)
    set_values(polyhedron, tableau, values)
    return Pool._make(np.asarray(part)[None] for part in (*tableau, values * unit))
