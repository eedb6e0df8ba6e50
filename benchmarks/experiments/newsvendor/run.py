"""Experiment 2: the contextual newsvendor, many methods on the same rows, judged by exact expected cost.

A run draws n training rows and n/4 validation rows. IEO stops and selects on those validation rows, as in the paper;
the other methods get the same rows pooled and hold out a fifth of them, which is the same n/4, in their own way.
Rows of results are appended to a CSV file as they come, so an interrupted experiment goes on where it stopped.
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
from bco_core.problems.constant import best_constant
from bco_core.problems.newsvendor import Newsvendor
from bco_core.seeds import entropy
from benchmarks.experiments import harness
from benchmarks.experiments.harness import append_rows, read_rows
from benchmarks.experiments.newsvendor.data import DEMANDS, sobol_contexts
from benchmarks.experiments.newsvendor.table1 import Cell

# As many scenarios as the paper's shipment experiment; its newsvendor experiment does not print its own number.
DRAWS = 100
# Systematic draws of errors in their order: as fine as the history that they are drawn from.
ATOMS = 200


class Run(NamedTuple):
    """One draw of the data of a cell; ``seed`` and ``number`` together make it independent of every other run."""

    cell: Cell
    number: int
    seed: int

    def entropy(self) -> int:
        return entropy(self.seed, self.cell.dgp, round(1000 * self.cell.tau), self.cell.n, self.number)


class Result(NamedTuple):
    """The optimality gap of a method in a run, in per cent, and the processor seconds it took to learn and decide."""

    run: Run
    method: str
    gap: float
    seconds: float


@dataclass(frozen=True)
class Trial:
    """What a method may see of a run: the problem, its rows, the contexts to decide for, and a seed of its own."""

    problem: Newsvendor
    train: Sample
    validation: Sample
    contexts: Tensor
    seed: int

    @cached_property
    def pooled(self) -> Sample:
        return self.train.followed_by(self.validation)

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def _saa(trial: Trial) -> Tensor:
    return best_constant(trial.problem, trial.pooled.outcomes).decisions.expand(len(trial.contexts), 1)


def _ieo(trial: Trial) -> Tensor:
    estimates = fit_ieo(trial.problem, trial.train, trial.validation, trial.generator)
    return estimates.averaged_decisions(trial.problem, trial.contexts)


def _ieo_ensemble(trial: Trial) -> Tensor:
    estimates = fit_ieo_ensemble(trial.problem, trial.pooled, trial.generator)
    return estimates.averaged_decisions(trial.problem, trial.contexts)


def _two_stage(trial: Trial) -> Tensor:
    return fit_predict_then_optimize(trial.pooled, trial.generator).residual_decisions(trial.problem, trial.contexts)


def _regression(trial: Trial) -> Tensor:
    fitted = fit_regressions(trial.pooled, (linear, additive, boosted), trial.seed)
    return fitted.decisions(trial.problem, trial.contexts, ATOMS)


def _bcp(trial: Trial) -> Tensor:
    """The paper's Algorithm 1 with its printed settings, κ = 10⁻⁶ (n/256)^-½ among them."""
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
    return _learned(trial, options)


def _auto(trial: Trial) -> Tensor:
    return _learned(trial, make_options())


def _learned(trial: Trial, options: LearningOptions) -> Tensor:
    """Decisions of the recommended policy by ``DRAWS`` posterior draws."""
    learned = learn(trial.problem, trial.pooled, options)
    how = PrescribeOptions(policy=learned.diagnostics.policy, scenarios=DRAWS)
    return decisions(learned.posterior, trial.problem, trial.contexts, how)


METHODS: dict[str, Callable[[Trial], Tensor]] = {
    "saa": _saa,
    "ieo": _ieo,
    "ieo_ensemble": _ieo_ensemble,
    "regression": _regression,
    "bcp": _bcp,
    "auto": _auto,
    "two_stage": _two_stage,
}
DEFAULT_METHODS = ("saa", "ieo", "ieo_ensemble", "regression", "bcp", "auto")


def perform(run: Run, methods: Sequence[str], contexts: Tensor | None = None) -> list[Result]:
    """Draw the run's data and judge the methods on it, over 2¹⁵ Sobol contexts unless others are given."""
    demand, level, rows = DEMANDS[run.cell.dgp], run.cell.tau, run.cell.n
    sample = demand.draw(rows + rows // 4, torch.Generator().manual_seed(run.entropy()))
    index = torch.arange(len(sample))
    trial = Trial(
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
        results.append(Result(run, method, demand.gap(level, trial.contexts, orders[:, 0]), seconds))
    return results


def plan(cells: Iterable[Cell], runs: Callable[[Cell], int], seed: int) -> list[Run]:
    """Run k of every cell before run k + 1 of any, so that an unfinished experiment covers all cells; large n first."""
    wanted = [Run(cell, number, seed) for cell in cells for number in range(runs(cell))]
    return sorted(wanted, key=lambda run: (run.number, -run.cell.n))


def perform_all(todo: Sequence[tuple[Run, Sequence[str]]], path: Path, jobs: int) -> Iterator[list[Result]]:
    """Perform the runs in ``jobs`` processes; what a run finds is appended to ``path`` and then yielded."""
    return harness.perform_all(perform, todo, partial(append, path), jobs)


_COLUMNS = ("dgp", "tau", "n", "seed", "run", "method", "gap", "seconds")


def append(path: Path, results: Iterable[Result]) -> None:
    """Add results to a CSV file, which is begun if there is none."""
    rows = (
        [*cell, seed, number, method, f"{gap:.6g}", f"{seconds:.2f}"]
        for (cell, number, seed), method, gap, seconds in results
    )
    append_rows(path, _COLUMNS, rows)


def read(path: Path) -> list[Result]:
    """All results in a CSV file; none when there is no file."""
    return [
        Result(
            Run(Cell(int(row["dgp"]), float(row["tau"]), int(row["n"])), int(row["run"]), int(row["seed"])),
            row["method"],
            float(row["gap"]),
            float(row["seconds"]),
        )
        for row in read_rows(path)
    ]
