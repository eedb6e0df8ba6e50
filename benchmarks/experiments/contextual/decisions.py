"""Exact decisions for many costs at once, computed independently of the core's solvers.

Shortest paths in a grid are found node by node. For a knapsack, all packings are listed: a few thousand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.experiments.contextual.data import CAPACITY, Array, arcs

# Costs to be minimised (n, d) → decisions (n, d).
Decide = Callable[[Array], Array]


def shortest_paths(grid: int) -> Decide:
    """Return a function that finds a cheapest path's arcs; costs may be negative, since no path visits a node twice."""
    edges = arcs(grid)

    def decide(costs: Array) -> Array:
        rows = np.arange(len(costs))
        reached = np.full((len(costs), grid * grid), np.inf)
        reached[:, 0] = 0
        entered = np.zeros(reached.shape, dtype=np.int64)
        for arc, (start, end) in sorted(enumerate(edges), key=lambda one: one[1]):
            through = reached[:, start] + costs[:, arc]
            better = through < reached[:, end]
            reached[better, end] = through[better]
            entered[better, end] = arc
        decisions = np.zeros(costs.shape)
        starts = np.array([start for start, _ in edges])
        node = np.full(len(costs), grid * grid - 1)
        for _ in range(2 * (grid - 1)):
            taken = entered[rows, node]
            decisions[rows, taken] = 1
            node = starts[taken]
        return decisions

    return decide


def packings(weights: Array, capacity: float = CAPACITY) -> Array:
    """Return every set of items that fits, as rows of zeros and ones: (sets, items), the empty one first."""
    items = weights.shape[1]
    sets = [np.zeros((1, items))]
    while len(sets[-1]):
        latest = sets[-1]
        last = np.where(latest.any(1), items - 1 - latest[:, ::-1].argmax(1), -1)
        loads = (latest @ weights.T)[:, :, None] + weights
        fits = (loads <= capacity + 1e-9).all(1) & (np.arange(items) > last[:, None])
        of, item = np.nonzero(fits)
        grown = latest[of]
        grown[np.arange(len(of)), item] = 1
        sets.append(grown)
    return np.concatenate(sets)


def best_packings(weights: Array, capacity: float = CAPACITY) -> Decide:
    """Return a function that finds the packing of least cost, where costs are minus the values."""
    known = packings(weights, capacity)

    def decide(costs: Array) -> Array:
        chunks = np.array_split(costs, max(1, len(costs) // 256))
        chosen: Array = np.concatenate([known[(chunk @ known.T).argmin(1)] for chunk in chunks])
        return chosen

    return decide
