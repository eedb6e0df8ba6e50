"""The shortest path and the knapsack of the decision-focused-learning literature, with PyEPO's data.

Both draw a matrix B of fair coin flips (outcomes, features) and contexts x of independent standard Gaussians. Outcome j
of a row is ((B x)_j / √features + 3)^degree + 1, divided by 3.5^degree and multiplied by noise that is uniform between
1 − width and 1 + width. A knapsack's values are five times that, rounded up; its weights are whole hundredths, uniform
between 3 and 7.99. A seed draws the weights, B, the contexts and the noise in this order from NumPy's RandomState, as
PyEPO does, so that equal arguments give equal data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FEATURES, NOISE = 5, 0.5
GRID = 5
ITEMS, DIMENSIONS, CAPACITY = 32, 3, 20.0
# Number of noise factors in the mean of a rounded value.
_MIDDLES = 200


@dataclass(frozen=True)
class ContextualInstance:
    """A problem as a ``linear`` description, with contexts (n, features) and outcomes (n, d) of its costs.

    ``means`` (n, d) are the expected outcomes of the contexts, which no method sees: deciding by them is the best that
    a context allows. ``weights`` (dimensions, items) are those of a knapsack, None for a shortest path.
    """

    spec: dict[str, Any]
    contexts: Array
    outcomes: Array
    means: Array
    weights: Array | None = None


def shortest_path(rows: int, degree: int, seed: int, grid: int = GRID, noise: float = NOISE) -> ContextualInstance:
    """Draw costs of the arcs of a square grid, in the order of ``arcs``."""
    random = np.random.RandomState(seed)
    contexts, level, factors = _draw(random, rows, 2 * grid * (grid - 1), degree, noise)
    return ContextualInstance(shortest_path_spec(grid), contexts, level * factors, level)


def knapsack(
    rows: int, degree: int, seed: int, items: int = ITEMS, dimensions: int = DIMENSIONS, noise: float = NOISE
) -> ContextualInstance:
    """Draw values of items; the seed draws their weights, too."""
    random = np.random.RandomState(seed)
    weights = random.choice(np.arange(300, 800), size=(dimensions, items)) / 100
    contexts, level, factors = _draw(random, rows, items, degree, noise)
    middles = 1 + noise * (2 * np.arange(0.5, _MIDDLES) / _MIDDLES - 1)
    means = sum(np.ceil(5 * level * middle) for middle in middles) / _MIDDLES
    return ContextualInstance(knapsack_spec(weights), contexts, np.ceil(5 * level * factors), means, weights)


def _draw(
    random: np.random.RandomState, rows: int, width: int, degree: int, noise: float
) -> tuple[Array, Array, Array]:
    """Draw contexts (rows, features), their polynomial (rows, width), and the noise factors (rows, width)."""
    matrix = random.binomial(1, 0.5, (width, FEATURES))
    contexts = random.normal(0, 1, (rows, FEATURES))
    level = ((contexts @ matrix.T / np.sqrt(FEATURES) + 3) ** degree + 1) / 3.5**degree
    return contexts, level, random.uniform(1 - noise, 1 + noise, (rows, width))


def arcs(grid: int = GRID) -> list[tuple[int, int]]:
    """Return the arcs to the right and downwards between nodes numbered row by row.

    For each row, the arcs within it precede those to the next row.
    """
    result = []
    for row in range(grid):
        nodes = range(row * grid, (row + 1) * grid)
        result += [(node, node + 1) for node in nodes[:-1]]
        result += [(node, node + grid) for node in nodes if row < grid - 1]
    return result


def shortest_path_spec(grid: int = GRID) -> dict[str, Any]:
    """Return the problem of sending one unit from a grid's first corner to its last; outcome k is the cost of arc k."""
    names = [f"{start}-{end}" for start, end in arcs(grid)]
    rows = []
    for node in range(grid * grid):
        signs = {name: (end == node) - (start == node) for name, (start, end) in zip(names, arcs(grid), strict=True)}
        rows.append(
            {
                "name": f"node {node}",
                "decisions": {name: float(sign) for name, sign in signs.items() if sign},
                "sense": "=",
                "limit": float((node == grid * grid - 1) - (node == 0)),
            }
        )
    return {
        "kind": "linear",
        "decisions": [_decision(name, f"cost {name}", integer=False) for name in names],
        "outcomes": [{"name": f"cost {name}"} for name in names],
        "rows": rows,
    }


def knapsack_spec(weights: Array, capacity: float = CAPACITY) -> dict[str, Any]:
    """Return the problem of choosing items of largest value; weights (dimensions, items) have a limit per dimension."""
    names = [f"item {item}" for item in range(weights.shape[1])]
    return {
        "kind": "linear",
        "sense": "maximize",
        "decisions": [_decision(name, f"value of {name}", integer=True) for name in names],
        "outcomes": [{"name": f"value of {name}"} for name in names],
        "rows": [
            {
                "name": f"capacity {dimension}",
                "decisions": dict(zip(names, row.tolist(), strict=True)),
                "sense": "<=",
                "limit": capacity,
            }
            for dimension, row in enumerate(weights)
        ],
    }


def _decision(name: str, outcome: str, integer: bool) -> dict[str, Any]:
    return {"name": name, "cost": {"outcomes": {outcome: 1.0}}, "minimum": 0.0, "maximum": 1.0, "integer": integer}
