"""Experiment 2: the contextual newsvendor, many methods on the same rows, judged by exact expected cost.

A run draws n training rows and n/4 validation rows. IEO stops and selects on those validation rows, as in the paper.
The other methods get the same rows pooled, and each holds out a fifth of them, again n/4 rows, in its own way.
Each result is appended to a CSV file, so an interrupted experiment continues where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bco_core.baselines.ieo import fit_ieo, fit_ieo_ensemble
from bco_core.baselines.predict_then_optimize import (
    additive,
    boosted,
    fit_predict_then_optimize,
    fit_regressions,
    linear,
)
from bco_core.data import Sample
from bco_core.inference.learn import learn
from bco_core.inference.options import LearningOptions, make_options
from bco_core.prescribe import PrescribeOptions, decisions
from bco_core.problems.base import best_constant
from bco_core.problems.newsvendor import Newsvendor
from bco_core.seeds import entropy
from benchmarks.experiments import harness
from benchmarks.experiments.harness import append_rows, read_rows
from benchmarks.experiments.newsvendor.data import DEMANDS, sobol_contexts
from benchmarks.experiments.newsvendor.table1 import Cell

# As many scenarios as in the paper's shipment experiment; the paper states no number for its newsvendor experiment.
DRAWS = 100
# Number of systematic draws from the sorted errors: as fine as the history.
ATOMS = 200


class NewsvendorRun(NamedTuple):
    """One draw of the data of a cell; ``seed`` and ``number`` together make it independent of every other run."""

    cell: Cell
    number: int
    seed: int

    def entropy(self) -> int:
        return entropy(self.seed, self.cell.dgp, round(1000 * self.cell.tau), self.cell.n, self.number)


class NewsvendorResult(NamedTuple):
    """The optimality gap of a method in a run, in per cent, and the processor seconds it took to learn and decide."""

    run: NewsvendorRun
    method: str
    gap: float
    seconds: float


@dataclass(frozen=True)
class NewsvendorTrial:
    """Everything a method may use in a run: the problem, its rows, the contexts to decide for, and its own seed."""

    problem: Newsvendor
    train: Sample
    validation: Sample
    contexts: Tensor
    seed: int

    @cached_property
    def all_rows(self) -> Sample:
        return self.train.followed_by(self.validation)

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def _saa(trial: NewsvendorTrial) -> Tensor:
    return best_constant(trial.problem, trial.all_rows.outcomes).decisions.expand(len(trial.contexts), 1)


def _ieo(trial: NewsvendorTrial) -> Tensor:
    estimates = fit_ieo(trial.problem, trial.train, trial.validation, trial.generator)
    return estimates.averaged_decisions(trial.problem, trial.contexts)


def _ieo_ensemble(trial: NewsvendorTrial) -> Tensor:
    estimates = fit_ieo_ensemble(trial.problem, trial.all_rows, trial.generator)
    return estimates.averaged_decisions(trial.problem, trial.contexts)


def _two_stage(trial: NewsvendorTrial) -> Tensor:
    return fit_predict_then_optimize(trial.all_rows, trial.generator).residual_decisions(trial.problem, trial.contexts)


def _regression(trial: NewsvendorTrial) -> Tensor:
    fitted = fit_regressions(trial.all_rows, (linear, additive, boosted), trial.seed)
    return fitted.decisions(trial.problem, trial.contexts, ATOMS)


def _bcp(trial: NewsvendorTrial) -> Tensor:
    """Decide by the paper's Algorithm 1 with its printed settings, including κ = 10⁻⁶ (n/256)^-½."""
    options = make_options(
        method="vi",
        members=1,
        predictor="mlp",
        hidden=(128, 128),
        family="laplace",
        prior_scale=1.0,
        policy="bcp",
        learning_rate=0.01,
        batch_size=128,
        patience=20,
        kl_weight=1e-6 * (len(trial.train) / 256) ** -0.5,
    )
    return _learn_and_decide(trial, options)


def _auto(trial: NewsvendorTrial) -> Tensor:
    return _learn_and_decide(trial, make_options())


def _learn_and_decide(trial: NewsvendorTrial, options: LearningOptions) -> Tensor:
    """Return decisions of the recommended policy from ``DRAWS`` posterior draws."""
    learned = learn(trial.problem, trial.all_rows, options)
    how = PrescribeOptions(policy=learned.diagnostics.policy, scenarios=DRAWS)
    return decisions(learned.posterior, trial.problem, trial.contexts, how)


METHODS: dict[str, Callable[[NewsvendorTrial], Tensor]] = {
    "saa": _saa,
    "ieo": _ieo,
    "ieo_ensemble": _ieo_ensemble,
    "regression": _regression,
    "bcp": _bcp,
    "auto": _auto,
    "two_stage": _two_stage,
}
DEFAULT_METHODS = ("saa", "ieo", "ieo_ensemble", "regression", "bcp", "auto")


def perform(run: NewsvendorRun, methods: Sequence[str], contexts: Tensor | None = None) -> list[NewsvendorResult]:
    """Draw the run's data and judge the methods on it, over 2¹⁵ Sobol contexts unless others are given."""
    demand, level, rows = DEMANDS[run.cell.dgp], run.cell.tau, run.cell.n
    sample = demand.draw(rows + rows // 4, torch.Generator().manual_seed(run.entropy()))
    index = torch.arange(len(sample))
    trial = NewsvendorTrial(
        Newsvendor.from_spec({"items": [{"underage_cost": level, "overage_cost": 1 - level}]}),
        sample.rows(index[:rows]),
        sample.rows(index[rows:]),
        sobol_contexts() if contexts is None else contexts,
        run.number,
    )
    results = []
    for method in methods:
        began = time.process_time()
        orders = METHODS[method](trial)
        seconds = time.process_time() - began
        results.append(NewsvendorResult(run, method, demand.gap(level, trial.contexts, orders[:, 0]), seconds))
    return results


def plan(cells: Iterable[Cell], runs: Callable[[Cell], int], seed: int) -> list[NewsvendorRun]:
    """Return the runs in order: run k of every cell before run k + 1 of any, large n first.

    An unfinished experiment then covers all cells.
    """
    wanted = [NewsvendorRun(cell, number, seed) for cell in cells for number in range(runs(cell))]
    return sorted(wanted, key=lambda run: (run.number, -run.cell.n))


def perform_all(
    todo: Sequence[tuple[NewsvendorRun, Sequence[str]]], path: Path, jobs: int
) -> Iterator[list[NewsvendorResult]]:
    """Perform the runs in ``jobs`` processes; append the results of each run to ``path``, then yield them."""
    return harness.perform_all(perform, todo, partial(append, path), jobs)


_COLUMNS = ("dgp", "tau", "n", "seed", "run", "method", "gap", "seconds")


def append(path: Path, results: Iterable[NewsvendorResult]) -> None:
    """Append results to a CSV file; create it if it does not exist."""
    rows = (
        [*cell, seed, number, method, f"{gap:.6g}", f"{seconds:.2f}"]
        for (cell, number, seed), method, gap, seconds in results
    )
    append_rows(path, _COLUMNS, rows)


def read(path: Path) -> list[NewsvendorResult]:
    """Return all results in a CSV file; none if the file does not exist."""
    return [
        NewsvendorResult(
            NewsvendorRun(Cell(int(row["dgp"]), float(row["tau"]), int(row["n"])), int(row["run"]), int(row["seed"])),
            row["method"],
            float(row["gap"]),
            float(row["seconds"]),
        )
        for row in read_rows(path)
    ]
