"""Random linear programs and two-stage problems, some degenerate, none unbounded."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from bco_core.solvers.linear_form import LinearProgram

Array = NDArray[np.float64]
Random = np.random.Generator


def random_program(rng: Random, rows: int, columns: int, plain: bool = False) -> LinearProgram:
    """Draw rows of all senses and variables with all kinds of bounds.

    The cost is A'y + d with signs that make (y, d) dual feasible, so the program is bounded. ``plain`` entries are
    small integers, so ties are common.
    """
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
    """Draw lower bounds, upper bounds, both, fixed values, and free variables."""
    kind = rng.choice(5, columns, p=[0.45, 0.15, 0.2, 0.05, 0.15])
    low = entries(rng, (columns,), plain)
    width = np.abs(entries(rng, (columns,), plain)) * (kind != 3)
    lower = np.where((kind == 1) | (kind == 4), -np.inf, low)
    upper = np.where((kind == 0) | (kind == 4), np.inf, low + width)
    return lower, upper


def reachable_limits(rng: Random, program: LinearProgram, count: int, plain: bool = False) -> Array:
    """Draw limits (count, rows) that some v within the bounds satisfies, often with equality."""
    rows, columns = program.matrix.shape
    near = np.where(np.isfinite(program.lower), program.lower, np.where(np.isfinite(program.upper), program.upper, 0.0))
    values = near + entries(rng, (count, columns), plain)
    values = np.clip(values, program.lower, program.upper)
    room = np.abs(entries(rng, (count, rows), plain)) * rng.integers(0, 2, (count, rows))
    return values @ program.matrix.T - program.senses * room


def solve_by_cvxpy(program: LinearProgram, limits: Array) -> float:
    """Return the optimum, ∞ if infeasible."""
    v = cp.Variable(len(program.cost))
    left = program.matrix @ v
    constraints = [
        left[i] >= limits[i] if sense > 0 else left[i] <= limits[i] if sense < 0 else left[i] == limits[i]
        for i, sense in enumerate(program.senses)
    ]
    constraints += [v[j] >= bound for j, bound in enumerate(program.lower) if np.isfinite(bound)]
    constraints += [v[j] <= bound for j, bound in enumerate(program.upper) if np.isfinite(bound)]
    return float(cp.Problem(cp.Minimize(program.cost @ v), constraints).solve(solver=cp.CLARABEL))


def random_two_stage(
    rng: Random, decisions: int = 3, rows: int = 4, outcomes: int = 2, plain: bool = False, complete: bool = True
) -> dict[str, Any]:
    """Draw a specification with rows of all senses and all kinds of bounds.

    The costs A'μ + T'π + d and W'π + d keep it bounded. ``complete`` adds slack to every row, at a cost, so recourse is
    complete.
    """
    recourse = rows + 2
    first = random_program(rng, int(rng.integers(0, 3)), decisions, plain)
    (limits,) = reachable_limits(rng, first, 1, plain)
    senses = rng.integers(-1, 2, rows)
    by_recourse, by_decision = entries(rng, (rows, recourse), plain), entries(rng, (rows, decisions), plain)
    dual = np.where(senses == 0, 1.0, senses) * np.abs(entries(rng, (rows,), plain))
    lower, upper = random_bounds(rng, recourse, plain)
    low, high = np.isfinite(lower), np.isfinite(upper)
    signs = np.where(low & high, rng.choice([-1.0, 1.0], recourse), low.astype(float) - high.astype(float))
    cost = by_recourse.T @ dual + signs * np.abs(entries(rng, (recourse,), plain))
    extra = [(i, sign) for i, sense in enumerate(senses) for sign in (1.0, -1.0) if sense * sign >= 0]
    if not complete:
        extra = []
    by_extra = np.zeros((rows, len(extra)))
    for column, (i, sign) in enumerate(extra):
        by_extra[i, column] = sign
    extra_cost = by_extra.T @ dual + rng.uniform(0.5, 5, len(extra))
    later = LinearProgram(
        np.concatenate([cost, extra_cost]),
        np.concatenate([by_recourse, by_extra], axis=1),
        senses,
        np.concatenate([lower, np.zeros(len(extra))]),
        np.concatenate([upper, np.full(len(extra), np.inf)]),
    )
    now = LinearProgram(first.cost + by_decision.T @ dual, first.matrix, first.senses, first.lower, first.upper)
    return spec_of(now, limits, later, entries(rng, (rows,), plain), entries(rng, (rows, outcomes), plain), by_decision)


def spec_of(
    first: LinearProgram, limits: Array, recourse: LinearProgram, constant: Array, by_outcome: Array, by_decision: Array
) -> dict[str, Any]:
    """Convert a problem in matrices to a specification by names."""
    signs = {1: ">=", 0: "=", -1: "<="}

    def variables(letter: str, program: LinearProgram) -> list[dict[str, Any]]:
        return [
            {
                "name": f"{letter}{j}",
                "cost": program.cost[j],
                "minimum": program.lower[j] if np.isfinite(program.lower[j]) else None,
                "maximum": program.upper[j] if np.isfinite(program.upper[j]) else None,
            }
            for j in range(len(program.cost))
        ]

    def entries_by_name(letter: str, row: Array) -> dict[str, float]:
        return {f"{letter}{j}": float(value) for j, value in enumerate(row) if value}

    return {
        "kind": "two_stage_linear",
        "decisions": variables("z", first),
        "decision_rows": [
            {"coefficients": entries_by_name("z", row), "sense": signs[int(sense)], "limit": limit}
            for row, sense, limit in zip(first.matrix, first.senses, limits.tolist(), strict=True)
        ],
        "outcomes": [{"name": f"y{j}"} for j in range(by_outcome.shape[1])],
        "recourse": variables("x", recourse),
        "rows": [
            {
                "recourse": entries_by_name("x", recourse.matrix[i]),
                "decisions": entries_by_name("z", by_decision[i]),
                "sense": signs[int(recourse.senses[i])],
                "constant": float(constant[i]),
                "outcomes": entries_by_name("y", by_outcome[i]),
            }
            for i in range(len(constant))
        ],
    }


def saa_by_cvxpy(spec: dict[str, Any], atoms: Array, weights: Array, cvar_weight: float, cvar_level: float) -> float:
    """Minimise (1 − w)·E + w·CVaR of a specification, built independently from the names."""
    z = {d["name"]: cp.Variable() for d in spec["decisions"]}
    constraints = [bound for d in spec["decisions"] for bound in _between(z[d["name"]], d)]
    constraints += [
        _related(_dot(row["coefficients"], z), row["sense"], row["limit"]) for row in spec.get("decision_rows", [])
    ]
    costs = []
    for atom in atoms:
        x = {r["name"]: cp.Variable() for r in spec["recourse"]}
        y = {o["name"]: value for o, value in zip(spec["outcomes"], atom, strict=True)}
        constraints += [bound for r in spec["recourse"] for bound in _between(x[r["name"]], r)]
        for row in spec["rows"]:
            left = _dot(row.get("recourse", {}), x) + _dot(row.get("decisions", {}), z)
            constraints.append(
                _related(left, row["sense"], row.get("constant", 0.0) + _dot(row.get("outcomes", {}), y))
            )
        costs.append(
            sum(d["cost"] * z[d["name"]] for d in spec["decisions"])
            + sum(r["cost"] * x[r["name"]] for r in spec["recourse"])
        )
    cost = cp.hstack(costs)
    threshold = cp.Variable()
    tail = threshold + weights @ cp.pos(cost - threshold) / (1 - cvar_level)
    goal = (1 - cvar_weight) * (weights @ cost) + cvar_weight * tail
    return float(cp.Problem(cp.Minimize(goal), constraints).solve(solver=cp.CLARABEL))


def _dot(coefficients: dict[str, float], values: dict[str, Any]) -> Any:
    return sum((value * values[name] for name, value in coefficients.items()), 0.0)


def _between(variable: Any, part: dict[str, Any]) -> list[Any]:
    low, high = part.get("minimum", 0.0), part.get("maximum")
    return [variable >= low] * (low is not None) + [variable <= high] * (high is not None)


def _related(left: Any, sense: str, right: Any) -> Any:
    left = cp.Constant(left) if isinstance(left, float) else left
    return left >= right if sense == ">=" else left <= right if sense == "<=" else left == right
