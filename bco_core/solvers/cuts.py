"""Cutting planes for min over z in Z of ρ_k(c_k'z + Q_k(z)), with ρ an expectation, a CVaR or a mix, and recourse

    Q_k(z) = min q_k'x   s.t.   W x (sense) h_k − T_k z,   l ≤ x ≤ u.

Each scenario keeps a basis that is dual feasible for its costs q_k. Costs do not change with z, so the dual simplex
method continues from that basis at every point, and most scenarios need only a check. Weighted by the scenarios'
probabilities, shifted to the worst ones for CVaR, the scenarios' duals give one cut, a plane below the objective. The
master program (:mod:`bco_core.solvers.master`) minimises over all cuts. The next point lies between the best point and
the master's (the in-out rule of Ben-Ameur and Neto), unless the master's point stands still.

There are two kernels, because sums over scenarios are taken in another order. :func:`minimize` is for scenarios that
differ by h_k alone, whose first bases come from a :mod:`bco_core.solvers.basis_pool`; :func:`minimize_random` is for
scenarios with their own costs or technology, whose first bases :mod:`bco_core.solvers.random_recourse` finds. Both
solve a scenario by the same lines, written twice: a shared function makes the search a sixth slower.

The duals of every cut are checked against the unperturbed costs, and so are the rays that prove a scenario infeasible.
The lower bound is therefore proven; it is recomputed at the end. The objective rests on bases without a certificate:
callers certify it again at the solution.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bco_core import deadlines
from bco_core.solvers.dual_simplex import (
    FAILED,
    INFEASIBLE,
    OPTIMAL,
    TOLERANCE,
    UNBOUNDED,
    Index,
    PivotWorkspace,
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
from bco_core.solvers.random_recourse import RandomRecourse

__all__ = ["FirstStage", "RecourseScenarios", "RiskOf", "SharedScenarios", "minimize", "minimize_random"]

GAP = 1e-7
MAXIMUM_CUTS = 600
# How the search ended: gap closed, no decision keeps the rows, gap open, out of time, a scenario's cost is unbounded.
CONVERGED, NO_DECISION, OPEN, STOPPED, BOUNDLESS = 0, 1, 2, 3, 4
# The search has not ended.
_GOING = -1
# A scenario's B⁻¹ is sharpened after this many pivots, the master's after this many points and this many times.
_REFRESH = 60
_MASTER_REFRESH, _MASTER_REFRESHES = 50, 20
# Stands for the number of pivots while a scenario's duals have not been computed.
_NEW = -1
# The master's point stands still if it moves by no more than this share.
_STILL = 1e-9
# Share of the way from the best point to the master's where scenarios have their own costs: fewer bases change than
# half-way.
_STEP = 0.3
# The best value until a point leaves every scenario a recourse; every master is below it.
_NO_VALUE = 1e300


class SharedScenarios(NamedTuple):
    """K recourse programs that differ by their right-hand sides alone, with m rows, N columns and d decisions.

    Right-hand sides ``base`` (K, m) at z = 0 with the ``size`` (K, m) of their terms; ``slope`` (m, d), which z
    subtracts from them; recourse costs (N,) and the least of them; and ``weights`` (K,).
    """

    base: Array
    size: Array
    slope: Array
    cost: Array
    least_cost: float
    weights: Array


class RandomScenarios(NamedTuple):
    """K recourse programs with their own costs and perhaps technology.

    As :class:`SharedScenarios`, with ``slope`` (K or 1, m, d), costs (K, N) and the least of each (K,); besides,
    ``base_cost`` (K,) that the linear form leaves out, and ``above`` (K or 0, d), decision costs minus their mean.
    """

    base: Array
    size: Array
    slope: Array
    cost: Array
    least_cost: Array
    base_cost: Array
    above: Array
    weights: Array


class RecourseScenarios(NamedTuple):
    """K scenarios in the planner's terms: recourse costs (K, columns), limits (K, rows), technology (K, rows, d) or
    (1, rows, d) if it is certain, costs of decisions (K, d), and weights (K,) that sum to one."""

    recourse_cost: Array
    limits: Array
    technology: Array
    cost: Array
    weights: Array


class CutSolution(NamedTuple):
    """Best decision (d,) and its uncertified objective; proven lower bound, −∞ if there is none; how the search ended;
    number of points visited; and the scenario that ended the search, −1 if none did."""

    decision: Array
    objective: float
    bound: float
    outcome: int
    points: int
    scenario: int = -1


class RiskOf(NamedTuple):
    """(1 − weight)·E + weight·CVaR_level."""

    weight: float
    level: float


class _ScenarioBases(NamedTuple):
    """State of K scenarios from point to point: basis, duals (K, m), value (K,), and pivots since B⁻¹ was sharpened
    (K,)."""

    tableaus: Tableaus
    dual: Array
    value: Array
    pivots: Index


class _Search(NamedTuple):
    """Best point, current point and the master's point before (d,), and space for two matrices (d + 1, d + 1)."""

    best: Array
    point: Array
    before: Array
    square: Array
    scratch: Array


class _ScenarioWorkspace(NamedTuple):
    """Arrays for one scenario: right-hand side and size of its terms (m,), what z subtracts from both (m,), a pivot,
    and B twice (m, m)."""

    rhs: Array
    size: Array
    first_stage_use: Array
    first_stage_use_size: Array
    pivoting: PivotWorkspace
    whole: Array
    scratch: Array


def minimize_random(
    recourse: RandomRecourse,
    stages: RecourseScenarios,
    first: FirstStage,
    risk: RiskOf,
    gap: float,
    stop: deadlines.Flag,
) -> CutSolution:
    """Minimise over scenarios with their own costs and technology; scenarios without weight are dropped.

    ``first.cost`` is ignored: the costs of decisions are in ``stages``. ``stop`` (1,) is nonzero once time has run out.
    """
    heavy = stages.weights > 0
    if not heavy.all():
        rest = [part[heavy] if len(part) == len(heavy) else part for part in stages]
        solution = minimize_random(recourse, RecourseScenarios(*rest), first, risk, gap, stop)
        places = np.flatnonzero(heavy)
        return solution if solution.scenario < 0 else solution._replace(scenario=int(places[solution.scenario]))
    form, count = recourse.form, len(stages.weights)
    rows, columns = form.matrix.shape
    taken = stages.technology @ first.begin
    pairs = recourse.pairs(stages.recourse_cost, stages.limits - taken, np.abs(stages.technology) @ np.abs(first.begin))
    tableaus = Tableaus(
        np.empty((count, rows), dtype=np.int64), np.empty((count, rows, rows)), np.empty((count, columns + rows))
    )
    begun = recourse.solve_pairs(pairs, tableaus)
    for status, ended in ((UNBOUNDED, BOUNDLESS), (FAILED, OPEN)):
        if (begun.status == status).any():
            return CutSolution(first.begin, np.nan, -np.inf, ended, 0, int((begun.status == status).argmax()))
    base, size = form.rhs(stages.limits)
    mean = stages.weights @ stages.cost
    above = np.ascontiguousarray(stages.cost - mean) if risk.weight > 0 else np.empty((0, len(mean)))
    scenarios = RandomScenarios(
        base,
        size,
        np.ascontiguousarray(form.by_limit @ stages.technology),
        pairs.cost,
        pairs.least_cost,
        pairs.base_cost,
        above if above.any() else np.empty((0, len(mean))),
        np.ascontiguousarray(stages.weights),
    )
    return CutSolution(
        *_minimize_random(scenarios, form.matrix, tableaus, first._replace(cost=mean), risk, gap, TOLERANCE, stop)
    )


@piece
def risk_weights(values, weights, cvar_weight, cvar_level, order, out):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``out`` (K,) to the probabilities whose mean of ``values`` (K,) is (1 − w)·E + w·CVaR.

    ``order`` is any order of the values and becomes the decreasing one, a good start for the next call.
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
def minimize(scenarios, matrix, tableaus, first, risk, gap, tolerance, stop):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Minimise over :class:`SharedScenarios`; return the fields of :class:`CutSolution` but for the scenario.

    The tableaus, dual feasible for the recourse cost, are pivoted in place. ``stop`` (1,) is nonzero once time has run
    out.
    """
    bases = _new_bases(tableaus)
    workspace = _new_workspace(matrix)
    order = np.arange(len(scenarios.weights))
    shares = np.empty(len(scenarios.weights))
    master, used, reach = new_master(first, MAXIMUM_CUTS)
    search = _new_search(first)
    best, point, z = search.best, search.point, master.multipliers
    best_value = np.inf
    ready = False
    points = 0
    while used < len(master.profit):
        if stop[0]:
            return best, best_value, -np.inf, STOPPED, points
        points += 1
        status, scenario, ray = _solve_shared(scenarios, matrix, point, tolerance, bases, workspace)
        if status == FAILED:
            return best, best_value, -np.inf, OPEN, points
        if status == INFEASIBLE:
            _add_shared_row(scenarios, scenario, bases.tableaus.inverse[scenario, ray], master, used)
        else:
            risk_weights(bases.value, scenarios.weights, risk.weight, risk.level, order, shares)
            cost = _add_shared_cut(scenarios, bases, shares, first.cost, point, workspace.first_stage_use, master, used)
            if cost < best_value:
                best_value = cost
                for j in range(len(best)):
                    best[j] = point[j]
            if not ready:
                begin_with_cut(master, used)
                ready = True
        used += 1
        if not ready:
            # The first point leaves a scenario without recourse: there is no cut to build a master on.
            return best, best_value, -np.inf, OPEN, points
        ended, reach, still = _advance(master, used, first, search, best_value, gap, reach, points)
        if ended == CONVERGED:
            return best, best_value, certified_bound(master, best, search.square, search.scratch), CONVERGED, points
        if ended != _GOING:
            return best, best_value, -np.inf, ended, points
        halfway = not (still or best_value == np.inf)
        for j in range(len(point)):
            point[j] = 0.5 * (best[j] + z[j]) if halfway else z[j]
    return best, best_value, -np.inf, OPEN, points


@kernel
def _minimize_random(scenarios, matrix, tableaus, first, risk, gap, tolerance, stop):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Minimise over :class:`RandomScenarios` likewise; each tableau is dual feasible for its own scenario's cost."""
    bases = _new_bases(tableaus)
    workspace = _new_workspace(matrix)
    order = np.arange(len(scenarios.weights))
    shares = np.empty(len(scenarios.weights))
    master, used, reach = new_master(first, MAXIMUM_CUTS)
    search = _new_search(first)
    best, point, z = search.best, search.point, master.multipliers
    best_value = np.inf
    ready = False
    points = 0
    while used < len(master.profit) - 1:
        if stop[0]:
            return best, best_value, -np.inf, STOPPED, points
        points += 1
        status, scenario, ray = _solve_random(scenarios, matrix, point, tolerance, bases, workspace)
        if status == FAILED:
            return best, best_value, -np.inf, OPEN, points
        # Feasible duals give a cut even if they are not optimal, so the master has a first cut at any point.
        if not ready and status == INFEASIBLE and not _bound_random(scenarios, matrix, point, bases, workspace):
            return best, best_value, -np.inf, OPEN, points
        if not ready or status == OPTIMAL:
            risk_weights(bases.value, scenarios.weights, risk.weight, risk.level, order, shares)
            cost = _add_random_cut(scenarios, bases, shares, first.cost, point, master, used)
            if not ready:
                begin_with_cut(master, used)
                ready = True
            if status == OPTIMAL and cost < best_value:
                best_value = cost
                for j in range(len(best)):
                    best[j] = point[j]
            used += 1
        if status == INFEASIBLE:
            _add_random_row(scenarios, scenario, bases.tableaus.inverse[scenario, ray], master, used)
            used += 1
        ended, reach, still = _advance(master, used, first, search, best_value, gap, reach, points)
        if ended == CONVERGED:
            return best, best_value, certified_bound(master, best, search.square, search.scratch), CONVERGED, points
        if ended != _GOING:
            return best, best_value, -np.inf, ended, points
        step = 1.0 if still or best_value == np.inf else _STEP
        for j in range(len(point)):
            point[j] = step * z[j] + (1.0 - step) * best[j]
    return best, best_value, -np.inf, OPEN, points


@piece
def _new_bases(tableaus):  # type: ignore[no-untyped-def]  # pragma: no cover
    count, rows = tableaus.columns.shape
    return _ScenarioBases(tableaus, np.zeros((count, rows)), np.empty(count), np.full(count, _NEW))


@piece
def _new_workspace(matrix):  # type: ignore[no-untyped-def]  # pragma: no cover
    rows, count = matrix.shape
    return _ScenarioWorkspace(
        np.empty(rows),
        np.empty(rows),
        np.empty(rows),
        np.empty(rows),
        PivotWorkspace(np.empty(rows), np.empty(count + rows), np.empty(rows), np.empty(count + rows)),
        np.empty((rows, rows)),
        np.empty((rows, rows)),
    )


@piece
def _new_search(first):  # type: ignore[no-untyped-def]  # pragma: no cover
    size = len(first.cost) + 1
    return _Search(
        first.begin.copy(), first.begin.copy(), np.zeros(size - 1), np.empty((size, size)), np.empty((size, size))
    )


@piece
def _advance(master, used, first, search, best_value, gap, reach, points):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Solve the master; return how the search ended, or _GOING, the reach of the box, and whether the master's point
    stands still."""
    z = master.multipliers
    dim = len(search.before)
    still = True
    for j in range(dim):
        search.before[j] = z[j]
    stands, _, reach = close_gap(master, used, first, min(best_value, _NO_VALUE), gap, reach)
    ended = _GOING
    if stands == CLOSED:
        ended = CONVERGED
    elif stands != WIDE:
        ended = NO_DECISION if stands == BROKEN else OPEN
    else:
        if points % _MASTER_REFRESH == 0 and points <= _MASTER_REFRESH * _MASTER_REFRESHES:
            sharpen_master(master, search.square, search.scratch)
        for j in range(dim):
            if abs(search.before[j] - z[j]) > _STILL * (1.0 + abs(z[j])):
                still = False
    return ended, reach, still


@piece
def _sharpen_scenario(matrix, bases, k, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Remove the rounding of many pivots from a scenario's B⁻¹."""
    rows, count = matrix.shape
    for i in range(rows):
        column = bases.tableaus.columns[k, i]
        for j in range(rows):
            workspace.whole[j, i] = matrix[j, column] if column < count else 0.0
        if column >= count:
            workspace.whole[column - count, i] = -1.0
    sharpen(bases.tableaus.inverse[k], workspace.whole, workspace.scratch)
    bases.pivots[k] = 0


@piece
def _solve_shared(scenarios, matrix, point, tolerance, bases, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Compute value and duals of every scenario at the point.

    Return OPTIMAL; or FAILED; or INFEASIBLE with the first scenario without recourse and the row of its B⁻¹ that
    proves it.
    """
    rows, dim = scenarios.slope.shape
    for i in range(rows):
        workspace.first_stage_use[i] = 0.0
        workspace.first_stage_use_size[i] = 0.0
        for j in range(dim):
            part = scenarios.slope[i, j] * point[j]
            workspace.first_stage_use[i] += part
            workspace.first_stage_use_size[i] += abs(part)
    for k in range(len(bases.pivots)):
        for i in range(rows):
            workspace.rhs[i] = scenarios.base[k, i] - workspace.first_stage_use[i]
            workspace.size[i] = scenarios.size[k, i] + workspace.first_stage_use_size[i]
        if bases.pivots[k] > _REFRESH:
            _sharpen_scenario(matrix, bases, k, workspace)
        moved = 0
        if not is_optimal(
            bases.tableaus.inverse[k], workspace.rhs, workspace.size, tolerance, workspace.pivoting.basic
        ):
            status, moved = continue_dual_simplex(
                bases.tableaus, k, workspace.size, matrix, tolerance, workspace.pivoting
            )
            if status == INFEASIBLE and not proves_infeasible(
                bases.tableaus.inverse[k, moved], matrix, workspace.rhs, workspace.size, workspace.pivoting
            ):
                status = FAILED
            if status != OPTIMAL:
                bases.pivots[k] = _NEW
                return status, k, moved
        if moved > 0 or bases.pivots[k] == _NEW:
            bases.pivots[k] = max(bases.pivots[k], 0) + moved
            set_dual(bases.tableaus.columns[k], bases.tableaus.inverse[k], scenarios.cost, bases.dual[k])
            if not dual_feasible(bases.dual[k], matrix, scenarios.cost, scenarios.least_cost, workspace.pivoting):
                return FAILED, k, moved
        total = 0.0
        for i in range(rows):
            total += bases.dual[k, i] * workspace.rhs[i]
        bases.value[k] = total
    return OPTIMAL, 0, 0


@piece
def _solve_random(scenarios, matrix, point, tolerance, bases, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Compute cost and duals of every scenario at the point, and return what :func:`_solve_shared` returns."""
    for k in range(len(bases.pivots)):
        total = _set_random_rhs(scenarios, k, point, workspace)
        if bases.pivots[k] > _REFRESH:
            _sharpen_scenario(matrix, bases, k, workspace)
        moved = 0
        if not is_optimal(
            bases.tableaus.inverse[k], workspace.rhs, workspace.size, tolerance, workspace.pivoting.basic
        ):
            status, moved = continue_dual_simplex(
                bases.tableaus, k, workspace.size, matrix, tolerance, workspace.pivoting
            )
            if status == INFEASIBLE and not proves_infeasible(
                bases.tableaus.inverse[k, moved], matrix, workspace.rhs, workspace.size, workspace.pivoting
            ):
                status = FAILED
            if status != OPTIMAL:
                bases.pivots[k] = _NEW
                return status, k, moved
        if moved > 0 or bases.pivots[k] == _NEW:
            bases.pivots[k] = max(bases.pivots[k], 0) + moved
            set_dual(bases.tableaus.columns[k], bases.tableaus.inverse[k], scenarios.cost[k], bases.dual[k])
            if not dual_feasible(bases.dual[k], matrix, scenarios.cost[k], scenarios.least_cost[k], workspace.pivoting):
                return FAILED, k, moved
        for i in range(len(matrix)):
            total += bases.dual[k, i] * workspace.rhs[i]
        bases.value[k] = total
    return OPTIMAL, 0, 0


@piece
def _bound_random(scenarios, matrix, point, bases, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set each scenario's value to the lower bound that its current duals prove; return whether all are feasible."""
    feasible = True
    for k in range(len(bases.pivots)):
        total = _set_random_rhs(scenarios, k, point, workspace)
        set_dual(bases.tableaus.columns[k], bases.tableaus.inverse[k], scenarios.cost[k], bases.dual[k])
        if not dual_feasible(bases.dual[k], matrix, scenarios.cost[k], scenarios.least_cost[k], workspace.pivoting):
            feasible = False
        for i in range(len(matrix)):
            total += bases.dual[k, i] * workspace.rhs[i]
        bases.value[k] = total
    return feasible


@piece
def _set_random_rhs(scenarios, k, point, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set a scenario's right-hand side at the point; return the part of its cost that no recourse changes."""
    rows, dim = scenarios.slope.shape[1:]
    at = k if len(scenarios.slope) > 1 else 0
    for i in range(rows):
        taken = 0.0
        taken_size = 0.0
        for j in range(dim):
            part = scenarios.slope[at, i, j] * point[j]
            taken += part
            taken_size += abs(part)
        workspace.rhs[i] = scenarios.base[k, i] - taken
        workspace.size[i] = scenarios.size[k, i] + taken_size
    more = scenarios.base_cost[k]
    if len(scenarios.above) > 0:
        for j in range(dim):
            more += scenarios.above[k, j] * point[j]
    return more


@piece
def _add_shared_row(scenarios, k, ray, master, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add the row σ'(base − slope z) ≤ 0 to Z, proven by σ = −ray, as column ``at`` of the master."""
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
def _add_random_row(scenarios, k, ray, master, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add the same row for a scenario that may have its own technology."""
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
def _add_shared_cut(scenarios, bases, shares, first_cost, point, mean_dual, master, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add the plane through the objective at the point as column ``at`` of the master; return the objective.

    The duals are averaged first, which takes one product with the technology instead of K.
    """
    rows, dim = scenarios.slope.shape
    value = 0.0
    for i in range(rows):
        mean_dual[i] = 0.0
    for k in range(len(shares)):
        if shares[k] > 0.0:
            value += shares[k] * bases.value[k]
            for i in range(rows):
                mean_dual[i] += shares[k] * bases.dual[k, i]
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


@piece
def _add_random_cut(scenarios, bases, shares, first_cost, point, master, at):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Add the same plane, summed over scenarios that may have their own technology; return the objective."""
    rows, dim = scenarios.slope.shape[1:]
    plane = master.columns[at]
    for j in range(dim):
        plane[j] = 0.0
    value = 0.0
    for k in range(len(shares)):
        if shares[k] > 0.0:
            value += shares[k] * bases.value[k]
            own = k if len(scenarios.slope) > 1 else 0
            for i in range(rows):
                factor = shares[k] * bases.dual[k, i]
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
