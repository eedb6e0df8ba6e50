"""Adaptive Metropolis–Hastings for problems without a gradient (Algorithm 2) and with uncertain constraints (3).

Each chain is a random walk on θ that leaves the Gibbs posterior ρ_n ∝ exp(−λn R_n) ρ_0, equation (8), invariant: it
proposes

    θ' ~ N(θ, s² diag(v))   and accepts when   a ≤ M = exp(−λn (R_n(θ') − R_n(θ))) ρ_0(θ')/ρ_0(θ),   a ~ U(0, 1).

Where constraints depend on the outcome it accepts only if F_n(θ') ≥ F_0, with F_n the share of rows whose outcome the
decision is feasible for. During burn-in, and only then, proposals adapt with α_t = (1 + t)^-0.6,

    μ ← μ + α_t (θ − μ),   v ← (1 − α_t) v + α_t (θ − μ)²,   ln s ← ln s + α_t (accepted − 0.234).

Proposals are rejected early without changing any outcome of the test. With a drawn first, θ' is accepted if R_n(θ') is
at most the limit R_n(θ) + (Δ ln ρ_0 − ln a)/(λn). If the limit is below every possible cost, θ' is rejected unseen.
Otherwise rows are visited in the order of the current θ's slack, the least first, until too many have failed, or until
the sum of their costs, which grows where costs are not negative, exceeds the limit.

Chains never interact, each has its own random numbers, and its arithmetic does not depend on the other chains, so a
seed gives the same chains however they are distributed over processes. :class:`MetropolisState` is all that the next
step depends on, :class:`MetropolisInfo` records the steps so far: a run that resumes from stored chains equals one that
never stopped.

    chains = init_chains(target, options, theta, seed)
    chains = run_chains(target, options, chains)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bco_core.data import Arrays
from bco_core.errors import Diverged, InvalidInput
from bco_core.gibbs import GibbsTarget
from bco_core.problems.base import UncertainConstraints
from bco_core.progress import Message, Progress, no_progress

ACCEPTANCE = 0.234
_DECAY = 0.6
# Steps between checks of the clock, the caller and the checkpoint.
BLOCK = 50
# The share of the rows that is visited first, those of least slack.
_FIRST = 0.2


class Adaptation(NamedTuple):
    """The proposal's adaptation: ``mean`` μ and ``variance`` v (C, d), and ``log_scale`` ln s (C,)."""

    mean: Tensor
    variance: Tensor
    log_scale: Tensor


class MetropolisState(NamedTuple):
    """The state of C chains after ``step`` steps: all that the next step depends on.

    ``theta`` (C, d), its scaled ``risk`` and ``log_prior`` (C,), ``failures`` (C,), the number of rows whose
    constraints its decisions violate, the ``order`` (C, n) in which rows are visited, and the state of the chains'
    random ``generators`` (C, ·).
    """

    step: int
    theta: Tensor
    risk: Tensor
    log_prior: Tensor
    failures: Tensor
    order: Tensor
    adaptation: Adaptation
    generators: Tensor


# The name of the draws in stored checkpoints.
_STORED_DRAWS = "kept"


class MetropolisInfo(NamedTuple):
    """The record of some steps of C chains: ``accepted`` and ``risks`` (steps, C), the stored ``draws`` (k, C, d), and
    the number of proposals rejected ``unseen``, or ``early``, before the last row (C,)."""

    accepted: Tensor
    risks: Tensor
    draws: Tensor
    unseen: Tensor
    early: Tensor

    @staticmethod
    def of(pieces: Sequence[MetropolisInfo]) -> MetropolisInfo:
        """Join the records of consecutive steps."""
        growing = (torch.cat([getattr(one, name) for one in pieces]) for name in ("accepted", "risks", "draws"))
        counts = (torch.stack([getattr(one, name) for one in pieces]).sum(dim=0) for name in ("unseen", "early"))
        return MetropolisInfo(*growing, *counts)


class Chains(NamedTuple):
    """C chains: their state, and the record of their steps."""

    state: MetropolisState
    info: MetropolisInfo

    def to_arrays(self) -> Arrays:
        """Return plain arrays; :meth:`from_arrays` restores exactly these chains."""
        state, info = self.state._asdict(), self.info._asdict()
        info[_STORED_DRAWS] = info.pop("draws")
        step, adaptation = state.pop("step"), state.pop("adaptation")._asdict()
        return {name: value.numpy() for name, value in (state | adaptation | info).items()} | {"step": np.array([step])}

    @staticmethod
    def from_arrays(arrays: Arrays) -> Chains:
        def tensors(kind: type[NamedTuple]) -> dict[str, Any]:
            stored = {name: _STORED_DRAWS if name == "draws" else name for name in kind._fields}
            return {name: torch.from_numpy(np.array(arrays[key])) for name, key in stored.items() if key in arrays}

        adaptation = Adaptation(**tensors(Adaptation))
        state = tensors(MetropolisState) | {"step": int(arrays["step"][0]), "adaptation": adaptation}
        return Chains(MetropolisState(**state), MetropolisInfo(**tensors(MetropolisInfo)))


Checkpoint = Callable[[Chains], None]
CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True)
class MetropolisOptions:
    """λn for the scaled cost, the length of a chain, its burn-in, and the number of draws to keep.

    ``minimum_feasibility`` is F_0; None where constraints are certain. ``keep_mean`` also requires that constraints
    hold on average over the rows: without it a small F_0 would let chains inflate predictions until doing nothing seems
    enough. ``initial_scale`` is the initial spread √v_0 of proposals in each coordinate, before the factor s_0 =
    2.38/√d.
    """

    inverse_temperature: float
    steps: int = 15_000
    burn_in: int = 5_000
    stored_draws: int = 250
    minimum_feasibility: float | None = None
    keep_mean: bool = False
    initial_scale: float = 0.1
    early_rejection: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.burn_in < self.steps:
            raise InvalidInput("burn_in must be shorter than the chain of steps", ("burn_in",))

    @property
    def stored_steps(self) -> list[int]:
        """The steps whose θ is kept, at regular intervals, including the last."""
        length = self.steps - self.burn_in
        count = min(self.stored_draws, length)
        return [self.burn_in + round(length * (k + 1) / count) for k in range(count)]


def init_chains(target: GibbsTarget, options: MetropolisOptions, theta: Tensor, seed: int) -> Chains:
    """Return chains that start at θ (C, d), each with random numbers of its own, derived from the seed."""
    chains, dim = theta.shape
    rows = _Rows.of(target, replace(options, early_rejection=False))
    visit = rows.visit(torch.arange(rows.count))
    first = [rows.evaluate(one, visit, math.inf) for one in theta]
    for evaluation in first:
        if evaluation.failures > rows.allowed:
            share = 1 - evaluation.failures / rows.count
            raise InvalidInput(f"a chain starts where only {share:.3f} of the rows satisfy their constraints")
    risk = torch.tensor([evaluation.risk for evaluation in first], dtype=torch.float64)
    if not torch.isfinite(risk).all():
        raise Diverged("a chain starts where the cost is not finite")
    seeds = np.random.SeedSequence(seed).generate_state(chains, np.uint64) >> 1
    generators = [torch.Generator().manual_seed(int(number)) for number in seeds]
    state = MetropolisState(
        step=0,
        theta=theta.clone(),
        risk=risk,
        log_prior=torch.stack([_log_prior(target, one) for one in theta]),
        failures=torch.tensor([evaluation.failures for evaluation in first]),
        order=torch.stack([evaluation.order for evaluation in first]),
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
        draws=torch.zeros(0, chains, dim, dtype=theta.dtype),
        unseen=torch.zeros(chains, dtype=torch.long),
        early=torch.zeros(chains, dtype=torch.long),
    )
    return Chains(state, nothing)


def run_chains(
    target: GibbsTarget,
    options: MetropolisOptions,
    chains: Chains,
    progress: Progress = no_progress,
    checkpoint: Checkpoint | None = None,
) -> Chains:
    """Run the chains to their end. ``progress`` may raise to stop them; ``checkpoint`` receives them now and then.

    To use several processors, run the chains of :func:`split_chains` in separate processes, then :func:`join_chains`.
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


class _RiskEvaluation(NamedTuple):
    """The risk of a θ, infinite if it is rejected, the numbers of rows visited and failed, and the ``order`` in which
    the next proposal should visit rows."""

    risk: float
    visited: int
    failures: int
    order: Tensor


class _Visit(NamedTuple):
    """Rows in the order of visiting: their numbers, encoded contexts and outcomes."""

    order: Tensor
    encoded: Tensor
    outcomes: Tensor


@dataclass(frozen=True)
class _Rows:
    """The sample of a chain, encoded once, with the constants of early rejection."""

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
            # Just enough rows to find one failure too many among them.
            first = min(max(2 * allowed, count // 10, 1), count)
        encoded = target.encoded()
        floor = target.problem.cost_floor / target.cost_scale
        return _Rows(
            target, constrained, encoded, count, allowed, floor, options.early_rejection, first, options.keep_mean
        )

    def visit(self, order: Tensor) -> _Visit:
        return _Visit(order, self.encoded[order], self.target.sample.outcomes[order])

    def evaluate(self, theta: Tensor, visit: _Visit, limit: float) -> _RiskEvaluation:
        """Visit the rows for one θ (d,) and return its risk, infinite if θ is rejected, early or late."""
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
                # Later rows add at least the lowest possible cost each.
                least = total + ((self.count - last) * self.floor if last < self.count else 0.0)
                rejected = rejected or failures > self.allowed or least > limit * self.count
                if rejected and self.early:
                    return _RiskEvaluation(math.inf, last, failures, visit.order)
                first = last
        if rejected or not math.isfinite(total) or (self.keep_mean and room < 0):
            return _RiskEvaluation(math.inf, self.count, failures, visit.order)
        order = visit.order[torch.cat(danger).argsort(stable=True)]
        return _RiskEvaluation(total / self.count, self.count, failures, order)


def _log_prior(target: GibbsTarget, theta: Tensor) -> Tensor:
    theta = theta.double()
    scale = target.prior_scale.double()
    return target.family.log_prob(theta, torch.zeros_like(theta), scale).sum()


def advance(
    target: GibbsTarget, options: MetropolisOptions, last_step: int, state: MetropolisState
) -> tuple[MetropolisState, MetropolisInfo]:
    """Advance the chains to step ``last_step``; return their state and the record of these steps."""
    rows = _Rows.of(target, options)
    keeping = set(options.stored_steps)
    theta, mean, variance = state.theta.clone(), state.adaptation.mean.clone(), state.adaptation.variance.clone()
    risk, log_prior, log_scale = state.risk.clone(), state.log_prior.clone(), state.adaptation.log_scale.clone()
    failures, visits = state.failures.clone(), [rows.visit(order) for order in state.order]
    unseen, early = torch.zeros_like(failures), torch.zeros_like(failures)
    generators = [torch.Generator() for _ in theta]
    for generator, stored in zip(generators, state.generators, strict=True):
        generator.set_state(stored.clone())
    accepted, risks, kept = [], [], []
    for step in range(state.step + 1, last_step + 1):
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
            evaluation = rows.evaluate(proposal, visits[c], limit)
            if math.isinf(evaluation.risk):
                early[c] += evaluation.visited < rows.count
                continue
            moved[c] = True
            theta[c], risk[c], log_prior[c] = proposal, evaluation.risk, prior
            failures[c], visits[c] = evaluation.failures, rows.visit(evaluation.order)
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
        step=last_step,
        theta=theta,
        risk=risk,
        log_prior=log_prior,
        failures=failures,
        order=torch.stack([visit.order for visit in visits]),
        adaptation=Adaptation(mean, variance, log_scale),
        generators=torch.stack([generator.get_state() for generator in generators]),
    )
    draws = torch.stack(kept) if kept else theta.new_zeros(0, *theta.shape)
    return after, MetropolisInfo(torch.stack(accepted), torch.stack(risks), draws, unseen, early)


def split_chains(chains: Chains) -> list[Chains]:
    """Return every chain by itself."""
    state, info = chains

    def one(chain: int) -> Chains:
        def own(value: Tensor) -> Tensor:
            return value[chain, None]

        adaptation = Adaptation(*map(own, state.adaptation))
        fields = {name: own(value) for name, value in state._asdict().items() if name not in ("step", "adaptation")}
        growing = (value[:, chain, None] for value in info[:3])
        return Chains(
            MetropolisState(step=state.step, adaptation=adaptation, **fields),
            MetropolisInfo(*growing, *map(own, info[3:])),
        )

    return [one(chain) for chain in range(len(state.theta))]


def join_chains(parts: Sequence[Chains]) -> Chains:
    """Join chains in their order: the inverse of :func:`split_chains`."""
    states, infos = [part.state for part in parts], [part.info for part in parts]
    adaptation = Adaptation(*(torch.cat(values) for values in zip(*(s.adaptation for s in states), strict=True)))
    fields = {
        name: torch.cat([getattr(state, name) for state in states])
        for name in MetropolisState._fields
        if name not in ("step", "adaptation")
    }
    growing = (torch.cat(values, dim=1) for values in zip(*(info[:3] for info in infos), strict=True))
    counts = (torch.cat(values) for values in zip(*(info[3:] for info in infos), strict=True))
    return Chains(
        MetropolisState(step=states[0].step, adaptation=adaptation, **fields), MetropolisInfo(*growing, *counts)
    )
