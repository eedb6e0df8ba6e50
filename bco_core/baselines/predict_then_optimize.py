"""Predict, then optimise: regressions fitted to squared error, with decisions over their out-of-fold residuals.

``fit_regressions``: ridge on the contexts, ridge on cubic splines of each context (an additive model) and boosted
trees. Each chooses its setting by squared error on held-out rows, predicts every row out of fold, and carries its
errors to new predictions by the carrier of best score (:mod:`bco_core.predictive_choice`). The first regression is
replaced only where another scores clearly better. Decisions minimise mean cost over the carried outcomes (SAA).
Outcomes that were never negative are not carried below zero.

``fit_predict_then_optimize``: a network, i.e. maximum likelihood under Gaussian noise. ``point_decisions`` treat the
predicted mean as certain. ``residual_decisions`` optimise over the prediction plus its held-out errors: the strong
form, which knows the spread of outcomes but takes it to be the same in every context.

Splines need the package ``scikit-learn`` and trees ``lightgbm``; both are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bco_core.baselines.ieo import ENSEMBLE_PENALTIES, HIDDEN, PointEstimates, fit_points
from bco_core.data import FOLDS, Sample, Standardizer, fold_numbers, make_folds
from bco_core.inference.vi.warm_start import SquaredError
from bco_core.predictive import History, predictive_scenarios
from bco_core.predictive_choice import choose_carrier, score
from bco_core.predictors.registry import build_predictor
from bco_core.problems.base import DecisionProblem
from bco_core.regression import ridge
from bco_core.scenarios import Scenarios
from bco_core.select import select

# Fits the rows of a sample and returns predictions (settings, m, d_y) for contexts (m, d_x), one for each setting.
Regression = Callable[[Sample, Tensor], Tensor]

KNOTS = (3, 5, 8)
LEAVES = (2, 4, 8)
ROUNDS = (50, 100, 200, 400)
HISTORY_ROWS = 1000
MAXIMUM_RESIDUALS = 1000
_CHUNK_NUMBERS = 4_000_000


def linear(sample: Sample, contexts: Tensor) -> Tensor:
    """Predict by ridge regression, its penalty chosen by leave-one-out error."""
    return _ridge(sample.contexts, sample.outcomes, contexts)[None]


def additive(sample: Sample, contexts: Tensor) -> Tensor:
    """Predict by ridge regression on cubic splines of every context, for several numbers of knots."""
    from sklearn.preprocessing import SplineTransformer

    result = []
    for knots in KNOTS:
        basis = SplineTransformer(n_knots=knots, degree=3, knots="quantile", extrapolation="linear", include_bias=False)
        inputs = torch.from_numpy(basis.fit_transform(sample.contexts.numpy()))
        result.append(_ridge(inputs, sample.outcomes, torch.from_numpy(basis.transform(contexts.numpy()))))
    return torch.stack(result)


def boosted(sample: Sample, contexts: Tensor) -> Tensor:
    """Predict by boosted trees, one model for each outcome, for several sizes and numbers of trees."""
    import lightgbm

    result = []
    for leaves in LEAVES:
        parameters = {
            "objective": "regression",
            "num_leaves": leaves,
            "learning_rate": 0.05,
            "min_data_in_leaf": 10,
            "num_threads": 1,
            "verbosity": -1,
        }
        models = [
            lightgbm.train(parameters, lightgbm.Dataset(sample.contexts.numpy(), outcome.numpy()), max(ROUNDS))
            for outcome in sample.outcomes.T
        ]
        for rounds in ROUNDS:
            each = [torch.from_numpy(model.predict(contexts.numpy(), num_iteration=rounds)) for model in models]
            result.append(torch.stack(each, dim=1))
    return torch.stack(result)


@dataclass(frozen=True)
class RegressionRule:
    """The chosen regression with its setting, fitted to all rows, and the history of its out-of-fold errors."""

    sample: Sample
    regression: Regression
    setting: int
    history: History

    def predictions(self, contexts: Tensor) -> Tensor:
        """Return predictions (m, d_y) for contexts (m, d_x)."""
        return self.regression(self.sample, contexts)[self.setting]

    def scenarios(self, contexts: Tensor, atoms: int) -> Scenarios:
        """Return ``atoms`` equally weighted outcomes, carried to the prediction for each of the contexts (m, d_x)."""
        features = Standardizer.fit(self.sample.contexts).apply(contexts)
        result = predictive_scenarios(self.history, self.predictions(contexts), atoms, features)
        lowest = 0.0 if (self.sample.outcomes >= 0).all() else -torch.inf
        return replace(result, outcomes=result.outcomes.clamp_min(lowest))

    def decisions(self, problem: DecisionProblem, contexts: Tensor, atoms: int) -> Tensor:
        """Return decisions (m, d_z) of least mean cost over those outcomes."""
        result = self.scenarios(contexts, atoms)
        chunks = result.outcomes.split(max(1, _CHUNK_NUMBERS // (atoms * problem.outcome_dim)))
        return torch.cat([problem.prescribe(chunk, result.weights).decisions for chunk in chunks])


def fit_regressions(sample: Sample, regressions: Sequence[Regression], seed: int) -> RegressionRule:
    """Return the regression whose carried errors score best on held-out rows."""
    fitted, scores = zip(*(_fit(sample, regression, seed) for regression in regressions), strict=True)
    chosen: RegressionRule = fitted[select(list(scores), [{} for _ in scores]).best]
    return chosen


def _fit(sample: Sample, regression: Regression, seed: int) -> tuple[RegressionRule, Tensor]:
    """Return a regression in its best setting, and the score of its carried errors on each stored row (H,)."""
    fold = fold_numbers(len(sample), seed)
    predictions = torch.empty(0)
    for number in range(FOLDS):
        inside = fold == number
        predicted = regression(sample.rows(~inside), sample.contexts[inside])
        if number == 0:
            predictions = torch.empty(len(predicted), *sample.outcomes.shape, dtype=torch.float64)
        predictions[:, inside] = predicted
    spread = Standardizer.fit(sample.outcomes).scale
    setting = int(((predictions - sample.outcomes) / spread).square().mean(dim=(1, 2)).argmin())
    history_rows = torch.randperm(len(sample), generator=torch.Generator().manual_seed(seed))[:HISTORY_ROWS]
    features = Standardizer.fit(sample.contexts).apply(sample.contexts)[history_rows]
    choice = choose_carrier(
        predictions[setting][history_rows], sample.outcomes[history_rows], spread, features, torch.ones_like(spread)
    )
    # The history orders rows in its own way; regressions are compared row by row.
    scores = torch.empty(len(history_rows), dtype=torch.float64)
    scores[choice.order] = score(choice.history, torch.arange(len(history_rows)), features[choice.order])
    return RegressionRule(sample, regression, setting, choice.history), scores


def _ridge(inputs: Tensor, outcomes: Tensor, contexts: Tensor) -> Tensor:
    scale = Standardizer.fit(inputs)
    fitted = ridge(scale.apply(inputs), outcomes)
    predicted: Tensor = scale.apply(contexts) @ fitted[:-1] + fitted[-1]
    return predicted


@dataclass(frozen=True)
class PredictThenOptimize:
    """Five fold members that predict together, and their held-out residuals (m, d_y)."""

    estimates: PointEstimates
    residuals: Tensor

    def predictions(self, contexts: Tensor) -> Tensor:
        """Return the members' mean prediction (n, d_y) for contexts (n, d_x)."""
        return self.estimates.predictor.predict(self.estimates.theta, contexts).mean(dim=0)

    def point_decisions(self, problem: DecisionProblem, contexts: Tensor) -> Tensor:
        """Return decisions (n, d_z) that treat the prediction as certain."""
        return problem.decide(self.predictions(contexts))

    def residual_decisions(self, problem: DecisionProblem, contexts: Tensor) -> Tensor:
        """Return decisions (n, d_z) of least mean cost over prediction plus residuals."""
        residuals = _thin_residuals(self.residuals)
        weights = torch.full((len(residuals),), 1 / len(residuals), dtype=torch.float64)
        chunks = self.predictions(contexts).split(max(1, _CHUNK_NUMBERS // residuals.numel()))
        return torch.cat([problem.prescribe(chunk[:, None] + residuals, weights).decisions for chunk in chunks])


def fit_predict_then_optimize(
    sample: Sample, generator: torch.Generator, hidden: tuple[int, ...] = HIDDEN
) -> PredictThenOptimize:
    """Fit squared error on five folds, with an l1 penalty chosen on held-out rows."""
    folds = make_folds(len(sample), FOLDS, generator)
    predictor = build_predictor("mlp", sample, hidden)
    problem = SquaredError(predictor.outcomes.scale)
    estimates = fit_points(problem, predictor, sample, folds, generator, ENSEMBLE_PENALTIES)
    held_out = folds.validation
    with torch.no_grad():
        predictions = predictor.forward(estimates.theta, predictor.encode(sample.contexts)[held_out])
    return PredictThenOptimize(estimates, (sample.outcomes[held_out] - predictions).flatten(0, 1))


def _thin_residuals(residuals: Tensor) -> Tensor:
    """Return at most ``MAXIMUM_RESIDUALS``, evenly spaced in their order, which keeps a single item's quantiles."""
    if len(residuals) <= MAXIMUM_RESIDUALS:
        return residuals
    order = residuals.sum(dim=1).argsort()
    places = (torch.arange(MAXIMUM_RESIDUALS) + 0.5) * len(residuals) / MAXIMUM_RESIDUALS
    return residuals[order[places.long()]]
