"""Boosted features: trees as arrays, out-of-fold histories, and residual models on top of the boosted rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lightgbm
import numpy as np
import pytest
import torch

from bco_core.data import Sample
from bco_core.distributions import FAMILIES, equal_mixture
from bco_core.features.boosted import MEAN, BoostedFeatures, BoostedFits, from_arrays
from bco_core.features.trees import from_lightgbm, join_forests
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.learn import learn
from bco_core.inference.options import make_options
from bco_core.inference.vi.fold_mixture import embed
from bco_core.predictors.registry import build_predictor
from bco_core.prescribe import PrescribeOptions, prescribe
from bco_core.problems.newsvendor import Newsvendor
from bco_core.timeline import Timeline, blocks

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})


def steps(rows: int = 600, seed: int = 0, timeline: bool = False) -> Sample:
    """Draw demand with jumps, which trees learn and linear models do not, with noise that grows with its level."""
    draw = torch.Generator().manual_seed(seed)
    contexts = torch.rand(rows, 4, generator=draw, dtype=torch.float64)
    level = 50 + 40 * (contexts[:, 0] > 0.5).double() + 20 * (contexts[:, 1] > 0.3).double() * (contexts[:, 2] > 0.6)
    noise = torch.randn(rows, generator=draw, dtype=torch.float64)
    when = Timeline(torch.arange(rows), torch.zeros(rows, dtype=torch.int64), lead=3) if timeline else None
    return Sample(contexts, (level + 0.1 * level * noise)[:, None], when)


def fit_boosted(sample: Sample, seed: int = 0) -> BoostedFeatures:
    boosting = BoostedFits.of(sample, torch.arange(len(sample)), PROBLEM, seed)
    return boosting.join([boosting.fit(part) for part in range(boosting.parts)])


# trees


@pytest.mark.parametrize(
    ("rows", "parameters"),
    [
        (500, {"num_leaves": 31}),
        (500, {"num_leaves": 2}),
        (500, {"objective": "quantile", "alpha": 0.9}),
        # Nothing to split: single-leaf trees.
        (30, {"min_data_in_leaf": 100}),
        (400, {"num_leaves": 200, "min_data_in_leaf": 1}),
    ],
)
def test_trees_as_arrays_predict_like_lightgbm(rows: int, parameters: dict[str, Any]) -> None:
    draw = np.random.default_rng(3)
    inputs = draw.normal(size=(rows, 5)) * [1, 1e6, 1e-6, 0, 1]
    inputs[:, 4] = draw.integers(0, 3, rows)
    outcome = inputs[:, 0] + inputs[:, 4] ** 2 + draw.normal(size=rows)
    quiet = {"verbosity": -1, "num_threads": 1}
    models = [lightgbm.train(quiet | parameters, lightgbm.Dataset(inputs, outcome), count) for count in (1, 40)]
    forest = from_lightgbm([model.model_to_string() for model in models])
    fresh = np.concatenate([inputs, draw.normal(size=(200, 5)) * [10, 1e7, 1e-5, 1, 5]])
    expected = np.stack([model.predict(fresh) for model in models], axis=1)
    np.testing.assert_allclose(forest.predict(fresh), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(forest.first([1, 7]).predict(fresh)[:, 1], models[1].predict(fresh, num_iteration=7))
    assert not forest.first([0, 7]).predict(fresh)[:, 0].any()
    twice = join_forests([forest, forest.first([1, 3])])
    np.testing.assert_array_equal(twice.predict(fresh)[:, :2], forest.predict(fresh))
    np.testing.assert_allclose(twice.predict(fresh)[:, 3], models[1].predict(fresh, num_iteration=3))


# features


def test_history_features_come_from_models_that_have_not_seen_the_row() -> None:
    """Refit the other folds by hand: the held-out predictions are the same."""
    sample = steps()
    boosting = BoostedFits.of(sample, torch.arange(len(sample)), PROBLEM, 0)
    part = boosting.fit(2)
    unseen = part["unseen"]
    assert len(unseen) == len(sample) // 5
    changed = sample.outcomes.clone()
    changed[torch.from_numpy(unseen)] += 1000
    again = replace(boosting, sample=Sample(sample.contexts, changed)).fit(2)
    np.testing.assert_array_equal(again["predictions"], part["predictions"])
    elsewhere = np.setdiff1d(np.arange(len(sample)), unseen)
    changed[torch.from_numpy(elsewhere[:50])] += 1000
    moved = replace(boosting, sample=Sample(sample.contexts, changed)).fit(2)
    assert not np.array_equal(moved["predictions"], part["predictions"])


@pytest.mark.slow
def test_with_time_history_features_come_from_models_of_earlier_rows() -> None:
    sample = steps(timeline=True)
    assert sample.timeline is not None
    boosting = BoostedFits.of(sample, torch.arange(len(sample)), PROBLEM, 0)
    block = blocks(sample.timeline)
    for number in (1, 3, 5):
        first = int((block == number).nonzero()[0])
        told = boosting.fit(number)
        changed = sample.outcomes.clone()
        changed[first - sample.timeline.lead + 1 :] += 1000
        again = replace(boosting, sample=replace(sample, outcomes=changed)).fit(number)
        np.testing.assert_array_equal(again["predictions"], told["predictions"])
        changed[first - sample.timeline.lead] += 1000
        moved = replace(boosting, sample=replace(sample, outcomes=changed)).fit(number)
        assert not np.array_equal(moved["predictions"], told["predictions"])


@pytest.mark.slow
@pytest.mark.parametrize("timeline", [False, True])
def test_features_round_trip_through_storage_and_are_row_independent(timeline: bool) -> None:
    features = fit_boosted(steps(timeline=timeline))
    again = from_arrays(*features.to_arrays())
    fresh = steps(7, seed=1).contexts
    told = features.of_new(fresh)
    assert torch.equal(again.of_new(fresh), told)
    for row in range(7):
        assert torch.equal(features.of_new(fresh[row : row + 1])[0], told[row])


@pytest.mark.slow
def test_the_base_is_the_problems_critical_fractile() -> None:
    features = fit_boosted(steps(4000))
    fresh = steps(4000, seed=1)
    assert features.columns[features.base[0]] == (0, 0.75)
    told = features.bases.undo(features.of_new(fresh.contexts)[:, -1:])
    assert (fresh.outcomes < told).double().mean().item() == pytest.approx(0.75, abs=0.03)
    mean = features.columns.index((0, MEAN)) + 4
    means = features.bases.undo(features.of_new(fresh.contexts)[:, mean : mean + 1])
    assert (means - fresh.outcomes).mean().abs() < 1


@pytest.mark.slow
def test_outcomes_scaled_by_level_generalise_to_series_of_any_size() -> None:
    """One rule for all series, applied to a series larger than any in training."""
    draw = torch.Generator().manual_seed(0)

    def series(count: int, size: tuple[float, float], start: int) -> Sample:
        levels = torch.empty(count, dtype=torch.float64).uniform_(*size, generator=draw)
        weekday = torch.randint(0, 7, (count,), generator=draw)
        outcomes = levels * (1 + 0.1 * weekday) + 0.02 * levels * torch.randn(
            count, generator=draw, dtype=torch.float64
        )
        contexts = torch.stack([levels, weekday.double()], dim=1)
        periods = torch.arange(start, start + count)
        return Sample(contexts, outcomes[:, None], Timeline(periods, torch.zeros_like(periods), levels=(0,)))

    features = fit_boosted(series(1500, (1, 50), 0))
    larger = series(300, (200, 400), 1500)
    told = features.bases.undo(features.of_new(larger.contexts)[:, -1:])
    wanted = larger.contexts[:, :1] * (1 + 0.1 * larger.contexts[:, 1:] + 0.02 * 0.6745)
    # Trees alone cannot predict above the training maximum, 80.
    assert ((told - wanted).abs() / wanted).mean() < 0.15


# residual models


def target(kind: str, sample: Sample, features: BoostedFeatures | None, hidden: tuple[int, ...] = ()) -> GibbsTarget:
    predictor = build_predictor(kind, sample, hidden, features)
    return make_target(PROBLEM, predictor, sample, FAMILIES["laplace"], 1.0)


@pytest.mark.slow
def test_a_zero_residual_model_predicts_the_base() -> None:
    sample = steps()
    features = fit_boosted(sample)
    predictor = build_predictor("linear", sample, (), features)
    fresh = steps(20, seed=1).contexts
    base = features.bases.undo(features.of_new(fresh)[:, -1:])
    still = torch.zeros(2, predictor.dim)
    torch.testing.assert_close(predictor.predict(still, fresh)[1], base, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(predictor.predict_each(still, fresh)[:, 0], base, rtol=1e-5, atol=1e-4)
    # One more in the bias is one more unit of the base's errors.
    moved = still.clone()
    moved[:, -1] = 1
    step = predictor.predict(moved, fresh)[0] - base
    torch.testing.assert_close(step, (features.shrink * features.bases.scale).expand_as(step), rtol=1e-4, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("onto", ["linear", "skip_mlp"])
@pytest.mark.parametrize("source", ["contexts", "trees", "both"])
def test_a_mixture_embedded_in_a_larger_predictor_predicts_the_same(source: str, onto: str) -> None:
    sample = steps()
    wide = fit_boosted(sample)
    features = {"contexts": None, "trees": wide.only(contexts=False), "both": wide}[source]
    kinds = ["linear"] if onto == "linear" else ["linear", "skip_mlp"]
    large = target(onto, sample, wide, (6, 5) if onto == "skip_mlp" else ())
    columns = (
        list(range(4))
        if features is None
        else [wide.column_indices.index(column) for column in features.column_indices]
    )
    for kind in kinds:
        small = target(kind, sample, features, (6, 5) if kind == "skip_mlp" else ())
        loc = 0.3 * torch.randn(3, small.predictor.dim, generator=torch.Generator().manual_seed(1))
        mixture = equal_mixture(small.family, loc, torch.full_like(loc, 0.01))
        inside = embed(small, mixture, large, columns)
        fresh = steps(50, seed=2).contexts
        alone = small.predictor.predict(mixture.loc, fresh)
        torch.testing.assert_close(large.predictor.predict(inside.loc, fresh), alone, rtol=1e-4, atol=1e-3)
        assert inside.loc.shape == inside.scale.shape == (3, large.predictor.dim)


@pytest.mark.slow
@pytest.mark.parametrize("timeline", [False, True])
def test_auto_learns_stepwise_demand_and_its_expected_costs_hold(timeline: bool) -> None:
    sample, fresh = steps(1500, timeline=timeline), steps(3000, seed=9)
    learned = learn(PROBLEM, sample, make_options(hidden=(16,), epochs=40, members=5, seed=2))
    told = learned.diagnostics
    assert told.boosted_share is not None
    assert any("boosted" in row["predictor"] for row in told.candidates)
    found = prescribe(learned.posterior, PROBLEM, fresh.contexts, PrescribeOptions(policy=told.policy))
    realised = PROBLEM.cost(found.decisions, fresh.outcomes)
    linear = learn(PROBLEM, sample, make_options(predictor="linear", epochs=40, members=5, seed=2))
    plain = prescribe(linear.posterior, PROBLEM, fresh.contexts, PrescribeOptions(policy="averaged"))
    assert realised.mean() < 0.85 * PROBLEM.cost(plain.decisions, fresh.outcomes).mean()
    assert found.costs.mean.mean() / realised.mean() == pytest.approx(1, abs=0.15)
    assert (told.forward is not None) == timeline
