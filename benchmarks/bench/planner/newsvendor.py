"""A budget across 50 items for 64 contexts: our search over its price, compared with one HiGHS program per context."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from scipy import sparse

from bco_core.problems.newsvendor import Newsvendor
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array

ITEMS, SCENARIOS, CONTEXTS = 50, 200, 64
# Programs that HiGHS solves: they are alike, and all 64 would take a minute.
_SOLVED = 8
_REPEATS = 5


def newsvendor_budget_vs_highs(seed: int) -> float:
    """Return the ratio of HiGHS's time for the linear programs of all contexts to ours; both reach the same costs."""
    generator = np.random.default_rng(seed)
    level = generator.uniform(5, 80, ITEMS)
    outcomes = level * np.exp(0.5 * generator.standard_normal((CONTEXTS, SCENARIOS, ITEMS)))
    outcomes *= np.exp(0.3 * generator.standard_normal((CONTEXTS, 1, ITEMS)))
    under, over, use = (generator.uniform(low, high, ITEMS) for low, high in ((1, 9), (0.3, 3), (0.5, 4)))
    limit = 0.7 * float(use @ level)
    names = [f"item {j}" for j in range(ITEMS)]
    problem = Newsvendor.from_spec(
        {
            "items": [
                {"name": name, "underage_cost": u, "overage_cost": o, "minimum_order": 0.0}
                for name, u, o in zip(names, under.tolist(), over.tolist(), strict=True)
            ],
            "decision_rows": [
                {"coefficients": dict(zip(names, use.tolist(), strict=True)), "sense": "<=", "limit": limit}
            ],
        }
    )
    weights = torch.full((SCENARIOS,), 1 / SCENARIOS, dtype=torch.float64)
    atoms = torch.from_numpy(outcomes)
    problem.prescribe(atoms[:1], weights)
    ours = []
    for _ in range(_REPEATS):
        began = perf_counter()
        result = problem.prescribe(atoms, weights)
        ours.append(perf_counter() - began)
    began = perf_counter()
    costs = [_by_highs(outcomes[b], under, over, use, limit) for b in range(_SOLVED)]
    theirs = (perf_counter() - began) * CONTEXTS / _SOLVED
    np.testing.assert_allclose(result.objective[:_SOLVED].numpy(), costs, rtol=1e-6)
    return theirs / float(np.median(ours))


def _by_highs(demand: Array, under: Array, over: Array, use: Array, limit: float) -> float:
    """Return the least expected cost by a planner's usual program: z + short − left = demand in every scenario."""
    count, dim = demand.shape
    total = count * dim
    ties = sparse.hstack(
        [
            sparse.csr_array(np.tile(np.eye(dim), (count, 1))),
            sparse.eye_array(total),
            -sparse.eye_array(total),
        ]
    )
    budget = sparse.hstack([sparse.csr_array(use[None]), sparse.csr_array((1, 2 * total))])
    matrix = sparse.csr_array(sparse.vstack([budget, ties]))
    solver = highs.model_of(
        np.concatenate([np.zeros(dim), np.tile(under, count) / count, np.tile(over, count) / count]),
        matrix,
        np.concatenate([[-np.inf], demand.ravel()]),
        np.concatenate([[limit], demand.ravel()]),
        np.zeros(dim + 2 * total),
        np.full(dim + 2 * total, np.inf),
    )
    return highs.run(solver).objective
