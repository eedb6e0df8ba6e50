"""Updating an old posterior: cheaper than retraining, compared on rows that neither has seen."""

from __future__ import annotations

from time import process_time

import pytest
import torch

from bco_core.data import Sample
from bco_core.errors import InvalidInput
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.inference.update import UpdateOptions, UpdateResult, update
from bco_core.posterior import Posterior
from bco_core.prescribe import PrescribeOptions, decisions
from bco_core.problems.newsvendor import Newsvendor

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})


def demand(rows: int, seed: int, slope: float = 5.0, level: float = 100.0) -> Sample:
    draw = torch.Generator().manual_seed(seed)
    contexts = torch.randn(rows, 3, generator=draw, dtype=torch.float64)
    noise = torch.randn(rows, generator=draw, dtype=torch.float64)
    return Sample(contexts, (level + slope * contexts[:, 0] + 3 * noise)[:, None])


@pytest.fixture(scope="module")
def old() -> Posterior:
    return learn(PROBLEM, demand(300, 0), make_options(predictor="linear", epochs=60, seed=1)).posterior


def update_posterior(old: Posterior, new: Sample, **options: object) -> UpdateResult:
    sample = demand(300, 0).followed_by(new)
    fresh = torch.arange(len(sample)) >= 300
    return update(PROBLEM, sample, old, fresh, UpdateOptions(1e-4, "averaged", **options))  # type: ignore[arg-type]


def cost(posterior: Posterior, fresh: Sample) -> float:
    found = decisions(posterior, PROBLEM, fresh.contexts, PrescribeOptions(policy="averaged"))
    return PROBLEM.cost(found, fresh.outcomes).mean().item()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"as_prior": True}, {"as_prior": True, "forgetting": 1.0}])
def test_a_change_is_learned_and_the_update_promoted(old: Posterior, options: dict[str, object]) -> None:
    changed, later = demand(400, 5, slope=-5.0, level=103.0), demand(2000, 6, slope=-5.0, level=103.0)
    found = update_posterior(old, changed, **options)
    assert found.comparison.rows == 134
    difference = found.comparison.difference
    assert difference.mean < -2 * difference.standard_error
    if options.get("forgetting"):
        # Without a prior from the old posterior, it learns the change from the new rows only.
        assert cost(found.posterior, later) < 0.6 * cost(old, later)
    assert cost(found.posterior, later) < cost(old, later)


@pytest.mark.slow
def test_the_old_posterior_as_prior_keeps_members_close(old: Posterior) -> None:
    changed = demand(400, 5, slope=-5.0)
    moved = {}
    for name, weight in (("free", 1e-8), ("held", 10.0)):
        sample = demand(300, 0).followed_by(changed)
        options = UpdateOptions(weight, "averaged", as_prior=True)
        found = update(PROBLEM, sample, old, torch.arange(700) >= 300, options).posterior
        moved[name] = (found.distribution.loc - old.distribution.loc).abs().mean().item()  # type: ignore[attr-defined]
    assert moved["held"] < 0.1 * moved["free"]


def test_without_a_change_the_new_posterior_is_no_worse(old: Posterior) -> None:
    found = update_posterior(old, demand(200, 7))
    later = demand(4000, 8)
    assert cost(found.posterior, later) < 1.03 * cost(old, later)
    assert abs(found.comparison.difference.mean) < 0.1 * cost(old, later)
    promise = found.diagnostics.promise
    assert promise.ratio == pytest.approx(1, abs=0.15 + 2 * promise.standard_error)


def test_comparison_rows_are_not_used_for_training(old: Posterior) -> None:
    """The newest third differs: had the challenger seen it, it would be far ahead there."""
    strange = demand(200, 9).followed_by(demand(100, 10, level=160.0))
    found = update_posterior(old, strange)
    assert found.comparison.rows == 100
    assert abs(found.comparison.difference.mean) < 1
    after = demand(1000, 11, level=160.0)
    assert cost(found.posterior, after) < cost(old, after) - 2


def test_the_same_seed_gives_the_same_update(old: Posterior) -> None:
    first, again = (update_posterior(old, demand(100, 3)) for _ in range(2))
    assert torch.equal(first.posterior.particles, again.posterior.particles)
    assert first.comparison == again.comparison


@pytest.mark.slow
def test_updating_needs_far_less_work_than_retraining() -> None:
    """The difference grows with the rows: retraining passes over all of them many times."""
    sample = demand(1600, 0)
    options = make_options(seed=1)
    began = process_time()
    old = learn(PROBLEM, sample.rows(torch.arange(1500)), options)
    whole = process_time() - began
    began = process_time()
    update(
        PROBLEM, sample, old.posterior, torch.arange(1600) >= 1500, UpdateOptions(old.diagnostics.kl_weight, "averaged")
    )
    assert 3 * (process_time() - began) < whole


def test_posteriors_that_cannot_be_updated_are_refused(old: Posterior) -> None:
    with pytest.raises(InvalidInput, match="at least 30 rows that the posterior has not seen, and there are 20"):
        update_posterior(old, demand(20, 1))
    with pytest.raises(InvalidInput, match="a share from 0 to 1"):
        UpdateOptions(1e-4, "averaged", as_prior=True, forgetting=1.5)
    with pytest.raises(InvalidInput, match="only a prior can be forgotten"):
        UpdateOptions(1e-4, "averaged", forgetting=0.5)
    wider = Sample(torch.ones(60, 4, dtype=torch.float64), torch.ones(60, 1, dtype=torch.float64))
    with pytest.raises(InvalidInput, match="other columns"):
        update(PROBLEM, wider, old, torch.ones(60, dtype=torch.bool), UpdateOptions(1e-4, "averaged"))
