"""Scenarios that each have their own costs and technology, at one point after the other of cutting planes.

A scenario keeps a basis that is dual feasible for its costs, and dual simplex goes on from it. What a point costs gives
a plane below the objective, one that leaves a scenario without recourse a row that points must keep; both are columns
of the master program (:mod:`bco_core.solvers.master`).
"""

from __future__ import annotations

from typing import NamedTuple

from bco_core.solvers.cuts import sharpen_scenario
from bco_core.solvers.dual_simplex import (
    FAILED,
    INFEASIBLE,
    OPTIMAL,
    Index,
    Room,
    Tableaus,
    continue_dual_simplex,
    dual_feasible,
    is_optimal,
    piece,
    proves_infeasible,
    set_dual,
)
from bco_core.solvers.linear_form import Array

# As in the cuts: pivots after which an inverse is sharpened, and duals that are not known yet.
_REFRESH = 60
NEW = -1


class Scenarios(NamedTuple):
    """K right-hand sides ``base`` (K, m) at z = 0 with the ``size`` of their terms, ``slope`` (K or 1, m, d) that z
    takes off them, costs (K, N) and the least of each, what each costs by itself (K,), how much each one's costs of
    decisions are above the mean (K or 0, d), and weights (K,)."""

    base: Array
    size: Array
    slope: Array
    cost: Array
    least_cost: Array
    base_cost: Array
    above: Array
    weights: Array


class Held(NamedTuple):
    """What each scenario keeps from one point to the next: its basis, duals (K, m), cost (K,), and pivots since B⁻¹
    was sharp (K,)."""

    tableaus: Tableaus
    dual: Array
    value: Array
    pivots: Index


class Working(NamedTuple):
    """Room for one scenario: its right-hand side and the size of its terms, a pivot, B."""

    rhs: Array
    size: Array
    pivoting: Room
    whole: Array
    scratch: Array


@piece
def _set_rhs(scenarios, k, point, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """A scenario's right-hand side at the point; gives what its costs of decisions are above the mean there."""
    rows, dim = scenarios.slope.shape[1:]
    at = k if len(scenarios.slope) > 1 else 0
    for i in range(rows):
        taken = 0.0
        taken_size = 0.0
        for j in range(dim):
            part = scenarios.slope[at, i, j] * point[j]
            taken += part
            taken_size += abs(part)
        room.rhs[i] = scenarios.base[k, i] - taken
        room.size[i] = scenarios.size[k, i] + taken_size
    more = scenarios.base_cost[k]
    if len(scenarios.above) > 0:
        for j in range(dim):
            more += scenarios.above[k, j] * point[j]
    return more


@piece
def solve_scenarios(scenarios, matrix, point, tolerance, held, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Cost and duals of every scenario at the point: OPTIMAL; or FAILED, or INFEASIBLE with the first scenario
    without a recourse and the row of its B⁻¹ that proves it."""
    rows = len(matrix)
    for k in range(len(held.pivots)):
        total = _set_rhs(scenarios, k, point, room)
        if held.pivots[k] > _REFRESH:
            sharpen_scenario(matrix, held, k, room)
        moved = 0
        if not is_optimal(held.tableaus.inverse[k], room.rhs, room.size, tolerance, room.pivoting.basic):
            status, moved = continue_dual_simplex(held.tableaus, k, room.size, matrix, tolerance, room.pivoting)
            if status == INFEASIBLE and not proves_infeasible(
                held.tableaus.inverse[k, moved], matrix, room.rhs, room.size, room.pivoting
            ):
                status = FAILED
            if status != OPTIMAL:
                held.pivots[k] = NEW
                return status, k, moved
        if moved > 0 or held.pivots[k] == NEW:
            held.pivots[k] = max(held.pivots[k], 0) + moved
            set_dual(held.tableaus.columns[k], held.tableaus.inverse[k], scenarios.cost[k], held.dual[k])
            if not dual_feasible(held.dual[k], matrix, scenarios.cost[k], scenarios.least_cost[k], room.pivoting):
                return FAILED, k, moved
        for i in range(rows):
            total += held.dual[k, i] * room.rhs[i]
        held.value[k] = total
    return OPTIMAL, 0, 0


@piece
def bound_scenarios(scenarios, matrix, point, held, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Duals of every scenario as they are, and with them what it costs at least; whether all are dual feasible."""
    feasible = True
    for k in range(len(held.pivots)):
        total = _set_rhs(scenarios, k, point, room)
        set_dual(held.tableaus.columns[k], held.tableaus.inverse[k], scenarios.cost[k], held.dual[k])
        if not dual_feasible(held.dual[k], matrix, scenarios.cost[k], scenarios.least_cost[k], room.pivoting):
            feasible = False
        for i in range(len(matrix)):
            total += held.dual[k, i] * room.rhs[i]
        held.value[k] = total
    return feasible


@piece
def add_row(scenarios, k, ray, master, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """σ = −ray proves that z must keep σ'(base − slope z) ≤ 0: one more row of Z, in column ``at`` of the master."""
    rows, dim = scenarios.slope.shape[1:]
    own = k if len(scenarios.slope) > 1 else 0
    for j in range(dim + 1):
        master.columns[at, j] = 0.0
    amount = 0.0
    for i in range(rows):
        amount -= ray[i] * scenarios.base[k, i]
        if ray[i] != 0.0:
            for j in range(dim):
                master.columns[at, j] -= ray[i] * scenarios.slope[own, i, j]
    master.profit[at] = amount


@piece
def add_cut(scenarios, held, shares, first_cost, point, master, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The plane through the objective at the point, in column ``at`` of the master; gives the objective."""
    rows, dim = scenarios.slope.shape[1:]
    plane = master.columns[at]
    for j in range(dim):
        plane[j] = 0.0
    value = 0.0
    for k in range(len(shares)):
        if shares[k] > 0.0:
            value += shares[k] * held.value[k]
            own = k if len(scenarios.slope) > 1 else 0
            for i in range(rows):
                factor = shares[k] * held.dual[k, i]
                if factor != 0.0:
                    for j in range(dim):
                        plane[j] += factor * scenarios.slope[own, i, j]
            if len(scenarios.above) > 0:
                for j in range(dim):
                    plane[j] -= shares[k] * scenarios.above[k, j]
    cost = value
    for j in range(dim):
        value += plane[j] * point[j]
        cost += first_cost[j] * point[j]
    plane[dim] = 1.0
    master.profit[at] = value
    return cost
