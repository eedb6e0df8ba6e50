"""Predict, then optimise: a network fitted to squared error (maximum likelihood under Gaussian noise), decisions after.

``point_decisions`` optimise at the predicted mean as if it were certain. ``residual_decisions`` optimise over the
prediction plus the errors that were made on rows the predicting member had not seen: the strong form, which knows the
spread of outcomes but takes it to be the same in every context.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.baselines.ieo import ENSEMBLE_PENALTIES, HIDDEN, PointEstimates, fit_points
from bco_core.data import FOLDS, Sample, make_folds
from bco_core.inference.vi.warm_start import SquaredError
from bco_core.predictors.registry import build_predictor
from bco_core.problems.base import DecisionProblem

MAXIMUM_RESIDUALS = 1000
_CHUNK_NUMBERS = 4_000_000


@dataclass(frozen=True)
class TwoStage:
    """Five fold members that predict together, and their held-out residuals (m, d_y)."""

    estimates: PointEstimates
    residuals: Tensor

    def predictions(self, contexts: Tensor) -> Tensor:
        """The members' mean prediction (n, d_y) for contexts (n, d_x)."""
        return self.estimates.predictor.predict(self.estimates.theta, contexts).mean(dim=0)

    def point_decisions(self, problem: DecisionProblem, contexts: Tensor) -> Tensor:
        """Decisions (n, d_z) that take the prediction for the truth."""
        return problem.decide(self.predictions(contexts))

    def residual_decisions(self, problem: DecisionProblem, contexts: Tensor) -> Tensor:
        """Decisions (n, d_z) of least mean cost over prediction plus residuals."""
        residuals = _thinned(self.residuals)
        weights = torch.full((len(residuals),), 1 / len(residuals), dtype=torch.float64)
        chunks = self.predictions(contexts).split(max(1, _CHUNK_NUMBERS // residuals.numel()))
        return torch.cat([problem.prescribe(chunk[:, None] + residuals, weights).decisions for chunk in chunks])


def fit_two_stage(sample: Sample, generator: torch.Generator, hidden: tuple[int, ...] = HIDDEN) -> TwoStage:
    """Fit squared error on five folds, with an l1 penalty chosen on held-out rows."""
    folds = make_folds(len(sample), FOLDS, generator)
    predictor = build_predictor("mlp", sample, hidden)
    problem = SquaredError(predictor.outcomes.scale)
    estimates = fit_points(problem, predictor, sample, folds, generator, ENSEMBLE_PENALTIES)
    held_out = folds.validation
    with torch.no_grad():
        predictions = predictor.forward(estimates.theta, predictor.encode(sample.contexts)[held_out])
    return TwoStage(estimates, (sample.outcomes[held_out] - predictions).flatten(0, 1))


def _thinned(residuals: Tensor) -> Tensor:
    """At most ``MAXIMUM_RESIDUALS`` of them, evenly spread over their order, which keeps a single item's quantiles."""
    if len(residuals) <= MAXIMUM_RESIDUALS:
        return residuals
    order = residuals.sum(dim=1).argsort()
    places = (torch.arange(MAXIMUM_RESIDUALS) + 0.5) * len(residuals) / MAXIMUM_RESIDUALS
    return residuals[order[places.long()]]
