"""Cutting planes for min over z in Z of c'z + ρ(Q(z, y_1), …, Q(z, y_K)), with ρ an expectation, a CVaR or a mix.

At a point z every scenario's recourse value and dual are exact (:mod:`bco_core.solvers.basis_pool`), and each scenario
keeps its basis from one point to the next, so most of them need only a check. Weighted by the scenarios' probabilities,
shifted to the worst ones for CVaR, the duals give one cut, a plane below the objective. The master program over the
cuts is solved through its dual, whose basis has only d_z + 1 rows and to which a cut is one more column. Points are
taken half-way between the best point and the master's (the in-out rule of Ben-Ameur and Neto), except where that would
tell nothing new.

The answer is within ``GAP`` of the master's value, which is a lower bound, or says that it is not.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from bco_core.solvers.basis_pool import FAST, continue_dual_simplex

GAP = 1e-7
MAXIMUM_CUTS = 600
CONVERGED, NO_DECISION, OPEN, STOPPED = 0, 1, 2, 3
# After so many pivots a scenario's B⁻¹ is sharpened.
_REFRESH = 60


@njit(cache=True, nogil=True, fastmath=FAST)
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


@njit(cache=True, nogil=True, fastmath=FAST)
def _sharpen(inverse, whole, scratch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """One step of Newton's iteration X ← X + (I − X B) X, which squares what error many pivots have left in B⁻¹."""
    size = len(whole)
    for i in range(size):
        for k in range(size):
            total = 1.0 if i == k else 0.0
            for j in range(size):
                total -= inverse[i, j] * whole[j, k]
            scratch[i, k] = total
    for k in range(size):
        for i in range(size):
            total = 0.0
            for j in range(size):
                total += scratch[i, j] * inverse[j, k]
            whole[i, k] = total
    for i in range(size):
        for k in range(size):
            inverse[i, k] += whole[i, k]


@njit(cache=True, nogil=True, fastmath=FAST)
def _solve_master(columns, profit, count, rhs, basis, inverse, multipliers, scratch):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Primal simplex on the master's dual, in place; True unless its value is unbounded (then no z keeps the rows)."""
    size = len(rhs)
    for round_ in range(200 * size + 1000):
        for k in range(size):
            total = 0.0
            for i in range(size):
                total += profit[basis[i]] * inverse[i, k]
            multipliers[k] = total
        # The multipliers are z and the value; where z is zero in truth, it has errors in proportion to its largest.
        reach = 0.0
        for k in range(size - 1):
            reach = max(reach, abs(multipliers[k]))
        entering = -1
        best = 0.0
        for j in range(count):
            gain = profit[j]
            scale = abs(profit[j])
            for k in range(size):
                part = multipliers[k] * columns[j, k]
                gain -= part
                scale += abs(part)
                if k < size - 1:
                    scale += 1e-3 * reach * abs(columns[j, k])
            gain /= 1e-300 + scale
            if gain > 1e-11 and gain > best:
                entering = j
                best = gain
                if round_ > 50 * size:
                    break
        if entering < 0:
            return True
        leaving = -1
        least = np.inf
        for i in range(size):
            total = 0.0
            for k in range(size):
                total += inverse[i, k] * columns[entering, k]
            scratch[i] = total
            if total > 1e-11:
                amount = 0.0
                for k in range(size):
                    amount += inverse[i, k] * rhs[k]
                ratio = max(amount, 0.0) / total
                if ratio < least or (ratio == least and total > scratch[leaving]):
                    least = ratio
                    leaving = i
        if leaving < 0:
            return False
        pivot = scratch[leaving]
        for k in range(size):
            inverse[leaving, k] /= pivot
        for i in range(size):
            if i != leaving:
                for k in range(size):
                    inverse[i, k] -= scratch[i] * inverse[leaving, k]
        basis[leaving] = entering
    return True


@njit(cache=True, nogil=True, fastmath=FAST)
def minimize(  # type: ignore[no-untyped-def]  # pragma: no cover
    base,  # (K, m): right-hand sides of the recourse at z = 0
    base_size,  # (K, m): how large the terms are that they are sums of
    slope,  # (m, d): what z takes off them
    weights,  # (K,)
    cvar_weight,
    cvar_level,
    start,  # (K,): which basis of the pool to begin with
    pool_columns,
    pool_inverse,
    pool_reduced,
    matrix,  # (m, N)
    recourse_cost,  # (N,)
    first_cost,  # (d,)
    rows,  # (r, d): rows z ≥ limits, bounds among them
    limits,  # (r,)
    begin,  # (d,): a point of Z
    gap,
    tolerance,
    stop,  # (1,): not zero once there is no more time
):
    """The best z found, its objective, a lower bound, how it ended, and the number of points looked at."""
    scenarios, size = base.shape
    count = matrix.shape[1]
    dim = len(first_cost)
    columns = np.empty((scenarios, size), dtype=np.int64)
    inverse = np.empty((scenarios, size, size))
    reduced = np.empty((scenarios, count + size))
    dual = np.zeros((scenarios, size))
    pivots = np.zeros(scenarios, dtype=np.int64)
    for k in range(scenarios):
        at = start[k]
        for i in range(size):
            columns[k, i] = pool_columns[at, i]
            for j in range(size):
                inverse[k, i, j] = pool_inverse[at, i, j]
        for j in range(count + size):
            reduced[k, j] = pool_reduced[at, j]
        pivots[k] = -1
    values = np.empty(scenarios)
    shares = np.empty(scenarios)
    order = np.arange(scenarios)
    rhs = np.empty(size)
    terms = np.empty(size)
    basic = np.empty(size)
    row_entries = np.empty(count + size)
    column_entries = np.empty(size)
    taken = np.empty(size)
    taken_size = np.empty(size)
    mean_dual = np.empty(size)
    whole = np.empty((size, size))
    whole_scratch = np.empty((size, size))

    # The master's dual: columns for an artificial box, for the rows of Z, then for the cuts.
    fixed = 2 * dim + len(limits)
    capacity = fixed + MAXIMUM_CUTS
    master = np.zeros((capacity, dim + 1))
    profit = np.zeros(capacity)
    right = np.ones(dim + 1)
    best = np.empty(dim)
    point = np.empty(dim)
    reach = 1.0
    for j in range(dim):
        right[j] = first_cost[j]
        best[j] = begin[j]
        point[j] = begin[j]
        reach = max(reach, abs(begin[j]))
    for j in range(dim):
        master[2 * j, j] = 1.0
        master[2 * j + 1, j] = -1.0
        profit[2 * j] = begin[j] - 4.0 * reach
        profit[2 * j + 1] = -begin[j] - 4.0 * reach
    for r in range(len(limits)):
        for j in range(dim):
            master[2 * dim + r, j] = rows[r, j]
        profit[2 * dim + r] = limits[r]
    used = fixed
    basis = np.zeros(dim + 1, dtype=np.int64)
    master_inverse = np.zeros((dim + 1, dim + 1))
    multipliers = np.zeros(dim + 1)
    scratch = np.zeros(dim + 1)
    before = np.zeros(dim)
    square = np.empty((dim + 1, dim + 1))
    square_scratch = np.empty((dim + 1, dim + 1))

    best_value = np.inf
    lower = -np.inf
    ready = False
    points = 0
    refreshes = 0
    while used < capacity:
        if stop[0]:
            return best, best_value, lower, 3, points
        points += 1
        for i in range(size):
            taken[i] = 0.0
            taken_size[i] = 0.0
            for j in range(dim):
                part = slope[i, j] * point[j]
                taken[i] += part
                taken_size[i] += abs(part)
        feasible = True
        for k in range(scenarios):
            for i in range(size):
                rhs[i] = base[k, i] - taken[i]
                terms[i] = base_size[k, i] + taken_size[i]
            if pivots[k] > _REFRESH:
                for i in range(size):
                    column = columns[k, i]
                    for j in range(size):
                        whole[j, i] = matrix[j, column] if column < count else 0.0
                    if column >= count:
                        whole[column - count, i] = -1.0
                _sharpen(inverse[k], whole, whole_scratch)
                pivots[k] = 0
            for i in range(size):
                total = 0.0
                for j in range(size):
                    total += inverse[k, i, j] * rhs[j]
                basic[i] = total
            moved = continue_dual_simplex(
                columns[k], inverse[k], reduced[k], basic, terms, matrix, tolerance, row_entries, column_entries
            )
            if moved == -1000000:
                return best, best_value, lower, 2, points
            if moved < 0:
                # σ = −(row of B⁻¹) proves that z must keep σ'(base − slope z) ≤ 0: one more row of Z.
                feasible = False
                pivots[k] = -1
                ray = -1 - moved
                for j in range(dim):
                    total = 0.0
                    for i in range(size):
                        total -= inverse[k, ray, i] * slope[i, j]
                    master[used, j] = total
                amount = 0.0
                for i in range(size):
                    amount -= inverse[k, ray, i] * base[k, i]
                profit[used] = amount
                used += 1
                break
            if moved > 0 or pivots[k] < 0:
                pivots[k] = max(pivots[k], 0) + moved
                for i in range(size):
                    dual[k, i] = 0.0
                for i in range(size):
                    if columns[k, i] < count:
                        price = recourse_cost[columns[k, i]]
                        for j in range(size):
                            dual[k, j] += price * inverse[k, i, j]
            total = 0.0
            for i in range(size):
                total += dual[k, i] * rhs[i]
            values[k] = total
        if feasible:
            risk_weights(values, weights, cvar_weight, cvar_level, order, shares)
            value = 0.0
            for i in range(size):
                mean_dual[i] = 0.0
            for k in range(scenarios):
                if shares[k] > 0.0:
                    value += shares[k] * values[k]
                    for i in range(size):
                        mean_dual[i] += shares[k] * dual[k, i]
            intercept = value
            cost = value
            for j in range(dim):
                total = 0.0
                for i in range(size):
                    total -= mean_dual[i] * slope[i, j]
                master[used, j] = -total
                intercept -= total * point[j]
                cost += first_cost[j] * point[j]
            master[used, dim] = 1.0
            profit[used] = intercept
            if cost < best_value:
                best_value = cost
                for j in range(dim):
                    best[j] = point[j]
            if not ready:
                # The first cut and, in every coordinate, the side of the box that it pushes towards.
                basis[dim] = used
                for j in range(dim):
                    amount = right[j] - master[used, j]
                    side = 1.0 if amount >= 0.0 else -1.0
                    basis[j] = 2 * j if side > 0 else 2 * j + 1
                    master_inverse[j, j] = side
                    master_inverse[j, dim] = -side * master[used, j]
                master_inverse[dim, dim] = 1.0
                ready = True
            used += 1
        if not ready:
            # The point to begin with leaves a scenario without recourse: there is no cut to build a master on.
            return best, best_value, lower, 2, points
        for j in range(dim):
            before[j] = multipliers[j]
        while True:
            if not _solve_master(master, profit, used, right, basis, master_inverse, multipliers, scratch):
                return best, best_value, lower, 1, points
            bound = 0.0
            for k in range(dim + 1):
                bound += multipliers[k] * right[k]
            if best_value - bound > gap * max(abs(best_value), 1e-9):
                break
            # The gap is closed; where the artificial box holds the master back, it is moved away first.
            held = False
            for i in range(dim + 1):
                if basis[i] < 2 * dim:
                    amount = 0.0
                    for k in range(dim + 1):
                        amount += master_inverse[i, k] * right[k]
                    if amount > 1e-9 * (1.0 + abs(first_cost[basis[i] // 2])):
                        held = True
                        profit[basis[i]] -= 8.0 * reach
            if not held:
                return best, best_value, bound, 0, points
            reach *= 8.0
            if reach > 1e15:
                return best, best_value, lower, 2, points
        if points % 50 == 0 and refreshes < 20:
            refreshes += 1
            for i in range(dim + 1):
                for k in range(dim + 1):
                    square[k, i] = master[basis[i], k]
            _sharpen(master_inverse, square, square_scratch)
        still = True
        for j in range(dim):
            if abs(before[j] - multipliers[j]) > 1e-9 * (1.0 + abs(multipliers[j])):
                still = False
        halfway = not (still or best_value == np.inf)
        for j in range(dim):
            point[j] = 0.5 * (best[j] + multipliers[j]) if halfway else multipliers[j]
    return best, best_value, lower, 2, points
