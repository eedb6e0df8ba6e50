"""Experiment 1: two-stage shipment, many methods on the same rows, judged by realised cost on fresh outcomes.

A run draws n training rows and 50 validation rows. Baselines select on the validation rows, as in the paper.
Methods that hold out rows in their own way get both sets pooled. Every method then decides for the same 250 contexts,
and a decision's cost is its mean over 20 outcomes of its context. ``floor`` decides from 200 draws of the true
conditional distribution: no learned method can be expected to do better.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bco_core.baselines.ieo import fit_points
from bco_core.baselines.predict_then_optimize import additive, fit_regressions, linear
from bco_core.baselines.weighted_saa import fit_enw, fit_forest, fit_neighbours
from bco_core.data import FOLDS, Folds, Sample, Standardizer, make_folds
from bco_core.distributions import FAMILIES
from bco_core.features.standardized import StandardizedFeatures
from bco_core.gibbs import GibbsTarget
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.inference.training import TrainingOptions
from bco_core.inference.vi.variational import VariationalOptions, fit_variational
from bco_core.policies import POLICIES, Terms, decide
from bco_core.posterior import Posterior
from bco_core.predictors.base import Predictor
from bco_core.predictors.linear import ReluAffine
from bco_core.problems.base import best_constant
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.scenarios import Scenarios
from bco_core.seeds import entropy
from benchmarks.experiments.harness import Finding, Key
from benchmarks.experiments.shipment.data import (
    LOCATIONS,
    SIGNAL_DIM,
    draw_contexts,
    draw_outcomes,
    draw_sample,
    shipment_problem,
)

NAMES = ("noisy", "n", "seed", "run")
SIZES, NOISY = (50, 100, 200, 400), (0, 3, 6, 9)
VALIDATION_ROWS = 50
TEST_CONTEXTS, TEST_OUTCOMES = 250, 20
DRAWS, FLOOR_DRAWS = 100, 200
# As printed: plain gradient steps of 0.1 on costs in their own units, batches of 50, patience of 20 epochs.
RATE, BATCH, PATIENCE = 0.1, 50, 20
PENALTIES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class ShipmentTrial:
    """Everything a method may use in a run, and the contexts to decide for."""

    problem: TwoStageLinear
    train: Sample
    validation: Sample
    contexts: Tensor
    seed: int

    @property
    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    @cached_property
    def all_rows(self) -> Sample:
        return self.train.followed_by(self.validation)

    @cached_property
    def split(self) -> Folds:
        """One member that learns from the training rows and stops on the validation rows."""
        index = torch.arange(len(self.all_rows))[None]
        return Folds(index[:, : len(self.train)], index[:, len(self.train) :])

    @cached_property
    def affine(self) -> Predictor:
        """The paper's ReLU(Wx + b), in the units of the data."""
        width = self.train.contexts.shape[1]
        return ReluAffine((width, LOCATIONS), StandardizedFeatures(_as_it_is(width)), _as_it_is(LOCATIONS))

    @cached_property
    def paper_scenarios(self) -> Scenarios:
        """Scenarios of the posterior of Algorithm 1 as printed: κ = 0.01 (n/50)^-½, a unit Gaussian prior and start."""
        target = GibbsTarget(
            self.problem,
            self.affine,
            self.all_rows,
            self.affine.features.of_history(self.all_rows),
            FAMILIES["gaussian"],
            torch.tensor(1.0),
            cost_scale=1.0,
        )
        options = VariationalOptions(
            optimizer="sgd",
            learning_rate=RATE,
            batch_size=BATCH,
            patience=PATIENCE,
            averaging=False,
            initial_scale=1.0,
            kl_weight=0.01 * (len(self.train) / 50) ** -0.5,
            policy="averaged",
        )
        mixture = fit_variational(target, self.split, options, self.generator).mixture
        posterior = Posterior(self.affine, mixture, mixture.sample(DRAWS, self.generator), self.seed)
        return posterior.scenarios(self.contexts, posterior.draws())

    @cached_property
    def auto_posterior(self) -> tuple[Posterior, str]:
        """The posterior that ``auto`` learns, and the policy it recommends."""
        learned = learn(self.problem, self.all_rows, make_options(seed=self.seed))
        return learned.posterior, learned.diagnostics.policy

    @cached_property
    def scenarios(self) -> Scenarios:
        return self.auto_posterior[0].scenarios(self.contexts, self.auto_posterior[0].draws(DRAWS))


def _as_it_is(width: int) -> Standardizer:
    return Standardizer(torch.zeros(width, dtype=torch.float64), torch.ones(width, dtype=torch.float64))


def _floor(trial: ShipmentTrial) -> Tensor:
    atoms = draw_outcomes(trial.contexts, FLOOR_DRAWS, trial.generator)
    return trial.problem.prescribe(atoms, torch.full((FLOOR_DRAWS,), 1 / FLOOR_DRAWS, dtype=torch.float64)).decisions


def _saa(trial: ShipmentTrial) -> Tensor:
    return best_constant(trial.problem, trial.all_rows.outcomes).decisions.expand(len(trial.contexts), -1)


def _ieo(trial: ShipmentTrial) -> Tensor:
    return _fit_by_descent(trial, trial.split, trial.generator)


def _ieo_ensemble(trial: ShipmentTrial) -> Tensor:
    """Average the decisions of five IEO predictors, each stopped on its own fifth of all rows."""
    generator = trial.generator
    return _fit_by_descent(trial, make_folds(len(trial.all_rows), FOLDS, generator), generator)


def _fit_by_descent(trial: ShipmentTrial, folds: Folds, generator: torch.Generator) -> Tensor:
    # The trainer divides costs by the best constant decision's, so steps on unscaled costs are larger by that factor.
    reference = best_constant(trial.problem, trial.all_rows.outcomes).objective.item()
    options = TrainingOptions(
        optimizer="sgd", learning_rate=RATE * reference, batch_size=BATCH, patience=PATIENCE, averaging=False
    )
    estimates = fit_points(trial.problem, trial.affine, trial.all_rows, folds, generator, PENALTIES, options)
    return estimates.averaged_decisions(trial.problem, trial.contexts)


def _regression(trial: ShipmentTrial) -> Tensor:
    fitted = fit_regressions(trial.all_rows, (linear, additive), trial.seed)
    return fitted.decisions(trial.problem, trial.contexts, DRAWS)


def _enw(trial: ShipmentTrial) -> Tensor:
    return fit_enw(trial.problem, trial.train, trial.validation).decisions(trial.problem, trial.contexts)


def _knn(trial: ShipmentTrial) -> Tensor:
    return fit_neighbours(trial.problem, trial.train, trial.validation).decisions(trial.problem, trial.contexts)


def _forest(trial: ShipmentTrial) -> Tensor:
    return fit_forest(trial.problem, trial.train, trial.validation).decisions(trial.problem, trial.contexts)


def _decide(trial: ShipmentTrial, scenarios: Scenarios, policy: str) -> Tensor:
    return decide(trial.problem, scenarios, policy, Terms(trial.generator)).decisions


def _decide_as_in_paper(policy: str) -> Callable[[ShipmentTrial], Tensor]:
    return lambda trial: _decide(trial, trial.paper_scenarios, policy)


def _averaged(trial: ShipmentTrial) -> Tensor:
    return _decide(trial, trial.scenarios, "averaged")


def _predictive(trial: ShipmentTrial) -> Tensor:
    """Decide by SAA over predictive scenarios."""
    atoms = trial.auto_posterior[0].predictive(trial.contexts, trial.scenarios.mean(), DRAWS)
    assert atoms is not None  # noqa: S101 (learning always keeps a history)
    return _decide(trial, atoms, "predictive")


def _auto(trial: ShipmentTrial) -> Tensor:
    policy = trial.auto_posterior[1]
    return _predictive(trial) if POLICIES[policy].predictive else _decide(trial, trial.scenarios, policy)


METHODS: dict[str, Callable[[ShipmentTrial], Tensor]] = {
    "floor": _floor,
    "saa": _saa,
    "enw": _enw,
    "knn": _knn,
    "forest": _forest,
    "ieo": _ieo,
    "ieo_ensemble": _ieo_ensemble,
    "regression": _regression,
    "tps": _decide_as_in_paper("thompson"),
    "map": _decide_as_in_paper("map"),
    "bcp": _decide_as_in_paper("bcp"),
    "auto": _auto,
    "averaged": _averaged,
    "predictive": _predictive,
}


def keys(noisy: Sequence[int], sizes: Sequence[int], runs: int, seed: int) -> list[Key]:
    """Return the runs in order: run k of every cell before run k + 1 of any.

    An unfinished experiment then covers all cells.
    """
    return [(dims, size, seed, run) for run in range(runs) for size in sizes for dims in noisy]


def perform(key: Key, methods: Sequence[str]) -> list[Finding]:
    """Draw a run's data and judge the methods on it."""
    noisy, rows, seed, run = (int(part) for part in key)
    problem = shipment_problem()
    # All runs of a seed are judged on the same contexts and outcomes.
    generator = torch.Generator().manual_seed(entropy(seed))
    contexts = draw_contexts(TEST_CONTEXTS, max(NOISY), generator)[:, : SIGNAL_DIM + noisy]
    outcomes = draw_outcomes(contexts, TEST_OUTCOMES, generator)
    generator = torch.Generator().manual_seed(entropy(seed, noisy, rows, run + 1))
    train, validation = draw_sample(rows, noisy, generator), draw_sample(VALIDATION_ROWS, noisy, generator)
    trial = ShipmentTrial(problem, train, validation, contexts, run)
    findings = []
    for method in methods:
        began = time.process_time()
        decisions = METHODS[method](trial)
        seconds = time.process_time() - began
        cost = problem.cost(decisions[:, None], outcomes).mean().item()
        findings.append(Finding(key, method, cost, seconds))
    return findings
