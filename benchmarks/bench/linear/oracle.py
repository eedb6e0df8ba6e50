"""Certified optima per second for new costs, compared with HiGHS that keeps its model and its last basis.

Times are processor time on one core, all in one run. Contestants take turns, and medians are compared. The answers are
checked against each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track

from bco_core.errors import SolverFailure
from bco_core.problems.linear.model import LinearModel, read_model
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array
from bco_core.solvers.primal_simplex import Oracle
from benchmarks.experiments.contextual.data import ContextualInstance, knapsack, shortest_path

Draw = Callable[[int, int], ContextualInstance]
Result = TypeVar("Result")

ROUNDS, DEGREE = 5, 4


def figures() -> dict[str, float]:
    small = _compare("5 × 5 grid", lambda rows, seed: shortest_path(rows, DEGREE, seed), 20_000, 1_000)
    large = _compare("10 × 10 grid", lambda rows, seed: shortest_path(rows, DEGREE, seed, grid=10), 2_000, 200)
    items = _compare("knapsack", lambda rows, seed: knapsack(rows, DEGREE, seed), 20_000, 1_000)
    return {
        "decisions_per_s": small["oracle"],
        "vs_highspy": small["oracle"] / small["highspy"],
        "grid10_decisions_per_s": large["oracle"],
        "grid10_vs_highspy": large["oracle"] / large["highspy"],
        "knapsack_decisions_per_s": items["oracle"],
        "knapsack_vs_highspy": items["oracle"] / items["highspy"],
    }


def _compare(name: str, draw: Draw, rows: int, few: int) -> dict[str, float]:
    """Return the optima per second of the oracle, and of HiGHS on ``few`` rows."""
    # One instance, cut into rounds, since its matrix and the costs' model come from the seed.
    instance = draw((ROUNDS + 1) * rows, 0)
    model = read_model(instance.spec)
    costs = np.split(model.cost.at(instance.outcomes), ROUNDS + 1)
    oracle = Oracle.over(model.technology.constant, model.senses, model.limits.constant, model.lower, model.upper)
    highspy = _persistent(model)
    # The first call compiles and fills the pool.
    oracle.solve(costs[0])
    highspy(costs[0][:few])
    times: dict[str, list[float]] = {"oracle": [], "highspy": []}
    for fresh in track(costs[1:], name, console=Console(stderr=True), transient=True):
        solved, seconds = _timed(partial(oracle.solve, fresh))
        times["oracle"].append(seconds / rows)
        reference, seconds = _timed(partial(highspy, fresh[:few]))
        times["highspy"].append(seconds / few)
        if not solved.certified.all():
            raise SolverFailure(f"{name}: an optimum is not certified")
        if not np.allclose(solved.objective[:few], reference, rtol=1e-9):
            raise SolverFailure(f"{name}: HiGHS finds other optima")
    return {contestant: 1.0 / statistics.median(seconds) for contestant, seconds in times.items()}


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    began = process_time()
    result = work()
    return result, process_time() - began


def _persistent(model: LinearModel) -> Callable[[Array], Array]:
    """Return a solver that keeps the model in HiGHS: only costs change, and each solve starts from the last basis."""
    limits, count = model.limits.constant, len(model.lower)
    solver = highs.model_of(
        np.zeros(count),
        model.technology.constant,
        np.where(model.senses >= 0, limits, -np.inf),
        np.where(model.senses <= 0, limits, np.inf),
        model.lower,
        model.upper,
    )
    columns = np.arange(count, dtype=np.int32)

    def solve(costs: Array) -> Array:
        objective = np.empty(len(costs))
        for row, cost in enumerate(costs):
            solver.changeColsCost(count, columns, cost)
            solver.run()
            objective[row] = cost @ np.array(solver.getSolution().col_value)
        return objective

    return solve
