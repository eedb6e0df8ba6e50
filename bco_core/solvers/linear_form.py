"""Linear programs in the scaled form min c'x, A x ≥ b, x ≥ 0, for kernels that solve them for many b.

A planner's program has rows of any sense and variables with any bounds. In the form an equality becomes two
inequalities, an upper bound a row, a lower bound a shift, and a free variable the difference of two. Rows and columns
are scaled by powers of two, which is exact, to entries near one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bco_core.errors import InvalidInput

Array = NDArray[np.float64]

# Costs are raised at random by up to this share, so that every vertex of the dual has one basis and pivoting cannot
# cycle. It is far above the rounding of reduced costs and far below the tolerance of certificates.
PERTURBATION = 1e-10
# Costs below this share of the largest are rounding.
_LEAST_SHARE = 1e-6
LEAST, EQUAL, MOST = 1, 0, -1


@dataclass(frozen=True)
class LinearProgram:
    """min cost'v, matrix v (sense) limits, lower ≤ v ≤ upper; ``senses`` are 1 for ≥, 0 for = and −1 for ≤."""

    cost: Array
    matrix: Array
    senses: NDArray[np.int64]
    lower: Array
    upper: Array


@dataclass(frozen=True)
class LinearForm:
    """min cost'x, matrix x ≥ rhs, x ≥ 0 with ``rhs = constant + by_limit @ limits`` and ``v = offset + by_column @ x``.

    The program's cost is higher by ``base_cost``. ``perturbed`` is the cost that breaks ties between vertices, and
    ``size`` is the size of the terms of ``constant``, by which rounding is judged.
    """

    cost: Array
    base_cost: float
    perturbed: Array
    matrix: Array
    constant: Array
    size: Array
    by_limit: Array
    offset: Array
    by_column: Array

    @cached_property
    def least_cost(self) -> float:
        """Smallest nonzero cost: the scale for columns without cost."""
        return _least(self.cost)

    @cached_property
    def transposed(self) -> Array:
        """The transposed matrix, contiguous in memory."""
        return np.ascontiguousarray(self.matrix.T)

    def rhs(self, limits: Array) -> tuple[Array, Array]:
        """Return right-hand sides (n, m) for limits (n, rows), and the size of their terms (n, m)."""
        return self.constant + limits @ self.by_limit.T, self.size + np.abs(limits) @ np.abs(self.by_limit.T)


def linear_form(program: LinearProgram) -> LinearForm:
    """Bring a program to the linear form."""
    rows, columns = program.matrix.shape
    if not np.isfinite(program.matrix).all() or not np.isfinite(program.cost).all():
        raise InvalidInput("coefficients must be finite numbers")
    offset = np.where(np.isfinite(program.lower), program.lower, np.where(np.isfinite(program.upper), program.upper, 0))
    up = np.isfinite(program.lower) | ~np.isfinite(program.upper)
    free = ~np.isfinite(program.lower) & ~np.isfinite(program.upper)
    identity = np.eye(columns)
    by_column = np.concatenate([np.where(up, 1.0, -1.0) * identity, -identity[:, free]], axis=1)

    select = np.concatenate([np.eye(rows)[program.senses >= 0], -np.eye(rows)[program.senses <= 0]])
    boxed = np.isfinite(program.lower) & np.isfinite(program.upper)
    matrix = np.concatenate([select @ program.matrix, -identity[boxed]]) @ by_column
    constant = np.concatenate([-select @ program.matrix @ offset, (program.lower - program.upper)[boxed]])
    size = np.concatenate(
        [
            np.abs(select) @ np.abs(program.matrix) @ np.abs(offset),
            (np.abs(program.lower) + np.abs(program.upper))[boxed],
        ]
    )
    by_limit = np.concatenate([select, np.zeros((int(boxed.sum()), rows))])

    row_scale, column_scale = _scales(matrix)
    cost = (program.cost @ by_column) * column_scale
    random = np.random.default_rng(0).uniform(0.5, 1.0, len(cost))
    return LinearForm(
        cost=cost,
        base_cost=float(program.cost @ offset),
        perturbed=cost + PERTURBATION * (np.abs(cost) + _least(cost)) * random,
        matrix=np.ascontiguousarray(matrix * row_scale[:, None] * column_scale),
        constant=constant * row_scale,
        size=size * row_scale,
        by_limit=by_limit * row_scale[:, None],
        offset=offset,
        by_column=by_column * column_scale,
    )


def _least(cost: Array) -> float:
    size = np.abs(cost[cost != 0])
    return max(float(size.min()), _LEAST_SHARE * float(size.max())) if len(size) else 1e-300


def least_costs(costs: Array) -> Array:
    """Return :attr:`LinearForm.least_cost` (n,) of each row of costs (n, N)."""
    size = np.abs(costs)
    least = np.where(size > 0, size, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isfinite(least), np.maximum(least, _LEAST_SHARE * size.max(axis=1, initial=0.0)), 1e-300)


def _scales(matrix: Array) -> tuple[Array, Array]:
    """Return powers of two for rows and columns that bring the geometric means of nonzero entries near one."""
    size = np.abs(matrix)
    present = size > 0
    logs = np.log2(np.where(present, size, 1.0))
    rows, columns = np.zeros(len(matrix)), np.zeros(matrix.shape[1])
    for _ in range(4):
        left = np.where(present, logs + rows[:, None] + columns, 0)
        rows = rows - left.sum(axis=1) / np.maximum(present.sum(axis=1), 1)
        left = np.where(present, logs + rows[:, None] + columns, 0)
        columns = columns - left.sum(axis=0) / np.maximum(present.sum(axis=0), 1)
    return 2.0 ** np.round(rows), 2.0 ** np.round(columns)
