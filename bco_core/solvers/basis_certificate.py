"""Certificates of bases and rays for min c'x, A x − s = b, x, s ≥ 0, computed from the program's own numbers.

A basis is optimal for b if x_B = B⁻¹b ≥ 0 reproduces b and π = c_B B⁻¹ is dual feasible for the unperturbed costs. In
floating point both hold approximately; the certificate bounds what the errors may cost.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bco_core.solvers.dual_simplex import ENTRY_ERROR, PivotWorkspace, dual_feasible, kernel, piece, proves_infeasible
from bco_core.solvers.linear_form import Array, LinearForm

# A basis must reproduce b to this share of each row's terms plus ENTRY_ERROR of that share of the largest row's terms.
_REPRODUCED = 1e-8
# That holds if B B⁻¹ − I is below the first and no x_B is below zero by more than the second share of its row's terms.
SHARP, _CLEAN = 1e-13, 1e-13
# Allowed cost of errors of x and π together: a share of the cost, plus the cost of rounding b.
_LOSS, _LOSS_ROUNDING = 1e-9, 1e-15
_REFINEMENTS = 2


class FormArrays(NamedTuple):
    """Arrays of a linear form for kernels: A (m, N), A' (N, m), c (N,) and the least cost."""

    matrix: Array
    transposed: Array
    cost: Array
    least_cost: float


def arrays_of(form: LinearForm) -> FormArrays:
    return FormArrays(form.matrix, form.transposed, form.cost, form.least_cost)


@piece
def is_clean(inverse, basic, size):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return whether no x_B is below zero by more than rounding of a sharp B⁻¹."""
    clean = True
    for i in range(len(basic)):
        if basic[i] < 0.0:
            scale = 0.0
            for k in range(len(basic)):
                scale += abs(inverse[i, k]) * size[k]
            if basic[i] < -_CLEAN * scale:
                clean = False
    return clean


@piece
def certify(columns, inverse, basic, dual, rhs, size, program, workspace):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Return whether a basis passes the certificate; refine x_B and π if that is needed.

    x = max(x_B, 0) must keep the rows, π must be dual feasible, and the cost of their errors must be negligible.
    """
    rows, count = program.matrix.shape
    error, scale = workspace.column, workspace.terms
    certain = False
    for attempt in range(_REFINEMENTS + 1):
        if attempt > 0:
            _refine(columns, inverse, basic, dual, rhs, size, program, error, scale)
        for i in range(rows):
            basic[i] = max(basic[i], 0.0)
        _set_error(columns, basic, rhs, size, program, error, scale)
        largest = 0.0
        for k in range(rows):
            largest = max(largest, scale[k])
        kept = True
        lost = 0.0
        rounding = 0.0
        gap = 0.0
        for k in range(rows):
            if not abs(error[k]) <= _REPRODUCED * (scale[k] + ENTRY_ERROR * largest):
                kept = False
            lost += abs(dual[k] * error[k])
            rounding += abs(dual[k]) * scale[k]
            gap -= dual[k] * rhs[k]
        cost = 0.0
        for i in range(rows):
            if columns[i] < count:
                part = program.cost[columns[i]] * basic[i]
                cost += abs(part)
                gap += part
        allowed = _LOSS * cost + _LOSS_ROUNDING * rows * rounding
        certain = (
            kept
            and lost <= allowed
            and abs(gap) <= 2.0 * allowed
            and dual_feasible(dual, program.matrix, program.cost, program.least_cost, workspace)
        )
        if certain:
            break
    return certain


@piece
def _refine(columns, inverse, basic, dual, rhs, size, program, error, scale):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Take one step of iterative refinement of x_B and π."""
    rows, count = program.matrix.shape
    _set_error(columns, basic, rhs, size, program, error, scale)
    for i in range(rows):
        for k in range(rows):
            basic[i] -= inverse[i, k] * error[k]
    for i in range(rows):
        j = columns[i]
        price = program.cost[j] if j < count else 0.0
        if j < count:
            for k in range(rows):
                price -= dual[k] * program.transposed[j, k]
        else:
            price += dual[j - count]
        error[i] = price
    for i in range(rows):
        for k in range(rows):
            dual[k] += error[i] * inverse[i, k]


@piece
def _set_error(columns, basic, rhs, size, program, error, scale):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Set ``error`` (m,) to B x_B − b, and ``scale`` (m,) to the size of its terms."""
    rows, count = program.matrix.shape
    for k in range(rows):
        error[k] = -rhs[k]
        scale[k] = size[k]
    for i in range(rows):
        j = columns[i]
        if j < count:
            for k in range(rows):
                part = basic[i] * program.transposed[j, k]
                error[k] += part
                scale[k] += abs(part)
        else:
            error[j - count] -= basic[i]
            scale[j - count] += abs(basic[i])


@kernel
def certify_basis(columns, inverse, basic, dual, rhs, size, program):  # type: ignore[no-untyped-def]  # pragma: no cover
    rows, count = program.matrix.shape
    workspace = PivotWorkspace(np.empty(rows), np.empty(count + rows), np.empty(rows), np.empty(count + rows))
    return certify(columns, inverse, basic, dual, rhs, size, program, workspace)


@kernel
def certify_dual(dual, program):  # type: ignore[no-untyped-def]  # pragma: no cover
    rows, count = program.matrix.shape
    workspace = PivotWorkspace(np.empty(rows), np.empty(count + rows), np.empty(rows), np.empty(count + rows))
    return dual_feasible(dual, program.matrix, program.cost, program.least_cost, workspace)


@kernel
def certify_ray(row, program, rhs, size):  # type: ignore[no-untyped-def]  # pragma: no cover
    rows, count = program.matrix.shape
    workspace = PivotWorkspace(np.empty(rows), np.empty(count + rows), np.empty(rows), np.empty(count + rows))
    return proves_infeasible(row, program.matrix, rhs, size, workspace)
