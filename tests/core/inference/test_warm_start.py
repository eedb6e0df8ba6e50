from __future__ import annotations

import pytest
import torch
from torch import Tensor
from wavy_demand import generator, target_of, wavy

from bco_core.data import make_folds
from bco_core.inference.vi.mixture import warm_start
from bco_core.inference.vi.recipes import NETWORK
from bco_core.inference.vi.variational import VariationalOptions
from bco_core.inference.vi.warm_start import ridge, shift_to_decisions


def test_ridge_without_need_for_shrinking_is_least_squares() -> None:
    contexts = torch.randn(400, 3, generator=generator(), dtype=torch.float64)
    slopes = torch.tensor([[2.0, 0.0], [-1.0, 0.5], [0.3, 4.0]], dtype=torch.float64)
    outcomes = contexts @ slopes + torch.tensor([5.0, -7.0])
    design = torch.cat([contexts, torch.ones(400, 1)], dim=1)
    expected = torch.linalg.lstsq(design, outcomes).solution
    assert torch.allclose(ridge(contexts, outcomes), expected, atol=5e-3)


def test_ridge_chooses_the_penalty_of_least_leave_one_out_error() -> None:
    draw = generator(3)
    contexts = torch.randn(20, 6, generator=draw, dtype=torch.float64)
    outcomes = torch.randn(20, 1, generator=draw, dtype=torch.float64)

    def fit(x: Tensor, y: Tensor, penalty: float) -> Tensor:
        centred = x - x.mean(0)
        slopes = torch.linalg.solve(centred.T @ centred + len(x) * penalty * torch.eye(6), centred.T @ (y - y.mean(0)))
        return torch.cat([slopes, (y.mean(0) - x.mean(0) @ slopes)[None]])

    def leave_one_out(penalty: float) -> float:
        # The penalty is of the full sample's size throughout, as in the closed form.
        errors = []
        for row in range(20):
            keep = torch.arange(20) != row
            theta = fit(contexts[keep], outcomes[keep], penalty * 20 / 19)
            errors.append((outcomes[row] - contexts[row] @ theta[:-1] - theta[-1]).square().item())
        return sum(errors)

    penalties = [10.0**power for power in torch.linspace(-3, 1, 17).tolist()]
    best = min(penalties, key=leave_one_out)
    assert torch.allclose(ridge(contexts, outcomes), fit(contexts, outcomes, best), atol=1e-8)


def test_ridge_survives_repeated_and_constant_columns() -> None:
    column = torch.randn(30, 1, generator=generator(), dtype=torch.float64)
    contexts = torch.cat([column, column, torch.zeros(30, 1)], dim=1)
    fitted = ridge(contexts, 3 * column)
    prediction = contexts @ fitted[:-1] + fitted[-1]
    assert torch.isfinite(fitted).all()
    assert (prediction - 3 * column).abs().max() < 0.05


@pytest.mark.parametrize("kind", ["linear", "relu_affine", "skip_mlp"])
def test_the_shift_moves_predictions_to_the_quantile_of_the_residuals(kind: str) -> None:
    sample = wavy()
    target = target_of(kind, sample, (8,) if kind == "skip_mlp" else ())
    rows = torch.arange(200)[None]
    encoded = target.predictor.encode(sample.contexts)
    loc = target.predictor.initial(1, generator())
    shifted = shift_to_decisions(target, encoded, rows, loc)
    residuals = sample.outcomes - target.predictor.forward(loc, encoded)[0]
    expected = residuals.quantile(0.75) / target.predictor.outcomes.scale
    assert (shifted - loc)[0, -1].item() == pytest.approx(expected.item(), abs=0.03)
    assert torch.equal(shifted[:, :-1], loc[:, :-1])


def test_a_warm_start_predicts_far_better_than_a_random_one() -> None:
    sample = wavy()
    target = target_of("skip_mlp", sample, (16,))
    folds = make_folds(200, 5, generator())
    options = VariationalOptions(policy="averaged", epochs=60, validation_draws=4, kl_weight=2e-4)
    loc, _ = warm_start(target, folds, NETWORK, options, generator())
    random = target.predictor.initial(5, generator())
    assert target.empirical_risk(loc).mean() < 0.5 * target.empirical_risk(random).mean()
