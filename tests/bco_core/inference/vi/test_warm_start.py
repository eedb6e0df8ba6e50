"""Warm starts: ridge regression and the shift to decision quantiles."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bco_core.data import make_folds
from bco_core.inference.vi.fold_mixture import warm_starts
from bco_core.inference.vi.hyperparameters import AS_PRESCRIBED, NETWORK
from bco_core.inference.vi.variational import VariationalOptions
from bco_core.inference.vi.warm_start import ridge, shift_to_decisions
from tests.support.nonlinear_demand import nonlinear_sample, target_of
from tests.support.seeds import seeded


def test_ridge_without_shrinkage_equals_least_squares() -> None:
    contexts = torch.randn(400, 3, generator=seeded(), dtype=torch.float64)
    slopes = torch.tensor([[2.0, 0.0], [-1.0, 0.5], [0.3, 4.0]], dtype=torch.float64)
    outcomes = contexts @ slopes + torch.tensor([5.0, -7.0])
    design = torch.cat([contexts, torch.ones(400, 1)], dim=1)
    expected = torch.linalg.lstsq(design, outcomes).solution
    assert torch.allclose(ridge(contexts, outcomes), expected, atol=5e-3)


@pytest.mark.parametrize("seed", range(12))
def test_ridge_chooses_the_penalty_of_least_leave_one_out_error(seed: int) -> None:
    """Two outcomes with different best penalties, and few rows, so that leverage matters."""
    draw, count, columns = seeded(seed), 12, 5
    contexts = torch.randn(count, columns, generator=draw, dtype=torch.float64)
    # One row far from the others has a leverage close to one.
    contexts[0] *= 4
    noise = torch.randn(count, 2, generator=draw, dtype=torch.float64)
    outcomes = torch.cat([noise[:, :1], contexts[:, :1] + 0.5 * noise[:, 1:]], dim=1)

    def fit(x: Tensor, y: Tensor, penalty: float) -> Tensor:
        centred, identity = x - x.mean(0), torch.eye(columns)
        slopes = torch.linalg.solve(centred.T @ centred + len(x) * penalty * identity, centred.T @ (y - y.mean(0)))
        return torch.cat([slopes, (y.mean(0) - x.mean(0) @ slopes)[None]])

    def leave_one_out(penalty: float, outcome: int) -> float:
        # The penalty is scaled by the full sample size throughout, as in the closed form.
        total = 0.0
        for row in range(count):
            keep = torch.arange(count) != row
            theta = fit(contexts[keep], outcomes[keep], penalty * count / (count - 1))[:, outcome]
            total += (outcomes[row, outcome] - contexts[row] @ theta[:-1] - theta[-1]).square().item()
        return total

    penalties = [10.0**power for power in torch.linspace(-3, 1, 17, dtype=torch.float64).tolist()]
    for outcome in range(2):
        best = min(penalties, key=lambda penalty, outcome=outcome: leave_one_out(penalty, outcome))
        expected = fit(contexts, outcomes, best)[:, outcome]
        assert torch.allclose(ridge(contexts, outcomes)[:, outcome], expected, atol=1e-8)


def test_ridge_survives_repeated_and_constant_columns() -> None:
    column = torch.randn(30, 1, generator=seeded(), dtype=torch.float64)
    contexts = torch.cat([column, column, torch.zeros(30, 1)], dim=1)
    fitted = ridge(contexts, 3 * column)
    prediction = contexts @ fitted[:-1] + fitted[-1]
    assert torch.isfinite(fitted).all()
    assert (prediction - 3 * column).abs().max() < 0.05


@pytest.mark.parametrize("kind", ["linear", "relu_affine", "skip_mlp"])
def test_the_shift_moves_predictions_to_the_quantile_of_the_residuals(kind: str) -> None:
    sample = nonlinear_sample()
    target = target_of(kind, sample, (8,) if kind == "skip_mlp" else ())
    rows = torch.arange(200)[None]
    encoded = target.predictor.encode(sample.contexts)
    loc = target.predictor.initial(1, seeded())
    shifted = shift_to_decisions(target, encoded, rows, loc)
    residuals = sample.outcomes - target.predictor.forward(loc, encoded)[0]
    expected = residuals.quantile(0.75) / target.predictor.outcomes.scale
    assert (shifted - loc)[0, -1].item() == pytest.approx(expected.item(), abs=0.03)
    assert torch.equal(shifted[:, :-1], loc[:, :-1])


def test_a_warm_start_predicts_far_better_than_a_random_one() -> None:
    sample = nonlinear_sample()
    target = target_of("skip_mlp", sample, (16,))
    folds = make_folds(200, 5, seeded())
    options = VariationalOptions(policy="averaged", epochs=60, validation_draws=4, kl_weight=2e-4)
    ((loc, _),) = warm_starts(target, folds, NETWORK, [AS_PRESCRIBED], options, seeded()).values()
    random = target.predictor.initial(5, seeded())
    assert target.empirical_risk(loc).mean() < 0.5 * target.empirical_risk(random).mean()
