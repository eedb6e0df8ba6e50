"""Random linear programs and two-stage problems, nasty ones among them, none of them unbounded."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from bco_core.solvers.linear_form import LinearProgram

Array = NDArray[np.float64]
Random = np.random.Generator


def random_program(rng: Random, rows: int, columns: int, plain: bool = False) -> LinearProgram:
    """Rows of all senses and variables with all kinds of bounds; cost = A'y + d with signs that make (y, d) dual
    feasible, so that no direction lowers the cost for ever. ``plain`` numbers are small and whole: ties everywhere."""
    senses = rng.integers(-1, 2, rows)
    matrix = entries(rng, (rows, columns), plain)
    lower, upper = random_bounds(rng, columns, plain)
    dual = entries(rng, (rows,), plain)
    dual = np.where(senses == 0, dual, np.abs(dual) * senses)
    slack = np.abs(entries(rng, (columns,), plain))
    low, high = np.isfinite(lower), np.isfinite(upper)
    signs = np.where(low & high, rng.choice([-1.0, 1.0], columns), low.astype(float) - high.astype(float))
    return LinearProgram(matrix.T @ dual + signs * slack, matrix, senses, lower, upper)


def entries(rng: Random, shape: tuple[int, ...], plain: bool) -> Array:
    if plain:
        return rng.integers(-2, 3, shape).astype(float)
    return rng.normal(size=shape) * (rng.random(shape) < 0.7)


def random_bounds(rng: Random, columns: int, plain: bool) -> tuple[Array, Array]:
    """At least, at most, between, at one value, and free."""
    kind = rng.choice(5, columns, p=[0.45, 0.15, 0.2, 0.05, 0.15])
    low = entries(rng, (columns,), plain)
    width = np.abs(entries(rng, (columns,), plain)) * (kind != 3)
    lower = np.where((kind == 1) | (kind == 4), -np.inf, low)
    upper = np.where((kind == 0) | (kind == 4), np.inf, low + width)
    return lower, upper


def reachable_limits(rng: Random, program: LinearProgram, count: int, plain: bool = False) -> Array:
    """Limits (count, rows) that some v within the bounds keeps, often exactly."""
    rows, columns = program.matrix.shape
    near = np.where(np.isfinite(program.lower), program.lower, np.where(np.isfinite(program.upper), program.upper, 0.0))
    values = near + entries(rng, (count, columns), plain)
    values = np.clip(values, program.lower, program.upper)
    room = np.abs(entries(rng, (count, rows), plain)) * rng.integers(0, 2, (count, rows))
    return values @ program.matrix.T - program.senses * room


def solve_by_cvxpy(program: LinearProgram, limits: Array) -> float:
    """The optimum, ∞ if there is none."""
    v = cp.Variable(len(program.cost))
    left = program.matrix @ v
    held = [
        left[i] >= limits[i] if sense > 0 else left[i] <= limits[i] if sense < 0 else left[i] == limits[i]
        for i, sense in enumerate(program.senses)
    ]
    held += [v[j] >= bound for j, bound in enumerate(program.lower) if np.isfinite(bound)]
    held += [v[j] <= bound for j, bound in enumerate(program.upper) if np.isfinite(bound)]
    return float(cp.Problem(cp.Minimize(program.cost @ v), held).solve(solver=cp.CLARABEL))
