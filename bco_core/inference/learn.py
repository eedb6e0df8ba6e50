"""Learning from beginning to end: rows and a problem in, a posterior and its diagnostics out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from bco_core.data import Sample, make_folds
from bco_core.errors import InvalidInput
from bco_core.families import FAMILIES
from bco_core.gibbs import make_target, resolve_kl_weight
from bco_core.inference.diagnostics import diagnose
from bco_core.inference.training import Progress, no_progress
from bco_core.inference.variational import VariationalOptions, fit_variational
from bco_core.policies import POLICIES
from bco_core.posterior import Posterior
from bco_core.predictors import build_predictor
from bco_core.problems.base import DecisionProblem

MINIMUM_ROWS = 10


@dataclass(frozen=True)
class LearningOptions:
    """Everything a caller may choose about learning. At most one of the two temperatures; neither means the default."""

    predictor: str = "mlp"
    hidden: tuple[int, ...] = (128, 128)
    family: str = "laplace"
    prior_scale: float = 1.0
    members: int = 5
    kl_weight: float | None = None
    inverse_temperature: float | None = None
    policy: str = "bcp"
    epochs: int = 300
    patience: int = 20
    batch_size: int = 128
    learning_rate: float = 0.003
    initial_scale: float = 0.05
    draws: int = 1
    particles: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prior_scale", "initial_scale", "learning_rate", "kl_weight", "inverse_temperature"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"{name} must be a positive number", ("posterior", name))
        for name in ("members", "epochs", "patience", "batch_size", "draws", "particles"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name} must be at least 1", ("posterior", name))


def learn(
    problem: DecisionProblem,
    sample: Sample,
    options: LearningOptions,
    progress: Progress = no_progress,
) -> tuple[Posterior, dict[str, Any]]:
    """Learn the Gibbs posterior of ``problem`` from ``sample``. The same seed gives the same posterior."""
    check(problem, sample, options)
    generator = torch.Generator().manual_seed(options.seed)
    predictor = build_predictor(options.predictor, sample, options.hidden)
    target = make_target(problem, predictor, sample, FAMILIES[options.family], options.prior_scale)
    folds = make_folds(len(sample), options.members, generator)
    kl_weight = resolve_kl_weight(len(sample), options.kl_weight, options.inverse_temperature)
    variational = VariationalOptions(
        kl_weight=kl_weight,
        epochs=options.epochs,
        patience=options.patience,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        averaging=options.members > 1,
        policy=options.policy,
        initial_scale=options.initial_scale,
        draws=options.draws,
    )
    fit = fit_variational(target, folds, variational, generator, progress)
    particles = fit.mixture.sample(options.particles, torch.Generator().manual_seed(options.seed))
    diagnostics = diagnose(target, folds, fit, options.policy, generator)
    diagnostics |= {"kl_weight": kl_weight, "inverse_temperature": 1 / kl_weight, "cost_scale": target.cost_scale}
    return Posterior(predictor, fit.mixture, particles, options.seed), diagnostics


def check(problem: DecisionProblem, sample: Sample, options: LearningOptions) -> None:
    """Refuse, before any work, what cannot be learned."""
    if len(sample) < MINIMUM_ROWS:
        raise InvalidInput(f"learning needs at least {MINIMUM_ROWS} rows, and there are {len(sample)}", ("dataset",))
    if sample.outcomes.shape[1] != problem.outcome_dim:
        raise InvalidInput(
            f"the problem has {problem.outcome_dim} uncertain outcomes, the data {sample.outcomes.shape[1]}",
            ("dataset",),
        )
    if options.family not in FAMILIES:
        raise InvalidInput(f"the family must be one of {', '.join(FAMILIES)}", ("posterior", "family"))
    if options.policy not in POLICIES:
        raise InvalidInput(f"the policy must be one of {', '.join(POLICIES)}", ("policy",))
    if not problem.differentiable:
        raise InvalidInput(
            "this problem is not differentiable, and variational inference needs a gradient", ("problem",)
        )
