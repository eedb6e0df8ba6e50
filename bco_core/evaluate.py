"""What a caller's own decisions would cost, over the scenarios by which ours are judged, and against ours.

Costs are differenced scenario by scenario before anything is averaged: what both decisions pay alike, whatever happens,
says nothing about which is better, and its noise is gone from the difference. Entries of a decision that are NaN are
left to us: the policy decides them as it decides everything, with the given ones fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import torch
from torch import Tensor

from bco_core import deadline
from bco_core.batch_kernels import mean_of_atoms
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.policies import Terms, decide_over
from bco_core.posterior import Posterior
from bco_core.prescribe import (
    CVAR_LEVEL,
    NO_TURN,
    QUANTILES,
    ROOM_SECONDS,
    PrescribeOptions,
    feasibility,
    kept_or_said,
    shown_decisions,
    what_may_happen,
)
from bco_core.problems.answers import breaches, covered
from bco_core.problems.base import EXPECTATION, Breach, DecisionProblem, Status
from bco_core.scenarios import Scenarios
from bco_core.weighted_stats import sort_atoms, sorted_cvar, sorted_quantile

# The problem with the entries of a decision (d_z,) fixed that are not NaN.
Fix = Callable[[Tensor], DecisionProblem]
# The status of a decision of which nothing was left to us, and of one of which everything was.
GIVEN, OURS = "given", "ours"
_CHUNK_NUMBERS = 1_000_000
_LEVELS = torch.tensor(QUANTILES, dtype=torch.float64)


@dataclass(frozen=True)
class Costs:
    """The cost of N decisions: mean (N,), quantiles (N, m) at QUANTILES, CVaR (N,) at CVAR_LEVEL."""

    mean: Tensor
    quantiles: Tensor
    cvar: Tensor


@dataclass(frozen=True)
class Evaluated:
    """What N decisions (N, d_z), completed where something was left to us, may cost; NaN where nothing is known.

    ``status`` is GIVEN, OURS, or says how the rest was found. ``extra_cost`` (N,) is the expected cost less ours in
    the same context, with its standard error over the scenarios and its quantiles (N, m); ``worse_in`` (N,) is the
    share of scenarios in which a decision costs more than ours. ``service`` (N, d_y) is the share of scenarios in which
    each outcome is served, ``our_service`` (B, d_y) the same for ours; None where that means nothing.
    """

    decisions: Tensor
    status: list[str]
    reasons: list[str]
    costs: Costs
    feasibility: Tensor
    extra_cost: Tensor
    extra_cost_error: Tensor
    extra_cost_quantiles: Tensor
    worse_in: Tensor
    breaches: list[list[Breach]]
    service: Tensor | None
    our_service: Tensor | None


def evaluate(
    posterior: Posterior,
    problem: DecisionProblem,
    contexts: Tensor,
    ours: Tensor,
    given: Tensor,
    owners: Tensor,
    fix: Fix,
    options: PrescribeOptions | None = None,
    draws: Tensor | None = None,
    seconds: float = math.inf,
) -> Evaluated:
    """Judge N decisions ``given`` (N, d_z), each for the one of the contexts (B, d_x) that ``owners`` (N,) names.

    ``ours`` (B, d_z) are what :func:`bco_core.prescribe.prescribe` decides with the same options and draws. After
    ``seconds`` decisions whose turn has not come are left with status ``time_limit``.
    """
    options = options or PrescribeOptions()
    _check_shapes(problem, contexts, ours, given, owners)
    theta = posterior.draws(options.scenarios, options.seed) if draws is None else draws
    ends = monotonic() + seconds
    found = _Found(problem, len(contexts), given)
    size = max(1, _CHUNK_NUMBERS // (options.scenarios * problem.outcome_dim))
    generator = torch.Generator().manual_seed(posterior.seed if options.seed is None else options.seed)
    terms = Terms(generator, options.risk or EXPECTATION, ends, options.blend)
    completing = _Completing(fix, options, terms, int(given.isnan().any(1).sum()))
    try:
        with deadline.until(ends + ROOM_SECONDS):
            for first in range(0, len(contexts), size):
                here = slice(first, min(first + size, len(contexts)))
                rows = ((owners >= here.start) & (owners < here.stop)).nonzero()[:, 0]
                over = _Over.of(posterior, problem, contexts[here], theta, options, ours[here])
                found.serve_ours(here, over.atoms, ours[here])
                # What is given is quick to judge; what is left to us takes a search.
                whole = ~given[rows].isnan().any(1)
                for some in rows[whole].split(size):
                    found.judge(some, given[some], over, owners[some] - first)
                for some in _alike(given, rows[~whole]):
                    for piece in some.split(size):
                        if monotonic() >= ends:
                            break
                        decided = completing.complete(given[piece[0]], over, owners[piece] - first, ours[owners[piece]])
                        found.judge(piece, decided[0], over, owners[piece] - first)
                        found.say(piece, *decided[1:])
    except OutOfTime:
        # An outer deadline is its owner's to explain, and so is one that forbids long work.
        deadline.before_long_work()
    return found.told()


def _check_shapes(problem: DecisionProblem, contexts: Tensor, ours: Tensor, given: Tensor, owners: Tensor) -> None:
    width = problem.decision_dim
    if given.ndim != 2 or given.shape[1] != width or ours.shape != (len(contexts), width):
        raise InvalidInput(f"a decision has {width} entries here", ("decisions",))
    if len(owners) != len(given) or (len(owners) and not 0 <= int(owners.min()) <= int(owners.max()) < len(contexts)):
        raise InvalidInput("every decision needs the number of its context", ("decisions",))
    if given.isinf().any():
        raise InvalidInput("a decision needs finite numbers", ("decisions",))


def _alike(given: Tensor, rows: Tensor) -> list[Tensor]:
    """The rows with the same entries fixed at the same values, together."""
    groups: dict[bytes, list[int]] = {}
    for number in rows.tolist():
        groups.setdefault(given[number].numpy().tobytes(), []).append(number)
    return [torch.tensor(numbers) for numbers in groups.values()]


@dataclass(frozen=True)
class _Over:
    """What may happen in some contexts: what decisions hedge over, what costs are over, and the costs of ours there."""

    draws: Scenarios
    predictive: Scenarios
    atoms: Scenarios
    ours: Tensor

    @staticmethod
    def of(
        posterior: Posterior,
        problem: DecisionProblem,
        contexts: Tensor,
        theta: Tensor,
        options: PrescribeOptions,
        ours: Tensor,
    ) -> _Over:
        encoded = posterior.encode(contexts)
        draws = posterior.scenarios(contexts, theta, encoded)
        predictive, atoms = what_may_happen(posterior, contexts, encoded, draws, options)
        hedged = atoms if options.risk else draws
        return _Over(hedged, predictive, atoms, problem.cost(ours[:, None], atoms.outcomes))


def _of(scenarios: Scenarios, numbers: Tensor) -> Scenarios:
    return replace(scenarios, outcomes=scenarios.outcomes[numbers], mode=scenarios.mode[numbers])


@dataclass
class _Completing:
    """Decides what is left to us, ``left`` decisions in all sharing the time there is."""

    fix: Fix
    options: PrescribeOptions
    terms: Terms
    left: int

    def complete(
        self, given: Tensor, over: _Over, contexts: Tensor, ours: Tensor
    ) -> tuple[Tensor, list[str], list[str]]:
        """Decisions (n, d_z) that have what is given (d_z,), one for each of the contexts, and how they were found."""
        count, share = len(contexts), len(contexts) / max(self.left, 1)
        self.left -= count
        free = given.isnan()
        if free.all():
            return ours, [OURS] * count, [""] * count
        now = monotonic()
        ends = self.terms.ends if self.terms.ends == math.inf else now + max(self.terms.ends - now, 0.0) * share
        try:
            problem = self.fix(given)
        except InvalidInput as none:
            reason = f"nothing that is left keeps all rules beside what is given: {none}"
            nowhere = torch.full((count, len(given)), torch.nan, dtype=torch.float64)
            return nowhere, [str(Status.INFEASIBLE)] * count, [reason] * count
        terms = replace(self.terms, ends=ends)
        draws, predictive = _of(over.draws, contexts), _of(over.predictive, contexts)
        found = decide_over(problem, draws, predictive, self.options.chosen_policy, terms)
        # Solvers keep bounds up to rounding.
        decisions = shown_decisions(found).where(free, given)
        decisions[shown_decisions(found).isnan().any(1)] = torch.nan
        return decisions, [str(status) for status in found.status], list(found.reasons or ("",) * count)


class _Found:
    """What is known so far of N decisions; NaN and ``time_limit`` for the others."""

    def __init__(self, problem: DecisionProblem, contexts: int, given: Tensor) -> None:
        count, self._problem = len(given), problem
        nothing = torch.full((count,), torch.nan, dtype=torch.float64)
        several = torch.full((count, len(QUANTILES)), torch.nan, dtype=torch.float64)
        self.decisions = given.clone()
        self.status = [GIVEN if whole else str(Status.TIME_LIMIT) for whole in (~given.isnan().any(1)).tolist()]
        self.reasons = [NO_TURN] * count
        self.costs = Costs(nothing.clone(), several.clone(), nothing.clone())
        self.feasibility, self.extra_cost, self.extra_cost_error = nothing.clone(), nothing.clone(), nothing.clone()
        self.extra_cost_quantiles, self.worse_in = several.clone(), nothing.clone()
        self.breaches: list[list[Breach]] = [[] for _ in range(count)]
        self._broken: dict[bytes, list[Breach]] = {}
        self.service = torch.full((count, problem.outcome_dim), torch.nan, dtype=torch.float64)
        self.our_service = torch.full((contexts, problem.outcome_dim), torch.nan, dtype=torch.float64)
        self._serves = False

    def serve_ours(self, here: slice, atoms: Scenarios, ours: Tensor) -> None:
        served = _served(self._problem, ours, atoms)
        if served is not None:
            self._serves = True
            self.our_service[here] = served

    def judge(self, rows: Tensor, decisions: Tensor, over: _Over, contexts: Tensor) -> None:
        """Fill in what decisions (n, d_z) cost, each in its context."""
        deadline.check()
        problem, atoms = self._problem, _of(over.atoms, contexts)
        costs = problem.cost(decisions[:, None], atoms.outcomes)
        ordered, share = sort_atoms(costs, atoms.weights)
        self.decisions[rows] = decisions
        self.costs.mean[rows] = mean_of_atoms(costs, atoms.weights)
        self.costs.quantiles[rows] = sorted_quantile(ordered, share, _LEVELS)
        self.costs.cvar[rows] = sorted_cvar(ordered, share, CVAR_LEVEL)
        self.feasibility[rows] = feasibility(problem, decisions, atoms)
        more = costs - over.ours[contexts]
        ordered, share = sort_atoms(more, atoms.weights)
        mean = mean_of_atoms(more, atoms.weights)
        self.extra_cost[rows] = mean
        self.extra_cost_error[rows] = _standard_error(more, mean, atoms.weights)
        unknown = more.isnan().any(1)
        self.extra_cost_quantiles[rows] = sorted_quantile(ordered, share, _LEVELS).where(~unknown[:, None], torch.nan)
        self.worse_in[rows] = _share(more > 0, atoms.weights).where(~unknown, torch.nan)
        served = _served(problem, decisions, atoms)
        if served is not None:
            self.service[rows] = served
        count = len(decisions)
        best, kept = [Status.OPTIMAL] * count, self.feasibility[rows]
        _, said = kept_or_said(problem, best, ("",) * count, kept, decisions, atoms)
        for number, decision, reason in zip(rows.tolist(), decisions, said, strict=True):
            self.breaches[number], self.reasons[number] = self._breaks(decision), reason

    def say(self, rows: Tensor, statuses: list[str], reasons: list[str]) -> None:
        """Fill in how decisions that have been judged were found: none is optimal that keeps constraints too seldom."""
        for number, status, reason in zip(rows.tolist(), statuses, reasons, strict=True):
            demoted = status == Status.OPTIMAL and self.reasons[number]
            self.status[number] = str(Status.BEST_EFFORT) if demoted else status
            self.reasons[number] = reason or self.reasons[number]

    def _breaks(self, decision: Tensor) -> list[Breach]:
        """The same decision for many contexts is looked at once."""
        if not decision.isfinite().all():
            return []
        key = decision.numpy().tobytes()
        if key not in self._broken:
            self._broken[key] = breaches(self._problem, decision)
        return self._broken[key]

    def told(self) -> Evaluated:
        # What was given is told without a judgement where there was no time for one.
        late = [reason == NO_TURN for reason in self.reasons]
        status = [str(Status.TIME_LIMIT) if one else said for one, said in zip(late, self.status, strict=True)]
        return Evaluated(
            self.decisions,
            status,
            self.reasons,
            self.costs,
            self.feasibility,
            self.extra_cost,
            self.extra_cost_error,
            self.extra_cost_quantiles,
            self.worse_in,
            self.breaches,
            self.service if self._serves else None,
            self.our_service if self._serves else None,
        )


def _served(problem: DecisionProblem, decisions: Tensor, atoms: Scenarios) -> Tensor | None:
    """The share (n, d_y) of scenarios in which each outcome is served, NaN where there is no decision."""
    served = covered(problem, decisions[:, None], atoms.outcomes)
    if served is None:
        return None
    return _share(served, atoms.weights).where(decisions.isfinite().all(1, keepdim=True), torch.nan)


def _share(happens: Tensor, weights: Tensor) -> Tensor:
    """The weight of the scenarios in which something happens: bool (n, K) or (n, K, m) → (n,) or (n, m)."""
    return mean_of_atoms(happens.double(), weights).clamp_max(1.0)


def _standard_error(more: Tensor, mean: Tensor, weights: Tensor) -> Tensor:
    """Of the means (n,) of differences (n, K): what they owe to there being so many scenarios and no more."""
    squares = float(weights.square().sum())
    if squares >= 1 - 1e-12:
        return torch.full_like(mean, torch.nan)
    spread = mean_of_atoms((more - mean[:, None]).square(), weights)
    return (spread * squares / (1 - squares)).sqrt()
