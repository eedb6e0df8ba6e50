"""Predict-then-optimize regressions: the choice of model, and quantile decisions from residuals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bco_core.baselines.predict_then_optimize import Regression, additive, boosted, fit_regressions, linear
from bco_core.data import Sample
from bco_core.problems.newsvendor import Newsvendor

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})
NOISE = 0.5
QUANTILE = NOISE * 0.6745


def draw_sample(kind: str, count: int = 400) -> Sample:
    generator = torch.Generator().manual_seed(1)
    contexts = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    noise = NOISE * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return Sample(contexts, location(kind, contexts) + noise)


def location(kind: str, contexts: Tensor) -> Tensor:
    bent = 12 * (contexts[:, :1] - 0.5).square() + 3 * contexts[:, 1:2]
    square = 6 * ((contexts[:, :1] > 0.5) ^ (contexts[:, 1:2] > 0.5))
    return {"straight": 5 * contexts[:, :1], "bent": bent, "square": square}[kind]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "expected"), [("straight", linear), ("bent", additive), ("square", boosted)])
def test_the_best_fitting_regression_is_chosen_and_decides_near_the_quantile(kind: str, expected: Regression) -> None:
    fitted = fit_regressions(draw_sample(kind), (linear, additive, boosted), seed=0)
    assert fitted.regression is expected
    contexts = draw_sample(kind, 1000).contexts
    decisions = fitted.decisions(PROBLEM, contexts, 200)
    error = decisions - location(kind, contexts) - QUANTILE
    assert error.mean().item() == pytest.approx(0, abs=0.15)
    assert error.abs().median() < 0.5 * NOISE


def test_residuals_do_not_carry_nonnegative_outcomes_below_zero() -> None:
    sample = draw_sample("straight")
    positive = Sample(sample.contexts, sample.outcomes.clamp_min(0))
    cheap = Newsvendor.from_spec({"items": [{"underage_cost": 1, "overage_cost": 19}]})
    corner = torch.tensor([[0.0, 0.5, 0.5]], dtype=torch.float64)
    assert fit_regressions(positive, (linear,), seed=0).decisions(cheap, corner, 200).item() >= 0
    assert fit_regressions(sample, (linear,), seed=0).decisions(cheap, corner, 200).item() < 0
