"""Metropolis–Hastings: known moments, detailed balance, exact early rejection, parallel chains, checkpoints."""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bco_core.data import Sample, Standardizer
from bco_core.distributions import FAMILIES
from bco_core.errors import Cancelled, InvalidInput
from bco_core.features.standardized import StandardizedFeatures
from bco_core.gibbs import GibbsTarget, make_target
from bco_core.inference.mh.metropolis import (
    Chains,
    MetropolisOptions,
    advance,
    init_chains,
    join_chains,
    run_chains,
    split_chains,
)
from bco_core.predictors.linear import Linear
from bco_core.predictors.registry import build_predictor
from bco_core.problems.base import EXPECTATION, Prescription, Risk
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio
from bco_core.progress import Figures, figures_of


@dataclass(frozen=True)
class Toy:
    """The decision is the prediction; its cost is ½(z − y)², or ``levels`` of it. The constraint is y z ≥ ``wall``."""

    levels: float | None = None
    wall: float | None = None
    cost_floor: float = 0.0
    confidence: float = 1.0

    outcome_dim = decision_dim = 1
    differentiable = False
    cost_bound = None

    def decide(self, outcomes: Tensor) -> Tensor:
        return outcomes

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        cost = 0.5 * (decisions - outcomes).square().sum(-1)
        return cost if self.levels is None else torch.floor(cost / self.levels) * self.levels

    def slack(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return decisions.sum(-1) - (-math.inf if self.wall is None else self.wall)

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return self.slack(decisions, outcomes) >= 0

    @property
    def relaxation(self) -> Toy:
        return self

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        raise NotImplementedError


def toy_target(problem: Any, outcomes: list[float]) -> GibbsTarget:
    """Return a target whose predictor is only an output bias: θ is the prediction itself."""
    sample = Sample(torch.zeros(len(outcomes), 0, dtype=torch.float64), torch.tensor(outcomes).double()[:, None])
    nothing = Standardizer(torch.zeros(0).double(), torch.ones(0).double())
    unit = Standardizer(torch.zeros(1).double(), torch.ones(1).double())
    predictor = Linear((0, 1), StandardizedFeatures(nothing), unit)
    prior_scale = torch.tensor(1.0).double()
    return GibbsTarget(problem, predictor, sample, sample.contexts, FAMILIES["gaussian"], prior_scale, cost_scale=1.0)


def draws(target: GibbsTarget, options: MetropolisOptions, start: float = 1.0, chains: int = 6) -> Tensor:
    theta = torch.full((chains, 1), start, dtype=torch.float64)
    return run_chains(target, options, init_chains(target, options, theta, 3)).info.draws[:, :, 0]


def close_to(values: Tensor, expected: float) -> bool:
    """Check agreement within four Monte Carlo standard errors, estimated from chain means."""
    means = values.mean(dim=0)
    return abs(means.mean().item() - expected) < 4 * means.std().item() / math.sqrt(len(means)) + 1e-3


LONG = MetropolisOptions(4.0, steps=1500, burn_in=300, stored_draws=1200)


@pytest.mark.slow
def test_a_gaussian_target_has_its_known_moments() -> None:
    # Prior N(0, 1) and likelihood exp(−4·½(θ − 1.5)²): posterior N(6/5, 1/5).
    found = draws(toy_target(Toy(), [1.5, 1.5]), LONG)
    assert close_to(found, 1.2)
    assert close_to((found - 1.2).square(), 0.2)


@pytest.mark.slow
def test_a_truncated_gaussian_target_has_its_known_moments() -> None:
    found = draws(toy_target(Toy(wall=1.2), [1.5]), replace(LONG, minimum_feasibility=1.0), start=1.5)
    assert found.min() >= 1.2
    # A half-Gaussian: mean μ + σ√(2/π), variance σ²(1 − 2/π).
    mean = 1.2 + math.sqrt(0.2 * 2 / math.pi)
    assert close_to(found, mean)
    assert close_to((found - mean).square(), 0.2 * (1 - 2 / math.pi))


def test_a_target_with_discrete_cost_has_its_known_moments() -> None:
    target = toy_target(Toy(levels=0.5), [0.5])
    found = draws(target, LONG, start=0.0)
    grid = torch.linspace(-8, 8, 160_001, dtype=torch.float64)
    cost = target.problem.cost(grid[:, None], torch.tensor([[0.5]]))
    density = (-0.5 * grid.square() - 4 * cost).exp()
    density /= density.sum()
    assert close_to(found, (density * grid).sum().item())
    assert close_to(found.square(), (density * grid.square()).sum().item())


@pytest.mark.slow
def test_detailed_balance_holds_between_regions() -> None:
    """A reversible chain in equilibrium moves from A to B as often as from B to A."""
    found = draws(toy_target(Toy(levels=0.5), [0.5, -0.5]), replace(LONG, steps=2500, stored_draws=2200))
    part = torch.bucketize(found, torch.tensor([-0.6, 0.2, 0.9]).double())
    flows = torch.zeros(4, 4)
    for a in range(4):
        for b in range(4):
            flows[a, b] = ((part[:-1] == a) & (part[1:] == b)).sum()
    both = flows + flows.T
    asymmetry = (flows - flows.T).abs() / both.clamp_min(1).sqrt()
    assert both.fill_diagonal_(0).max() > 300
    assert asymmetry.max() < 4


# on a real problem


@pytest.fixture(scope="module")
def portfolio() -> tuple[GibbsTarget, Tensor]:
    """Eight assets, a small network, and starts whose decisions meet the return in almost all rows."""
    generator = torch.Generator().manual_seed(5)
    contexts = torch.randn(80, 2, generator=generator, dtype=torch.float64)
    slopes = 0.02 * torch.randn(2, 8, generator=generator, dtype=torch.float64)
    noise = 0.01 * torch.randn(80, 8, generator=generator, dtype=torch.float64)
    sample = Sample(contexts, 0.1 + contexts @ slopes + noise)
    spec = {
        "assets": [{"name": f"a{j}"} for j in range(8)],
        "factors": {"loadings": [[0.005]] * 8, "residual_variances": [1e-4] * 8},
        "target_return": 0.05,
    }
    problem = ReturnConstrainedPortfolio.from_spec(spec)
    predictor = build_predictor("mlp", sample, (6,))
    target = replace(make_target(problem, predictor, sample, FAMILIES["gaussian"]), cost_scale=1e-5)
    theta = 0.1 * predictor.initial(4, generator)
    theta[:, -8:] -= 1.0
    return target, theta


QUICK = MetropolisOptions(30.0, steps=240, burn_in=120, stored_draws=40, minimum_feasibility=0.9)


def chains(portfolio: tuple[GibbsTarget, Tensor], options: MetropolisOptions = QUICK, **more: Any) -> Chains:
    target, theta = portfolio
    return run_chains(target, options, init_chains(target, options, theta, 7), **more)


def assert_same(first: Chains, second: Chains, *but: str) -> None:
    for name, values in first.to_arrays().items():
        if name not in but:
            assert np.array_equal(values, second.to_arrays()[name]), name


@pytest.mark.slow
def test_early_rejection_gives_bit_identical_chains(portfolio: tuple[GibbsTarget, Tensor]) -> None:
    quick, thorough = chains(portfolio), chains(portfolio, replace(QUICK, early_rejection=False))
    assert_same(quick, thorough, "unseen", "early")
    assert quick.info.early.sum() > 50
    assert (quick.info.accepted.sum(dim=0) > 20).all()


def test_proposals_are_rejected_before_evaluation_if_no_cost_could_accept_them(
    portfolio: tuple[GibbsTarget, Tensor],
) -> None:
    cold = replace(QUICK, inverse_temperature=1e-3)
    quick, thorough = chains(portfolio, cold), chains(portfolio, replace(cold, early_rejection=False))
    assert quick.info.unseen.sum() > 20
    assert_same(quick, thorough, "unseen", "early")


def test_every_state_has_the_required_feasibility(portfolio: tuple[GibbsTarget, Tensor]) -> None:
    target, _ = portfolio
    found = chains(portfolio)
    predictions = target.predictor.predict(found.info.draws.flatten(0, 1), target.sample.contexts)
    kept = target.problem.feasible(target.problem.decide(predictions), target.sample.outcomes)
    assert kept.double().mean(dim=1).min() >= 0.9


@pytest.mark.slow
def test_chains_run_in_parallel_processes_are_identical(portfolio: tuple[GibbsTarget, Tensor]) -> None:
    target, theta = portfolio
    parts = split_chains(init_chains(target, QUICK, theta, 7))
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        done = list(pool.map(partial(run_chains, target, QUICK), parts))
    assert_same(chains(portfolio), join_chains(done))


def test_a_chain_does_not_depend_on_the_other_chains(portfolio: tuple[GibbsTarget, Tensor]) -> None:
    target, theta = portfolio
    all_, few = chains(portfolio), run_chains(target, QUICK, init_chains(target, QUICK, theta[:2], 7))
    assert torch.equal(all_.info.draws[:, :2], few.info.draws)
    assert torch.equal(all_.info.risks[:, :2], few.info.risks)


@pytest.mark.slow
def test_chains_differ_from_each_other_and_between_seeds(portfolio: tuple[GibbsTarget, Tensor]) -> None:
    target, theta = portfolio
    same_start = theta[:1].expand(4, -1)
    found = run_chains(target, QUICK, init_chains(target, QUICK, same_start, 7))
    assert not torch.equal(found.info.draws[:, 0], found.info.draws[:, 1])
    other = run_chains(target, QUICK, init_chains(target, QUICK, same_start, 8))
    assert not torch.equal(found.info.draws, other.info.draws)


def test_a_run_resumed_from_a_checkpoint_is_bit_identical(
    portfolio: tuple[GibbsTarget, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = portfolio
    monkeypatch.setattr("bco_core.inference.mh.metropolis.CHECKPOINT_SECONDS", -1.0)
    stored: list[dict[str, Any]] = []
    whole = chains(portfolio, checkpoint=lambda current: stored.append(current.to_arrays()))
    assert len(stored) == 5
    for arrays in stored[:-1]:
        assert_same(whole, run_chains(target, QUICK, Chains.from_arrays(arrays)))


def test_cancelling_from_the_progress_callback_stops_the_chains(portfolio: tuple[GibbsTarget, Tensor]) -> None:
    seen: list[float] = []

    def cancel(fraction: float, message: str) -> None:
        seen.append(fraction)
        assert "of proposals accepted" in message
        if fraction > 0.4:
            raise Cancelled

    threads = torch.get_num_threads()
    with pytest.raises(Cancelled):
        chains(portfolio, progress=cancel)
    assert max(seen) < 0.7
    assert torch.get_num_threads() == threads


def test_progress_carries_the_loss_of_the_chains(portfolio: tuple[GibbsTarget, Tensor]) -> None:
    told: list[Figures] = []
    done = chains(portfolio, progress=lambda fraction, message: told.extend(figures_of(message)))
    assert told[-1]["step"] == QUICK.steps
    last = done.info.risks[-1].mean().item() * portfolio[0].cost_scale
    assert told[-1]["loss"] == pytest.approx(last, rel=1e-5)


@pytest.mark.slow
def test_adaptation_reaches_target_acceptance_and_stops_after_burn_in(
    portfolio: tuple[GibbsTarget, Tensor],
) -> None:
    options = replace(QUICK, steps=800, burn_in=400)
    target, theta = portfolio
    after_burn_in = run_chains(target, replace(options, steps=401), init_chains(target, options, theta, 7))
    end = chains(portfolio, options)
    adapted = end.state.adaptation
    for name in ("mean", "variance", "log_scale"):
        assert torch.equal(getattr(adapted, name), getattr(after_burn_in.state.adaptation, name))
    assert not torch.equal(adapted.variance, torch.full_like(adapted.variance, 0.01))
    assert 0.1 < end.info.accepted[400:].double().mean().item() < 0.4


def test_adaptation_follows_its_recursion_step_by_step(portfolio: tuple[GibbsTarget, Tensor]) -> None:
    """μ ← μ + α (θ − μ), v ← (1 − α) v + α (θ − μ)², ln s ← ln s + α (accepted − 0.234), α = (1 + t)^-0.6."""
    target, theta = portfolio
    options = replace(QUICK, burn_in=40)
    state = init_chains(target, options, theta, 7).state
    mean, variance = theta.clone(), torch.full_like(theta, 0.01)
    log_scale = torch.full((4,), math.log(2.38 / math.sqrt(theta.shape[1])), dtype=torch.float64)
    for step in range(1, 41):
        state, info = advance(target, options, step, state)
        rate = (1 + step) ** -0.6
        variance = (1 - rate) * variance + rate * (state.theta - mean) ** 2
        mean = mean + rate * (state.theta - mean)
        log_scale = log_scale + rate * (info.accepted[0].double() - 0.234)
        torch.testing.assert_close(state.adaptation.mean, mean)
        torch.testing.assert_close(state.adaptation.variance, variance)
        torch.testing.assert_close(state.adaptation.log_scale, log_scale)
    assert not torch.equal(state.theta, theta)
    later, _ = advance(target, options, 60, state)
    for name in ("mean", "variance", "log_scale"):
        assert torch.equal(getattr(later.adaptation, name), getattr(state.adaptation, name))


def test_draws_are_stored_at_regular_intervals_after_burn_in() -> None:
    assert MetropolisOptions(1.0, steps=100, burn_in=40, stored_draws=6).stored_steps == [50, 60, 70, 80, 90, 100]
    assert MetropolisOptions(1.0, steps=5, burn_in=2, stored_draws=9).stored_steps == [3, 4, 5]


def test_a_start_that_breaks_its_constraints_is_refused(portfolio: tuple[GibbsTarget, Tensor]) -> None:
    target, theta = portfolio
    with pytest.raises(InvalidInput, match="a chain starts where only"):
        init_chains(target, replace(QUICK, minimum_feasibility=0.99), theta + 2, 0)


def test_burn_in_must_be_shorter_than_the_chain() -> None:
    with pytest.raises(InvalidInput, match="shorter than the chain"):
        MetropolisOptions(1.0, steps=10, burn_in=10)
