"""Linear programs of which only the cost changes, solved by the thousand: min c'v over one polyhedron.

A vertex of the polyhedron stays feasible when the cost changes. So a pool keeps bases that were optimal before, with
their inverses; a new cost starts from the cheapest of their vertices, and the primal simplex method continues from
there. A cost's own last basis would be nearer, but inverting it takes longer than pivoting.

Every answer has its own certificate, computed from the program's numbers (:mod:`bco_core.solvers.polyhedron`): v keeps
rows and bounds, and dual prices prove that no point costs less. HiGHS solves the rare cost whose answer fails, and
programs too large for a dense tableau; those answers are certified in the same way.

Costs are first perturbed by a billionth, always by the same share per column, so that one vertex is best whatever the
start. Then the perturbation is removed, the columns are priced from A and the true costs, and the remaining wrong signs
are pivoted away. Where several vertices are optimal, the answer is thus the same vertex whatever the start, the other
rows of the call and the pool, up to rounding. Exceptions are answers by HiGHS, free variables, which are not perturbed,
and costs that differ from a tie by about that billionth.

A basis of min c'x, [A −I] x = 0, lower ≤ x ≤ upper, with x = (v, activities of the rows), is a dense tableau B⁻¹N. It
has columns only for variables that can move: the activity of an equality is dropped once it leaves the basis. So the
shortest path in a grid has few columns, and a pivot takes a tenth of a microsecond. Dual prices come from the B⁻¹ of
the start and the pivots since (product form).
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

import highspy
import numpy as np
from numba import njit
from numba.core.options import DefaultOptions
from numpy.typing import NDArray
from scipy import sparse

from bco_core import deadlines
from bco_core.errors import InvalidInput, SolverFailure
from bco_core.solvers import highs
from bco_core.solvers.dual_simplex import FAILED, NONE, OPTIMAL, UNBOUNDED, Index, kernel, piece
from bco_core.solvers.linear_form import Array, LinearProgram
from bco_core.solvers.polyhedron import (
    Polyhedron,
    ScaledPolyhedron,
    certify,
    certify_plainly,
    polyhedron_of,
    proves_unbounded,
)
from bco_core.status import Status

__all__ = ["FAILED", "OPTIMAL", "UNBOUNDED", "Oracle", "OracleSolutions"]

Bases = NDArray[np.int8]

# More bases start closer to the optimum but take longer to compare: of 8, 24 and 64 none was best for all programs.
CAPACITY = 16
# Largest number of entries of one tableau, and of all tableaus of a pool.
_LARGEST, _POOLED = 1_000_000, 4_000_000
# Rows of one call that are searched for new bases.
_LOOKED_AT = 256
_CHUNK = 4096
# Status of a column, numbered as in HiGHS.
LOWER, BASIC, UPPER, ZERO = 0, 1, 2, 3
# Pivots until B⁻¹ is recomputed.
REFRESH = 64
# Smallest pivot while a basis is inverted.
_LEAST_INVERTED = 1e-8
# How far basic variables may lie outside their bounds at a start, as a share of their terms.
_FEASIBLE = 1e-9
# Outcome of pivoting besides OPTIMAL, UNBOUNDED and FAILED: the eta file is full.
STALE = 4
# Most pivots of one solve.
PIVOTS_PER_ROW, PIVOTS_MORE = 50, 200
# Smallest entry to pivot on.
_LEAST_PIVOT = 1e-7
# How far basic variables may lie outside their bounds, as a share of the bound, while columns are chosen.
_SLACK = 1e-11
# After this many steps without gain, columns enter by their number (Bland's rule), which cannot cycle.
_STALLS = 30
# Reference counts are not needed where no arrays are created; without them the kernel takes a quarter less time. The
# option is missing from numba's types, and from some versions of numba, which then count.
_UNCOUNTED: dict[str, Any] = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}
loop = njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"}, **_UNCOUNTED)
# Perturbation of costs as a share of the largest one, and how far reduced costs may be below zero meanwhile.
NUDGE, _NUDGED_TOLERANCE = 1e-9, 1e-13
# The same without perturbation: shares of the cost, of its terms and of the largest price; and while pivoting.
_EXACT, _EXACT_ROUNDING, _EXACT_ERROR, _EXACT_TOLERANCE = 1e-12, 1e-14, 1e-15, 1e-16
# How often columns may be priced again, or a basis inverted again, before HiGHS takes over.
_ROUNDS = 12
# Entries of a ray below this are rounding; the certificate checks their effect on the rows.
_RAY_ENTRY = 1e-8


@dataclass(frozen=True)
class OracleSolutions:
    """For n costs: optimum (n, d), objective (n,), how the solve ended (n,), and whether that is proven (n,).

    Where the cost is UNBOUNDED, ``objective`` is −∞ and ``values`` are NaN. A cost is FAILED if it is not finite, or if
    neither the kernel nor HiGHS can solve it; both are NaN then.
    """

    values: Array
    objective: Array
    status: NDArray[np.int8]
    certified: NDArray[np.bool_]


class Oracle:
    """Minimise cost'v over one polyhedron for many costs; ``solve`` may be called from many threads at once.

    Readers use the current immutable pool; writers replace it under the lock. ``fallbacks`` counts the costs that HiGHS
    had to solve.
    """

    def __init__(self, scaled: ScaledPolyhedron, model: highspy.Highs) -> None:
        self._polyhedron, self._unit = scaled
        self._model = model
        self._lock = threading.Lock()
        count = len(self._unit)
        low, high = np.isfinite(self._polyhedron.lower[:count]), np.isfinite(self._polyhedron.upper[:count])
        random = np.random.default_rng(0).uniform(0.5, 1.0, count)
        # Perturb towards an existing bound, so that no direction becomes unbounded.
        self._nudge = NUDGE * random * np.where(low, 1.0, np.where(high, -1.0, 0.0))
        self._pool = _first_pool(self._polyhedron, self._unit, _statuses(model))
        self.fallbacks = 0

    @staticmethod
    def of(program: LinearProgram, limits: Array) -> Oracle:
        """Build from a program and the limits (m,) of its rows; the program's cost is ignored."""
        matrix = sparse.csr_array(program.matrix)
        return Oracle.over(matrix, program.senses, limits, program.lower, program.upper)

    @staticmethod
    def over(matrix: sparse.csr_array, senses: NDArray[np.int64], limits: Array, lower: Array, upper: Array) -> Oracle:
        """Build from rows ``matrix`` (m, d) v (sense) limits and lower ≤ v ≤ upper.

        Raise InvalidInput if no v keeps all of them.
        """
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
        # Later runs start from a basis, and presolve would prove unboundedness without giving a ray.
        model.setOptionValue("presolve", "off")
        return Oracle(scaled, model)

    def solve(self, costs: Array) -> OracleSolutions:
        """Return the cheapest v for each of ``costs`` (n, d)."""
        total, count = costs.shape
        if count != len(self._unit):
            raise InvalidInput(f"costs have {count} columns, the program has {len(self._unit)}")
        answers = OracleAnswers.of(total, count, len(self._polyhedron.lower))
        costs = np.ascontiguousarray(costs, dtype=np.float64)
        if self._pool is not None:
            for first in range(0, total, _CHUNK):
                some = slice(first, first + _CHUNK)
                self._solve_chunk(self._pool, costs[some], answers.part(some))
        self._ask_highs(costs, answers)
        return OracleSolutions(*answers[:4])

    def _solve_chunk(self, pool: VertexPool, costs: Array, answers: OracleAnswers) -> None:
        with deadlines.alarm(None) as stop:
            solve_all(self._polyhedron, self._unit, self._nudge, costs, pool, answers, stop)
        deadlines.check()
        if len(pool.vertices) < _capacity(pool):
            self._learn(answers)

    def _learn(self, answers: OracleAnswers) -> None:
        """Add bases of new vertices up to the capacity, the most frequent first."""
        moved = np.flatnonzero((answers.pivots > 0) & (answers.status == OPTIMAL))[:_LOOKED_AT]
        if not len(moved):
            return
        _, first, counts = np.unique(answers.values[moved], axis=0, return_index=True, return_counts=True)
        often = moved[first[np.argsort(-counts, kind="stable")]]
        with self._lock:
            pool = self._pool
            if pool is None:
                return
            free = _capacity(pool) - len(pool.vertices)
            present = {row.tobytes() for row in pool.vertices}
            new = [row for row in often if answers.values[row].tobytes() not in present][:free]
            more = [_entry(self._polyhedron, self._unit, answers.bases[row], pool.table.shape[2]) for row in new]
            pools = [pool, *(entry for entry in more if entry is not None)]
            if len(pools) > 1:
                self._pool = VertexPool._make(np.concatenate(parts) for parts in zip(*pools, strict=True))

    def _ask_highs(self, costs: Array, answers: OracleAnswers) -> None:
        """Solve the costs without an answer by HiGHS."""
        failed = np.flatnonzero(answers.status == FAILED)
        rows = failed[np.isfinite(costs[failed] * self._unit).all(axis=1)]
        for n in rows:
            deadlines.check()
            values, status, answers.certified[n] = self._by_highs(costs[n])
            answers.values[n], answers.status[n] = values, status
            answers.objective[n] = -np.inf if status == UNBOUNDED else costs[n] @ values
        if len(rows):
            with self._lock:
                self.fallbacks += len(rows)

    def _by_highs(self, cost: Array) -> tuple[Array, int, bool]:
        """Solve one cost (d,) by HiGHS, starting from its last basis: values (d,), status, and whether it is proven."""
        count, rows = len(cost), len(self._polyhedron.lower) - len(cost)
        lower, upper = self._polyhedron.lower[:count], self._polyhedron.upper[:count]
        nothing, workspace = np.full(count, np.nan), (np.empty(rows), np.empty(rows))
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
                _, has_ray, ray = self._model.getPrimalRay()  # type: ignore[attr-defined]
                # HiGHS gives no ray for columns without entries in any row.
                down = -np.sign(scaled) * np.isinf(np.where(scaled > 0, lower, upper))
                proven = proves_unbounded(self._polyhedron, scaled, np.array(ray) if has_ray else down, *workspace)
                return nothing, UNBOUNDED, bool(proven)
            if answer.status is not Status.OPTIMAL:
                return nothing, FAILED, False
        values = answer.values.copy()
        proven = certify(self._polyhedron, scaled, values, answer.duals, *workspace)
        return values * self._unit, OPTIMAL, bool(proven)


def _statuses(model: highspy.Highs) -> Bases:
    """Return the statuses of columns, then rows, in the basis of HiGHS's last solve."""
    basis = model.getBasis()
    return np.array([int(one) for one in [*basis.col_status, *basis.row_status]], dtype=np.int8)


def _capacity(pool: VertexPool) -> int:
    _, rows, width = pool.table.shape
    return min(CAPACITY, max(_POOLED // max(int(rows * (rows + width)), 1), 1))


def _first_pool(polyhedron: Polyhedron, unit: Array, status: Bases) -> VertexPool | None:
    """Return a pool of one basis, if possible without fixed columns; None if the program is too large for a pool."""
    movable = polyhedron.lower < polyhedron.upper
    count = len(unit)
    rows, width = len(polyhedron.lower) - count, int(movable.sum())
    if rows * (rows + width) > _LARGEST:
        return None
    tableau, workspace = tableau_of(rows, count, width), workspace_of(rows, count, width)
    tableau.status[:] = status
    if not factorise(polyhedron, tableau, workspace):
        return None
    workspace.reduced[:] = 0.0
    drop_fixed(polyhedron, tableau, workspace)
    width = int((movable & (tableau.status != BASIC)).sum())
    return _entry(polyhedron, unit, tableau.status, width)


def _entry(polyhedron: Polyhedron, unit: Array, status: Bases, width: int) -> VertexPool | None:
    """Return a pool of the one basis with this status, computed from scratch; None if it is not a feasible basis."""
    count = len(unit)
    rows = len(polyhedron.lower) - count
    tableau = tableau_of(rows, count, width)
    tableau.status[:] = status
    if not factorise(polyhedron, tableau, workspace_of(rows, count, width)):
        return None
    values = np.empty(count)
    set_values(polyhedron, tableau, values)
    return VertexPool._make(np.asarray(part)[None] for part in (*tableau, values * unit))


class VertexPool(NamedTuple):
    """P bases, the arrays of :class:`Tableau` with a first axis P, and their vertices (P, d) in the planner's units."""

    status: NDArray[np.int8]
    basic: Index
    slots: Index
    table: Array
    inverse: Array
    level: Array
    vertices: Array


class OracleAnswers(NamedTuple):
    """For n costs: values (n, d), objective, status, whether proven (n,), basis statuses (n, d + m), pivots (n,)."""

    values: Array
    objective: Array
    status: NDArray[np.int8]
    certified: NDArray[np.bool_]
    bases: NDArray[np.int8]
    pivots: Index

    @staticmethod
    def of(total: int, count: int, columns: int) -> OracleAnswers:
        return OracleAnswers(
            np.full((total, count), np.nan),
            np.full(total, np.nan),
            np.full(total, FAILED, dtype=np.int8),
            np.zeros(total, dtype=bool),
            np.zeros((total, columns), dtype=np.int8),
            np.zeros(total, dtype=np.int64),
        )

    def part(self, some: slice) -> OracleAnswers:
        """Return views of some rows, to write to."""
        return OracleAnswers._make(column[some] for column in self)


def solve_all(
    polyhedron: Polyhedron,
    unit: Array,
    nudge: Array,
    costs: Array,
    pool: VertexPool,
    answers: OracleAnswers,
    stop: deadlines.Flag,
) -> None:
    """Write the answer for each of ``costs`` (n, d), starting from the basis of the pool whose vertex costs least.

    Stop when ``stop`` is raised; a row that is neither proven optimal nor unbounded keeps FAILED.
    """
    _, rows, width = pool.table.shape
    shape = int(rows), costs.shape[1], int(width)
    across = np.ascontiguousarray(pool.vertices.T)
    own, workspace, prices = tableau_of(*shape), workspace_of(*shape), np.empty(len(pool.vertices))
    _solve_costs(polyhedron, unit, nudge, costs, pool, across, answers, own, workspace, prices, stop)


@loop
def _solve_costs(polyhedron, unit, nudge, costs, pool, across, answers, own, workspace, prices, stop):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Loop of :func:`solve_all`; ``across`` (d, P) are the pool's vertices; ``own``, ``workspace`` and ``prices`` (P,)
    are scratch."""
    total, count = costs.shape
    rows = pool.table.shape[1]
    for n in range(total):
        if stop[0]:
            break
        if not _take_cost(costs[n], unit, nudge, workspace):
            continue
        at = _closest(across, costs[n], prices)
        _copy_basis(pool, at, own)
        status, proven, pivots = _solve_cost(polyhedron, own, pool.inverse[at], workspace, answers.values[n], stop)
        answers.status[n] = status
        answers.certified[n] = proven
        answers.pivots[n] = pivots
        for j in range(count + rows):
            answers.bases[n, j] = own.status[j]
        if status == OPTIMAL:
            objective = 0.0
            for j in range(count):
                answers.values[n, j] *= unit[j]
                objective += costs[n, j] * answers.values[n, j]
            answers.objective[n] = objective
        else:
            answers.objective[n] = -np.inf if status == UNBOUNDED else np.nan
            for j in range(count):
                answers.values[n, j] = np.nan


@piece
def _take_cost(cost, unit, nudge, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set the cost in the kernel's units, scaled by a power of two to at most one; return whether it is finite."""
    largest = 0.0
    finite = True
    for j in range(len(cost)):
        amount = cost[j] * unit[j]
        workspace.cost[j] = amount
        if not abs(amount) < np.inf:
            finite = False
        largest = max(largest, abs(amount))
    if finite and largest > 0.0:
        factor = math.ldexp(1.0, -max(min(math.frexp(largest)[1], 1000), -1000))
        for j in range(len(cost)):
            workspace.cost[j] *= factor
    for j in range(len(cost)):
        workspace.nudged[j] = workspace.cost[j] + nudge[j]
    return finite


@piece
def _closest(across, cost, prices):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the cheapest vertex of the pool."""
    for p in range(len(prices)):
        prices[p] = 0.0
    add_rows(cost, across, prices)
    chosen = 0
    for p in range(len(prices)):
        if prices[p] < prices[chosen]:
            chosen = p
    return chosen


@piece
def _copy_basis(pool, at, own):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Copy a basis of the pool to ``own``, except for its inverse."""
    rows, width = own.table.shape
    for j in range(len(own.status)):
        own.status[j] = pool.status[at, j]
    for k in range(width):
        own.slots[k] = pool.slots[at, k]
    for i in range(rows):
        own.basic[i] = pool.basic[at, i]
        own.level[i] = pool.level[at, i]
        for k in range(width):
            own.table[i, k] = pool.table[at, i, k]


@piece
def _solve_cost(polyhedron, own, inverse, workspace, values, stop):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Pivot to a proven optimum or a proven ray; return the status, whether it is proven, and the pivots."""
    most = PIVOTS_PER_ROW * len(own.basic) + PIVOTS_MORE
    left = most
    pivots = 0
    exact = False
    status = FAILED
    proven = False
    price_slots(own, workspace.nudged, workspace)
    rounds = 0
    while left > 0 and rounds < _ROUNDS:
        tolerance = _EXACT_TOLERANCE if exact else _NUDGED_TOLERANCE
        outcome, pivots, left, slot = pivot_until_done(polyhedron, own, workspace, tolerance, pivots, left, stop)
        if outcome == FAILED:
            break
        if outcome == STALE:
            if not factorise(polyhedron, own, workspace):
                break
            inverse = own.inverse
            pivots = 0
            price_slots(own, workspace.cost if exact else workspace.nudged, workspace)
            continue
        if outcome == UNBOUNDED:
            _set_ray(own, slot, workspace)
            if proves_unbounded(polyhedron, workspace.cost, workspace.ray, workspace.activity, workspace.terms):
                status = UNBOUNDED
                proven = True
                break
        rounds += 1
        set_dual(own, inverse, workspace.cost, pivots, workspace)
        if outcome == OPTIMAL:
            set_values(polyhedron, own, values)
            if certify_plainly(polyhedron, workspace.cost, values, workspace.dual, workspace.activity):
                status = OPTIMAL
                proven = True
                break
        right = _price_again(polyhedron, own, workspace)
        exact = True
        if outcome == OPTIMAL and right:
            if certify(polyhedron, workspace.cost, values, workspace.dual, workspace.activity, workspace.terms):
                status = OPTIMAL
                proven = True
                break
            if pivots == 0 or not factorise(polyhedron, own, workspace):
                break
            inverse = own.inverse
            pivots = 0
            price_slots(own, workspace.cost, workspace)
    return status, proven, most - left


@piece
def _set_ray(own, slot, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``workspace.ray`` to the direction in which the slot's column moves."""
    step = 1.0 if workspace.reduced[slot] < 0.0 else -1.0
    count = len(workspace.ray)
    for j in range(count):
        workspace.ray[j] = 0.0
    if own.slots[slot] < count:
        workspace.ray[own.slots[slot]] = step
    for i in range(len(own.basic)):
        if own.basic[i] < count and abs(own.table[i, slot]) > _RAY_ENTRY:
            workspace.ray[own.basic[i]] = -step * own.table[i, slot]


@piece
def _price_again(polyhedron, own, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Recompute reduced costs from A, the unperturbed costs and their dual prices; return whether all have the right
    sign up to rounding.

    Reduced costs of the size of rounding become zero: they are not worth a pivot.
    """
    count = len(workspace.cost)
    largest = 0.0
    for i in range(len(workspace.dual)):
        largest = max(largest, abs(workspace.dual[i]))
    right = True
    for k in range(len(own.slots)):
        j = own.slots[k]
        workspace.reduced[k] = 0.0
        if j == NONE:
            continue
        room_for = _EXACT_ERROR * largest
        if j < count:
            price = workspace.cost[j]
            room_for += _EXACT * abs(price)
            for at in range(polyhedron.begins[j], polyhedron.begins[j + 1]):
                part = polyhedron.entries[at] * workspace.dual[polyhedron.places[at]]
                price -= part
                room_for += _EXACT_ROUNDING * abs(part)
        else:
            price = workspace.dual[j - count]
        wrong = -price
        if own.status[j] == UPPER or (own.status[j] == ZERO and wrong < 0.0):
            wrong = -wrong
        if not 0.0 <= wrong <= room_for:
            workspace.reduced[k] = price
            right = right and wrong < 0.0
    return right


@piece
def set_values(polyhedron, own, values):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``values`` (d,) to the vertex of the basis."""
    count = len(values)
    for j in range(count):
        if own.status[j] != BASIC:
            values[j] = rest_of(polyhedron, own.status, j)
    for i in range(len(own.basic)):
        if own.basic[i] < count:
            values[own.basic[i]] = own.level[i]


@piece
def pivot_until_done(polyhedron, tableau, workspace, tolerance, pivots, most, stop):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Pivot until no reduced cost is below −``tolerance``; ``pivots`` etas are stored already.

    Return an outcome, the number of etas stored, the pivots left and the slot priced last. The outcome is OPTIMAL;
    UNBOUNDED along that slot; STALE if no more etas can be stored; or FAILED after too many pivots.
    """
    status, slots = tableau.status, tableau.slots
    stalls = 0
    outcome = FAILED
    slot = NONE
    while most > 0:
        most -= 1
        slot = _entering(status, slots, workspace.reduced, tolerance, stalls > _STALLS)
        if slot == NONE:
            outcome = OPTIMAL
            break
        if pivots == REFRESH:
            outcome = STALE
            break
        up = workspace.reduced[slot] < 0.0
        row, step, touched = _leaving(polyhedron, tableau, workspace, slot, up, stalls > _STALLS)
        if row == NONE and not step < np.inf:
            outcome = UNBOUNDED
            break
        stalls = 0 if step > 0.0 else stalls + 1
        if row == NONE:
            _flip(tableau, workspace, slot, step if up else -step, touched)
        else:
            _pivot(polyhedron, tableau, workspace, slot, row, step if up else -step, pivots, touched)
            pivots += 1
        if most % REFRESH == 0 and stop[0]:
            break
    return outcome, pivots, most, slot


@piece
def _entering(status, slots, reduced, tolerance, by_number):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the slot with the worst reduced cost, or (Bland) of the lowest column with a wrong one; else NONE."""
    chosen = NONE
    worst = tolerance
    for k in range(len(slots)):
        j = slots[k]
        if j == NONE:
            continue
        gain = -reduced[k]
        if status[j] == UPPER or (status[j] == ZERO and gain < 0.0):
            gain = -gain
        if by_number:
            if gain > tolerance and (chosen == NONE or j < slots[chosen]):
                chosen = k
        elif gain > worst:
            worst = gain
            chosen = k
    return chosen


@piece
def _leaving(polyhedron, tableau, workspace, slot, up, by_number):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the row that ends a step along ``slot``, the step's length, and how many rows it touches.

    The row is NONE if the column's own other bound ends the step, or if nothing does. Among rows that nearly tie for
    the first, it is the one with the largest entry (Harris), or with the lowest column (Bland). ``workspace.touched``
    lists the rows.
    """
    level, basic, rows = tableau.level, tableau.basic, workspace.touched
    j = tableau.slots[slot]
    own = polyhedron.upper[j] - polyhedron.lower[j]
    touched = _touch(tableau.table, slot, rows)
    within = np.inf
    for k in range(touched):
        i = rows[k]
        entry = tableau.table[i, slot] if up else -tableau.table[i, slot]
        if abs(entry) > _LEAST_PIVOT:
            bound = polyhedron.lower[basic[i]] if entry > 0.0 else polyhedron.upper[basic[i]]
            if abs(bound) < np.inf:
                slack = 0.0 if by_number else _SLACK * (1.0 + abs(bound))
                within = min(within, max((level[i] - bound) / entry, 0.0) + slack / abs(entry))
    row = NONE
    step = own
    if within < own:
        largest = 0.0
        for k in range(touched):
            i = rows[k]
            entry = tableau.table[i, slot] if up else -tableau.table[i, slot]
            # Compare before dividing.
            better = row == NONE or basic[i] < basic[row] if by_number else abs(entry) > largest
            if better and abs(entry) > _LEAST_PIVOT:
                bound = polyhedron.lower[basic[i]] if entry > 0.0 else polyhedron.upper[basic[i]]
                if abs(bound) < np.inf:
                    ratio = max((level[i] - bound) / entry, 0.0)
                    if ratio <= within:
                        largest = abs(entry)
                        step = ratio
                        row = i
    return row, step, touched


@piece
def _touch(table, slot, rows):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``rows`` to the rows where the slot's column is nonzero; return their number."""
    touched = 0
    for i in range(len(table)):
        rows[touched] = i
        touched += 1 if table[i, slot] != 0.0 else 0
    return touched


@piece
def _flip(tableau, workspace, slot, step, touched):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Move a column to its other bound."""
    for k in range(touched):
        i = workspace.touched[k]
        tableau.level[i] -= step * tableau.table[i, slot]
    j = tableau.slots[slot]
    tableau.status[j] = UPPER if tableau.status[j] == LOWER else LOWER


@piece
def _pivot(polyhedron, tableau, workspace, slot, row, step, pivots, touched):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Move the slot's column by ``step`` and make it basic in ``row``; the variable that was basic there leaves at a
    bound."""
    status, basic, slots, table, _, level = tableau
    eta, reduced, rows = workspace.etas[pivots], workspace.reduced, workspace.touched
    width = table.shape[1]
    workspace.eta_rows[pivots] = row
    entering, leaving = slots[slot], basic[row]
    value = rest_of(polyhedron, status, entering) + step
    for i in range(len(eta)):
        eta[i] = 0.0
    for k in range(touched):
        i = rows[k]
        eta[i] = table[i, slot]
        table[i, slot] = 0.0
        level[i] -= step * eta[i]
    status[entering] = BASIC
    # It leaves at the nearer bound.
    lower, upper = polyhedron.lower[leaving], polyhedron.upper[leaving]
    status[leaving] = LOWER if lower > -np.inf and not abs(level[row] - upper) < abs(level[row] - lower) else UPPER
    basic[row] = entering
    level[row] = value
    slots[slot] = leaving
    table[row, slot] = 1.0
    factor = 1.0 / eta[row]
    for k in range(width):
        table[row, k] *= factor
    for at in range(touched):
        i = rows[at]
        if i != row:
            factor = eta[i]
            for k in range(width):
                table[i, k] -= factor * table[row, k]
    factor = reduced[slot]
    reduced[slot] = 0.0
    for k in range(width):
        reduced[k] -= factor * table[row, k]
    if not lower < upper:
        slots[slot] = NONE
        reduced[slot] = 0.0
        for i in range(len(basic)):
            table[i, slot] = 0.0


@kernel
def drop_fixed(polyhedron, tableau, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Replace fixed columns in the basis by others where possible; the vertex does not change."""
    for i in range(len(tableau.basic)):
        if not polyhedron.lower[tableau.basic[i]] < polyhedron.upper[tableau.basic[i]]:
            chosen = NONE
            largest = _LEAST_PIVOT
            for k in range(len(tableau.slots)):
                if tableau.slots[k] != NONE and abs(tableau.table[i, k]) > largest:
                    largest = abs(tableau.table[i, k])
                    chosen = k
            if chosen != NONE:
                touched = _touch(tableau.table, chosen, workspace.touched)
                _pivot(polyhedron, tableau, workspace, chosen, i, 0.0, 0, touched)


class Tableau(NamedTuple):
    """One basis: status of columns (d + m,), basic column of each row (m,), column of each slot or NONE (K,), B⁻¹N over
    slots (m, K), B⁻¹ of the start (m, m), and values of the basic variables (m,)."""

    status: NDArray[np.int8]
    basic: Index
    slots: Index
    table: Array
    inverse: Array
    level: Array


class PrimalWorkspace(NamedTuple):
    """For one cost: reduced costs of slots (K,), dual prices (m,), entering columns of the pivots (REFRESH, m) and
    their rows (REFRESH,), rows that a step touches (m + 1,), two arrays by rows (m,), the true and the perturbed cost
    (d,), and a ray (d,)."""

    reduced: Array
    dual: Array
    etas: Array
    eta_rows: Index
    touched: Index
    activity: Array
    terms: Array
    cost: Array
    nudged: Array
    ray: Array


def workspace_of(rows: int, count: int, width: int) -> PrimalWorkspace:
    return PrimalWorkspace(
        np.empty(width),
        np.empty(rows),
        np.empty((REFRESH, rows)),
        np.empty(REFRESH, dtype=np.int64),
        np.empty(rows + 1, dtype=np.int64),
        np.empty(rows),
        np.empty(rows),
        np.empty(count),
        np.empty(count),
        np.empty(count),
    )


def tableau_of(rows: int, count: int, width: int) -> Tableau:
    """Return an empty tableau."""
    return Tableau(
        np.zeros(count + rows, dtype=np.int8),
        np.empty(rows, dtype=np.int64),
        np.empty(width, dtype=np.int64),
        np.empty((rows, width)),
        np.empty((rows, rows)),
        np.empty(rows),
    )


@piece
def rest_of(polyhedron, status, j):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return the value of a nonbasic column."""
    value = 0.0
    if status[j] == LOWER:
        value = polyhedron.lower[j]
    elif status[j] == UPPER:
        value = polyhedron.upper[j]
    return value


@piece
def _set_column(polyhedron, inverse, j, column):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``column`` (m,) to B⁻¹ times column j."""
    rows = len(column)
    count = len(polyhedron.begins) - 1
    for i in range(rows):
        column[i] = 0.0
    if j < count:
        for at in range(polyhedron.begins[j], polyhedron.begins[j + 1]):
            entry = polyhedron.entries[at]
            row = polyhedron.places[at]
            for i in range(rows):
                column[i] += inverse[i, row] * entry
    else:
        for i in range(rows):
            column[i] = -inverse[i, j - count]


@kernel
def factorise(polyhedron, tableau, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Compute the tableau from ``status``; return whether that is a basis whose vertex keeps all bounds."""
    status, basic, slots, table, inverse, _ = tableau
    rows, count = len(basic), len(polyhedron.begins) - 1
    column = workspace.activity
    for i in range(rows):
        basic[i] = NONE
        for k in range(rows):
            inverse[i, k] = 0.0
        inverse[i, i] = -1.0
    result = 0
    filled = 0
    for k in range(len(slots)):
        slots[k] = NONE
    for j in range(count + rows):
        lower, upper = polyhedron.lower[j], polyhedron.upper[j]
        if status[j] == BASIC:
            result += 1
            if j >= count:
                basic[j - count] = j
            continue
        if not (status[j] == UPPER and upper < np.inf):
            status[j] = LOWER if lower > -np.inf else (UPPER if upper < np.inf else ZERO)
        if lower < upper:
            if filled < len(slots):
                slots[filled] = j
            filled += 1
    if result != rows or filled > len(slots):
        return False
    for j in range(count):
        if status[j] != BASIC:
            continue
        _set_column(polyhedron, inverse, j, column)
        pivot = NONE
        largest = _LEAST_INVERTED
        for i in range(rows):
            if basic[i] == NONE and abs(column[i]) > largest:
                largest = abs(column[i])
                pivot = i
        if pivot == NONE:
            return False
        basic[pivot] = j
        factor = 1.0 / column[pivot]
        for k in range(rows):
            inverse[pivot, k] *= factor
        for i in range(rows):
            factor = column[i]
            if i != pivot and factor != 0.0:
                for k in range(rows):
                    inverse[i, k] -= factor * inverse[pivot, k]
    for k in range(len(slots)):
        if slots[k] == NONE:
            for i in range(rows):
                table[i, k] = 0.0
        else:
            _set_column(polyhedron, inverse, slots[k], column)
            for i in range(rows):
                table[i, k] = column[i]
    return _set_level(polyhedron, tableau, column, workspace.terms)


@piece
def _set_level(polyhedron, tableau, rhs, terms):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set x_B = −B⁻¹ N x_N; return whether it is within bounds."""
    status, basic, level = tableau.status, tableau.basic, tableau.level
    rows, count = len(basic), len(polyhedron.begins) - 1
    for i in range(rows):
        rhs[i] = 0.0 if status[count + i] == BASIC else rest_of(polyhedron, status, count + i)
        terms[i] = abs(rhs[i])
    for j in range(count):
        if status[j] != BASIC:
            value = rest_of(polyhedron, status, j)
            if value != 0.0:
                for at in range(polyhedron.begins[j], polyhedron.begins[j + 1]):
                    part = polyhedron.entries[at] * value
                    rhs[polyhedron.places[at]] -= part
                    terms[polyhedron.places[at]] += abs(part)
    inside = True
    for i in range(rows):
        value = 0.0
        size = 0.0
        for k in range(rows):
            value += tableau.inverse[i, k] * rhs[k]
            size += abs(tableau.inverse[i, k]) * terms[k]
        level[i] = value
        lower, upper = polyhedron.lower[basic[i]], polyhedron.upper[basic[i]]
        if not (value >= lower - _FEASIBLE * size and value <= upper + _FEASIBLE * size):
            inside = False
    return inside


@piece
def add_rows(weights, matrix, total):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add ``weights`` (m,) times ``matrix`` (m, K) to ``total`` (K,), four rows per pass over ``total``."""
    rows, width = matrix.shape
    fours = rows - rows % 4
    for i in range(0, fours, 4):
        a, b, c, d = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        if a != 0.0 or b != 0.0 or c != 0.0 or d != 0.0:
            for k in range(width):
                total[k] += (a * matrix[i, k] + b * matrix[i + 1, k]) + (c * matrix[i + 2, k] + d * matrix[i + 3, k])
    for i in range(fours, rows):
        a = weights[i]
        for k in range(width):
            total[k] += a * matrix[i, k]


@piece
def price_slots(tableau, cost, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set the reduced costs of slots from the tableau; activities cost nothing."""
    count = len(cost)
    for k in range(len(workspace.reduced)):
        j = tableau.slots[k]
        workspace.reduced[k] = cost[j] if 0 <= j < count else 0.0
    for i in range(len(tableau.basic)):
        j = tableau.basic[i]
        workspace.activity[i] = -cost[j] if j < count else 0.0
    add_rows(workspace.activity, tableau.table, workspace.reduced)


@piece
def set_dual(tableau, inverse, cost, pivots, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``workspace.dual`` to c_B'B⁻¹, from the start's ``inverse`` and the pivots since."""
    dual, price = workspace.dual, workspace.activity
    rows, count = len(dual), len(cost)
    for i in range(rows):
        price[i] = cost[tableau.basic[i]] if tableau.basic[i] < count else 0.0
        dual[i] = 0.0
    for back in range(pivots):
        e = pivots - 1 - back
        at = workspace.eta_rows[e]
        pivot = workspace.etas[e, at]
        amount = price[at] * (1.0 + pivot)
        for i in range(rows):
            amount -= price[i] * workspace.etas[e, i]
        price[at] = amount / pivot
    add_rows(price, inverse, dual)
