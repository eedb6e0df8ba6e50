"""Prescribe decisions: from a posterior, its problem and new contexts to one frozen :class:`PrescribeResult`.

Two sets of scenarios have two roles. A decision *hedges* over the predictions of posterior draws, which show how
uncertain the predictor is; its *costs* are computed over predictive scenarios, which add the noise that no predictor
removes. To minimise a risk other than expected cost, the decision hedges over predictive scenarios too, because the
draws alone have almost no tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.policies import POLICIES, Terms, check_risk, decide_for_outcomes, decide_over
from bco_core.posterior import Posterior
from bco_core.problems.base import EXPECTATION, DecisionProblem, Prescription, Risk, Status, UncertainConstraints
from bco_core.scenarios import CostDistribution, Scenarios, cost_distribution, expected_cost

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CVAR_LEVEL = 0.95
PREDICTIVE, POSTERIOR = "predictive", "posterior"
NO_TURN = "the time limit passed before this context was reached; there is no decision"
_CHUNK_NUMBERS = 1_000_000
_FEASIBILITY_ROOM = 0.02
_ROUNDING = 1e-8
# Seconds for pricing the decisions after the solvers have stopped.
ROOM_SECONDS = 0.3
# Share of the time for both decisions that the search for the MAP decision may take.
_MAP_SHARE = 0.25


@dataclass(frozen=True)
class PrescribeOptions:
    """How to decide. ``policy`` None is ``averaged``, or ``bcp`` where there is a ``risk``.

    ``scenarios`` is the number of posterior draws to hedge over: the stored particles, or fresh draws with a ``seed``.
    ``costs_over`` names the scenarios of every cost: ``predictive``, or the ``posterior`` draws alone. ``alpha`` is for
    a policy with that parameter; its default is 0.5.
    """

    policy: str | None = None
    alpha: float | None = None
    scenarios: int = 200
    seed: int | None = None
    costs_over: str = PREDICTIVE
    risk: Risk | None = None

    def __post_init__(self) -> None:
        if self.scenarios < 1:
            raise InvalidInput("a decision needs at least one scenario", ("scenarios",))
        for name, value, known in (
            ("policy", self.chosen_policy, tuple(POLICIES)),
            ("costs_over", self.costs_over, (PREDICTIVE, POSTERIOR)),
        ):
            if value not in known:
                raise InvalidInput(f"{name} must be one of {', '.join(known)}", (name,))
        check_risk(self.chosen_policy, self.risk)
        if self.alpha is not None and "alpha" not in POLICIES[self.chosen_policy].parameters:
            having = " or ".join(name for name, policy in POLICIES.items() if "alpha" in policy.parameters)
            raise InvalidInput(
                f"alpha is for policy {having}, and policy {self.chosen_policy} would ignore it", ("alpha",)
            )

    @property
    def chosen_policy(self) -> str:
        return self.policy or ("bcp" if self.risk else "averaged")

    @property
    def blend(self) -> float:
        return Terms.alpha if self.alpha is None else self.alpha


@dataclass(frozen=True)
class PrescribeResult:
    """Decisions (B, d_z) for B contexts with their cost distributions; NaN where there is no decision.

    ``feasibility`` (B,) is the share of the cost scenarios in which a decision satisfies uncertain constraints, NaN
    where constraints are certain. ``gaps`` (B,) are relative optimality gaps, NaN where the policy does not minimise a
    cost or nothing is proven. ``map_decisions`` (B, d_z) and ``map_costs`` (B,) are the decisions of the posterior's
    mode and their expected costs over the same scenarios. ``facts`` holds further figures of each decision, by problem.
    """

    decisions: Tensor
    status: list[Status]
    reasons: tuple[str, ...]
    solvers: tuple[str, ...]
    gaps: Tensor
    costs: CostDistribution
    feasibility: Tensor
    map_decisions: Tensor
    map_costs: Tensor
    facts: tuple[dict[str, Any], ...]

    @property
    def hedging_gain(self) -> Tensor:
        """The MAP decision's expected cost less this decision's, (B,)."""
        return self.map_costs - self.costs.mean


def prescribe(
    posterior: Posterior,
    problem: DecisionProblem,
    contexts: Tensor,
    options: PrescribeOptions | None = None,
    draws: Tensor | None = None,
    time_limit_seconds: float = math.inf,
) -> PrescribeResult:
    """Decide for each of the contexts (B, d_x), in chunks that bound memory.

    ``draws`` (K, d) are the result of ``posterior.draws`` if the caller already has it. Solvers stop with the best
    decision they have at the time limit; contexts not reached by then get no decision and status ``time_limit``. The
    call raises OutOfTime if the limit was too short for a single context, and at the deadline in force.
    """
    options = options or PrescribeOptions()
    if not len(contexts):
        raise InvalidInput("there are no contexts to decide for; give at least one", ("contexts",))
    theta = posterior.draws(options.scenarios, options.seed) if draws is None else draws
    generator = torch.Generator().manual_seed(posterior.seed if options.seed is None else options.seed)
    searches = problem.relaxation is not problem
    # Where every cost takes a search, a decided context must not wait for the next one to be priced.
    slow = searches and problem.decides_slowly
    size = 1 if slow else max(1, _CHUNK_NUMBERS // (options.scenarios * problem.outcome_dim))
    parts: list[PrescribeResult] = []
    limit, done = monotonic() + time_limit_seconds, 0
    try:
        with deadlines.until(limit + ROOM_SECONDS):
            for chunk in contexts.split(size):
                if parts and monotonic() >= limit:
                    break
                # Where deciding takes a search, the remaining contexts share the remaining time.
                deadline = _part_of_the_way(limit, len(chunk) / (len(contexts) - done)) if searches else limit
                terms = Terms(generator, options.risk or EXPECTATION, deadline, options.blend)
                parts.append(_prescribe(posterior, problem, chunk, theta, options, terms))
                done += len(chunk)
    except OutOfTime:
        # An outer deadline raises its own error.
        deadlines.check()
        if not parts:
            text = f"deciding took longer than {time_limit_seconds:g} s"
            raise OutOfTime(f"{text}; fewer contexts or scenarios take less") from None
    if done < len(contexts):
        parts.append(_undecided(len(contexts) - done, parts[0]))
    return _join_results(parts)


def _part_of_the_way(deadline: float, share: float) -> float:
    """Return the time at which this share of the time until ``deadline`` will have passed."""
    if deadline == math.inf:
        return deadline
    left = deadline - monotonic()
    return deadline - left * (1 - share) if left > 0 else deadline


def _undecided(count: int, like: PrescribeResult) -> PrescribeResult:
    """Return the result of ``count`` contexts without a decision, out of time; NaN in the shapes of ``like``."""

    def nothing(values: Tensor) -> Tensor:
        return torch.full((count, *values.shape[1:]), torch.nan, dtype=torch.float64)

    return PrescribeResult(
        nothing(like.decisions),
        [Status.TIME_LIMIT] * count,
        (NO_TURN,) * count,
        ("",) * count,
        nothing(like.gaps),
        CostDistribution(nothing(like.costs.mean), nothing(like.costs.quantiles), nothing(like.costs.cvar)),
        nothing(like.feasibility),
        nothing(like.map_decisions),
        nothing(like.map_costs),
        ({},) * count,
    )


def decides_alone(posterior: Posterior, problem: DecisionProblem, options: PrescribeOptions) -> bool:
    """Return whether each context gets the same digits whatever other contexts are in the call."""
    alone = posterior.predictor.predicts_alone and problem.decides_alone
    return alone and not POLICIES[options.chosen_policy].random


def decisions(
    posterior: Posterior, problem: DecisionProblem, contexts: Tensor, options: PrescribeOptions | None = None
) -> Tensor:
    """Return decisions (B, d_z) alone, for all contexts (B, d_x) at once, for callers that have the true outcomes.

    Unlike :func:`prescribe` it returns the best effort of infeasible problems.
    """
    options, encoded = options or PrescribeOptions(), posterior.encode(contexts)
    scenarios = posterior.scenarios(contexts, posterior.draws(options.scenarios, options.seed), encoded)
    predictive, atoms = scenario_sets(posterior, contexts, encoded, scenarios, options)
    generator = torch.Generator().manual_seed(posterior.seed if options.seed is None else options.seed)
    terms = Terms(generator, options.risk or EXPECTATION, alpha=options.blend)
    hedged = atoms if options.risk else scenarios
    return decide_over(problem, hedged, predictive, options.chosen_policy, terms).decisions


def _prescribe(
    posterior: Posterior,
    problem: DecisionProblem,
    contexts: Tensor,
    theta: Tensor,
    options: PrescribeOptions,
    terms: Terms,
) -> PrescribeResult:
    encoded = posterior.encode(contexts)
    scenarios = posterior.scenarios(contexts, theta, encoded)
    if not torch.isfinite(scenarios.outcomes).all():
        raise InvalidInput("a context lies so far from the history that no prediction is possible", ("contexts",))
    predictive, atoms = scenario_sets(posterior, contexts, encoded, scenarios, options)
    searches, policy = problem.relaxation is not problem, options.chosen_policy
    share = 1 - _MAP_SHARE if searches and policy != "map" else 1.0
    own = replace(terms, deadline=_part_of_the_way(terms.deadline, share))
    prescription = decide_over(problem, atoms if options.risk else scenarios, predictive, policy, own)
    decisions = hide_infeasible(prescription)
    costs = cost_distribution(problem, decisions, atoms, torch.tensor(QUANTILES, dtype=torch.float64), CVAR_LEVEL)
    # The policy ``map`` decides as the alternative does; no second search is needed.
    map_decisions = prescription.decisions if policy == "map" else decide_for_outcomes(problem, scenarios.mode, terms)
    nothing = ("",) * len(decisions)
    satisfied = feasibility(problem, decisions, atoms)
    status, reasons = check_constraints(
        problem, prescription.status, prescription.reasons or nothing, satisfied, decisions, atoms
    )
    unproven = torch.full((len(decisions),), torch.nan, dtype=torch.float64)
    return PrescribeResult(
        decisions,
        status,
        reasons,
        prescription.solvers or nothing,
        unproven if prescription.gaps is None else prescription.gaps,
        costs,
        satisfied,
        map_decisions,
        expected_cost(problem, map_decisions, atoms),
        _facts(problem, decisions, atoms),
    )


def scenario_sets(
    posterior: Posterior, contexts: Tensor, encoded: Tensor, scenarios: Scenarios, options: PrescribeOptions
) -> tuple[Scenarios, Scenarios]:
    """Return the scenarios that a predictive policy decides over, and those that costs are computed over."""
    over_draws = options.costs_over == POSTERIOR
    if over_draws and not POLICIES[options.chosen_policy].predictive:
        return scenarios, scenarios
    atoms = posterior.predictive(contexts, scenarios.mean(), options.scenarios, encoded) or scenarios
    return atoms, scenarios if over_draws else atoms


def hide_infeasible(prescription: Prescription) -> Tensor:
    """Return decisions (B, d_z), NaN where the status is infeasible."""
    decisions = prescription.decisions.clone()
    decisions[torch.tensor([status == Status.INFEASIBLE for status in prescription.status])] = torch.nan
    return decisions


def feasibility(problem: DecisionProblem, decisions: Tensor, atoms: Scenarios) -> Tensor:
    """Return the share (B,) of scenarios in which decisions satisfy uncertain constraints; NaN if they are certain."""
    if not isinstance(problem, UncertainConstraints):
        return torch.full((len(decisions),), torch.nan, dtype=torch.float64)
    return problem.feasible(decisions[:, None], atoms.outcomes).double() @ atoms.weights


def _facts(problem: DecisionProblem, decisions: Tensor, atoms: Scenarios) -> tuple[dict[str, Any], ...]:
    """Return the problem's further figures of each decision; nothing where there is none."""
    if not problem.has_facts:
        return ({},) * len(decisions)
    known = decisions.isfinite().all(dim=1).tolist()
    each = zip(known, decisions, atoms.outcomes, strict=True)
    return tuple(problem.facts(one, outcomes, atoms.weights) if there else {} for there, one, outcomes in each)


def check_constraints(
    problem: DecisionProblem,
    status: list[Status],
    reasons: tuple[str, ...],
    satisfied: Tensor,
    decisions: Tensor,
    atoms: Scenarios,
) -> tuple[list[Status], tuple[str, ...]]:
    """Demote optimal decisions that satisfy constraints clearly less often than required, or not even on average."""
    if not isinstance(problem, UncertainConstraints):
        promises = problem.missed(decisions, atoms.outcomes, atoms.weights, sure=False) if problem.promises else []
        return _demote(status, reasons, promises) if promises else (status, reasons)
    required = problem.confidence
    # Few scenarios leave the share uncertain, but a clearly low share must not pass.
    room = (
        min(2 * math.sqrt(required * (1 - required) / atoms.outcomes.shape[1]), _FEASIBILITY_ROOM) + _FEASIBILITY_ROOM
    )
    slack = problem.slack(decisions[:, None], atoms.outcomes)
    mean = slack @ atoms.weights
    seldom = satisfied < required - room
    # A constraint that just holds on average is off by rounding as often as not.
    broken = (seldom | (mean < -_ROUNDING * (slack.abs() @ atoms.weights))).tolist()
    sentences = [
        ""
        if not bad
        else f"it satisfies its constraints in {share:.1%} of the scenarios, and {required:.0%} is required"
        if rare
        else f"on average over the scenarios it misses its constraints by {-short:.3g}"
        for bad, rare, share, short in zip(broken, seldom.tolist(), satisfied.tolist(), mean.tolist(), strict=True)
    ]
    return _demote(status, reasons, sentences)


def _demote(
    status: list[Status], reasons: tuple[str, ...], sentences: list[str]
) -> tuple[list[Status], tuple[str, ...]]:
    """Demote optimal decisions that have a sentence to best efforts, with the sentence as the reason."""
    bad = [one == Status.OPTIMAL and sentence != "" for one, sentence in zip(status, sentences, strict=True)]
    return (
        [Status.BEST_EFFORT if one else before for one, before in zip(bad, status, strict=True)],
        tuple(new if one else old for one, new, old in zip(bad, sentences, reasons, strict=True)),
    )


def _join_results(parts: list[PrescribeResult]) -> PrescribeResult:
    if len(parts) == 1:
        return parts[0]
    return PrescribeResult(
        torch.cat([part.decisions for part in parts]),
        [status for part in parts for status in part.status],
        tuple(reason for part in parts for reason in part.reasons),
        tuple(solver for part in parts for solver in part.solvers),
        torch.cat([part.gaps for part in parts]),
        CostDistribution(
            torch.cat([part.costs.mean for part in parts]),
            torch.cat([part.costs.quantiles for part in parts]),
            torch.cat([part.costs.cvar for part in parts]),
        ),
        torch.cat([part.feasibility for part in parts]),
        torch.cat([part.map_decisions for part in parts]),
        torch.cat([part.map_costs for part in parts]),
        tuple(one for part in parts for one in part.facts),
    )
