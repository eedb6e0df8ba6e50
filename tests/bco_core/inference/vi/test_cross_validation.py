"""Cross-validation: out-of-fold judgement and pooling of members."""

from __future__ import annotations

import pytest
import torch

from bco_core.data import make_folds
from bco_core.distributions import equal_mixture
from bco_core.inference.vi.cross_validation import out_of_fold, pool_views
from bco_core.policies import decide
from tests.support.nonlinear_demand import PROBLEM, nonlinear_sample, target_of
from tests.support.seeds import seeded


def test_every_row_is_judged_only_by_members_that_held_it_out() -> None:
    sample = nonlinear_sample(53)
    target = target_of("linear", sample)
    folds = make_folds(53, 10, seeded())
    # Each member predicts its own number, so predictions identify their member.
    loc = torch.zeros(10, target.predictor.dim)
    loc[:, -1] = torch.arange(10.0)
    mixture = equal_mixture(target.family, loc, torch.full_like(loc, 1e-9))
    seen = out_of_fold(target, folds, mixture, seeded())
    judged_by = target.predictor.outcomes.apply(seen.scenarios.outcomes).round().long()[..., 0]
    for row, members in zip(seen.rows.tolist(), judged_by, strict=True):
        for member in members.unique().tolist():
            assert row in folds.validation[member].tolist()
            assert row not in folds.train[member].tolist()
    assert len(seen.rows) >= 53 - 2 * 3


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_pooled_scenarios_average_to_the_stacked_decision(share: float) -> None:
    sample = nonlinear_sample(60)
    target = target_of("linear", sample)
    folds = make_folds(60, 5, seeded())
    views = []
    for seed in (1, 2):
        loc = torch.randn(5, target.predictor.dim, generator=seeded(seed))
        views.append(out_of_fold(target, folds, equal_mixture(target.family, loc, 0.1 + 0 * loc), seeded(seed)))
    both = pool_views(*views, share)
    each = [decide(PROBLEM, view.scenarios, "averaged").decisions for view in views]
    assert torch.allclose(decide(PROBLEM, both.scenarios, "averaged").decisions, torch.lerp(*each, share))
    assert both.scenarios.weights.sum().item() == pytest.approx(1.0)
