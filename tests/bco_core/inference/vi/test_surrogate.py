"""The posterior of a surrogate loss around a regression: regret, diagnostics, and use with every other feature."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bco_core.certificates import NO_CERTIFICATE
from bco_core.data import Sample
from bco_core.distributions import FAMILIES, MatrixGaussian
from bco_core.errors import InvalidInput
from bco_core.gibbs import make_target
from bco_core.inference.diagnostics import LOSSES
from bco_core.inference.learn import learn
from bco_core.inference.method import Learned
from bco_core.inference.options import make_options
from bco_core.inference.update import UpdateOptions, update
from bco_core.inference.vi.diagnostics import VariationalDiagnostics
from bco_core.inference.vi.surrogate import BayesianRegression, fit_around, is_nonlinear
from bco_core.posterior import Posterior, strip_particles
from bco_core.predictors.registry import build_predictor
from bco_core.prescribe import PrescribeOptions, decisions, prescribe
from bco_core.problems.linear.uncertain_cost import UncertainCostLinear
from bco_core.problems.registry import build_problem
from bco_core.timeline import Timeline
from benchmarks.experiments.contextual.data import ContextualInstance, knapsack, shortest_path


def problem_of(instance: ContextualInstance) -> UncertainCostLinear:
    problem = build_problem(instance.spec)
    assert isinstance(problem, UncertainCostLinear)
    return problem


def sample_of(instance: ContextualInstance, rows: slice) -> Sample:
    return Sample(torch.from_numpy(instance.contexts[rows]), torch.from_numpy(instance.outcomes[rows]))


def regret(problem: UncertainCostLinear, decisions_made: Tensor, outcomes: Tensor) -> float:
    best = problem.cost(problem.decide(outcomes), outcomes)
    return ((problem.cost(decisions_made, outcomes) - best).sum() / best.sum().abs()).item()


def regrets_of_posterior_and_least_squares(degree: int, seed: int, rows: int = 100) -> tuple[float, float]:
    """Return the regret on new rows of the posterior's decisions and of least squares."""
    instance = shortest_path(rows + 600, degree, seed)
    problem, known, new = problem_of(instance), sample_of(instance, slice(rows)), sample_of(instance, slice(rows, None))
    fit = learn(problem, known)
    ours = decisions(fit.posterior, problem, new.contexts, PrescribeOptions(policy=fit.diagnostics.policy))
    inputs = torch.cat([known.contexts, torch.ones(rows, 1)], dim=1)
    theta = torch.linalg.lstsq(inputs, known.outcomes).solution
    theirs = problem.decide(torch.cat([new.contexts, torch.ones(600, 1)], dim=1) @ theta)
    return regret(problem, ours, new.outcomes), regret(problem, theirs, new.outcomes)


@pytest.mark.slow
@pytest.mark.parametrize(("degree", "most"), [(6, -0.015), (4, -0.003), (1, 0.003)])
def test_surrogate_beats_least_squares_on_nonlinear_costs_and_ties_otherwise(degree: int, most: float) -> None:
    pairs = np.array([regrets_of_posterior_and_least_squares(degree, seed) for seed in range(20, 25)])
    gains = pairs[:, 0] - pairs[:, 1]
    assert gains.mean() < most
    if most < 0:
        assert gains.mean() < -2 * gains.std(ddof=1) / np.sqrt(len(gains))


@pytest.mark.slow
def test_products_of_contexts_are_used_given_many_rows() -> None:
    instance = shortest_path(900, 6, 3)
    fit = learn(problem_of(instance), sample_of(instance, slice(400)))
    assert fit.posterior.predictor.features.kind == "products"
    assert {row["predictor"] for row in fit.diagnostics.candidates} == {"linear", "linear on products"}
    again = Posterior.from_arrays(*fit.posterior.to_arrays())
    contexts = torch.from_numpy(instance.contexts[400:410])
    torch.testing.assert_close(again.encode(contexts), fit.posterior.encode(contexts))


@pytest.fixture(scope="module")
def instance() -> ContextualInstance:
    return shortest_path(260, 6, 1)


@pytest.fixture(scope="module")
def fit(instance: ContextualInstance) -> Learned:
    return learn(problem_of(instance), sample_of(instance, slice(100)))


def test_the_loss_is_reported_and_no_certificate_given(fit: Learned, instance: ContextualInstance) -> None:
    diagnostics = fit.diagnostics
    assert (diagnostics.loss, diagnostics.inference, diagnostics.method, diagnostics.policy) == (
        "spo_plus",
        "vi",
        "auto",
        "bcp",
    )
    assert diagnostics.to_json()["loss_meaning"] == LOSSES["spo_plus"]
    assert "jump" in diagnostics.inference_reason
    assert diagnostics.certificate.bound is None
    assert diagnostics.certificate.reason == NO_CERTIFICATE
    assert {row["policy"] for row in diagnostics.policies} == {"bcp", "predictive"}
    with pytest.raises(InvalidInput, match="surrogate"):
        learn(problem_of(instance), sample_of(instance, slice(100)), make_options(certify=True))


def test_the_same_seed_gives_the_same_posterior_also_after_storage(fit: Learned, instance: ContextualInstance) -> None:
    again = learn(problem_of(instance), sample_of(instance, slice(100)))
    torch.testing.assert_close(again.posterior.particles, fit.posterior.particles, rtol=0, atol=0)
    description, arrays = fit.posterior.to_arrays()
    assert "particles" not in strip_particles(description, arrays)
    restored = Posterior.from_arrays(description, arrays)
    assert isinstance(restored.distribution, MatrixGaussian)
    torch.testing.assert_close(restored.draws(7, 3), fit.posterior.draws(7, 3))


def test_held_out_costs_are_true_costs_of_members_that_held_the_row_out(fit: Learned) -> None:
    diagnostics = fit.diagnostics
    assert isinstance(diagnostics, VariationalDiagnostics)
    assert diagnostics.held_out_rows == 100
    assert diagnostics.held_out_cost["bcp"].mean < diagnostics.constant_decision_cost.mean
    assert diagnostics.gain_over_constant.mean < 0
    assert diagnostics.promise.ratio == pytest.approx(1.0, abs=0.25)
    assert diagnostics.members.count == 1
    risks = [point.risk for point in diagnostics.trace]
    assert np.mean(risks[-5:]) < np.mean(risks[:5])


def test_prescriptions_have_costs_an_optimality_proof_and_a_path(fit: Learned, instance: ContextualInstance) -> None:
    problem, contexts = problem_of(instance), torch.from_numpy(instance.contexts[100:103])
    answer = prescribe(fit.posterior, problem, contexts, PrescribeOptions(policy="bcp"))
    assert [str(status) for status in answer.status] == ["optimal"] * 3
    assert problem.within(answer.decisions).all()


def target_of(problem: UncertainCostLinear, sample: Sample) -> Any:
    return make_target(problem, build_predictor("linear", sample), sample, FAMILIES["gaussian"])


def test_the_regression_is_least_squares_and_draws_have_its_covariance(instance: ContextualInstance) -> None:
    problem, sample = problem_of(instance), sample_of(instance, slice(100))
    target = target_of(problem, sample)
    rows = torch.arange(100)[None]
    start = BayesianRegression.of(target, rows)
    wanted = target.predictor.wanted(sample.outcomes, target.features)
    expected = torch.linalg.lstsq(torch.from_numpy(start.inputs[0]), wanted).solution
    np.testing.assert_allclose(start.theta[0], expected, atol=1e-4)
    fit = fit_around(target, rows, torch.tensor([0.3]).double(), 0.01, torch.Generator().manual_seed(0))
    mixture = fit.mixture
    assert isinstance(mixture, MatrixGaussian)
    draws = mixture.sample(40_000, torch.Generator().manual_seed(0)).double() - mixture.loc[0]
    own = np.diag(start.errors[0])
    between = 0.95 * start.errors[0] + 0.05 * np.diag(own)
    whole = np.kron(0.09 * np.linalg.inv(start.gram[0]), between)
    np.testing.assert_allclose(draws.T @ draws / len(draws), whole, atol=0.05 * np.abs(whole).max())
    np.testing.assert_allclose(mixture.scale[0], np.sqrt(np.diag(whole)), rtol=1e-3)
    few = draws[:5].float() + mixture.loc[0]
    normal = torch.distributions.MultivariateNormal(mixture.loc[0].double(), torch.from_numpy(whole))
    np.testing.assert_allclose(mixture.log_prob(few), normal.log_prob(few.double()), rtol=1e-3)


def test_zero_width_equals_the_regression_and_a_strong_prior_stays_there(instance: ContextualInstance) -> None:
    target = target_of(problem_of(instance), sample_of(instance, slice(100)))
    rows, generator = torch.arange(100).repeat(2, 1), torch.Generator()
    start = BayesianRegression.of(target, rows)
    fit = fit_around(target, rows, torch.tensor([0.0, 0.3]).double(), 1e4, generator)
    free = fit_around(target, rows, torch.tensor([0.0, 0.3]).double(), 1e-2, generator)
    at = torch.from_numpy(start.theta).flatten(1).float()
    torch.testing.assert_close(fit.mixture.loc[0], at[0])
    assert (fit.mixture.loc[1] - at[1]).abs().max() < 0.25 * (free.mixture.loc[1] - at[1]).abs().max()


def test_curvature_is_detected_and_linearity_is_not_mistaken_for_it() -> None:
    for degree, bent in ((1, False), (4, True), (6, True)):
        instance = shortest_path(100, degree, 8)
        assert is_nonlinear(target_of(problem_of(instance), sample_of(instance, slice(None)))) is bent


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["relu_affine", "skip_mlp", "mlp"])
def test_other_predictors_learn_by_the_surrogate(kind: str, instance: ContextualInstance) -> None:
    options = make_options(predictor=kind, epochs=12, members=5, hidden=[16] if "mlp" in kind else None)
    got = learn(problem_of(instance), sample_of(instance, slice(120)), options)
    assert got.diagnostics.loss == "spo_plus"
    assert got.posterior.predictor.kind == kind
    assert got.diagnostics.held_out_cost["bcp"].mean < got.diagnostics.constant_decision_cost.mean


@pytest.mark.slow
def test_boosted_residual_models_learn_by_the_surrogate() -> None:
    small = shortest_path(150, 4, 2, grid=2)
    got = learn(
        problem_of(small), sample_of(small, slice(None)), make_options(predictor="boosted", epochs=5, members=5)
    )
    assert got.diagnostics.loss == "spo_plus"
    assert got.posterior.predictor.features.kind == "boosted"


def test_plain_variational_inference_learns_by_the_surrogate(instance: ContextualInstance) -> None:
    got = learn(problem_of(instance), sample_of(instance, slice(120)), make_options("vi", "linear", epochs=60))
    assert isinstance(got.diagnostics, VariationalDiagnostics)
    assert got.diagnostics.loss == "spo_plus"
    assert got.diagnostics.trace[-1].risk < got.diagnostics.trace[0].risk


def test_chains_sample_the_true_cost() -> None:
    small = shortest_path(60, 2, 4, grid=2)
    options = make_options("mh", "linear", steps=300, burn_in=100, chains=2, inverse_temperature=100.0)
    got = learn(problem_of(small), sample_of(small, slice(None)), options)
    assert got.diagnostics.loss == "cost"
    assert got.diagnostics.to_json()["loss_meaning"] == LOSSES["cost"]


@pytest.mark.parametrize("as_prior", [False, True])
def test_updating_keeps_the_posteriors_shape_and_learns(
    fit: Learned, instance: ContextualInstance, as_prior: bool
) -> None:
    sample, fresh = sample_of(instance, slice(None)), torch.arange(260) >= 100
    diagnostics = fit.diagnostics
    options = UpdateOptions(diagnostics.kl_weight, diagnostics.policy, as_prior=as_prior)
    later = update(problem_of(instance), sample, fit.posterior, fresh, options)
    assert isinstance(later.posterior.distribution, MatrixGaussian)
    assert later.diagnostics.loss == "spo_plus"
    assert not torch.equal(later.posterior.distribution.loc, fit.posterior.distribution.mode()[None])
    held = update(problem_of(instance), sample, fit.posterior, fresh, replace(options, as_prior=True, kl_weight=1e3))
    assert isinstance(held.posterior.distribution, MatrixGaussian)
    moved = (later.posterior.distribution.loc - fit.posterior.distribution.mode()).abs().max()
    assert (held.posterior.distribution.loc - fit.posterior.distribution.mode()).abs().max() < 0.5 * moved


def test_rows_with_time_are_judged_forward(instance: ContextualInstance) -> None:
    sample = sample_of(instance, slice(None))
    periods = torch.arange(260)
    timed = replace(sample, timeline=Timeline(periods, torch.zeros(260, dtype=torch.long), 1, 0))
    diagnostics = learn(problem_of(instance), timed).diagnostics
    assert diagnostics.forward is not None
    assert diagnostics.forward_cost is not None
    assert diagnostics.forward_cost["bcp"].mean < diagnostics.constant_decision_cost.mean


def test_integers_are_relaxed_in_learning_and_exact_in_prescribing() -> None:
    instance = knapsack(70, 4, 1, items=12)
    problem = problem_of(instance)
    got = learn(problem, sample_of(instance, slice(60)))
    answer = prescribe(got.posterior, problem, torch.from_numpy(instance.contexts[60:63]), PrescribeOptions())
    taken = answer.decisions
    assert (taken == taken.round()).all()
    assert problem.within(taken).all()
    assert [str(status) for status in answer.status] == ["optimal"] * 3
    assert answer.gaps is not None
    assert got.diagnostics.loss == "spo_plus"
