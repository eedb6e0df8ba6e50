"""Cutting planes for min over z in Z of ρ_k(c_k'z + Q_k(z)) where every scenario has its own costs and technology,

    Q_k(z) = min q_k'x   s.t.   W x (sense) h_k − T_k z,   l ≤ x ≤ u.

Within one run q_k and T_k stay what they are while z moves. So a scenario's basis, once dual feasible for q_k
(:mod:`bco_core.solvers.random_recourse` finds it at the first point), stays so, and everything else is as in
:mod:`bco_core.solvers.cuts`: dual simplex from point to point and one cut of all scenarios' duals
(:mod:`bco_core.solvers.random_scenarios`), a master program, and points on the way to the master's. Duals of every cut
are checked against q_k as it is, so the bound is proven; the objective is not, and whoever calls this certifies it
anew.

Duals that are feasible give a cut even where they are not optimal: so the master has a first cut although the point to
begin with leaves a scenario without recourse.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bco_core import deadline
from bco_core.solvers.cuts import CONVERGED, MAXIMUM_CUTS, NO_DECISION, OPEN, STOPPED, FirstStage, RiskOf, risk_weights
from bco_core.solvers.dual_simplex import FAILED, INFEASIBLE, OPTIMAL, TOLERANCE, UNBOUNDED, Room, Tableaus, kernel
from bco_core.solvers.linear_form import Array
from bco_core.solvers.master import (
    BROKEN,
    CLOSED,
    WIDE,
    begin_with_cut,
    certified_bound,
    close_gap,
    new_master,
    sharpen_master,
)
from bco_core.solvers.random_recourse import RandomRecourse
from bco_core.solvers.random_scenarios import (
    NEW,
    Held,
    Scenarios,
    Working,
    add_cut,
    add_row,
    bound_scenarios,
    solve_scenarios,
)

__all__ = [
    "BOUNDLESS",
    "CONVERGED",
    "NO_DECISION",
    "OPEN",
    "STOPPED",
    "FirstStage",
    "Found",
    "RiskOf",
    "Stages",
    "minimize",
]

# How the search may end beside what :mod:`bco_core.solvers.cuts` says: a scenario's cost falls without limit.
BOUNDLESS = 4
# As in the cuts: when the master's inverse is sharpened, and what counts as standing still.
_MASTER_REFRESH, _MASTER_REFRESHES = 50, 20
_STILL = 1e-9
# How much of the way from the best point to the master's is gone: fewer bases change than half-way.
_STEP = 0.3
# The best value while there is no point that leaves every scenario a recourse: any master is below it.
_NONE_YET = 1e300


class Stages(NamedTuple):
    """K scenarios as a planner has them: recourse costs (K, columns), limits (K, rows), technology (K, rows, d) or
    (1, rows, d) where it is certain, costs of decisions (K, d), and weights (K,) that sum to one."""

    recourse_cost: Array
    limits: Array
    technology: Array
    cost: Array
    weights: Array


class Found(NamedTuple):
    """The best decision (d,) and its objective, not certified; a proven lower bound, −∞ if none; how it ended, the
    number of points looked at, and the scenario that ended it, −1 if none did."""

    decision: Array
    objective: float
    bound: float
    ended: int
    points: int
    scenario: int = -1


def minimize(
    recourse: RandomRecourse, stages: Stages, first: FirstStage, risk: RiskOf, gap: float, stop: deadline.Flag
) -> Found:
    """Minimise over the scenarios that have a weight.

    ``first.cost`` is not looked at: what decisions cost is in ``stages``. ``stop`` (1,) is not zero once there is no
    more time.
    """
    heavy = stages.weights > 0
    if not heavy.all():
        kept = [part[heavy] if len(part) == len(heavy) else part for part in stages]
        found = minimize(recourse, Stages(*kept), first, risk, gap, stop)
        place = np.flatnonzero(heavy)
        return found if found.scenario < 0 else found._replace(scenario=int(place[found.scenario]))
    form, count = recourse.form, len(stages.weights)
    rows, columns = form.matrix.shape
    taken = stages.technology @ first.begin
    here = recourse.pairs(stages.recourse_cost, stages.limits - taken, np.abs(stages.technology) @ np.abs(first.begin))
    tableaus = Tableaus(
        np.empty((count, rows), dtype=np.int64), np.empty((count, rows, rows)), np.empty((count, columns + rows))
    )
    begun = recourse.solve_pairs(here, tableaus)
    for status, ended in ((UNBOUNDED, BOUNDLESS), (FAILED, OPEN)):
        if (begun.status == status).any():
            return Found(first.begin, np.nan, -np.inf, ended, 0, int((begun.status == status).argmax()))
    base, size = form.rhs(stages.limits)
    mean = stages.weights @ stages.cost
    above = np.ascontiguousarray(stages.cost - mean) if risk.weight > 0 else np.empty((0, len(mean)))
    scenarios = Scenarios(
        base,
        size,
        np.ascontiguousarray(form.by_limit @ stages.technology),
        here.cost,
        here.least_cost,
        here.base_cost,
        above if above.any() else np.empty((0, len(mean))),
        np.ascontiguousarray(stages.weights),
    )
    return Found(*_minimize(scenarios, form.matrix, tableaus, first._replace(cost=mean), risk, gap, TOLERANCE, stop))


@kernel
def _minimize(scenarios, matrix, tableaus, first, risk, gap, tolerance, stop):  # type: ignore[no-untyped-def]  # pragma: no cover
    """The numbers of :class:`Found`; the tableaus, dual feasible for each scenario's costs, are pivoted in place."""
    dim = len(first.cost)
    rows, columns = matrix.shape
    count = len(scenarios.weights)
    held = Held(tableaus, np.zeros((count, rows)), np.empty(count), np.full(count, NEW))
    room = Working(
        np.empty(rows),
        np.empty(rows),
        Room(np.empty(rows), np.empty(columns + rows), np.empty(rows), np.empty(columns + rows)),
        np.empty((rows, rows)),
        np.empty((rows, rows)),
    )
    order = np.arange(count)
    shares = np.empty(count)
    master, used, reach = new_master(first, MAXIMUM_CUTS)
    z = master.multipliers
    best, point, before = first.begin.copy(), first.begin.copy(), np.zeros(dim)
    square, square_scratch = np.empty((dim + 1, dim + 1)), np.empty((dim + 1, dim + 1))
    best_value = np.inf
    ready = False
    points = 0
    refreshes = 0
    while used < len(master.profit) - 1:
        if stop[0]:
            return best, best_value, -np.inf, STOPPED, points
        points += 1
        status, scenario, ray = solve_scenarios(scenarios, matrix, point, tolerance, held, room)
        if status == FAILED:
            return best, best_value, -np.inf, OPEN, points
        if not ready and status == INFEASIBLE and not bound_scenarios(scenarios, matrix, point, held, room):
            return best, best_value, -np.inf, OPEN, points
        if not ready or status == OPTIMAL:
            risk_weights(held.value, scenarios.weights, risk.weight, risk.level, order, shares)
            cost = add_cut(scenarios, held, shares, first.cost, point, master, used)
            if not ready:
                begin_with_cut(master, used)
                ready = True
            if status == OPTIMAL and cost < best_value:
                best_value = cost
                for j in range(dim):
                    best[j] = point[j]
            used += 1
        if status == INFEASIBLE:
            add_row(scenarios, scenario, held.tableaus.inverse[scenario, ray], master, used)
            used += 1
        for j in range(dim):
            before[j] = z[j]
        stands, _, reach = close_gap(master, used, first, min(best_value, _NONE_YET), gap, reach)
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
        step = 1.0 if still or best_value == np.inf else _STEP
        for j in range(dim):
            point[j] = step * z[j] + (1.0 - step) * best[j]
    return best, best_value, -np.inf, OPEN, points
