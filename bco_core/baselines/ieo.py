"""Integrated estimation and optimisation (IEO): one parameter vector of least decision cost, the frequentist rule.

Each member minimises, on minibatches of its own training rows,

    (1/n) Σ_i c(π_θ(x_i); y_i) + γ‖θ‖₁,                          (equation (3) of the paper, with the l1 norm)

with the mean cost divided by the best constant decision's, and is stopped early on its held-out rows. The penalty γ of
least held-out cost is chosen; folds × penalties train as one batch. One fold is the paper's baseline; five folds, whose
decisions are averaged, form an ensemble of linear predictors or of networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.data import FOLDS, Folds, Sample, make_folds
from bco_core.inference.training import TrainingOptions, by_autograd, train
from bco_core.predictors.base import Predictor
from bco_core.predictors.registry import build_predictor
from bco_core.problems.base import DecisionProblem, best_constant

# The paper's grid, and no penalty at all; ensembles use the part of it that is usually chosen.
PENALTIES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1e0)
ENSEMBLE_PENALTIES = (0.0, 3e-3, 1e-2, 3e-2)
HIDDEN = (128, 128)
# Averaged, these networks decide as well as wide ones in a quarter of the time.
ENSEMBLE_HIDDEN = (32, 32)
TRAINING = TrainingOptions(epochs=300, patience=20, batch_size=128, learning_rate=0.01)


@dataclass(frozen=True)
class PointEstimates:
    """θ (R, d), one for each fold, under the chosen penalty; ``table`` has every penalty's mean held-out cost."""

    predictor: Predictor
    theta: Tensor
    penalty: float
    table: list[dict[str, Any]]

    @property
    def held_out_cost(self) -> float:
        """The mean held-out cost under the chosen penalty."""
        return min(float(row["held_out_cost"]) for row in self.table)

    def averaged_decisions(self, problem: DecisionProblem, contexts: Tensor) -> Tensor:
        """Return the mean of the members' decisions, (n, d_z), for contexts (n, d_x)."""
        return problem.decide(self.predictor.predict(self.theta, contexts)).mean(dim=0)


def fit_points(
    problem: DecisionProblem,
    predictor: Predictor,
    sample: Sample,
    folds: Folds,
    generator: torch.Generator,
    penalties: Sequence[float] = PENALTIES,
    options: TrainingOptions = TRAINING,
) -> PointEstimates:
    """Train folds × penalties as one batch and keep the penalty of least mean held-out cost."""
    members, count = len(folds.train), len(penalties)
    reference = best_constant(problem, sample.outcomes).objective.item() or 1.0
    strength = torch.tensor(penalties).repeat_interleave(members)
    rows, held_out = folds.train.repeat(count, 1), folds.validation.repeat(count, 1)
    encoded, outcomes = predictor.encode(sample.contexts), sample.outcomes

    def mean_cost(theta: Tensor, chosen: Tensor) -> Tensor:
        decisions = problem.decide(predictor.forward(theta, encoded[chosen]))
        return problem.cost(decisions, outcomes[chosen]).mean(dim=1) / reference

    def loss(value: Tensor, chosen: Tensor, active: Tensor) -> Tensor:
        return mean_cost(value[0], chosen) + strength[active] * value[0].abs().sum(dim=1)

    def judge(value: Tensor, active: Tensor) -> Tensor:
        with torch.no_grad():
            return mean_cost(value[0], held_out[active])

    # Every penalty starts its folds from the same points, so that penalties are compared like with like.
    initial = predictor.initial(members, generator).repeat(count, 1)[None]
    trained = train(initial, rows, by_autograd(loss), judge, options, generator)
    costs = trained.cost.view(count, members).mean(dim=1) * reference
    best = int(costs.argmin())
    table = [
        {"penalty": penalty, "held_out_cost": cost, "chosen": index == best}
        for index, (penalty, cost) in enumerate(zip(penalties, costs.tolist(), strict=True))
    ]
    theta = trained.value[0].view(count, members, -1)[best]
    return PointEstimates(predictor, theta, penalties[best], table)


def fit_ieo(
    problem: DecisionProblem,
    train_rows: Sample,
    validation_rows: Sample,
    generator: torch.Generator,
    hidden: tuple[int, ...] = HIDDEN,
) -> PointEstimates:
    """Fit IEO as in the paper: separate validation rows stop it early and choose the penalty."""
    pooled = train_rows.followed_by(validation_rows)
    index = torch.arange(len(pooled))[None]
    folds = Folds(index[:, : len(train_rows)], index[:, len(train_rows) :])
    return fit_points(problem, build_predictor("mlp", train_rows, hidden), pooled, folds, generator)


def fit_ieo_ensemble(
    problem: DecisionProblem, sample: Sample, generator: torch.Generator, hidden: tuple[int, ...] = ENSEMBLE_HIDDEN
) -> PointEstimates:
    """Fit five linear predictors and five networks, and return those of least held-out cost.

    Each is stopped early on its own fifth of the rows, with one penalty for all.
    """
    folds = make_folds(len(sample), FOLDS, generator)
    predictors = [build_predictor("linear", sample), build_predictor("mlp", sample, hidden)]
    fits = [fit_points(problem, one, sample, folds, generator, ENSEMBLE_PENALTIES) for one in predictors]
    return min(fits, key=lambda fitted: fitted.held_out_cost)
