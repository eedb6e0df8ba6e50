"""A scaled polyhedron {v: A v = r, lower ≤ (v, r) ≤ upper} for kernels, and certificates of optima and rays over it.

A row's activity r is a column of its own whose bounds are the row's limits, so rows of every sense are treated alike:
an equality is a fixed activity. Rows and columns are scaled by powers of two, which is exact, so a proof from A and the
bounds holds for the planner's own numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core.errors import InvalidInput
from bco_core.solvers.dual_simplex import Index, kernel, piece
from bco_core.solvers.linear_form import Array

# A row must be kept to the first share of its terms plus the second share of the largest row's terms.
_KEPT, _KEPT_ROUNDING = 1e-12, 4e-15
# Reduced costs may have the wrong sign up to the first share of the column's cost plus the second share of its terms.
_PRICE, _PRICE_ROUNDING = 1e-9, 1e-14
# Error of prices: this share of the largest, in units of rounding.
_PRICE_ERROR = 0.1
# The answer may cost more than the bound by these shares of its terms and of rounding; the third is for the fast check.
_LOSS, _LOSS_ROUNDING, _PLAIN_LOSS = 1e-9, 1e-14, 1e-13
# Tolerance of a ray, as a share of its largest terms.
_RAY = 1e-9


class Polyhedron(NamedTuple):
    """A (m, d) by columns: ``entries`` at rows ``places`` from ``begins[j]`` on; bounds (d + m,) of v, then r."""

    begins: Index
    places: Index
    entries: Array
    lower: Array
    upper: Array


class ScaledPolyhedron(NamedTuple):
    """A polyhedron and the scale ``unit`` (d,) of its columns: the planner's v is ``unit`` times the kernel's."""

    polyhedron: Polyhedron
    unit: Array


def polyhedron_of(
    matrix: sparse.csr_array, senses: NDArray[np.int64], limits: Array, lower: Array, upper: Array
) -> ScaledPolyhedron:
    """Scale rows ``matrix`` (m, d) v (sense) limits and bounds of v; senses are 1 for ≥, 0 for = and −1 for ≤."""
    if not (np.isfinite(matrix.data).all() and np.isfinite(limits).all()):
        raise InvalidInput("coefficients and limits must be finite numbers")
    if np.isnan(lower).any() or np.isnan(upper).any():
        raise InvalidInput("bounds must be numbers or missing")
    if (lower > upper).any():
        raise InvalidInput("a lower bound is above its upper bound")
    rows, unit = _scales(matrix)
    columns = (sparse.diags_array(rows) @ matrix @ sparse.diags_array(unit)).tocsc()
    columns.sum_duplicates()
    columns.eliminate_zeros()
    least = np.where(senses >= 0, limits, -np.inf) * rows
    most = np.where(senses <= 0, limits, np.inf) * rows
    return ScaledPolyhedron(
        Polyhedron(
            columns.indptr.astype(np.int64),
            columns.indices.astype(np.int64),
            columns.data.astype(np.float64),
            np.concatenate([lower / unit, least]),
            np.concatenate([upper / unit, most]),
        ),
        unit,
    )


def _scales(matrix: sparse.csr_array) -> tuple[Array, Array]:
    """Return powers of two for rows and columns that bring the geometric means of nonzero entries near one."""
    entries = matrix.tocoo()
    present = entries.data != 0
    at, of = entries.coords[0][present], entries.coords[1][present]
    logs = np.log2(np.abs(entries.data[present]))
    rows, columns = np.zeros(matrix.shape[0]), np.zeros(matrix.shape[1])
    in_row = np.maximum(np.bincount(at, minlength=len(rows)), 1)
    in_column = np.maximum(np.bincount(of, minlength=len(columns)), 1)
    for _ in range(4):
        rows -= np.bincount(at, logs + rows[at] + columns[of], len(rows)) / in_row
        columns -= np.bincount(of, logs + rows[at] + columns[of], len(columns)) / in_column
    return np.exp2(np.round(rows)).astype(np.float64), np.exp2(np.round(columns)).astype(np.float64)


@piece
def certify_plainly(polyhedron, cost, values, dual, activity):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return whether a stricter and faster check than ``certify`` passes, as it does for most answers."""
    count, rows = len(cost), len(dual)
    gap = 0.0
    size = 0.0
    proven = True
    for i in range(rows):
        activity[i] = 0.0
    for j in range(count):
        value = values[j]
        price = cost[j]
        for at in range(polyhedron.begins[j], polyhedron.begins[j + 1]):
            i = polyhedron.places[at]
            activity[i] += polyhedron.entries[at] * value
            price -= polyhedron.entries[at] * dual[i]
        size += abs(cost[j] * value)
        lower, upper = polyhedron.lower[j], polyhedron.upper[j]
        if price != 0.0:
            gap += abs(price * (value - (lower if price > 0.0 else upper)))
        if not (lower <= value <= upper):
            proven = False
    for i in range(rows):
        lower, upper = polyhedron.lower[count + i], polyhedron.upper[count + i]
        bound = lower if dual[i] > 0.0 else upper
        if dual[i] != 0.0:
            gap += abs(dual[i] * (activity[i] - bound))
        if not max(lower - activity[i], activity[i] - upper) <= (_KEPT * abs(bound) if abs(bound) < np.inf else 0.0):
            proven = False
    return proven and gap <= _PLAIN_LOSS * size


@kernel
def certify(polyhedron, cost, values, dual, activity, terms):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return whether ``dual`` (m,) proves that ``values`` (d,) minimise ``cost`` (d,) over the polyhedron.

    v must keep bounds and rows; c − A'π must have the sign that bounds allow; and the gap between v's cost and the
    bound that π proves, Σ (c − A'π)_j (v_j − bound_j) + Σ π_i (r_i − bound_i), must be negligible relative to its
    terms. First, ``values`` are clipped to their bounds and prices of missing limits become zero. ``activity`` and
    ``terms`` (m,) are scratch.
    """
    count, rows = len(cost), len(dual)
    highest = 0.0
    for i in range(rows):
        activity[i] = 0.0
        terms[i] = 0.0
        highest = max(highest, abs(dual[i]))
        if not abs(polyhedron.lower[count + i] if dual[i] > 0.0 else polyhedron.upper[count + i]) < np.inf:
            dual[i] = 0.0
    gap = 0.0
    size = 0.0
    rounding = 0.0
    proven = True
    for j in range(count):
        values[j] = min(max(values[j], polyhedron.lower[j]), polyhedron.upper[j])
        value = values[j]
        price = cost[j]
        weight = 0.0
        spread = abs(price)
        for at in range(polyhedron.begins[j], polyhedron.begins[j + 1]):
            i = polyhedron.places[at]
            entry = polyhedron.entries[at]
            activity[i] += entry * value
            terms[i] += abs(entry * value)
            price -= entry * dual[i]
            weight += abs(entry)
            spread += abs(entry * dual[i])
        size += abs(cost[j] * value)
        spread += _PRICE_ERROR * weight * highest
        if price != 0.0:
            rounding += spread * abs(value)
            bound = polyhedron.lower[j] if price > 0.0 else polyhedron.upper[j]
            if abs(bound) < np.inf:
                gap += abs(price * (value - bound))
            elif abs(price) <= _PRICE * abs(cost[j]) + _PRICE_ROUNDING * spread:
                gap += abs(price * value)
            else:
                proven = False
        if not abs(price) < np.inf:
            proven = False
    largest = 0.0
    for i in range(rows):
        for limit in (polyhedron.lower[count + i], polyhedron.upper[count + i]):
            terms[i] += abs(limit) if abs(limit) < np.inf else 0.0
        largest = max(largest, terms[i])
    for i in range(rows):
        lower, upper = polyhedron.lower[count + i], polyhedron.upper[count + i]
        at = activity[i]
        bound = lower if dual[i] > 0.0 else upper
        if not max(lower - at, at - upper) <= _KEPT * terms[i] + _KEPT_ROUNDING * largest:
            proven = False
        if dual[i] != 0.0:
            rounding += abs(dual[i]) * terms[i]
            gap += abs(dual[i] * (at - bound))
    return proven and gap <= _LOSS * size + _LOSS_ROUNDING * rounding


@kernel
def proves_unbounded(polyhedron, cost, ray, activity, terms):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return whether ``ray`` (d,) proves ``cost`` unbounded: the cost falls along it and no bound or row ends it."""
    count, rows = len(cost), len(activity)
    for i in range(rows):
        activity[i] = 0.0
        terms[i] = 0.0
    gain = 0.0
    size = 0.0
    longest = 0.0
    proven = True
    for j in range(count):
        longest = max(longest, abs(ray[j]))
    for j in range(count):
        step = ray[j]
        gain -= cost[j] * step
        size += abs(cost[j] * step)
        for at in range(polyhedron.begins[j], polyhedron.begins[j + 1]):
            activity[polyhedron.places[at]] += polyhedron.entries[at] * step
            terms[polyhedron.places[at]] += abs(polyhedron.entries[at] * step)
        if (step < 0.0 and polyhedron.lower[j] > -np.inf) or (step > 0.0 and polyhedron.upper[j] < np.inf):
            proven = False
    for i in range(rows):
        step = activity[i]
        if abs(step) > _RAY * terms[i]:
            lower, upper = polyhedron.lower[count + i], polyhedron.upper[count + i]
            if (step < 0.0 and lower > -np.inf) or (step > 0.0 and upper < np.inf):
                proven = False
    return proven and 0.0 < longest < np.inf and gain > _RAY * size
