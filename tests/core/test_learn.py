from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bco_core.data import Sample, make_folds
from bco_core.errors import Cancelled, InvalidInput
from bco_core.evaluation import Estimate
from bco_core.families import FAMILIES
from bco_core.gibbs import make_target
from bco_core.inference.diagnostics import FEW_ROWS, judge
from bco_core.inference.learn import MINIMUM_ROWS, learn
from bco_core.inference.options import make_options
from bco_core.inference.vi.variational import VariationalOptions, fit_variational
from bco_core.policies import POLICIES
from bco_core.posterior import Posterior, digest
from bco_core.predictors.registry import build_predictor
from bco_core.problems.constant import best_constant
from bco_core.problems.newsvendor import Newsvendor

PROBLEM = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}]})
OPTIONS = make_options(
    method="vi",
    predictor="mlp",
    hidden=(16,),
    family="laplace",
    prior_scale=1.0,
    members=5,
    kl_weight=1e-4,
    policy="bcp",
    epochs=40,
    patience=8,
    batch_size=32,
    learning_rate=0.02,
    initial_scale=0.05,
    draws=1,
    particles=50,
    seed=1,
)
BRIEF = replace(OPTIONS, epochs=3, members=2)
AUTO = make_options(method="auto", predictor="auto", hidden=(8,), epochs=15, particles=60, seed=1)


def make_sample(rows: int = 120, seed: int = 0, context_dim: int = 2) -> Sample:
    """Demand that contexts explain but for a little noise."""
    draw = torch.Generator().manual_seed(seed)
    contexts = 20 + 5 * torch.randn(rows, context_dim, generator=draw, dtype=torch.float64)
    slopes = torch.tensor([3.0, -2.0, 0.5], dtype=torch.float64)[:context_dim, None]
    noise = torch.randn(rows, 1, generator=draw, dtype=torch.float64)
    return Sample(contexts, 200 + contexts @ slopes + noise)


def decisions_of(posterior: Posterior, contexts: Tensor, policy: str = "bcp") -> Tensor:
    scenarios = posterior.scenarios(contexts, posterior.draws())
    return POLICIES[policy](PROBLEM, scenarios, torch.Generator().manual_seed(0)).decisions


def mean_cost(posterior: Posterior, sample: Sample, policy: str = "bcp") -> float:
    return PROBLEM.cost(decisions_of(posterior, sample.contexts, policy), sample.outcomes).mean().item()


def constant_cost(history: Sample, sample: Sample) -> float:
    return PROBLEM.cost(best_constant(PROBLEM, history.outcomes).decisions, sample.outcomes).mean().item()


def numbers_in(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers_in(part)]
    if isinstance(value, list):
        return [number for part in value for number in numbers_in(part)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        replace(OPTIONS, family="gaussian"),
        replace(OPTIONS, predictor="linear", hidden=()),
        replace(OPTIONS, predictor="relu_affine", hidden=()),
        replace(OPTIONS, members=1),
        replace(OPTIONS, policy="averaged", draws=3),
        AUTO,
        replace(AUTO, family="gaussian", predictor="linear"),
        replace(AUTO, predictor="mlp", members=5),
        replace(AUTO, predictor="relu_affine", members=7),
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
def test_learned_decisions_cost_less_than_half_of_the_best_constant_out_of_sample(options: LearningOptions) -> None:
    history, future = make_sample(), make_sample(rows=1000, seed=1)
    posterior, diagnostics = learn(PROBLEM, history, options)
    for policy in POLICIES:
        assert mean_cost(posterior, future, policy) < 0.5 * constant_cost(history, future)
    assert diagnostics["gain_over_constant"]["mean"] < 0


@pytest.mark.parametrize("options", [BRIEF, replace(AUTO, epochs=3)], ids=["vi", "auto"])
def test_the_same_seed_gives_the_same_posterior_and_diagnostics(options: LearningOptions) -> None:
    first, again = (learn(PROBLEM, make_sample(), options) for _ in range(2))
    other = learn(PROBLEM, make_sample(), replace(options, seed=2))
    assert digest(*first[0].to_arrays()) == digest(*again[0].to_arrays())
    assert first[1] == again[1]
    assert not torch.equal(first[0].mixture.loc, other[0].mixture.loc)


def test_learning_neither_reads_nor_disturbs_the_global_random_state() -> None:
    torch.manual_seed(1)
    first, _ = learn(PROBLEM, make_sample(), BRIEF)
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(3))
    second, _ = learn(PROBLEM, make_sample(), BRIEF)
    assert digest(*first.to_arrays()) == digest(*second.to_arrays())


def test_the_posterior_is_an_equal_mixture_of_the_members_with_the_particles_asked_for() -> None:
    posterior, _ = learn(PROBLEM, make_sample(), replace(BRIEF, members=3, particles=33))
    assert posterior.distribution.weights.tolist() == pytest.approx([1 / 3] * 3)
    assert posterior.particles.shape == (33, posterior.predictor.dim)
    assert torch.equal(posterior.draws(seed=BRIEF.seed), posterior.particles)


@pytest.mark.parametrize("members", [1, 3])
def test_every_option_reaches_plain_variational_inference_and_only_a_mixture_averages_its_steps(members: int) -> None:
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
    posterior, diagnostics = learn(PROBLEM, sample, options)
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
        ),
        generator,
    )
    assert torch.equal(posterior.distribution.loc, fit.mixture.loc)
    assert torch.equal(posterior.distribution.scale, fit.mixture.scale)
    assert diagnostics["best_epochs"] == [fit.best_epochs]
    assert diagnostics["trace"] == [asdict(point) for point in fit.trace]
    assert len(posterior.particles) == 4


def test_a_kl_weight_and_its_inverse_temperature_mean_the_same() -> None:
    first, by_weight = learn(PROBLEM, make_sample(), replace(BRIEF, kl_weight=0.25))
    second, by_temperature = learn(PROBLEM, make_sample(), replace(BRIEF, kl_weight=None, inverse_temperature=4.0))
    assert torch.equal(first.mixture.loc, second.mixture.loc)
    assert (by_weight["kl_weight"], by_weight["inverse_temperature"]) == (0.25, 4)
    assert by_temperature["kl_weight"] == 0.25


def test_the_default_temperature_is_reported() -> None:
    _, diagnostics = learn(PROBLEM, make_sample(), replace(BRIEF, kl_weight=None))
    assert diagnostics["kl_weight"] > 0
    assert diagnostics["inverse_temperature"] * diagnostics["kl_weight"] == pytest.approx(1)


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_the_unit_of_demand_does_not_matter(unit: float) -> None:
    history, future = make_sample(), make_sample(rows=300, seed=1)
    plain, _ = learn(PROBLEM, history, OPTIONS)
    scaled, _ = learn(PROBLEM, Sample(history.contexts, unit * history.outcomes), OPTIONS)
    cost = mean_cost(scaled, Sample(future.contexts, unit * future.outcomes))
    assert cost / unit == pytest.approx(mean_cost(plain, future), rel=0.1)


def test_fewer_rows_than_the_minimum_are_refused_with_both_numbers() -> None:
    sample = make_sample(rows=MINIMUM_ROWS - 1)
    with pytest.raises(
        InvalidInput, match=f"at least {MINIMUM_ROWS} rows, and there are {MINIMUM_ROWS - 1}"
    ) as refusal:
        learn(PROBLEM, sample, BRIEF)
    assert refusal.value.where == ("dataset",)


def test_the_minimum_number_of_rows_is_enough_to_learn_but_not_to_be_sure() -> None:
    posterior, diagnostics = learn(PROBLEM, make_sample(rows=MINIMUM_ROWS), replace(OPTIONS, members=1))
    assert torch.isfinite(decisions_of(posterior, make_sample().contexts)).all()
    assert diagnostics["quality"] != "ok"


def test_data_of_another_dimension_than_the_problem_are_refused_with_both_numbers() -> None:
    sample = make_sample()
    two_outcomes = Sample(sample.contexts, sample.outcomes.repeat(1, 2))
    with pytest.raises(InvalidInput, match="the problem has 1 uncertain outcomes, the data 2") as refusal:
        learn(PROBLEM, two_outcomes, BRIEF)
    assert refusal.value.where == ("dataset",)


@pytest.mark.parametrize(
    ("name", "value", "known"),
    [
        ("method", "magic", "auto, vi, mh"),
        ("temperature", "warm", "settle, validation"),
        ("thinning", "none", "support_points, regular"),
        ("family", "cauchy", "gaussian, laplace"),
        ("predictor", "forest", "auto, linear, relu_affine, mlp, skip_mlp"),
        ("policy", "greedy", "bcp, averaged, blended, map, thompson"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(name: str, value: str, known: str) -> None:
    with pytest.raises(InvalidInput, match=f"^the {name} must be one of {known}$") as refusal:
        make_options(**{name: value})
    assert refusal.value.where == (name,)


@pytest.mark.parametrize("options", [BRIEF, AUTO], ids=["vi", "auto"])
def test_two_temperatures_are_refused_before_learning_begins(options: LearningOptions) -> None:
    calls: list[float] = []
    contradictory = replace(options, kl_weight=0.1, inverse_temperature=10.0)
    with pytest.raises(InvalidInput, match="kl_weight or inverse_temperature, not both") as refusal:
        learn(PROBLEM, make_sample(), contradictory, lambda fraction, message: calls.append(fraction))
    assert refusal.value.where == ("posterior", "kl_weight")
    assert calls == []


@pytest.mark.parametrize("name", ["kl_weight", "inverse_temperature", "prior_scale", "initial_scale", "learning_rate"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_or_rate_that_is_not_a_positive_number_is_refused_at_its_field(name: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"^{name} must be a positive number$") as refusal:
        make_options(**{name: value})
    assert refusal.value.where == ("posterior", name)


@pytest.mark.parametrize("name", ["members", "epochs", "patience", "batch_size", "draws", "particles"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_number_of_things_below_one_is_refused_at_its_field(name: str, value: int) -> None:
    with pytest.raises(InvalidInput, match=f"^{name} must be at least 1$") as refusal:
        make_options(**{name: value})
    assert refusal.value.where == ("posterior", name)


class Stepwise(Newsvendor):
    """A newsvendor that keeps its gradients to itself."""

    @property
    def differentiable(self) -> bool:
        return False


def test_variational_inference_is_refused_where_there_are_no_gradients() -> None:
    with pytest.raises(InvalidInput, match="variational inference needs one; use mh or auto") as refusal:
        learn(Stepwise(**vars(PROBLEM)), make_sample(), replace(BRIEF, method="vi"))
    assert refusal.value.where == ("posterior", "method")


@pytest.mark.parametrize(("problem", "inference"), [(PROBLEM, "vi"), (Stepwise(**vars(PROBLEM)), "mh")])
def test_auto_picks_the_inference_by_the_problem_and_says_why(problem: Newsvendor, inference: str) -> None:
    brief = make_options(members=5, epochs=2, predictor="linear", steps=60, burn_in=30, chains=2, kl_weight=1e-2)
    _, diagnostics = learn(problem, make_sample(), brief)
    assert (diagnostics["method"], diagnostics["inference"]) == ("auto", inference)
    assert "gradient by the prediction" in diagnostics["inference_reason"]


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
    posterior, _ = learn(PROBLEM, history, options)
    assert mean_cost(posterior, future) < 0.5 * constant_cost(history, future)


@pytest.mark.parametrize("value", [0.1, 7.0])
@pytest.mark.parametrize(
    "options", [replace(OPTIONS, predictor="linear", hidden=(), kl_weight=1e-3), AUTO], ids=["vi", "auto"]
)
def test_a_constant_outcome_is_ordered_nearly_exactly(value: float, options: LearningOptions) -> None:
    sample = Sample(make_sample().contexts, torch.full((120, 1), value, dtype=torch.float64))
    posterior, diagnostics = learn(PROBLEM, sample, options)
    assert diagnostics["cost_scale"] == 1
    assert diagnostics["constant_decision_cost"] == {"mean": 0, "standard_error": 0}
    assert (decisions_of(posterior, sample.contexts) - value).abs().max() < 0.25
    assert diagnostics["quality"] != "ok"


@pytest.mark.parametrize("options", [OPTIONS, AUTO], ids=["vi", "auto"])
def test_a_single_context_column_is_enough(options: LearningOptions) -> None:
    history, future = (make_sample(rows, seed, context_dim=1) for rows, seed in ((120, 0), (500, 1)))
    posterior, _ = learn(PROBLEM, history, options)
    assert mean_cost(posterior, future) < 0.5 * constant_cost(history, future)


@pytest.mark.parametrize("options", [OPTIONS, AUTO], ids=["vi", "auto"])
def test_without_context_columns_the_decision_is_about_the_best_constant(options: LearningOptions) -> None:
    history = make_sample()
    blind = Sample(history.contexts[:, :0], history.outcomes)
    posterior, _ = learn(PROBLEM, blind, options)
    assert mean_cost(posterior, blind) < 1.1 * constant_cost(history, history)


def test_more_context_columns_than_rows_still_give_sane_decisions() -> None:
    history, future = make_sample(rows=30), make_sample(rows=300, seed=1)

    def with_noise(sample: Sample) -> Sample:
        noise = torch.randn(len(sample), 60, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        return Sample(torch.cat([sample.contexts, noise], dim=1), sample.outcomes)

    posterior, _ = learn(PROBLEM, with_noise(history), AUTO)
    assert mean_cost(posterior, with_noise(future), "averaged") < 1.1 * constant_cost(history, future)


def test_several_items_are_learned_together() -> None:
    problem = Newsvendor.from_spec({"items": [{"underage_cost": 3, "overage_cost": 1}] * 2})
    history, future = (
        Sample(s.contexts, torch.cat([s.outcomes, 5e3 - 20 * s.outcomes], dim=1))
        for s in (make_sample(), make_sample(rows=500, seed=1))
    )
    posterior, _ = learn(problem, history, OPTIONS)
    decisions = POLICIES["bcp"](
        problem, posterior.scenarios(future.contexts, posterior.draws()), torch.Generator()
    ).decisions
    constant = best_constant(problem, history.outcomes).decisions
    for item in range(2):
        ours, reference = (
            PROBLEM.cost(z[:, item : item + 1], future.outcomes[:, item : item + 1]).mean()
            for z in (decisions, constant)
        )
        assert ours < 0.5 * reference


@pytest.mark.parametrize(
    ("rows", "gain", "converged", "verdict", "reason"),
    [
        (FEW_ROWS, Estimate(-2.0, 1.0), True, "ok", "decisions beat the best constant decision"),
        (FEW_ROWS - 1, Estimate(-2.0, 1.0), True, "warn", f"only {FEW_ROWS - 1} rows of history"),
        (1000, Estimate(-0.5, 1.0), True, "warn", "no clear gain over one constant decision"),
        (1000, Estimate(0.5, 1.0), True, "warn", "no clear gain over one constant decision"),
        (1000, Estimate(-3.0, math.inf), True, "warn", "no clear gain over one constant decision"),
        (1000, Estimate(-2.0, 1.0), False, "warn", "reached its epoch limit"),
        (1000, Estimate(1.5, 1.0), True, "bad", "cost more than one constant decision"),
        (FEW_ROWS - 1, Estimate(1.5, 1.0), False, "bad", "cost more than one constant decision"),
    ],
)
def test_the_verdict_names_the_first_thing_a_planner_should_know(
    rows: int, gain: Estimate, converged: bool, verdict: str, reason: str
) -> None:
    quality = judge(rows, gain, converged)
    assert quality.verdict == verdict
    assert reason in quality.reason


def test_an_exact_tie_with_the_constant_decision_is_not_called_a_gain() -> None:
    assert judge(1000, Estimate(0.0, 0.0), converged=True).verdict == "warn"


def test_decisions_fixed_by_their_bounds_are_not_called_better_than_the_constant() -> None:
    fixed = Newsvendor.from_spec(
        {"items": [{"underage_cost": 3, "overage_cost": 1, "minimum_order": 210, "maximum_order": 210}]}
    )
    _, diagnostics = learn(fixed, make_sample(), replace(OPTIONS, epochs=5, patience=2, members=2))
    assert diagnostics["gain_over_constant"]["mean"] == pytest.approx(0, abs=1e-9)
    assert diagnostics["quality"] == "warn"


def test_a_good_fit_on_plenty_of_rows_is_called_ok_and_noise_is_not() -> None:
    options = replace(OPTIONS, epochs=300, patience=5)
    assert learn(PROBLEM, make_sample(), options)[1]["quality"] == "ok"
    sample = make_sample()
    shuffled = torch.randperm(len(sample), generator=torch.Generator().manual_seed(4))
    unrelated = Sample(sample.contexts, sample.outcomes[shuffled])
    assert learn(PROBLEM, unrelated, options)[1]["quality"] != "ok"


def test_stopping_at_the_epoch_limit_is_reported() -> None:
    _, diagnostics = learn(PROBLEM, make_sample(), replace(OPTIONS, epochs=12, patience=12))
    assert diagnostics["stopped_early"] is False
    assert diagnostics["quality"] == "warn"


@pytest.mark.parametrize("options", [BRIEF, replace(AUTO, epochs=3)], ids=["vi", "auto"])
def test_diagnostics_are_finite_plain_json(options: LearningOptions) -> None:
    _, diagnostics = learn(PROBLEM, make_sample(), options)
    assert json.loads(json.dumps(diagnostics, allow_nan=False)) == diagnostics
    numbers = numbers_in(diagnostics)
    assert len(numbers) > 20
    assert all(math.isfinite(number) for number in numbers)
    assert set(diagnostics["held_out_cost"]) == set(POLICIES)
    assert [point["epoch"] for point in diagnostics["trace"]] == [1, 2, 3]


@pytest.mark.parametrize(("members", "rows"), [(1, 10), (2, 20), (5, 50), (7, 50)])
def test_a_row_is_judged_if_every_full_partition_holds_it_out(members: int, rows: int) -> None:
    _, diagnostics = learn(PROBLEM, make_sample(rows=53), replace(BRIEF, epochs=1, members=members))
    assert diagnostics["held_out_rows"] == rows


def test_auto_recommends_a_policy_from_its_table_and_a_choice_of_policy_is_obeyed() -> None:
    _, diagnostics = learn(PROBLEM, make_sample(), replace(AUTO, epochs=3))
    chosen = [row["policy"] for row in diagnostics["policies"] if row["chosen"]]
    assert chosen == [diagnostics["policy"]]
    assert diagnostics["policies"][0]["policy"] == "averaged"
    cost = diagnostics["held_out_cost"][diagnostics["policy"]]["mean"]
    gain = cost - diagnostics["constant_decision_cost"]["mean"]
    assert diagnostics["gain_over_constant"]["mean"] == pytest.approx(gain)
    _, obedient = learn(PROBLEM, make_sample(), replace(AUTO, epochs=3, policy="thompson"))
    assert obedient["policy"] == "thompson"


def test_auto_progress_never_falls_and_ends_at_one() -> None:
    fractions: list[float] = []
    options = replace(AUTO, epochs=2)
    learn(PROBLEM, make_sample(), options, lambda fraction, message: fractions.append(fraction))
    assert fractions == sorted(fractions)
    assert fractions[0] > 0
    assert fractions[-1] == pytest.approx(1)


def test_held_out_cost_judges_each_row_only_by_the_members_that_did_not_learn_from_it() -> None:
    sample, options = make_sample(), replace(BRIEF, members=5)
    posterior, diagnostics = learn(PROBLEM, sample, options)
    folds = make_folds(len(sample), 5, torch.Generator().manual_seed(options.seed))
    costs: dict[int, float] = {}
    for loc, rows in zip(posterior.distribution.loc, folds.validation.tolist(), strict=True):
        held_out = sample.rows(torch.tensor(rows))
        decisions = posterior.predictor.predict(loc[None], held_out.contexts)[0]
        for row, cost in zip(rows, PROBLEM.cost(decisions, held_out.outcomes).tolist(), strict=True):
            costs[row] = cost
    by_row = torch.tensor([costs[row] for row in sorted(costs)], dtype=torch.float64)
    reported = diagnostics["held_out_cost"]["map"]
    assert reported["mean"] == pytest.approx(by_row.mean().item(), rel=1e-5)
    assert reported["standard_error"] == pytest.approx(by_row.std().item() / math.sqrt(len(by_row)), rel=1e-4)


def test_the_constant_decision_it_is_compared_with_has_not_seen_the_rows_it_is_judged_on() -> None:
    sample = make_sample()
    _, diagnostics = learn(PROBLEM, sample, replace(BRIEF, members=5))
    in_sample = constant_cost(sample, sample)
    assert in_sample < diagnostics["constant_decision_cost"]["mean"] < 1.1 * in_sample
    assert diagnostics["cost_scale"] == pytest.approx(constant_cost(sample, sample))
    gain = diagnostics["held_out_cost"]["bcp"]["mean"] - diagnostics["constant_decision_cost"]["mean"]
    assert diagnostics["gain_over_constant"]["mean"] == pytest.approx(gain)


def test_plain_gradient_descent_learns_too_and_an_unknown_optimizer_is_refused() -> None:
    sample = make_sample()
    plain = replace(OPTIONS, members=1, optimizer="sgd", learning_rate=0.2)
    descended, _ = learn(PROBLEM, sample, plain)
    adapted, _ = learn(PROBLEM, sample, replace(plain, optimizer="adam", learning_rate=0.02))
    assert not torch.equal(descended.mixture.loc, adapted.mixture.loc)
    assert mean_cost(descended, sample) < constant_cost(sample, sample)
    with pytest.raises(InvalidInput, match="adam, sgd"):
        replace(plain, optimizer="newton")
