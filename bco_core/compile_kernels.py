"""Compile every kernel once, so that no first request and no test waits for it: ``python -m bco_core.compile_kernels``.

Kernels are compiled for the types of their arguments, so this decides small problems of every kind. Numba caches the
result next to the sources, or in ``NUMBA_CACHE_DIR``; with a filled cache a run takes seconds.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from bco_core import PrescribeOptions, Sample, build_problem, learn, make_options, prescribe
from bco_core.data import Standardizer
from bco_core.distributions import FAMILIES, equal_mixture
from bco_core.features.standardized import StandardizedFeatures
from bco_core.posterior import Posterior
from bco_core.predictive import Carrier, History
from bco_core.predictors.linear import Linear
from bco_core.problems.base import Risk
from bco_core.problems.newsvendor import Newsvendor

SHIPMENT: dict[str, Any] = {
    "kind": "shipment",
    "sources": [{"name": "a", "order_cost": 5, "emergency_cost": 90}],
    "destinations": ["b", "c"],
    "transport_costs": [[1, 2]],
}
RANDOM_COSTS: dict[str, Any] = {
    "kind": "linear",
    "decisions": [{"name": "z", "cost": 1, "maximum": 9}],
    "recourse": [{"name": "x", "cost": {"outcomes": {"price": 1}}}],
    "outcomes": [{"name": "demand", "minimum": 0}, {"name": "price", "minimum": 0}],
    "rows": [{"decisions": {"z": 1}, "recourse": {"x": 1}, "sense": ">=", "limit": {"outcomes": {"demand": 1}}}],
}
PATHS: dict[str, Any] = {
    "kind": "shortest_path",
    "source": "a",
    "target": "b",
    "edges": [{"start": "a", "end": "b", "name": name} for name in ("left", "right")],
}
ASSETS: dict[str, Any] = {"assets": [{"name": "a"}, {"name": "b"}], "covariance": [[1.0, 0.2], [0.2, 1.0]]}
MEAN_VARIANCE = {"kind": "mean_variance_portfolio", "risk_aversion": 2.0, **ASSETS}
LEAST_VARIANCE = {"kind": "return_constrained_portfolio", "target_return": 0.1, **ASSETS}
NEWSVENDOR: dict[str, Any] = {
    "kind": "newsvendor",
    "items": [{"name": name, "underage_cost": 3, "overage_cost": 1} for name in ("a", "b")],
}


def decide(spec: dict[str, Any], *risks: Risk) -> None:
    """Decide for points, and for scenarios by each risk measure."""
    problem = build_problem(spec)
    outcomes = torch.tensor([[[3.0, 4.0], [4.0, 4.0], [5.0, 3.0]]], dtype=torch.float64)
    weights = torch.full((3,), 1 / 3, dtype=torch.float64)
    for risk in risks:
        result = problem.prescribe(outcomes, weights, risk)
        problem.cost(result.decisions, outcomes)
    problem.cost(problem.decide(outcomes), outcomes)


def journey(method: str, **options: Any) -> None:
    """Learn a newsvendor's posterior from a few rows and prescribe from it."""
    generator = torch.Generator().manual_seed(0)
    contexts = torch.rand(40, 1, dtype=torch.float64, generator=generator)
    outcomes = (20 + 10 * contexts + torch.rand(40, 2, dtype=torch.float64, generator=generator)).clone()
    problem = build_problem(NEWSVENDOR)
    learned = learn(problem, Sample(contexts, outcomes), make_options(method, seed=0, **options))
    for policy in ("averaged", "predictive"):
        prescribe(learned.posterior, problem, contexts[:2], PrescribeOptions(policy=policy))


def linear_programs() -> None:
    for spec in (SHIPMENT, RANDOM_COSTS, PATHS):
        decide(spec, Risk(), Risk(0.5, 0.9))


def portfolios_and_learning() -> None:
    decide(MEAN_VARIANCE, Risk())
    decide(LEAST_VARIANCE, Risk())
    for predictor in ("linear", "mlp"):
        journey("vi", predictor=predictor, members=2, epochs=2, particles=20)
    journey("mh", predictor="linear", chains=2, steps=40, burn_in=20, particles=20)


def warm_up() -> None:
    """Make one prescription by the code that most requests use."""
    zeros, ones = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    units, table = Standardizer(zeros, ones), torch.ones(2, 1, dtype=torch.float64)
    predictor = Linear((1, 1), StandardizedFeatures(units), units)
    mixture = equal_mixture(FAMILIES["gaussian"], torch.zeros(1, 2), torch.ones(1, 2))
    problem = Newsvendor.from_spec({"items": [{"underage_cost": 1, "overage_cost": 1}]})
    for carrier in (Carrier("keep", 1.0, ones), Carrier("scaled", None, ones, table)):
        history = History(table, table, ones, carrier, table)
        posterior = Posterior(predictor, mixture, torch.zeros(2, 2), 0, history)
        prescribe(posterior, problem, torch.zeros(1, 1, dtype=torch.float64))


def main() -> None:
    """Compile in two processes, one for each half of the kernels, and say how long it took."""
    began = time.monotonic()
    print("kernels: compiling what is not compiled yet", flush=True)  # noqa: T201
    halves: tuple[Callable[[], None], ...] = (linear_programs, portfolios_and_learning)
    processes = [multiprocessing.get_context("spawn").Process(target=half) for half in halves]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print(f"kernels: ready after {time.monotonic() - began:.0f} s", flush=True)  # noqa: T201
    sys.exit(max(process.exitcode or 0 for process in processes))


if __name__ == "__main__":
    main()
