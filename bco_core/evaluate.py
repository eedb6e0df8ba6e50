"""Evaluate a caller's own decisions over the scenarios that price our decisions, and compare them with ours.

Costs are differenced scenario by scenario before they are averaged: a cost that both decisions pay alike cancels, and
so does its noise. Entries of a decision that are NaN are open: the policy decides them, with the given entries fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import torch
from torch import Tensor

from bco_core import deadlines
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
    check_constraints,
    feasibility,
    hide_infeasible,
    scenario_sets,
)
from bco_core.problems.base import EXPECTATION, Breach, DecisionProblem, Status
from bco_core.scenarios import CostDistribution, Scenarios
from bco_core.weighted_stats import sort_atoms, sorted_cvar, sorted_quantile

# The problem with the entries of a decision (d_z,) fixed that are not NaN.
Fix = Callable[[Tensor], DecisionProblem]
# Status of a decision that the caller gave completely, and of one that the caller left open completely.
GIVEN, OURS = "given", "ours"
_CHUNK_NUMBERS = 1_000_000
_LEVELS = torch.tensor(QUANTILES, dtype=torch.float64)


@dataclass(frozen=True)
class EvaluateResult:
    """N decisions (N, d_z), with open entries decided, and their costs; NaN where nothing is known.

    ``status`` is GIVEN, OURS, or the status of deciding the open entries. ``costs`` has quantiles at QUANTILES and CVaR
    at CVAR_LEVEL. ``extra_cost`` (N,) is the expected cost less that of our decision in the same context, with its
    Monte Carlo standard error and its quantiles (N, m); ``worse_in`` (N,) is the share of scenarios in which a decision
    costs more than ours. ``service`` (N, d_y) is the share of scenarios in which each outcome is served,
    ``our_service`` (B, d_y) the same for our decisions; None where a problem does not define it.
    """

    decisions: Tensor
    status: list[str]
    reasons: list[str]
    costs: CostDistribution
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
    time_limit_seconds: float = math.inf,
) -> EvaluateResult:
    """Evaluate N decisions ``given`` (N, d_z), each for the context of (B, d_x) that ``owners`` (N,) names by number.

    ``ours`` (B, d_z) are the decisions of :func:`bco_core.prescribe.prescribe` with the same options and draws. ``fix``
    returns the problem with given entries fixed. Decisions not reached by the time limit get status ``time_limit``.
    """
    options = options or PrescribeOptions()
    _check_shapes(problem, contexts, ours, given, owners)
    theta = posterior.draws(options.scenarios, options.seed) if draws is None else draws
    deadline = monotonic() + time_limit_seconds
    builder = _EvaluationBuilder(problem, len(contexts), given)
    size = max(1, _CHUNK_NUMBERS // (options.scenarios * problem.outcome_dim))
    generator = torch.Generator().manual_seed(posterior.seed if options.seed is None else options.seed)
    terms = Terms(generator, options.risk or EXPECTATION, deadline, options.blend)
    completion = _Completion(fix, options, terms, int(given.isnan().any(1).sum()))
    try:
        with deadlines.until(deadline + ROOM_SECONDS):
            for first in range(0, len(contexts), size):
                here = slice(first, min(first + size, len(contexts)))
                rows = ((owners >= here.start) & (owners < here.stop)).nonzero()[:, 0]
                over = _ContextScenarios.of(posterior, problem, contexts[here], theta, options, ours[here])
                builder.serve_ours(here, over.atoms, ours[here])
                # Complete decisions are quick to price; open entries take a search.
                whole = ~given[rows].isnan().any(1)
                for some in rows[whole].split(size):
                    builder.judge(some, given[some], over, owners[some] - first)
                for some in _group_by_fixed(given, rows[~whole]):
                    for piece in some.split(size):
                        if monotonic() >= deadline:
                            break
                        completed = completion.complete(
                            given[piece[0]], over, owners[piece] - first, ours[owners[piece]]
                        )
                        builder.judge(piece, completed[0], over, owners[piece] - first)
                        builder.set_status(piece, *completed[1:])
    except OutOfTime:
        # An outer deadline, or one that forbids long work, raises its own error.
        deadlines.before_long_work()
    return builder.build()


def _check_shapes(problem: DecisionProblem, contexts: Tensor, ours: Tensor, given: Tensor, owners: Tensor) -> None:
    width = problem.decision_dim
    if given.ndim != 2 or given.shape[1] != width or ours.shape != (len(contexts), width):
        raise InvalidInput(f"a decision of this problem has {width} entries", ("decisions",))
    if len(owners) != len(given) or (len(owners) and not 0 <= int(owners.min()) <= int(owners.max()) < len(contexts)):
        raise InvalidInput("every decision needs the number of its context", ("decisions",))
    if given.isinf().any():
        raise InvalidInput("a decision needs finite numbers; leave open entries out", ("decisions",))


def _group_by_fixed(given: Tensor, rows: Tensor) -> list[Tensor]:
    """Group rows with the same entries fixed at the same values."""
    groups: dict[bytes, list[int]] = {}
    for number in rows.tolist():
        groups.setdefault(given[number].numpy().tobytes(), []).append(number)
    return [torch.tensor(numbers) for numbers in groups.values()]


@dataclass(frozen=True)
class _ContextScenarios:
    """Scenarios of some contexts: those to hedge over (draws or predictive), those of costs, and our costs there."""

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
    ) -> _ContextScenarios:
        encoded = posterior.encode(contexts)
        draws = posterior.scenarios(contexts, theta, encoded)
        predictive, atoms = scenario_sets(posterior, contexts, encoded, draws, options)
        hedged = atoms if options.risk else draws
        return _ContextScenarios(hedged, predictive, atoms, problem.cost(ours[:, None], atoms.outcomes))


def _scenarios_of(scenarios: Scenarios, numbers: Tensor) -> Scenarios:
    return replace(scenarios, outcomes=scenarios.outcomes[numbers], mode=scenarios.mode[numbers])


@dataclass
class _Completion:
    """Decides open entries; ``left`` decisions share the remaining time."""

    fix: Fix
    options: PrescribeOptions
    terms: Terms
    left: int

    def complete(
        self, given: Tensor, over: _ContextScenarios, contexts: Tensor, ours: Tensor
    ) -> tuple[Tensor, list[str], list[str]]:
        """Return decisions (n, d_z) with the given entries (d_z,), one for each context, with statuses and reasons."""
        count, share = len(contexts), len(contexts) / max(self.left, 1)
        self.left -= count
        free = given.isnan()
        if free.all():
            return ours, [OURS] * count, [""] * count
        now = monotonic()
        deadline = self.terms.deadline
        if deadline != math.inf:
            deadline = now + max(deadline - now, 0.0) * share
        try:
            problem = self.fix(given)
        except InvalidInput as error:
            reason = f"no choice of the open entries satisfies all constraints with the given ones: {error}"
            nowhere = torch.full((count, len(given)), torch.nan, dtype=torch.float64)
            return nowhere, [str(Status.INFEASIBLE)] * count, [reason] * count
        terms = replace(self.terms, deadline=deadline)
        draws, predictive = _scenarios_of(over.draws, contexts), _scenarios_of(over.predictive, contexts)
        prescription = decide_over(problem, draws, predictive, self.options.chosen_policy, terms)
        # Solvers keep bounds up to rounding.
        decisions = hide_infeasible(prescription).where(free, given)
        decisions[hide_infeasible(prescription).isnan().any(1)] = torch.nan
        return decisions, [str(status) for status in prescription.status], list(prescription.reasons or ("",) * count)


class _EvaluationBuilder:
    """Collects the evaluation of N decisions; NaN and ``time_limit`` for those not reached."""

    def __init__(self, problem: DecisionProblem, contexts: int, given: Tensor) -> None:
        count, self._problem = len(given), problem
        nothing = torch.full((count,), torch.nan, dtype=torch.float64)
        several = torch.full((count, len(QUANTILES)), torch.nan, dtype=torch.float64)
        self.decisions = given.clone()
        self.status = [GIVEN if whole else str(Status.TIME_LIMIT) for whole in (~given.isnan().any(1)).tolist()]
        self.reasons = [NO_TURN] * count
        self.costs = CostDistribution(nothing.clone(), several.clone(), nothing.clone())
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

    def judge(self, rows: Tensor, decisions: Tensor, over: _ContextScenarios, contexts: Tensor) -> None:
        """Price decisions (n, d_z), each in its context."""
        deadlines.check()
        problem, atoms = self._problem, _scenarios_of(over.atoms, contexts)
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
        best, satisfied = [Status.OPTIMAL] * count, self.feasibility[rows]
        _, reasons = check_constraints(problem, best, ("",) * count, satisfied, decisions, atoms)
        for number, decision, reason in zip(rows.tolist(), decisions, reasons, strict=True):
            self.breaches[number], self.reasons[number] = self._breaks(decision), reason

    def set_status(self, rows: Tensor, statuses: list[str], reasons: list[str]) -> None:
        """Set the status of priced decisions; one that violates constraints too often is not optimal."""
        for number, status, reason in zip(rows.tolist(), statuses, reasons, strict=True):
            demoted = status == Status.OPTIMAL and self.reasons[number]
            self.status[number] = str(Status.BEST_EFFORT) if demoted else status
            self.reasons[number] = reason or self.reasons[number]

    def _breaks(self, decision: Tensor) -> list[Breach]:
        """Return the constraints that a decision (d_z,) breaks; equal decisions are checked once."""
        if not decision.isfinite().all():
            return []
        key = decision.numpy().tobytes()
        if key not in self._broken:
            self._broken[key] = self._problem.breaches(decision)
        return self._broken[key]

    def build(self) -> EvaluateResult:
        # Given decisions that were not reached are returned unpriced.
        late = [reason == NO_TURN for reason in self.reasons]
        status = [str(Status.TIME_LIMIT) if one else own for one, own in zip(late, self.status, strict=True)]
        return EvaluateResult(
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
    """Return the share (n, d_y) of scenarios in which each outcome is served, NaN where there is no decision."""
    served = problem.covered(decisions[:, None], atoms.outcomes)
    if served is None:
        return None
    return _share(served, atoms.weights).where(decisions.isfinite().all(1, keepdim=True), torch.nan)


def _share(happens: Tensor, weights: Tensor) -> Tensor:
    """Return the weight of the scenarios where ``happens`` is true: (n, K) or (n, K, m) → (n,) or (n, m)."""
    return mean_of_atoms(happens.double(), weights).clamp_max(1.0)


def _standard_error(more: Tensor, mean: Tensor, weights: Tensor) -> Tensor:
    """Return the Monte Carlo standard error (n,) of the means (n,) of differences (n, K)."""
    squares = float(weights.square().sum())
    if squares >= 1 - 1e-12:
        return torch.full_like(mean, torch.nan)
    spread = mean_of_atoms((more - mean[:, None]).square(), weights)
    return (spread * squares / (1 - squares)).sqrt()
