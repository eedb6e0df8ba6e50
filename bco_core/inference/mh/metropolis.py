"""Adaptive Metropolis–Hastings for problems without a gradient (Algorithm 2) and with uncertain constraints (3).

Each chain is a random walk on θ that leaves the Gibbs posterior ρ_n ∝ exp(−λn R_n) ρ_0 invariant: it proposes

    θ' ~ N(θ, s² diag(v))   and accepts when   a ≤ M = exp(−λn (R_n(θ') − R_n(θ))) ρ_0(θ')/ρ_0(θ),   a ~ U(0, 1),

and, where the outcome decides about constraints, only if F_n(θ') ≥ F_0: the share of rows under whose outcome the
decision keeps them. During burn-in, and only then, with α_t = (1 + t)^-0.6,

    μ ← μ + α_t (θ − μ),   v ← (1 − α_t) v + α_t (θ − μ)²,   ln s ← ln s + α_t (accepted − 0.234).

Rejection is found early without changing any decision. With a drawn first, accepting means R_n(θ') ≤ the limit
R_n(θ) + (Δ ln ρ_0 − ln a)/(λn). If that is below what any cost can be, θ' is rejected unseen. Otherwise rows are
visited in the order of the current θ's slack, the most endangered first, until too many have failed, or until the sum
of their costs, which only grows where costs are not negative, is past the limit.

Chains never interact and each has its own random numbers, and what is computed for a chain does not depend on its
company, so a seed gives the same chains however they are dealt to processes. :class:`MetropolisState` is all that the
next step depends on, :class:`MetropolisInfo` what the steps so far left behind: a run that goes on from stored chains
is the run that never stopped.

    chains = begin(target, options, theta, seed)
    chains = run(target, options, chains)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bco_core.errors import Diverged, InvalidInput
from bco_core.gibbs import GibbsTarget
from bco_core.inference.mh.chains import Adaptation, Chains, MetropolisInfo, MetropolisState
from bco_core.problems.base import UncertainConstraints
from bco_core.progress import Message, Progress, no_progress

ACCEPTANCE = 0.234
_DECAY = 0.6
# Steps between two looks at the clock, the caller and the checkpoint.
BLOCK = 50
# The share of the rows that is visited first, the most endangered ones.
_FIRST = 0.2

Checkpoint = Callable[[Chains], None]
CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True)
class MetropolisOptions:
    """λn for the scaled cost, the length of a chain, how much of it is burn-in, and how many draws of it are kept.

    ``minimum_feasibility`` is F_0; None where constraints are certain. ``keep_mean`` asks besides that constraints are
    kept on average over the rows: without it a small F_0 would let chains inflate predictions until doing nothing seems
    enough. ``initial_scale`` is the spread √v_0 of each
    coordinate that proposals begin with, before the factor s_0 = 2.38/√d.
    """

    inverse_temperature: float
    steps: int = 15_000
    burn_in: int = 5_000
    kept: int = 250
    minimum_feasibility: float | None = None
    keep_mean: bool = False
    initial_scale: float = 0.1
    early_rejection: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.burn_in < self.steps:
            raise InvalidInput("burn_in must be shorter than the chain of steps", ("burn_in",))

    @property
    def keeping(self) -> list[int]:
        """The steps whose θ is kept, at regular intervals, the last among them."""
        length = self.steps - self.burn_in
        count = min(self.kept, length)
        return [self.burn_in + round(length * (k + 1) / count) for k in range(count)]


def begin(target: GibbsTarget, options: MetropolisOptions, theta: Tensor, seed: int) -> Chains:
    """Chains that start at θ (C, d), each with random numbers of its own drawn from the seed."""
    chains, dim = theta.shape
    rows = _Rows.of(target, replace(options, early_rejection=False))
    visit = rows.visit(torch.arange(rows.count))
    first = [rows.evaluate(one, visit, math.inf) for one in theta]
    for found in first:
        if found.failures > rows.allowed:
            kept = 1 - found.failures / rows.count
            raise InvalidInput(f"a chain starts where only {kept:.3f} of the rows keep their constraints")
    risk = torch.tensor([found.risk for found in first], dtype=torch.float64)
    if not torch.isfinite(risk).all():
        raise Diverged("a chain starts where the cost is not finite")
    seeds = np.random.SeedSequence(seed).generate_state(chains, np.uint64) >> 1
    generators = [torch.Generator().manual_seed(int(number)) for number in seeds]
    state = MetropolisState(
        step=0,
        theta=theta.clone(),
        risk=risk,
        log_prior=torch.stack([_log_prior(target, one) for one in theta]),
        failures=torch.tensor([found.failures for found in first]),
        order=torch.stack([found.order for found in first]),
        adaptation=Adaptation(
            mean=theta.clone(),
            variance=torch.full_like(theta, options.initial_scale**2),
            log_scale=torch.full((chains,), math.log(2.38 / math.sqrt(dim)), dtype=torch.float64),
        ),
        generators=torch.stack([generator.get_state() for generator in generators]),
    )
    nothing = MetropolisInfo(
        accepted=torch.zeros(0, chains, dtype=torch.bool),
        risks=torch.zeros(0, chains, dtype=torch.float64),
        kept=torch.zeros(0, chains, dim, dtype=theta.dtype),
        unseen=torch.zeros(chains, dtype=torch.long),
        early=torch.zeros(chains, dtype=torch.long),
    )
    return Chains(state, nothing)


def run(
    target: GibbsTarget,
    options: MetropolisOptions,
    chains: Chains,
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
) -> Chains:
    """Go on to the end of the chains. ``progress`` may raise to stop them; ``checkpoint`` sees them now and then.

    To use several processors, have each process run some of the ``dealt`` chains, and join them.
    """
    state, pieces = chains.state, [chains.info]
    last_checkpoint = time.monotonic()
    allowed = torch.get_num_threads()
    # Arithmetic must not depend on the number of threads.
    torch.set_num_threads(1)
    try:
        while state.step < options.steps:
            state, added = advance(target, options, min(state.step + BLOCK, options.steps), state)
            pieces.append(added)
            recent = torch.cat([piece.accepted for piece in pieces[-10:]])
            figures = {"step": state.step, "loss": state.risk.mean().item() * target.cost_scale}
            progress(state.step / options.steps, Message(_message(state, options, recent), figures))
            if checkpoint is not None and time.monotonic() - last_checkpoint > CHECKPOINT_SECONDS:
                pieces = [MetropolisInfo.of(pieces)]
                checkpoint(Chains(state, pieces[0]))
                last_checkpoint = time.monotonic()
    finally:
        torch.set_num_threads(allowed)
    return Chains(state, MetropolisInfo.of(pieces))


def _message(state: MetropolisState, options: MetropolisOptions, recent: Tensor) -> str:
    phase = "burn-in" if state.step <= options.burn_in else "sampling"
    return f"{phase}, step {state.step} of {options.steps}, {recent.double().mean():.0%} of proposals accepted"


class _Evaluated(NamedTuple):
    """What a visit to the rows found: the risk, infinite for a θ that is rejected, and how many rows were visited and
    how many failed; ``order`` is how the next proposal should visit them."""

    risk: float
    visited: int
    failures: int
    order: Tensor


class _Visit(NamedTuple):
    """The rows in the order in which they are visited: their numbers, encoded contexts and outcomes."""

    order: Tensor
    encoded: Tensor
    outcomes: Tensor


@dataclass(frozen=True)
class _Rows:
    """The sample as a chain sees it: encoded once, with what may be known before all rows are visited."""

    target: GibbsTarget
    constrained: UncertainConstraints | None
    encoded: Tensor
    count: int
    allowed: int
    floor: float
    early: bool
    first: int
    keep_mean: bool

    @staticmethod
    def of(target: GibbsTarget, options: MetropolisOptions) -> _Rows:
        count = allowed = len(target.sample)
        constrained, first = None, math.ceil(_FIRST * count)
        if options.minimum_feasibility is not None and isinstance(target.problem, UncertainConstraints):
            constrained = target.problem
            allowed = count - math.ceil(options.minimum_feasibility * count - 1e-9)
            # Just enough for one failure too many to be found among them.
            first = min(max(2 * allowed, count // 10, 1), count)
        encoded = target.encoded()
        floor = target.problem.cost_floor / target.cost_scale
        return _Rows(
            target, constrained, encoded, count, allowed, floor, options.early_rejection, first, options.keep_mean
        )

    def visit(self, order: Tensor) -> _Visit:
        return _Visit(order, self.encoded[order], self.target.sample.outcomes[order])

    def evaluate(self, theta: Tensor, visit: _Visit, limit: float) -> _Evaluated:
        """Visit the rows for one θ (d,); a risk of infinity says that θ is rejected, early or late."""
        problem, constrained = self.target.problem, self.constrained
        total, failures, first, rejected, danger, room = 0.0, 0, 0, False, [], 0.0
        with torch.no_grad():
            for last in sorted({self.first, self.count}):
                predictions = self.target.predictor.forward(theta[None], visit.encoded[None, first:last])[0]
                decisions, truth = problem.decide(predictions), visit.outcomes[first:last]
                costs = problem.cost(decisions, truth) / self.target.cost_scale
                total += costs.sum().item()
                if constrained is None:
                    danger.append(-costs)
                else:
                    slack = constrained.slack(decisions, truth)
                    failures += int((slack < 0).sum())
                    room += slack.sum().item()
                    danger.append(slack)
                # What later rows may still add is at least their floor.
                least = total + ((self.count - last) * self.floor if last < self.count else 0.0)
                rejected = rejected or failures > self.allowed or least > limit * self.count
                if rejected and self.early:
                    return _Evaluated(math.inf, last, failures, visit.order)
                first = last
        if rejected or not math.isfinite(total) or (self.keep_mean and room < 0):
            return _Evaluated(math.inf, self.count, failures, visit.order)
        order = visit.order[torch.cat(danger).argsort(stable=True)]
        return _Evaluated(total / self.count, self.count, failures, order)


def _log_prior(target: GibbsTarget, theta: Tensor) -> Tensor:
    theta = theta.double()
    scale = target.prior_scale.double()
    return target.family.log_prob(theta, torch.zeros_like(theta), scale).sum()


def advance(
    target: GibbsTarget, options: MetropolisOptions, until: int, state: MetropolisState
) -> tuple[MetropolisState, MetropolisInfo]:
    """The chains after ``until`` steps, and what these steps left behind."""
    rows = _Rows.of(target, options)
    keeping = set(options.keeping)
    theta, mean, variance = state.theta.clone(), state.adaptation.mean.clone(), state.adaptation.variance.clone()
    risk, log_prior, log_scale = state.risk.clone(), state.log_prior.clone(), state.adaptation.log_scale.clone()
    failures, visits = state.failures.clone(), [rows.visit(order) for order in state.order]
    unseen, early = torch.zeros_like(failures), torch.zeros_like(failures)
    generators = [torch.Generator() for _ in theta]
    for generator, stored in zip(generators, state.generators, strict=True):
        generator.set_state(stored.clone())
    accepted, risks, kept = [], [], []
    for step in range(state.step + 1, until + 1):
        moved = torch.zeros(len(theta), dtype=torch.bool)
        for c, generator in enumerate(generators):
            noise = torch.randn(theta.shape[1], generator=generator, dtype=theta.dtype)
            chance = torch.rand((), generator=generator, dtype=torch.float64)
            width = variance[c].sqrt() * math.exp(log_scale[c].item())
            proposal = torch.addcmul(theta[c], width.to(theta), noise)
            prior = _log_prior(target, proposal)
            gain = (prior - log_prior[c]).item() - math.log(max(chance.item(), 1e-300))
            limit = risk[c].item() + gain / options.inverse_temperature
            if options.early_rejection and limit < rows.floor:
                unseen[c] += 1
                continue
            found = rows.evaluate(proposal, visits[c], limit)
            if math.isinf(found.risk):
                early[c] += found.visited < rows.count
                continue
            moved[c] = True
            theta[c], risk[c], log_prior[c] = proposal, found.risk, prior
            failures[c], visits[c] = found.failures, rows.visit(found.order)
        if step <= options.burn_in:
            rate = (1 + step) ** -_DECAY
            away = theta - mean
            variance.mul_(1 - rate).addcmul_(away, away, value=rate)
            mean.add_(away, alpha=rate)
            log_scale += rate * (moved.double() - ACCEPTANCE)
        accepted.append(moved)
        risks.append(risk.clone())
        if step in keeping:
            kept.append(theta.clone())
    after = MetropolisState(
        step=until,
        theta=theta,
        risk=risk,
        log_prior=log_prior,
        failures=failures,
        order=torch.stack([visit.order for visit in visits]),
        adaptation=Adaptation(mean, variance, log_scale),
        generators=torch.stack([generator.get_state() for generator in generators]),
    )
    drawn = torch.stack(kept) if kept else theta.new_zeros(0, *theta.shape)
    return after, MetropolisInfo(torch.stack(accepted), torch.stack(risks), drawn, unseen, early)
