"""The primal simplex method with bounds on a dense tableau, compiled (:mod:`bco_core.solvers.primal_tableau`)."""

from __future__ import annotations

import numpy as np

from bco_core.solvers.dual_simplex import FAILED, NONE, OPTIMAL, kernel, piece
from bco_core.solvers.primal_tableau import BASIC, LOWER, REFRESH, UPPER, ZERO, rest_of

# Outcomes of pivoting beside OPTIMAL and FAILED.
UNBOUNDED, STALE = 3, 4
# The most pivots of one solve.
PIVOTS_PER_ROW, PIVOTS_MORE = 50, 200
# A pivot's entry is at least this.
_LEAST_PIVOT = 1e-7
# How far basic variables may be beyond their bounds, as a share of the bound, while columns are chosen.
_ROOM = 1e-11
# Steps without gain after which columns are taken by their number (Bland), which cannot cycle.
_STALLS = 30


@piece
def pivot_until_done(polyhedron, tableau, room, tolerance, pivots, most, rung):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Pivot until no reduced cost is below −``tolerance``, with ``pivots`` etas in the room already.

    Gives an outcome, the etas in the room, the pivots left and the slot last priced: OPTIMAL; UNBOUNDED along that
    slot; STALE when the room for etas is full; FAILED when there were too many pivots.
    """
    status, slots = tableau.status, tableau.slots
    stalls = 0
    outcome = FAILED
    slot = NONE
    while most > 0:
        most -= 1
        slot = _entering(status, slots, room.reduced, tolerance, stalls > _STALLS)
        if slot == NONE:
            outcome = OPTIMAL
            break
        if pivots == REFRESH:
            outcome = STALE
            break
        up = room.reduced[slot] < 0.0
        row, step, touched = _leaving(polyhedron, tableau, room, slot, up, stalls > _STALLS)
        if row == NONE and not step < np.inf:
            outcome = UNBOUNDED
            break
        stalls = 0 if step > 0.0 else stalls + 1
        if row == NONE:
            _flip(tableau, room, slot, step if up else -step, touched)
        else:
            _pivot(polyhedron, tableau, room, slot, row, step if up else -step, pivots, touched)
            pivots += 1
        if most % REFRESH == 0 and rung[0]:
            break
    return outcome, pivots, most, slot


@piece
def _entering(status, slots, reduced, tolerance, by_number):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The slot with the worst reduced cost, or the one of the lowest column with a wrong one; NONE without any."""
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
def _leaving(polyhedron, tableau, room, slot, up, by_number):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The row that ends a step along ``slot``, its length, and how many rows the step touches (``room.touched``).

    The row is NONE if the column's own other bound ends the step, or nothing does. Of rows within a hair of the first,
    it is the one with the largest entry (Harris), or with the lowest column (Bland).
    """
    level, basic, rows = tableau.level, tableau.basic, room.touched
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
                slack = 0.0 if by_number else _ROOM * (1.0 + abs(bound))
                within = min(within, max((level[i] - bound) / entry, 0.0) + slack / abs(entry))
    row = NONE
    step = own
    if within < own:
        largest = 0.0
        for k in range(touched):
            i = rows[k]
            entry = tableau.table[i, slot] if up else -tableau.table[i, slot]
            # What is no better need not be divided.
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
    """``rows`` becomes where the slot's column is not zero: how many they are."""
    touched = 0
    for i in range(len(table)):
        rows[touched] = i
        touched += 1 if table[i, slot] != 0.0 else 0
    return touched


@piece
def _flip(tableau, room, slot, step, touched):  # type: ignore[no-untyped-def]  # pragma: no cover
    """A column goes to its other bound."""
    for k in range(touched):
        i = room.touched[k]
        tableau.level[i] -= step * tableau.table[i, slot]
    j = tableau.slots[slot]
    tableau.status[j] = UPPER if tableau.status[j] == LOWER else LOWER


@piece
def _pivot(polyhedron, tableau, room, slot, row, step, pivots, touched):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The slot's column moves by ``step`` and becomes basic in ``row``; what was basic there stops at a bound."""
    status, basic, slots, table, _, level = tableau
    eta, reduced, rows = room.etas[pivots], room.reduced, room.touched
    width = table.shape[1]
    room.eta_rows[pivots] = row
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
    # It leaves at the bound that it is at.
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
def drop_fixed(polyhedron, tableau, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take columns that cannot move out of the basis, where another can take their place; the vertex stays."""
    for i in range(len(tableau.basic)):
        if not polyhedron.lower[tableau.basic[i]] < polyhedron.upper[tableau.basic[i]]:
            chosen = NONE
            largest = _LEAST_PIVOT
            for k in range(len(tableau.slots)):
                if tableau.slots[k] != NONE and abs(tableau.table[i, k]) > largest:
                    largest = abs(tableau.table[i, k])
                    chosen = k
            if chosen != NONE:
                touched = _touch(tableau.table, chosen, room.touched)
                _pivot(polyhedron, tableau, room, chosen, i, 0.0, 0, touched)
