"""The front door of deciding: a posterior, its problem and new contexts in, one frozen :class:`Prescribed` out.

Two sets of scenarios have two roles. A decision *hedges* over the posterior draws' predictions, which say how unsure
the predictor is; its *costs* are computed over predictive scenarios, which add the noise that no predictor removes.
Where a risk other than expected cost is asked for, the decision hedges over the latter too, because draws alone have no
tail to speak of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from bco_core import deadline
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.policies import POLICIES, Terms, check_risk, decide_for, decide_over
from bco_core.posterior import Posterior
from bco_core.problems.base import EXPECTATION, DecisionProblem, Prescription, Risk, Status, UncertainConstraints
from bco_core.scenarios import CostDistribution, Scenarios, cost_distribution, expected_cost

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
CVAR_LEVEL = 0.95
PREDICTIVE, POSTERIOR = "predictive", "posterior"
NO_TURN = "the time limit came before this context's turn; there is no decision"
_CHUNK_NUMBERS = 1_000_000
_FEASIBILITY_ROOM = 0.02
_ROUNDING = 1e-8
# What solvers have stopped with must be judged still: how long that may take.
ROOM_SECONDS = 0.3
# What a search for the MAP decision may take of the time for both decisions.
_MAP_SHARE = 0.25


@dataclass(frozen=True)
class PrescribeOptions:
    """How to decide. ``policy`` None is ``averaged``, or ``bcp`` where there is a ``risk``.

    ``scenarios`` posterior draws are hedged over: the stored particles, or fresh draws with a ``seed``. ``costs_over``
    names the scenarios behind every cost: ``predictive``, or the ``posterior`` draws alone. ``alpha`` is for a policy
    that has it, and 0.5 where nothing is given.
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
class Prescribed:
    """Decisions (B, d_z) for B contexts and what they may cost; NaN where there is no decision to show.

    ``feasibility`` (B,) is the share of the cost scenarios in which a decision keeps uncertain constraints, NaN where
    constraints are certain. ``gaps`` (B,) are how far a decision may be from the best, NaN where the policy does not
    minimise a cost, or nothing is proven. ``map_decisions`` and ``map_costs`` are what the posterior's mode alone would
    decide, judged under the same scenarios. ``facts`` are what else the problem says of each decision.
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
    seconds: float = math.inf,
    solver_seconds: float = math.inf,
) -> Prescribed:
    """A decision for each of the contexts (B, d_x), in chunks: memory is bounded however many there are.

    ``draws`` (K, d) spares drawing again what a caller has kept of ``posterior.draws``. Solvers stop with the best they
    have after ``solver_seconds``; contexts whose turn has not come by then have no decision and status ``time_limit``.
    The whole call raises OutOfTime after ``seconds``, and where the time did not suffice for a single context.
    """
    options = options or PrescribeOptions()
    if not len(contexts):
        raise InvalidInput("there are no contexts to decide for", ("contexts",))
    theta = posterior.draws(options.scenarios, options.seed) if draws is None else draws
    generator = torch.Generator().manual_seed(posterior.seed if options.seed is None else options.seed)
    searches = problem.relaxation is not problem
    # Where every cost takes a search, a context that has had its turn must not wait for the next to be priced.
    slow = searches and problem.decides_slowly
    size = 1 if slow else max(1, _CHUNK_NUMBERS // (options.scenarios * problem.outcome_dim))
    parts: list[Prescribed] = []
    began, done = monotonic(), 0
    last, soft = began + seconds, began + solver_seconds
    try:
        with deadline.until(min(last, soft + ROOM_SECONDS)):
            for chunk in contexts.split(size):
                if parts and monotonic() >= soft:
                    break
                # The rest shares the time that is left, where deciding takes a search.
                ends = _part_of_the_way(soft, len(chunk) / (len(contexts) - done)) if searches else soft
                terms = Terms(generator, options.risk or EXPECTATION, ends, options.blend)
                parts.append(_prescribe(posterior, problem, chunk, theta, options, terms))
                done += len(chunk)
    except OutOfTime:
        # An outer deadline is its owner's to explain.
        deadline.check()
        if not parts or monotonic() >= last:
            text = f"deciding took longer than {min(seconds, solver_seconds):g} s"
            raise OutOfTime(f"{text}; fewer contexts or scenarios take less") from None
    if done < len(contexts):
        parts.append(_undecided(len(contexts) - done, parts[0]))
    return _joined(parts)


def _part_of_the_way(until: float, share: float) -> float:
    """The moment at which this share of the time until another one has passed."""
    if until == math.inf:
        return until
    left = until - monotonic()
    return until - left * (1 - share) if left > 0 else until


def _undecided(count: int, like: Prescribed) -> Prescribed:
    """So many contexts without a decision, for want of time; NaN in the shapes of ``like``."""

    def nothing(values: Tensor) -> Tensor:
        return torch.full((count, *values.shape[1:]), torch.nan, dtype=torch.float64)

    return Prescribed(
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
    """Whether each context gets the same digits whatever contexts it is prescribed together with."""
    alone = posterior.predictor.predicts_alone and problem.decides_alone
    return alone and not POLICIES[options.chosen_policy].random


def decisions(
    posterior: Posterior, problem: DecisionProblem, contexts: Tensor, options: PrescribeOptions | None = None
) -> Tensor:
    """The decisions (B, d_z) alone, all contexts (B, d_x) at once, for callers who judge them by outcomes of their own.

    Unlike :func:`prescribe` it shows the best effort where a problem knows one.
    """
    options, encoded = options or PrescribeOptions(), posterior.encode(contexts)
    scenarios = posterior.scenarios(contexts, posterior.draws(options.scenarios, options.seed), encoded)
    predictive, atoms = what_may_happen(posterior, contexts, encoded, scenarios, options)
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
) -> Prescribed:
    encoded = posterior.encode(contexts)
    scenarios = posterior.scenarios(contexts, theta, encoded)
    if not torch.isfinite(scenarios.outcomes).all():
        raise InvalidInput("a context lies so far from the history that no prediction is possible", ("contexts",))
    predictive, atoms = what_may_happen(posterior, contexts, encoded, scenarios, options)
    searches, policy = problem.relaxation is not problem, options.chosen_policy
    share = 1 - _MAP_SHARE if searches and policy != "map" else 1.0
    own = replace(terms, ends=_part_of_the_way(terms.ends, share))
    found = decide_over(problem, atoms if options.risk else scenarios, predictive, policy, own)
    decisions = shown_decisions(found)
    costs = cost_distribution(problem, decisions, atoms, torch.tensor(QUANTILES, dtype=torch.float64), CVAR_LEVEL)
    # The decision of the policy ``map`` is the alternative itself; no search would find another.
    map_decisions = found.decisions if policy == "map" else decide_for(problem, scenarios.mode, terms)
    nothing = ("",) * len(decisions)
    kept = feasibility(problem, decisions, atoms)
    status, reasons = kept_or_said(problem, found.status, found.reasons or nothing, kept, decisions, atoms)
    return Prescribed(
        decisions,
        status,
        reasons,
        found.solvers or nothing,
        torch.full((len(decisions),), torch.nan, dtype=torch.float64) if found.gaps is None else found.gaps,
        costs,
        kept,
        map_decisions,
        expected_cost(problem, map_decisions, atoms),
        _facts(problem, decisions, atoms),
    )


def what_may_happen(
    posterior: Posterior, contexts: Tensor, encoded: Tensor, scenarios: Scenarios, options: PrescribeOptions
) -> tuple[Scenarios, Scenarios]:
    """The scenarios that a predictive policy decides over, and those that costs are computed over."""
    over_draws = options.costs_over == POSTERIOR
    if over_draws and not POLICIES[options.chosen_policy].predictive:
        return scenarios, scenarios
    atoms = posterior.predictive(contexts, scenarios.mean(), options.scenarios, encoded) or scenarios
    return atoms, scenarios if over_draws else atoms


def shown_decisions(found: Prescription) -> Tensor:
    """Decisions (B, d_z), NaN where the status is infeasible: a problem's best effort is hidden unless asked for."""
    decisions = found.decisions.clone()
    decisions[torch.tensor([status == Status.INFEASIBLE for status in found.status])] = torch.nan
    return decisions


def feasibility(problem: DecisionProblem, decisions: Tensor, atoms: Scenarios) -> Tensor:
    """The share (B,) of scenarios in which each decision keeps uncertain constraints; NaN where they are certain."""
    if not isinstance(problem, UncertainConstraints):
        return torch.full((len(decisions),), torch.nan, dtype=torch.float64)
    return problem.feasible(decisions[:, None], atoms.outcomes).double() @ atoms.weights


def _facts(problem: DecisionProblem, decisions: Tensor, atoms: Scenarios) -> tuple[dict[str, Any], ...]:
    """What else the problem says of each decision; nothing where there is none."""
    if not problem.has_facts:
        return ({},) * len(decisions)
    known = decisions.isfinite().all(dim=1).tolist()
    each = zip(known, decisions, atoms.outcomes, strict=True)
    return tuple(problem.facts(one, outcomes, atoms.weights) if there else {} for there, one, outcomes in each)


def kept_or_said(
    problem: DecisionProblem,
    status: list[Status],
    reasons: tuple[str, ...],
    kept: Tensor,
    decisions: Tensor,
    atoms: Scenarios,
) -> tuple[list[Status], tuple[str, ...]]:
    """No decision is called optimal that keeps constraints clearly less often than asked, or not even on average."""
    if not isinstance(problem, UncertainConstraints):
        promises = problem.missed(decisions, atoms.outcomes, atoms.weights, sure=False) if problem.promises else []
        return _demoted(status, reasons, promises) if promises else (status, reasons)
    asked = problem.confidence
    # Few scenarios leave the share uncertain; that is no reason to call a low one what was asked for.
    room = min(2 * math.sqrt(asked * (1 - asked) / atoms.outcomes.shape[1]), _FEASIBILITY_ROOM) + _FEASIBILITY_ROOM
    slack = problem.slack(decisions[:, None], atoms.outcomes)
    mean = slack @ atoms.weights
    seldom = kept < asked - room
    # A constraint that just holds on average is off by rounding as often as not.
    broken = (seldom | (mean < -_ROUNDING * (slack.abs() @ atoms.weights))).tolist()
    sentences = [
        ""
        if not bad
        else f"it keeps its constraints in {share:.1%} of what may happen, and {asked:.0%} is asked"
        if rare
        else f"on average over what may happen it misses its constraints by {-short:.3g}"
        for bad, rare, share, short in zip(broken, seldom.tolist(), kept.tolist(), mean.tolist(), strict=True)
    ]
    return _demoted(status, reasons, sentences)


def _demoted(
    status: list[Status], reasons: tuple[str, ...], sentences: list[str]
) -> tuple[list[Status], tuple[str, ...]]:
    """What was optimal but for what a sentence says is a best effort, for that reason."""
    bad = [one == Status.OPTIMAL and sentence != "" for one, sentence in zip(status, sentences, strict=True)]
    return (
        [Status.BEST_EFFORT if one else before for one, before in zip(bad, status, strict=True)],
        tuple(new if one else old for one, new, old in zip(bad, sentences, reasons, strict=True)),
    )


def _joined(parts: list[Prescribed]) -> Prescribed:
    if len(parts) == 1:
        return parts[0]
    return Prescribed(
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
