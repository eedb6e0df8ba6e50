"""Shortest path and knapsack with uncertain objectives: methods on the same rows, judged by regret on fresh ones.

A run has a degree of the polynomial, a number n of rows and a seed. The seed draws the map from contexts to costs (and
the weights of a knapsack), n training rows and ``TEST`` test rows. Normalised regret is the cost of decisions minus
that of the best decisions in hindsight, relative to the latter, over all test rows. ``floor`` decides by the true mean
costs of a context: no learned method can be expected to do better. Seconds are processor seconds of learning.

For a knapsack, every method takes the best packing for its prediction from the list of all packings: HiGHS finds the
same one, some hundred times slower. ``auto`` learns with the core's default options. Its prediction is the mean over
the draws of ``prescribe``, by which its default policy decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import NamedTuple

import numpy as np
import torch

from bco_core.data import Sample
from bco_core.inference.learn import learn
from bco_core.posterior import Posterior
from bco_core.problems.base import DecisionProblem
from bco_core.problems.registry import build_problem
from benchmarks.experiments.contextual import data, pyepo_process, spo, two_stage
from benchmarks.experiments.contextual.data import Array, ContextualInstance
from benchmarks.experiments.contextual.decisions import Decide, best_packings, shortest_paths
from benchmarks.experiments.harness import Finding, Key

NAMES = ("degree", "n", "seed")
DEGREES, SIZES, SEEDS = (1, 2, 4, 6), (100, 1000), 10
TEST = 2000
PYEPO = "pyepo"


class Experiment(NamedTuple):
    """Functions that draw the data and decide; ``sign`` times outcomes are the costs that ``decide`` minimises."""

    draw: Callable[[int, int, int], ContextualInstance]
    decide: Callable[[ContextualInstance], Decide]
    sign: float


EXPERIMENTS = {
    "shortest-path": Experiment(data.shortest_path, lambda instance: shortest_paths(data.GRID), 1.0),
    "knapsack": Experiment(data.knapsack, lambda instance: best_packings(_weights(instance)), -1.0),
}


@dataclass(frozen=True)
class ContextualTrial:
    """The rows of a run: the first ``rows`` of the instance are training rows, the others test rows."""

    experiment: Experiment
    instance: ContextualInstance
    rows: int
    seed: int

    @cached_property
    def decide(self) -> Decide:
        return self.experiment.decide(self.instance)

    @property
    def contexts(self) -> Array:
        return self.instance.contexts[: self.rows]

    @property
    def costs(self) -> Array:
        """Costs (n, d) of the training rows, to be minimised."""
        return self.experiment.sign * self.instance.outcomes[: self.rows]

    @property
    def new(self) -> Array:
        return self.instance.contexts[self.rows :]

    @cached_property
    def _hindsight(self) -> tuple[Array, float]:
        costs = self.experiment.sign * self.instance.outcomes[self.rows :]
        return costs, float((self.decide(costs) * costs).sum())

    def regret(self, predict_costs: Array) -> float:
        """Return the normalised regret of deciding by predicted costs (m, d) of the test rows."""
        costs, best = self._hindsight
        return float((self.decide(predict_costs) * costs).sum() - best) / abs(best)


def _weights(instance: ContextualInstance) -> Array:
    if instance.weights is None:
        raise ValueError("only a knapsack has weights")
    return instance.weights


def learn_posterior(trial: ContextualTrial) -> tuple[DecisionProblem, Posterior]:
    """Return the problem built from its specification, and the posterior that ``auto`` learns by default."""
    problem = build_problem(trial.instance.spec)
    outcomes = trial.instance.outcomes[: trial.rows]
    return problem, learn(problem, Sample(torch.from_numpy(trial.contexts), torch.from_numpy(outcomes))).posterior


def predict_costs(trial: ContextualTrial, posterior: Posterior) -> Array:
    """Return the mean costs (m, d) of the test rows over the draws that decisions hedge over."""
    means: Array = posterior.scenarios(torch.from_numpy(trial.new), posterior.draws()).mean().numpy()
    return trial.experiment.sign * means


def _floor(trial: ContextualTrial) -> Array:
    return trial.experiment.sign * trial.instance.means[trial.rows :]


def _ols(trial: ContextualTrial) -> Array:
    return two_stage.least_squares(trial.contexts, trial.costs, trial.new)


def _ridge(trial: ContextualTrial) -> Array:
    return two_stage.ridge(trial.contexts, trial.costs, trial.new)


def _boosted(trial: ContextualTrial) -> Array:
    return two_stage.boosted(trial.contexts, trial.costs, trial.new, trial.seed)


def _spo(trial: ContextualTrial) -> Array:
    return spo.predict(spo.fit(trial.contexts, trial.costs, trial.decide, trial.seed), trial.new)


def _auto(trial: ContextualTrial) -> Callable[[], Array]:
    return partial(predict_costs, trial, learn_posterior(trial)[1])


# Predicted costs of the test rows by method, or a function that predicts them where prediction is slow and must not
# count as learning. PyEPO's predictions come from its own process.
METHODS: dict[str, Callable[[ContextualTrial], Array | Callable[[], Array]]] = {
    "floor": _floor,
    "ols": _ols,
    "ridge": _ridge,
    "boosted": _boosted,
    "spo": _spo,
    "auto": _auto,
}


def default_methods() -> list[str]:
    return [*METHODS, *([PYEPO] if pyepo_process.is_installed() else [])]


def keys(degrees: Sequence[int], sizes: Sequence[int], seeds: int) -> list[Key]:
    """Return the runs: few rows before many, and seed k of every degree before seed k + 1 of any."""
    return [(degree, size, seed) for size in sizes for seed in range(seeds) for degree in degrees]


def perform(name: str, key: Key, methods: Sequence[str]) -> list[Finding]:
    """Draw a run's data and judge the methods on it."""
    degree, rows, seed = (int(part) for part in key)
    experiment = EXPERIMENTS[name]
    trial = ContextualTrial(experiment, experiment.draw(rows + TEST, degree, seed), rows, seed)
    if "auto" in methods:
        _compile(name)
    findings: list[Finding] = []
    for method in methods:
        if method == PYEPO:
            findings += _pyepo(key, trial)
            continue
        began = time.process_time()
        result = METHODS[method](trial)
        seconds = time.process_time() - began
        predictions = result() if callable(result) else result
        findings.append(Finding(key, method, trial.regret(predictions), seconds))
    return findings


@cache
def _compile(name: str) -> None:
    """Learn once from a few rows, so that no run's seconds include compilation."""
    experiment = EXPERIMENTS[name]
    learn_posterior(ContextualTrial(experiment, experiment.draw(40, 4, 0), 40, 0))


def _pyepo(key: Key, trial: ContextualTrial) -> list[Finding]:
    """Judge PyEPO's SPO+ after each tenth of its epochs: ``pyepo_10`` to ``pyepo_90``, and ``pyepo`` at the end."""
    spec = trial.instance.spec
    names = [decision["name"] for decision in spec["decisions"]]
    matrix = np.array([[row["decisions"].get(name, 0.0) for name in names] for row in spec["rows"]])
    limits = np.array([row["limit"] for row in spec["rows"]])
    equal = spec["rows"][0]["sense"] == "="
    result, seconds = pyepo_process.train_apart(
        trial.contexts, trial.costs, trial.new, matrix, limits, equal, trial.seed
    )
    shares = [100 * (check + 1) // len(result) for check in range(len(result))]
    return [
        Finding(key, PYEPO if share == 100 else f"{PYEPO}_{share}", trial.regret(one), float(spent))
        for share, one, spent in zip(shares, result, seconds, strict=True)
    ]
