"""Cutting planes for min over z in Z of c'z + ρ(Q(z, y_1), …, Q(z, y_K)), with ρ an expectation, a CVaR or a mix.

At a point z every scenario's recourse value and dual are exact (:mod:`bco_core.solvers.basis_pool`), and each scenario
keeps its basis from one point to the next, so most of them need only a check. Weighted by the scenarios' probabilities,
shifted to the worst ones for CVaR, the duals give one cut, a plane below the objective. The master program
(:mod:`bco_core.solvers.master`) is the minimum over the cuts so far. Points are
taken half-way between the best point and the master's (the in-out rule of Ben-Ameur and Neto), except where that would
tell nothing new.

The duals of every cut are checked against the costs as they are, as are rays that prove a scenario infeasible; so the
master's value is a lower bound, which is recomputed at the end. The objective that comes with it rests on bases that
are not certified: whoever calls this certifies it anew at the point found, and compares.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
    kernel,
    piece,
    proves_infeasible,
    set_dual,
)
from bco_core.solvers.linear_form import Array
from bco_core.solvers.master import (
    BROKEN,
    CLOSED,
    WIDE,
    FirstStage,
    begin_with_cut,
    certified_bound,
    close_gap,
    new_master,
    sharpen,
    sharpen_master,
)

__all__ = ["FirstStage", "Recourse", "RiskOf", "Scenarios", "minimize"]

GAP = 1e-7
MAXIMUM_CUTS = 600
# How the search ended: with the gap closed, without any decision that keeps the rows, with the gap open, out of time.
CONVERGED, NO_DECISION, OPEN, STOPPED = 0, 1, 2, 3
# After so many pivots a scenario's B⁻¹ is sharpened; after so many points the master's, so many times.
_REFRESH = 60
_MASTER_REFRESH, _MASTER_REFRESHES = 50, 20
# In place of the number of pivots: the duals are not known yet.
_NEW = -1
# The master's point stands still if it moves by no more than this share.
_STILL = 1e-9


class Scenarios(NamedTuple):
    """K right-hand sides of the recourse: ``base`` (K, m) at z = 0, ``size`` (K, m) of the terms they are sums of,
    ``slope`` (m, d) that z takes off them, and ``weights`` (K,)."""

    base: Array
    size: Array
    slope: Array
    weights: Array


class Recourse(NamedTuple):
    """The recourse program's matrix (m, N), cost (N,) and least cost, P of its bases: columns, B⁻¹ and reduced costs.

    ``start`` (K,) is the basis that each scenario begins with.
    """

    matrix: Array
    cost: Array
    least_cost: float
    columns: Index
    inverse: Array
    reduced: Array
    start: Index


class RiskOf(NamedTuple):
    """(1 − weight)·E + weight·CVaR_level."""

    weight: float
    level: float


class _Held(NamedTuple):
    """What each scenario keeps from one point to the next: its basis, duals (K, m), value (K,), and pivots since B⁻¹
    was sharp (K,)."""

    tableaus: Tableaus
    dual: Array
    value: Array
    pivots: Index


class _Room(NamedTuple):
    """Room for one scenario: its right-hand side and its terms' size, what z takes off them, a pivot, B."""

    rhs: Array
    size: Array
    taken: Array
    taken_size: Array
    pivoting: Room
    whole: Array
    scratch: Array


@piece
def risk_weights(values, weights, cvar_weight, cvar_level, order, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The probabilities whose mean of ``values`` is (1 − w)·E + w·CVaR; they sum to one.

    ``order`` is some order of the values and is left as the decreasing one, a good start for the next call.
    """
    count = len(values)
    for k in range(count):
        out[k] = (1.0 - cvar_weight) * weights[k]
    if cvar_weight > 0.0:
        step = 1
        while step < count // 3:
            step = 3 * step + 1
        while step > 0:
            for i in range(step, count):
                k = order[i]
                j = i
                while j >= step and values[order[j - step]] < values[k]:
                    order[j] = order[j - step]
                    j -= step
                order[j] = k
            step //= 3
        left = 1.0 - cvar_level
        for i in range(count):
            k = order[i]
            taken = min(weights[k], left)
            out[k] += cvar_weight * taken / (1.0 - cvar_level)
            left -= taken
            if left <= 0.0:
                break


@kernel
def minimize(scenarios, recourse, first, risk, gap, tolerance, stop):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The best z found, its objective, a lower bound, how it ended, and the number of points looked at.

    ``stop`` (1,) is not zero once there is no more time.
    """
    dim = len(first.cost)
    held = _hold(recourse)
    room = _room(recourse.matrix)
    order = np.arange(len(scenarios.weights))
    shares = np.empty(len(scenarios.weights))
    master, used, reach = new_master(first, MAXIMUM_CUTS)
    z = master.multipliers
    best, point, before = first.begin.copy(), first.begin.copy(), np.zeros(dim)
    square, square_scratch = np.empty((dim + 1, dim + 1)), np.empty((dim + 1, dim + 1))
    best_value = np.inf
    ready = False
    points = 0
    refreshes = 0
    while used < len(master.profit):
        if stop[0]:
            return best, best_value, -np.inf, STOPPED, points
        points += 1
        status, scenario, ray = _solve_scenarios(scenarios, recourse, point, tolerance, held, room)
        if status == FAILED:
            return best, best_value, -np.inf, OPEN, points
        if status == INFEASIBLE:
            _add_row(scenarios, scenario, held.tableaus.inverse[scenario, ray], master, used)
        else:
            risk_weights(held.value, scenarios.weights, risk.weight, risk.level, order, shares)
            cost = _add_cut(scenarios, held, shares, first.cost, point, room.taken, master, used)
            if cost < best_value:
                best_value = cost
                for j in range(dim):
                    best[j] = point[j]
            if not ready:
                begin_with_cut(master, used)
                ready = True
        used += 1
        if not ready:
            # The point to begin with leaves a scenario without recourse: there is no cut to build a master on.
            return best, best_value, -np.inf, OPEN, points
        for j in range(dim):
            before[j] = z[j]
        stands, _, reach = close_gap(master, used, first, best_value, gap, reach)
        if stands == CLOSED:
            return best, best_value, certified_bound(master, best, square, square_scratch), CONVERGED, points
        if stands != WIDE:
            return best, best_value, -np.inf, NO_DECISION if stands == BROKEN else OPEN, points
        if points % _MASTER_REFRESH == 0 and refreshes < _MASTER_REFRESHES:
            refreshes += 1
            sharpen_master(master, square, square_scratch)
        still = True
        for j in range(dim):
            if abs(before[j] - z[j]) > _STILL * (1.0 + abs(z[j])):
                still = False
        halfway = not (still or best_value == np.inf)
        for j in range(dim):
            point[j] = 0.5 * (best[j] + z[j]) if halfway else z[j]
    return best, best_value, -np.inf, OPEN, points


@piece
def _hold(recourse):  # type: ignore[no-untyped-def]  # pragma: no cover
    """A copy of the basis that each scenario begins with."""
    count = len(recourse.start)
    rows, total = recourse.matrix.shape[0], recourse.reduced.shape[1]
    columns = np.empty((count, rows), dtype=np.int64)
    inverse = np.empty((count, rows, rows))
    reduced = np.empty((count, total))
    for k in range(count):
        at = recourse.start[k]
        for i in range(rows):
            columns[k, i] = recourse.columns[at, i]
            for j in range(rows):
                inverse[k, i, j] = recourse.inverse[at, i, j]
        for j in range(total):
            reduced[k, j] = recourse.reduced[at, j]
    pivots = np.full(count, _NEW)
    return _Held(Tableaus(columns, inverse, reduced), np.zeros((count, rows)), np.empty(count), pivots)


@piece
def _room(matrix):  # type: ignore[no-untyped-def]  # pragma: no cover
    rows, count = matrix.shape
    return _Room(
        np.empty(rows),
        np.empty(rows),
        np.empty(rows),
        np.empty(rows),
        Room(np.empty(rows), np.empty(count + rows), np.empty(rows), np.empty(count + rows)),
        np.empty((rows, rows)),
        np.empty((rows, rows)),
    )


@piece
def _solve_scenarios(scenarios, recourse, point, tolerance, held, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Value and duals of every scenario at the point: OPTIMAL; or FAILED, or INFEASIBLE with the first scenario
    without a recourse and the row of its B⁻¹ that proves it."""
    rows, dim = scenarios.slope.shape
    for i in range(rows):
        room.taken[i] = 0.0
        room.taken_size[i] = 0.0
        for j in range(dim):
            part = scenarios.slope[i, j] * point[j]
            room.taken[i] += part
            room.taken_size[i] += abs(part)
    for k in range(len(held.pivots)):
        for i in range(rows):
            room.rhs[i] = scenarios.base[k, i] - room.taken[i]
            room.size[i] = scenarios.size[k, i] + room.taken_size[i]
        if held.pivots[k] > _REFRESH:
            sharpen_scenario(recourse.matrix, held, k, room)
        moved = 0
        if not is_optimal(held.tableaus.inverse[k], room.rhs, room.size, tolerance, room.pivoting.basic):
            status, moved = continue_dual_simplex(
                held.tableaus, k, room.size, recourse.matrix, tolerance, room.pivoting
            )
            if status == INFEASIBLE and not proves_infeasible(
                held.tableaus.inverse[k, moved], recourse.matrix, room.rhs, room.size, room.pivoting
            ):
                status = FAILED
            if status != OPTIMAL:
                held.pivots[k] = _NEW
                return status, k, moved
        if moved > 0 or held.pivots[k] == _NEW:
            held.pivots[k] = max(held.pivots[k], 0) + moved
            set_dual(held.tableaus.columns[k], held.tableaus.inverse[k], recourse.cost, held.dual[k])
            if not dual_feasible(held.dual[k], recourse.matrix, recourse.cost, recourse.least_cost, room.pivoting):
                return FAILED, k, moved
        total = 0.0
        for i in range(rows):
            total += held.dual[k, i] * room.rhs[i]
        held.value[k] = total
    return OPTIMAL, 0, 0


@piece
def sharpen_scenario(matrix, held, k, room):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take the rounding of many pivots off a scenario's B⁻¹."""
    rows, count = matrix.shape
    for i in range(rows):
        column = held.tableaus.columns[k, i]
        for j in range(rows):
            room.whole[j, i] = matrix[j, column] if column < count else 0.0
        if column >= count:
            room.whole[column - count, i] = -1.0
    sharpen(held.tableaus.inverse[k], room.whole, room.scratch)
    held.pivots[k] = 0


@piece
def _add_row(scenarios, k, ray, master, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """σ = −ray proves that z must keep σ'(base − slope z) ≤ 0: one more row of Z, in column ``at`` of the master."""
    rows, dim = scenarios.slope.shape
    for j in range(dim):
        total = 0.0
        for i in range(rows):
            total -= ray[i] * scenarios.slope[i, j]
        master.columns[at, j] = total
    amount = 0.0
    for i in range(rows):
        amount -= ray[i] * scenarios.base[k, i]
    master.profit[at] = amount


@piece
def _add_cut(scenarios, held, shares, first_cost, point, mean_dual, master, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The plane through the objective at the point, in column ``at`` of the master; gives the objective."""
    rows, dim = scenarios.slope.shape
    value = 0.0
    for i in range(rows):
        mean_dual[i] = 0.0
    for k in range(len(shares)):
        if shares[k] > 0.0:
            value += shares[k] * held.value[k]
            for i in range(rows):
                mean_dual[i] += shares[k] * held.dual[k, i]
    intercept = value
    cost = value
    for j in range(dim):
        total = 0.0
        for i in range(rows):
            total -= mean_dual[i] * scenarios.slope[i, j]
        master.columns[at, j] = -total
        intercept -= total * point[j]
        cost += first_cost[j] * point[j]
    master.columns[at, dim] = 1.0
    master.profit[at] = intercept
    return cost
