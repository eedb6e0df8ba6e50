"""Decisions over 200 scenarios with random costs, or random costs and technology: cutting planes compared with HiGHS.

A network buys capacity now and ships to customers later; shortages are bought at a high price. Demands and freight
rates are random, and in the second figure also the share of the bought capacity that is available. HiGHS gets the
program of all scenarios already built, and only its solve is timed. The time of the cutting planes includes everything
from outcomes to certificates. The problem is built once, and every round draws its own scenarios. Both objectives must
agree.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import highspy
import numpy as np
from scipy import sparse

from bco_core import deadlines
from bco_core.errors import SolverFailure
from bco_core.problems.base import EXPECTATION, Status
from bco_core.problems.linear.model import LinearModel, read_model
from bco_core.problems.linear.recourse import FixedRecourse
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array
from bco_core.status import GAP

SCENARIOS, ROUNDS = 200, 5
# Sources and customers of the networks.
SIZES = ((3, 4), (5, 8), (8, 12), (10, 20))
# Allowed relative difference of the two objectives: one gap for each.
_AGREE = 2e-6


def figures() -> dict[str, float]:
    """Return the ratio of HiGHS's time to ours: the geometric mean over sizes, and each size."""
    result: dict[str, float] = {}
    for name, technology in (("costs", False), ("technology", True)):
        ratios = {size: ratio(*size, technology) for size in SIZES}
        result[f"saa_random_{name}_vs_highs"] = statistics.geometric_mean(ratios.values())
        result |= {f"saa_random_{name}_vs_highs_{a}x{b}": value for (a, b), value in ratios.items()}
    return result


def ratio(sources: int, customers: int, technology: bool) -> float:
    """Return HiGHS's median time divided by that of the cutting planes; the two take turns."""
    random = np.random.default_rng(0)
    model = read_model(network(sources, customers, random, technology))
    stages = FixedRecourse.of(model)
    if stages is None:
        raise SolverFailure("the network is too large for the fast path")
    weights = np.full(SCENARIOS, 1 / SCENARIOS)
    times: dict[str, list[float]] = {"ours": [], "HiGHS": []}
    for _ in range(1 + ROUNDS):
        atoms = np.concatenate(
            [
                random.gamma(4.0, 2.0, (SCENARIOS, customers)),
                random.lognormal(0.0, 0.3, (SCENARIOS, sources)),
                random.uniform(0.6, 1.0, (SCENARIOS, sources)),
            ],
            axis=1,
        )
        solver = over_scenarios(model, atoms, weights)
        began = time.perf_counter()
        answer = highs.run(solver)
        times["HiGHS"].append(time.perf_counter() - began)
        began = time.perf_counter()
        with deadlines.alarm(None) as rung:
            result = stages.minimize(atoms, weights, EXPECTATION, GAP, 0.0, rung)
        times["ours"].append(time.perf_counter() - began)
        if result is None or result.status is not Status.OPTIMAL:
            raise SolverFailure("cutting planes left the gap open")
        if abs(result.objective - answer.objective) > _AGREE * abs(answer.objective):
            raise SolverFailure(f"cutting planes found {result.objective:.9g}, and HiGHS {answer.objective:.9g}")
    # The first round compiles kernels.
    return statistics.median(times["HiGHS"][1:]) / statistics.median(times["ours"][1:])


def network(sources: int, customers: int, random: np.random.Generator, technology: bool) -> dict[str, Any]:
    """Return the network as a linear model by names."""
    rates, prices = random.uniform(1, 5, (sources, customers)), random.uniform(15, 25, customers)
    ways = [(i, j) for i in range(sources) for j in range(customers)]
    return {
        "decisions": [{"name": f"buy{i}", "cost": float(random.uniform(2, 4))} for i in range(sources)],
        "recourse": [
            *({"name": f"ship{i}_{j}", "cost": {"outcomes": {f"rate{i}": float(rates[i, j])}}} for i, j in ways),
            *({"name": f"short{j}", "cost": float(prices[j])} for j in range(customers)),
        ],
        "outcomes": [
            *({"name": f"demand{j}"} for j in range(customers)),
            *({"name": f"rate{i}"} for i in range(sources)),
            *({"name": f"yield{i}"} for i in range(sources)),
        ],
        "rows": [
            *(
                {
                    "decisions": {f"buy{i}": {"outcomes": {f"yield{i}": 1.0}} if technology else 0.8},
                    "recourse": {f"ship{i}_{j}": -1.0 for j in range(customers)},
                    "sense": ">=",
                    "limit": 0.0,
                }
                for i in range(sources)
            ),
            *(
                {
                    "recourse": {f"ship{i}_{j}": 1.0 for i in range(sources)} | {f"short{j}": 1.0},
                    "sense": ">=",
                    "limit": {"outcomes": {f"demand{j}": 1.0}},
                }
                for j in range(customers)
            ),
        ],
    }


def over_scenarios(model: LinearModel, atoms: Array, weights: Array) -> highspy.Highs:
    """Return HiGHS with all scenarios as one program in z and x_1, …, x_K, not solved yet."""
    count = len(atoms)
    technology = sparse.vstack([model.technology.at(outcome) for outcome in atoms])
    recourse = sparse.block_diag([model.recourse.at(outcome) for outcome in atoms])
    limits = model.limits.at(atoms)
    cost = (weights[:, None] * model.recourse_cost.at(atoms)).ravel()
    return highs.model_of(
        np.concatenate([weights @ model.cost.at(atoms), cost]),
        sparse.csr_array(sparse.hstack([technology, recourse])),
        np.where(model.senses >= 0, limits, -np.inf).ravel(),
        np.where(model.senses <= 0, limits, np.inf).ravel(),
        np.concatenate([model.lower, np.tile(model.recourse_lower, count)]),
        np.concatenate([model.upper, np.tile(model.recourse_upper, count)]),
    )
