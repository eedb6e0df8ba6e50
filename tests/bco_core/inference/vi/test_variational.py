"""Variational inference: exact mean-field optimum, reproducibility, early stopping, progress and divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from bco_core.data import Folds, Sample, make_folds
from bco_core.distributions import FAMILIES
from bco_core.errors import Cancelled, Diverged
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.vi.variational import VariationalFit, VariationalOptions, fit_variational
from bco_core.predictors.registry import build_predictor
from bco_core.problems.base import EXPECTATION, Prescription, Risk, Status
from bco_core.problems.newsvendor import Newsvendor
from bco_core.progress import Figures, figures_of
from tests.support.seeds import seeded


@dataclass(frozen=True)
class Quadratic:
    """c(z; y) = ‖z − y‖²: the best decision is the prediction itself, or the mean of the scenarios."""

    outcome_dim: int
    factor: float = 1.0

    @property
    def decision_dim(self) -> int:
        return self.outcome_dim

    @property
    def differentiable(self) -> bool:
        return True

    @property
    def relaxation(self) -> Quadratic:
        return self

    def decide(self, outcomes: Tensor) -> Tensor:
        return outcomes

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return self.factor * (decisions - outcomes).square().sum(-1)

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return torch.ones(decisions.shape[:-1], dtype=torch.bool)

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        weights = weights.expand(outcomes.shape[:2])
        decisions = (outcomes * weights[:, :, None]).sum(1)
        objective = (self.cost(decisions[:, None], outcomes) * weights).sum(1)
        return Prescription(decisions, objective, [Status.OPTIMAL] * len(decisions))


OPTIONS = VariationalOptions(
    kl_weight=0.05,
    policy="bcp",
    epochs=20,
    patience=None,
    batch_size=16,
    learning_rate=0.05,
    initial_scale=0.1,
    draws=2,
    validation_draws=4,
    averaging=False,
)


def make_sample(rows: int = 40, outcome_dim: int = 1) -> Sample:
    rng = np.random.default_rng(3)
    contexts = rng.normal(50, 20, size=(rows, 2)) @ np.array([[1.0, 0.4], [0.0, 1.0]])
    slopes = np.array([[0.8, -0.2], [-0.3, 2.0]])[:, :outcome_dim]
    outcomes = 100 + contexts @ slopes + rng.normal(0, [6.0, 15.0][:outcome_dim], size=(rows, outcome_dim))
    return Sample(torch.from_numpy(contexts), torch.from_numpy(outcomes))


def make_quadratic_target(
    sample: Sample, family: str = "gaussian", prior_scale: float = 1.0, factor: float = 1.0
) -> GibbsTarget:
    problem = Quadratic(sample.outcomes.shape[1], factor)
    target = make_target(problem, build_predictor("linear", sample), sample, FAMILIES[family])
    return replace(target, prior_scale=torch.tensor(prior_scale, dtype=torch.float64))


def make_newsvendor_target(family: str = "laplace", unit: float = 1.0) -> GibbsTarget:
    sample = make_sample()
    problem = Newsvendor.from_spec({"items": [{"underage_cost": 3 * unit, "overage_cost": unit}]})
    return make_target(problem, build_predictor("mlp", sample, (8,)), sample, FAMILIES[family])


def learn_from(*train: list[int]) -> Folds:
    """Return folds whose members learn from the given rows, without rows for early stopping."""
    return Folds(torch.tensor(train), torch.empty(len(train), 0, dtype=torch.long))


def exact_optimum(
    target: GibbsTarget, rows: list[int], kl_weight: float, prior_scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale (d,) of the best mean-field Gaussian for a linear model under squared error.

    In standardised space the scaled risk is Σ_j (s_j²/C) ‖A θ_j − ỹ_j‖² / n with A = [X̃ 1], C = Σ_j s_j² the best
    constant's cost, and θ_j the weights and bias of outcome j. The Gibbs posterior with λn = 1/κ is Gaussian, with
    precision P_j = I/s² + (2 λn s_j² / (n C)) A'A and mean P_j⁻¹ (2 λn s_j² / (n C)) A'ỹ_j; the mean-field Gaussian
    nearest to it in KL(q ‖ ·) has this mean and variances 1/diag(P_j).
    """
    x, y = target.sample.contexts.numpy(), target.sample.outcomes.numpy()
    design = np.column_stack([(x - x.mean(0)) / x.std(0), np.ones(len(x))])[rows]
    unit = ((y - y.mean(0)) / y.std(0))[rows]
    shares = y.var(0) / y.var(0).sum()
    means, scales = [], []
    for share, column in zip(shares, unit.T, strict=True):
        weight = 2 * share / (kl_weight * len(rows))
        precision = np.eye(design.shape[1]) / prior_scale**2 + weight * design.T @ design
        means.append(np.linalg.solve(precision, weight * design.T @ column))
        scales.append(np.diag(precision) ** -0.5)
    # The flat vector holds the weight matrix row by row, then the biases: coefficient-major, outcome-minor.
    return np.array(means).T.flatten(), np.array(scales).T.flatten()


def same(first: VariationalFit, second: VariationalFit) -> bool:
    return torch.equal(first.mixture.loc, second.mixture.loc) and torch.equal(first.mixture.scale, second.mixture.scale)


@pytest.mark.parametrize(("kl_weight", "prior_scale", "outcome_dim"), [(0.05, 1.0, 1), (0.5, 1.0, 2), (0.2, 0.3, 1)])
def test_each_member_reaches_the_exact_mean_field_gaussian_of_its_own_rows(
    kl_weight: float, prior_scale: float, outcome_dim: int
) -> None:
    target = make_quadratic_target(make_sample(outcome_dim=outcome_dim), prior_scale=prior_scale)
    rows = [list(range(25)), list(range(15, 40))]
    options = replace(
        OPTIONS, kl_weight=kl_weight, epochs=150, batch_size=25, learning_rate=0.01, draws=64, averaging=True
    )
    mixture = fit_variational(target, learn_from(*rows), options, seeded(0)).mixture
    assert mixture.loc.dtype == torch.float64
    assert mixture.weights.tolist() == [0.5, 0.5]
    exact = [exact_optimum(target, own, kl_weight, prior_scale) for own in rows]
    assert np.abs(exact[0][0] - exact[1][0]).max() > 0.1
    for loc, scale, (exact_mean, exact_scale) in zip(mixture.loc.numpy(), mixture.scale.numpy(), exact, strict=True):
        assert np.abs((loc - exact_mean) / exact_scale).max() < 0.1
        assert np.abs(scale / exact_scale - 1).max() < 0.05


def test_members_may_have_their_own_temperatures_and_initial_scales() -> None:
    target = make_quadratic_target(make_sample())
    rows, kl_weights = list(range(40)), [0.02, 2.0]
    options = replace(
        OPTIONS,
        kl_weight=torch.tensor(kl_weights),
        initial_scale=torch.tensor([0.05, 0.5]),
        epochs=120,
        batch_size=40,
        learning_rate=0.01,
        draws=64,
        averaging=True,
    )
    fit = fit_variational(target, learn_from(rows, rows), options, seeded(0))
    for loc, scale, kl_weight in zip(fit.mixture.loc.numpy(), fit.mixture.scale.numpy(), kl_weights, strict=True):
        exact_mean, exact_scale = exact_optimum(target, rows, kl_weight, 1.0)
        assert np.abs((loc - exact_mean) / exact_scale).max() < 0.1
        assert np.abs(scale / exact_scale - 1).max() < 0.05
    unmoved = fit_variational(target, learn_from(rows, rows), replace(options, epochs=1, learning_rate=1e-9), seeded(0))
    assert unmoved.mixture.scale[:, 0].tolist() == pytest.approx([0.05, 0.5], rel=1e-4)


def test_without_data_the_posterior_is_the_prior() -> None:
    target = make_quadratic_target(make_sample(), prior_scale=0.5)
    options = replace(OPTIONS, kl_weight=1e6, epochs=100, learning_rate=0.02)
    mixture = fit_variational(target, learn_from(list(range(40))), options, seeded(0)).mixture
    assert mixture.loc.abs().max() < 0.02
    assert torch.allclose(mixture.scale, torch.full_like(mixture.scale, 0.5), atol=0.02)


def test_the_moving_average_is_closer_to_the_exact_mean_than_the_last_step() -> None:
    target = make_quadratic_target(make_sample())
    rows = list(range(40))
    exact, _ = exact_optimum(target, rows, OPTIONS.kl_weight, 1.0)
    options = replace(OPTIONS, epochs=30, batch_size=8, draws=1)
    errors = {}
    for averaging in (False, True):
        fit = fit_variational(target, learn_from(*[rows] * 8), replace(options, averaging=averaging), seeded(0))
        errors[averaging] = np.square(fit.mixture.loc.numpy() - exact).mean()
    assert errors[True] < 0.7 * errors[False]


def test_learning_lowers_the_objective_of_a_laplace_posterior() -> None:
    target = make_newsvendor_target("laplace")
    folds, options = learn_from(list(range(40))), replace(OPTIONS, kl_weight=1e-3)

    def objective(loc: Tensor, scale: Tensor) -> float:
        theta = loc + scale * target.family.noise((2000, target.predictor.dim), seeded(9), torch.float32)
        kl = target.family.kl(loc, scale, target.prior_scale).sum()
        return (target.empirical_risk(theta).mean() + options.kl_weight * kl).item()

    start = target.predictor.initial(1, seeded(0))[0]
    mixture = fit_variational(target, folds, options, seeded(0)).mixture
    before = objective(start, torch.full_like(start, options.initial_scale))
    after = objective(mixture.loc[0], mixture.scale[0])
    assert after < 0.6 * before


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("policy", ["bcp", "averaged", "map", "thompson"])
def test_a_fit_is_bit_identical_for_the_same_seed_and_differs_for_another(family: str, policy: str) -> None:
    target = make_newsvendor_target(family)
    options = replace(OPTIONS, policy=policy, epochs=3, patience=2)
    folds = make_folds(40, 3, seeded(0))
    first, again, other = (fit_variational(target, folds, options, seeded(seed)) for seed in (1, 1, 2))
    assert same(first, again)
    assert first.trace == again.trace
    assert not same(first, other)


def test_the_unit_of_money_changes_the_trace_but_not_the_posterior() -> None:
    folds, options = make_folds(40, 2, seeded(0)), replace(OPTIONS, epochs=5, patience=5)
    euros, other = (
        fit_variational(make_newsvendor_target(unit=unit), folds, options, seeded(1)) for unit in (1.0, 1024.0)
    )
    assert same(euros, other)
    assert [1024 * point.risk for point in euros.trace] == [point.risk for point in other.trace]
    assert [1024 * point.validation_cost for point in euros.trace] == [point.validation_cost for point in other.trace]
    assert [point.kl for point in euros.trace] == [point.kl for point in other.trace]


@pytest.mark.parametrize("averaging", [False, True])
def test_early_stopping_keeps_the_epoch_of_least_validation_cost(averaging: bool) -> None:
    target = make_newsvendor_target()
    folds = make_folds(40, 1, seeded(0))
    options = replace(OPTIONS, epochs=40, patience=5, learning_rate=0.1, averaging=averaging)
    fit = fit_variational(target, folds, options, seeded(4))
    costs = [point.validation_cost for point in fit.trace]
    best = fit.best_epochs[0]
    assert fit.stopped_early == [True]
    assert len(costs) == best + 5 < 40
    assert costs.index(min(costs)) + 1 == best
    until_best = fit_variational(target, folds, replace(options, epochs=best, patience=None), seeded(4))
    assert same(fit, until_best)


def test_without_patience_every_epoch_runs_and_the_last_is_kept() -> None:
    fit = fit_variational(make_newsvendor_target(), make_folds(40, 2, seeded(0)), OPTIONS, seeded(4))
    assert fit.best_epochs == [20, 20]
    assert fit.stopped_early == [False, False]
    assert [point.epoch for point in fit.trace] == list(range(1, 21))
    assert {point.validation_cost for point in fit.trace} == {None}


def test_after_a_member_stops_the_others_keep_their_own_rows() -> None:
    sample = make_sample()
    contrary = 2 * sample.outcomes.mean() - sample.outcomes
    target = make_quadratic_target(Sample(sample.contexts.repeat(2, 1), torch.cat([sample.outcomes, contrary])))
    # The first member learns a relation that its validation rows contradict; the second learns one that its rows
    # confirm.
    folds = Folds(
        torch.stack([torch.arange(20), 40 + torch.arange(20)]),
        torch.stack([60 + torch.arange(10), 70 + torch.arange(10)]),
    )
    options = replace(OPTIONS, kl_weight=1e-3, policy="map", epochs=30, patience=3, learning_rate=0.01, draws=16)
    messages: list[str] = []
    fit = fit_variational(target, folds, options, seeded(1), lambda _, message: messages.append(message))
    misled, sound = fit.best_epochs
    left = misled + 3
    assert left + 5 < sound
    assert fit.stopped_early == [True, sound + 3 <= 30]
    assert all("2 of 2 members" in message for message in messages[: left - 1])
    assert all("1 of 2 members" in message for message in messages[left - 1 : sound])

    until = fit_variational(target, folds, replace(options, epochs=misled, patience=None), seeded(1))
    assert torch.equal(fit.mixture.loc[0], until.mixture.loc[0])
    assert torch.equal(fit.mixture.scale[0], until.mixture.scale[0])

    own = target.sample.rows(folds.validation[1])
    predictions = target.predictor.predict(fit.mixture.loc[1:], own.contexts)
    cost = Quadratic(1).cost(predictions, own.outcomes).mean().item()
    assert fit.trace[sound - 1].validation_cost == pytest.approx(cost, rel=1e-9)
    assert cost < 0.5 * fit.trace[left].validation_cost


def test_members_keep_their_temperature_and_draws_when_others_stop() -> None:
    target = make_quadratic_target(make_sample())
    options = replace(
        OPTIONS,
        kl_weight=torch.tensor([1e4, 1e-3], dtype=torch.float64),
        learning_rate=torch.tensor([0.0, 0.02], dtype=torch.float64),
        epochs=25,
        patience=4,
        draws=16,
    )
    folds = make_folds(40, 2, seeded(0))
    idle = fit_variational(target, folds, replace(options, learning_rate=0.0), seeded(0))
    assert len({point.validation_cost for point in idle.trace}) == 1
    fit = fit_variational(target, folds, options, seeded(1))
    assert fit.best_epochs[0] == 0
    assert fit.best_epochs[1] > 10
    _, exact_scale = exact_optimum(target, folds.train[1].tolist(), 1e-3, 1.0)
    assert fit.mixture.scale[1].max().item() < 3 * exact_scale.max()


def test_an_absurd_learning_rate_is_refused_with_a_remedy() -> None:
    options = replace(OPTIONS, learning_rate=1e30)
    with pytest.raises(Diverged, match="a smaller learning_rate usually helps"):
        fit_variational(make_newsvendor_target(), learn_from(list(range(40))), options, seeded(0))


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_non_finite_costs_are_reported_and_not_learned_from(factor: float) -> None:
    target = replace(make_quadratic_target(make_sample()), problem=Quadratic(1, factor))
    with pytest.raises(Diverged):
        fit_variational(target, learn_from(list(range(40))), OPTIONS, seeded(0))


def test_progress_rises_to_one_and_names_the_epoch() -> None:
    calls: list[tuple[float, str]] = []
    options = replace(OPTIONS, epochs=8)
    fit_variational(
        make_newsvendor_target(), learn_from(list(range(40))), options, seeded(0), lambda *call: calls.append(call)
    )
    assert [fraction for fraction, _ in calls] == [epoch / 8 for epoch in range(1, 9)]
    assert [message.split(",")[0] for _, message in calls] == [f"epoch {epoch}" for epoch in range(1, 9)]


def test_progress_carries_each_epochs_costs() -> None:
    told: list[Figures] = []
    fit = fit_variational(
        make_newsvendor_target(),
        learn_from(list(range(40))),
        replace(OPTIONS, epochs=4),
        seeded(0),
        lambda fraction, message: told.extend(figures_of(message)),
    )
    points = [(point.epoch, point.risk, point.kl, point.validation_cost) for point in fit.trace]
    assert len(told) == len(points) == 4
    for figures, point in zip(told, points, strict=True):
        known = [value for value in point if value is not None]
        assert list(figures.values()) == pytest.approx(known, rel=1e-5)
        assert set(figures) <= {"epoch", "risk", "kl", "validation_cost"}


def test_cancelling_from_the_progress_callback_stops_learning_at_once() -> None:
    calls: list[float] = []

    def cancel_at_the_third(fraction: float, message: str) -> None:
        calls.append(fraction)
        if len(calls) == 3:
            raise Cancelled("enough")

    with pytest.raises(Cancelled, match="enough"):
        fit_variational(make_newsvendor_target(), learn_from(list(range(40))), OPTIONS, seeded(0), cancel_at_the_third)
    assert len(calls) == 3


def test_a_long_trace_is_thinned_to_two_hundred_points_with_both_ends() -> None:
    target = make_quadratic_target(make_sample())
    fit = fit_variational(target, learn_from(list(range(40))), replace(OPTIONS, epochs=230), seeded(0))
    epochs = [point.epoch for point in fit.trace]
    assert (epochs[0], epochs[-1]) == (1, 230)
    assert 150 <= len(epochs) <= 200
    gaps = {later - earlier for earlier, later in pairwise(epochs)}
    assert gaps <= {1, 2}
