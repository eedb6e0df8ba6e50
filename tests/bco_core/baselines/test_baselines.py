"""IEO and predict-then-optimize baselines against the truth of a linear model."""

from __future__ import annotations

import pytest
import torch

from bco_core.baselines.ieo import PENALTIES, PointEstimates, fit_ieo, fit_ieo_ensemble, fit_points
from bco_core.baselines.predict_then_optimize import MAXIMUM_RESIDUALS, PredictThenOptimize, fit_predict_then_optimize
from bco_core.data import FOLDS, Folds, Sample, make_folds
from bco_core.inference.training import TrainingOptions
from bco_core.predictors.registry import build_predictor
from bco_core.problems.base import best_constant
from bco_core.problems.newsvendor import Newsvendor
from tests.support.seeds import seeded

TAU = 0.8
PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": TAU, "overage_cost": 1 - TAU}]})
HIDDEN = (16,)
QUANTILE = torch.special.ndtri(torch.tensor(TAU, dtype=torch.float64)).item()


def draw(rows: int, seed: int) -> Sample:
    """Y = 3X₁ + 50 + ε, ε ~ N(0, 1); X₂ is irrelevant."""
    generator = torch.Generator().manual_seed(seed)
    contexts = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
    return Sample(contexts, 50 + 3 * contexts[:, :1] + noise)


def truth(contexts: torch.Tensor) -> torch.Tensor:
    return 50 + 3 * contexts[:, :1] + QUANTILE


CONTEXTS = draw(500, seed=99).contexts


@pytest.fixture(scope="module")
def ensemble() -> PointEstimates:
    return fit_ieo_ensemble(PROBLEM, draw(300, seed=1), seeded(), HIDDEN)


@pytest.fixture(scope="module")
def two_stage() -> PredictThenOptimize:
    return fit_predict_then_optimize(draw(500, seed=1), seeded(), HIDDEN)


def test_ieo_learns_the_conditional_quantile() -> None:
    estimates = fit_ieo(PROBLEM, draw(800, seed=1), draw(200, seed=2), seeded(), HIDDEN)
    errors = estimates.averaged_decisions(PROBLEM, CONTEXTS) - truth(CONTEXTS)
    assert errors.abs().mean() < 0.2
    assert len(estimates.theta) == 1


def test_ieo_keeps_the_penalty_of_least_held_out_cost_and_reports_all() -> None:
    validation = draw(50, seed=2)
    estimates = fit_ieo(PROBLEM, draw(200, seed=1), validation, seeded(), HIDDEN)
    costs = {row["penalty"]: row["held_out_cost"] for row in estimates.table}
    assert tuple(costs) == PENALTIES
    assert estimates.penalty == min(costs, key=lambda penalty: costs[penalty])
    assert [row["penalty"] for row in estimates.table if row["chosen"]] == [estimates.penalty]
    decisions = estimates.averaged_decisions(PROBLEM, validation.contexts)
    realised = PROBLEM.cost(decisions, validation.outcomes).mean().item()
    assert abs(realised - costs[estimates.penalty]) < 1e-5


def test_a_large_penalty_shrinks_parameters_until_the_decision_is_constant() -> None:
    sample = draw(300, seed=1)
    folds = make_folds(len(sample), 1, seeded())
    predictor = build_predictor("mlp", sample, HIDDEN)
    options = TrainingOptions(epochs=60, patience=None, learning_rate=0.01)

    def fit_with(penalty: float) -> tuple[float, float]:
        estimates = fit_points(PROBLEM, predictor, sample, folds, seeded(), (penalty,), options)
        decisions = estimates.averaged_decisions(PROBLEM, CONTEXTS)
        return estimates.theta.abs().sum().item(), decisions.std().item()

    (free, free_spread), (light, _), (heavy, heavy_spread) = fit_with(0.0), fit_with(1e-3), fit_with(1.0)
    assert heavy < light < free
    assert heavy_spread < 0.05 * free_spread


def test_members_with_different_penalties_start_from_the_same_point() -> None:
    sample = draw(60, seed=1)
    folds = make_folds(len(sample), 1, seeded())
    predictor = build_predictor("mlp", sample, HIDDEN)
    still = TrainingOptions(epochs=1, patience=20, learning_rate=1e-12)
    estimates = fit_points(PROBLEM, predictor, sample, folds, seeded(), (0.0, 1e-6, 1e-3), still)
    costs = [row["held_out_cost"] for row in estimates.table]
    assert max(costs) - min(costs) < 1e-6


def test_the_ensemble_averages_the_decisions_of_one_member_per_fold(ensemble: PointEstimates) -> None:
    assert len(ensemble.theta) == FOLDS
    each = torch.stack([PROBLEM.decide(ensemble.predictor.predict(t[None], CONTEXTS))[0] for t in ensemble.theta])
    averaged = ensemble.averaged_decisions(PROBLEM, CONTEXTS)
    assert torch.allclose(averaged, each.mean(dim=0))
    # Jensen: the mean decision is at least as close to the truth as the members on average.
    assert (averaged - truth(CONTEXTS)).square().mean() < (each - truth(CONTEXTS)).square().mean()


def test_the_ensemble_beats_a_constant_decision_clearly(ensemble: PointEstimates) -> None:
    sample, fresh = draw(300, seed=1), draw(2000, seed=3)
    cost = PROBLEM.cost(ensemble.averaged_decisions(PROBLEM, fresh.contexts), fresh.outcomes).mean()
    constant = PROBLEM.cost(best_constant(PROBLEM, sample.outcomes).decisions, fresh.outcomes).mean()
    assert cost < 0.5 * constant


def test_two_stage_predicts_the_mean_and_its_residuals_give_the_quantile(two_stage: PredictThenOptimize) -> None:
    mean = truth(CONTEXTS) - QUANTILE
    assert (two_stage.point_decisions(PROBLEM, CONTEXTS) - mean).abs().mean() < 0.25
    assert (two_stage.residual_decisions(PROBLEM, CONTEXTS) - truth(CONTEXTS)).abs().mean() < 0.25


def test_two_stage_residuals_come_from_held_out_rows(two_stage: PredictThenOptimize) -> None:
    sample = draw(500, seed=1)
    folds = make_folds(len(sample), FOLDS, seeded())
    predictor = two_stage.estimates.predictor
    expected = [
        sample.outcomes[held_out] - predictor.predict(theta[None], sample.contexts[held_out])[0]
        for theta, held_out in zip(two_stage.estimates.theta, folds.validation, strict=True)
    ]
    assert torch.allclose(two_stage.residuals, torch.cat(expected), atol=1e-5)


def test_many_residuals_are_thinned_without_moving_the_decision(two_stage: PredictThenOptimize) -> None:
    residuals = torch.randn(20 * MAXIMUM_RESIDUALS, 1, generator=seeded(), dtype=torch.float64)
    decisions = PredictThenOptimize(two_stage.estimates, residuals).residual_decisions(PROBLEM, CONTEXTS[:5])
    exact = two_stage.predictions(CONTEXTS[:5]) + residuals.quantile(TAU)
    assert torch.allclose(decisions, exact, atol=0.01)


def test_a_history_with_constant_outcomes_can_be_learned() -> None:
    contexts = draw(40, seed=1).contexts
    sample = Sample(contexts, torch.full((40, 1), 7.0, dtype=torch.float64))
    folds = Folds(torch.arange(30)[None], torch.arange(30, 40)[None])
    predictor = build_predictor("mlp", sample, HIDDEN)
    estimates = fit_points(PROBLEM, predictor, sample, folds, seeded(), (0.01,))
    assert torch.allclose(estimates.averaged_decisions(PROBLEM, contexts), sample.outcomes, atol=0.5)
