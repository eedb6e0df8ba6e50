"""Learning end to end: decision quality, reproducibility, and histories of every shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bco_core.data import Sample, make_folds
from bco_core.distributions import FAMILIES, Mixture
from bco_core.errors import Cancelled, InvalidInput
from bco_core.estimates import Estimate
from bco_core.gibbs import make_target
from bco_core.inference.learn import MINIMUM_ROWS, learn
from bco_core.inference.options import LearningOptions, make_options
from bco_core.inference.vi import method as vi_method
from bco_core.inference.vi.cross_validation import OutOfFoldView, out_of_fold
from bco_core.inference.vi.variational import VariationalOptions, fit_variational
from bco_core.policies import POLICIES, decide
from bco_core.posterior import Posterior, digest
from bco_core.predictors.registry import PredictorOptions, build_predictor
from bco_core.problems.base import best_constant
from bco_core.problems.newsvendor import Newsvendor
from tests.support.linear_demand import (
    AUTO,
    LINEAR,
    OPTIONS,
    PROBLEM,
    STEPWISE,
    constant_cost,
    decisions_of,
    learn_diagnostics,
    learn_mixture,
    make_sample,
    mean_cost,
)

BRIEF = replace(OPTIONS, epochs=3, members=2)


def locations(posterior: Posterior) -> Tensor:
    assert isinstance(posterior.distribution, Mixture)
    return posterior.distribution.loc


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        replace(OPTIONS, family="gaussian"),
        replace(OPTIONS, predictor=LINEAR),
        replace(OPTIONS, predictor=PredictorOptions("relu_affine")),
        replace(OPTIONS, members=1),
        replace(OPTIONS, policy="averaged", draws=3),
        AUTO,
        replace(AUTO, family="gaussian", predictor=LINEAR),
        replace(AUTO, predictor=PredictorOptions("mlp", (8,)), members=5),
        replace(AUTO, predictor=PredictorOptions("relu_affine"), members=7),
    ],
    ids=[
        "vi, mlp",
        "vi, gaussian",
        "vi, linear",
        "vi, relu_affine",
        "vi, one member",
        "vi, averaged",
        "auto",
        "auto, linear",
        "auto, mlp",
        "auto, relu_affine",
    ],
)
def test_decisions_cost_less_than_half_the_best_constant_out_of_sample(options: LearningOptions) -> None:
    history, future = make_sample(), make_sample(rows=1000, seed=1)
    posterior, diagnostics = learn_mixture(history, options)
    for policy in POLICIES:
        assert mean_cost(posterior, future, policy) < 0.5 * constant_cost(history, future)
    assert diagnostics.gain_over_constant.mean < 0


@pytest.mark.parametrize("options", [BRIEF, replace(AUTO, epochs=3)], ids=["vi", "auto"])
def test_the_same_seed_gives_the_same_posterior_and_diagnostics(options: LearningOptions) -> None:
    first, again = (learn(PROBLEM, make_sample(), options) for _ in range(2))
    other = learn(PROBLEM, make_sample(), replace(options, seed=2))
    assert digest(*first.posterior.to_arrays()) == digest(*again.posterior.to_arrays())
    assert first.diagnostics == again.diagnostics
    assert not torch.equal(locations(first.posterior), locations(other.posterior))


def test_learning_leaves_the_global_random_state_alone() -> None:
    torch.manual_seed(1)
    first = learn(PROBLEM, make_sample(), BRIEF).posterior
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(3))
    second = learn(PROBLEM, make_sample(), BRIEF).posterior
    assert digest(*first.to_arrays()) == digest(*second.to_arrays())


def test_the_posterior_is_an_equal_mixture_with_the_requested_particles() -> None:
    posterior = learn(PROBLEM, make_sample(), replace(BRIEF, members=3, particles=33)).posterior
    assert isinstance(posterior.distribution, Mixture)
    assert posterior.distribution.weights.tolist() == pytest.approx([1 / 3] * 3)
    assert posterior.particles.shape == (33, posterior.predictor.dim)
    assert torch.equal(posterior.draws(seed=BRIEF.seed), posterior.particles)


@pytest.mark.parametrize("members", [1, 3])
def test_every_option_reaches_vi_and_only_a_mixture_averages_its_steps(members: int) -> None:
    sample = make_sample()
    options = make_options(
        method="vi",
        predictor="relu_affine",
        hidden=(),
        family="gaussian",
        prior_scale=0.7,
        members=members,
        kl_weight=0.03,
        policy="averaged",
        epochs=9,
        patience=2,
        batch_size=17,
        learning_rate=0.11,
        initial_scale=0.13,
        draws=3,
        particles=4,
        seed=5,
    )
    posterior, diagnostics = learn_mixture(sample, options)
    generator = torch.Generator().manual_seed(5)
    predictor = build_predictor("relu_affine", sample)
    fit = fit_variational(
        make_target(PROBLEM, predictor, sample, FAMILIES["gaussian"], 0.7),
        make_folds(len(sample), members, generator),
        VariationalOptions(
            kl_weight=0.03,
            policy="averaged",
            epochs=9,
            patience=2,
            batch_size=17,
            learning_rate=0.11,
            initial_scale=0.13,
            draws=3,
            averaging=members > 1,
            peers=members,
        ),
        generator,
    )
    assert isinstance(posterior.distribution, Mixture)
    assert torch.equal(posterior.distribution.loc, fit.mixture.loc)
    assert torch.equal(posterior.distribution.scale, fit.mixture.scale)
    assert diagnostics.best_epochs == [fit.best_epochs]
    assert diagnostics.trace == fit.trace
    assert len(posterior.particles) == 4


def test_the_history_stores_mean_predictions_not_the_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    views: list[OutOfFoldView] = []

    def with_an_odd_mode(*arguments: Any) -> OutOfFoldView:
        seen = out_of_fold(*arguments)
        views.append(replace(seen, scenarios=replace(seen.scenarios, mode=seen.scenarios.mode + 1000)))
        return views[-1]

    monkeypatch.setattr(vi_method, "out_of_fold", with_an_odd_mode)
    posterior = learn(PROBLEM, make_sample(), BRIEF).posterior
    assert posterior.history is not None
    kept = posterior.history.predictions.sort(dim=0).values
    torch.testing.assert_close(kept, views[-1].scenarios.mean().sort(dim=0).values)


def test_a_kl_weight_equals_its_inverse_temperature() -> None:
    first, by_weight = learn_mixture(make_sample(), replace(BRIEF, kl_weight=0.25))
    second, by_temperature = learn_mixture(make_sample(), replace(BRIEF, kl_weight=None, inverse_temperature=4.0))
    assert torch.equal(locations(first), locations(second))
    assert (by_weight.kl_weight, by_weight.inverse_temperature) == (0.25, 4)
    assert by_temperature.kl_weight == 0.25


def test_the_default_temperature_is_reported() -> None:
    diagnostics = learn_diagnostics(make_sample(), replace(BRIEF, kl_weight=None))
    assert diagnostics.kl_weight > 0
    assert diagnostics.inverse_temperature * diagnostics.kl_weight == pytest.approx(1)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_the_unit_of_demand_does_not_change_the_decisions(unit: float) -> None:
    history, future = make_sample(), make_sample(rows=300, seed=1)
    plain = learn(PROBLEM, history, OPTIONS).posterior
    scaled = learn(PROBLEM, Sample(history.contexts, unit * history.outcomes), OPTIONS).posterior
    cost = mean_cost(scaled, Sample(future.contexts, unit * future.outcomes))
    assert cost / unit == pytest.approx(mean_cost(plain, future), rel=0.1)


def test_fewer_rows_than_the_minimum_are_refused_with_both_numbers() -> None:
    sample = make_sample(rows=MINIMUM_ROWS - 1)
    with pytest.raises(
        InvalidInput, match=f"at least {MINIMUM_ROWS} rows, and there are {MINIMUM_ROWS - 1}"
    ) as refusal:
        learn(PROBLEM, sample, BRIEF)
    assert refusal.value.where == ("sample",)


def test_the_minimum_number_of_rows_learns_with_a_warning() -> None:
    posterior, diagnostics = learn_mixture(make_sample(rows=MINIMUM_ROWS), replace(OPTIONS, members=1))
    assert torch.isfinite(decisions_of(posterior, make_sample().contexts)).all()
    assert diagnostics.quality != "ok"


def test_data_with_another_dimension_than_the_problem_are_refused() -> None:
    sample = make_sample()
    two_outcomes = Sample(sample.contexts, sample.outcomes.repeat(1, 2))
    with pytest.raises(InvalidInput, match="the problem has 1 uncertain outcomes, the data 2") as refusal:
        learn(PROBLEM, two_outcomes, BRIEF)
    assert refusal.value.where == ("sample",)


def test_variational_inference_is_refused_without_gradients() -> None:
    with pytest.raises(InvalidInput, match="this problem has none; use mh or auto") as refusal:
        learn(STEPWISE, make_sample(), BRIEF)
    assert refusal.value.where == ("method",)


@pytest.mark.parametrize(
    ("problem", "brief", "inference"),
    [
        (PROBLEM, {"members": 5, "epochs": 2}, "vi"),
        (STEPWISE, {"steps": 60, "burn_in": 30, "chains": 2}, "mh"),
    ],
)
def test_auto_chooses_the_method_by_the_problem_and_says_why(
    problem: Newsvendor, brief: dict[str, int], inference: str
) -> None:
    options = make_options(predictor="linear", kl_weight=1e-2, **brief)
    diagnostics = learn(problem, make_sample(), options).diagnostics
    assert (diagnostics.method, diagnostics.inference) == ("auto", inference)
    assert "gradient with respect to predictions" in diagnostics.inference_reason


def test_cancelling_from_the_progress_callback_ends_learning() -> None:
    def cancel(fraction: float, message: str) -> None:
        raise Cancelled("enough")

    with pytest.raises(Cancelled, match="enough"):
        learn(PROBLEM, make_sample(), BRIEF, cancel)


@pytest.mark.parametrize("options", [OPTIONS, AUTO], ids=["vi", "auto"])
def test_a_constant_context_column_does_no_harm(options: LearningOptions) -> None:
    def with_constant(sample: Sample) -> Sample:
        constant = torch.full((len(sample), 1), 0.1, dtype=torch.float64)
        return Sample(torch.cat([sample.contexts, constant], dim=1), sample.outcomes)

    history, future = with_constant(make_sample()), with_constant(make_sample(rows=500, seed=1))
    posterior = learn(PROBLEM, history, options).posterior
    assert mean_cost(posterior, future) < 0.5 * constant_cost(history, future)


@pytest.mark.parametrize("value", [0.1, 7.0])
@pytest.mark.parametrize("options", [replace(OPTIONS, predictor=LINEAR, kl_weight=1e-3), AUTO], ids=["vi", "auto"])
def test_a_constant_outcome_is_ordered_nearly_exactly(value: float, options: LearningOptions) -> None:
    sample = Sample(make_sample().contexts, torch.full((120, 1), value, dtype=torch.float64))
    posterior, diagnostics = learn_mixture(sample, options)
    assert diagnostics.cost_scale == 1
    assert diagnostics.constant_decision_cost == Estimate(0, 0)
    assert (decisions_of(posterior, sample.contexts) - value).abs().max() < 0.25
    assert diagnostics.quality != "ok"


@pytest.mark.parametrize("options", [OPTIONS, AUTO], ids=["vi", "auto"])
def test_a_single_context_column_is_enough(options: LearningOptions) -> None:
    history, future = (make_sample(rows, seed, context_dim=1) for rows, seed in ((120, 0), (500, 1)))
    posterior = learn(PROBLEM, history, options).posterior
    assert mean_cost(posterior, future) < 0.5 * constant_cost(history, future)


@pytest.mark.parametrize("options", [OPTIONS, AUTO], ids=["vi", "auto"])
def test_without_context_columns_the_decision_is_near_the_best_constant(options: LearningOptions) -> None:
    history = make_sample()
    blind = Sample(history.contexts[:, :0], history.outcomes)
    posterior = learn(PROBLEM, blind, options).posterior
    assert mean_cost(posterior, blind) < 1.1 * constant_cost(history, history)


def test_more_context_columns_than_rows_still_give_sensible_decisions() -> None:
    history, future = make_sample(rows=30), make_sample(rows=300, seed=1)

    def with_noise(sample: Sample) -> Sample:
        noise = torch.randn(len(sample), 60, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        return Sample(torch.cat([sample.contexts, noise], dim=1), sample.outcomes)

    posterior = learn(PROBLEM, with_noise(history), AUTO).posterior
    assert mean_cost(posterior, with_noise(future), "averaged") < 1.1 * constant_cost(history, future)


def test_several_items_are_learned_together() -> None:
    problem = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}] * 2})
    history, future = (
        Sample(s.contexts, torch.cat([s.outcomes, 5e3 - 20 * s.outcomes], dim=1))
        for s in (make_sample(), make_sample(rows=500, seed=1))
    )
    posterior = learn(problem, history, OPTIONS).posterior
    decisions = decide(problem, posterior.scenarios(future.contexts, posterior.draws()), "bcp").decisions
    constant = best_constant(problem, history.outcomes).decisions
    for item in range(2):
        ours, reference = (
            PROBLEM.cost(z[:, item : item + 1], future.outcomes[:, item : item + 1]).mean()
            for z in (decisions, constant)
        )
        assert ours < 0.5 * reference


def test_auto_progress_never_falls_and_ends_at_one() -> None:
    fractions: list[float] = []
    options = replace(AUTO, epochs=2)
    learn(PROBLEM, make_sample(), options, lambda fraction, message: fractions.append(fraction))
    assert fractions == sorted(fractions)
    assert fractions[0] > 0
    assert fractions[-1] == pytest.approx(1)


def test_plain_gradient_descent_learns_and_an_unknown_optimizer_is_refused() -> None:
    sample = make_sample()
    plain = replace(OPTIONS, members=1, optimizer="sgd", learning_rate=0.2)
    descended = learn(PROBLEM, sample, plain).posterior
    adapted = learn(PROBLEM, sample, replace(plain, optimizer="adam", learning_rate=0.02)).posterior
    assert not torch.equal(locations(descended), locations(adapted))
    assert mean_cost(descended, sample) < constant_cost(sample, sample)
    with pytest.raises(InvalidInput, match="adam, sgd"):
        replace(plain, optimizer="newton")
