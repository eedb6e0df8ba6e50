"""Policies: from scenarios to one decision for each context (Definitions 2 and 3 of the paper, and the averaged one).

``averaged``  Σ_k w_k π_θk(x): the mean of the draws' own decisions. For a convex cost and feasible set it costs, by
              Jensen, no more than the average draw.
``blended``   between the two: BCP over y_k(α) = f̄ + α (f_θk − f̄), with f̄ the mean prediction. α = 0 optimises at the
              mean prediction, α = 1 is BCP.
``bcp``       π_ρ: minimises expected cost, or another risk, over the posterior predictive distribution.
``predictive``  the same over predictive scenarios, which add the noise that no predictor removes.
``map``       the decision of the posterior's mode.
``thompson``  the decision of one posterior draw, chosen afresh for each context.

Where decisions must be whole numbers a mean of decisions need not be one, and ``averaged`` decides for f̄ instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic

import torch
from torch import Tensor

from bco_core.batch_kernels import mean_of_atoms
from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, DecisionProblem, Prescription, Risk, Status
from bco_core.problems.surrogate import SQUARED_ERROR, Surrogate
from bco_core.scenarios import Scenarios, expected_cost


@dataclass(frozen=True)
class Terms:
    """What a policy may be told besides scenarios: the random numbers it draws from, the risk that hedging minimises,
    the moment of the monotonic clock by which solvers stop with the best they have, and ``alpha`` for ``blended``."""

    generator: torch.Generator = field(default_factory=torch.Generator)
    risk: Risk = EXPECTATION
    ends: float = math.inf
    alpha: float = 0.5

    @property
    def time_limit_seconds(self) -> float | None:
        """How many seconds are left for solvers; None for any number."""
        return None if self.ends == math.inf else max(self.ends - monotonic(), 0.0)


@dataclass(frozen=True)
class Policy:
    """One policy. ``hedges``: it minimises a risk over scenarios, rather than averaging or picking decisions.

    ``recommendable``: it uses the whole posterior. Held-out rows are seen by few members, so they would flatter a
    policy that needs only one. ``parameters`` names the terms that are its own. ``predictive``: it decides over
    predictive scenarios instead of posterior draws. ``random``: it draws random numbers, context after context.
    """

    name: str
    decide: Callable[[DecisionProblem, Scenarios, Terms], Prescription]
    hedges: bool = False
    recommendable: bool = False
    parameters: tuple[str, ...] = ()
    predictive: bool = False
    random: bool = False


def decide_over(
    problem: DecisionProblem, draws: Scenarios, atoms: Scenarios, policy: str, terms: Terms | None = None
) -> Prescription:
    """One decision for each context, over posterior draws or predictive scenarios, whichever the policy is for."""
    return decide(problem, atoms if POLICIES[policy].predictive else draws, policy, terms)


def decide(problem: DecisionProblem, scenarios: Scenarios, policy: str, terms: Terms | None = None) -> Prescription:
    """One decision for each of B contexts by a policy's name."""
    return POLICIES[policy].decide(problem, scenarios, terms or Terms())


def decide_for(problem: DecisionProblem, outcomes: Tensor, terms: Terms | None = None) -> Tensor:
    """The admissible decisions (B, d_z) that are best if outcomes (B, d_y) were certain; NaN where none was found."""
    if problem.relaxation is problem:
        return problem.decide(outcomes)
    return _for_certain(problem, outcomes, terms or Terms()).decisions


def first_policy(problem: DecisionProblem) -> str:
    """What is left only for a clear gain. Where decisions jump as predictions move, a mean of them is a mix of plans,
    and the plan for the mean prediction is one."""
    return competing(problem)[0]


def competing(problem: DecisionProblem) -> tuple[str, ...]:
    """The policies that held-out rows recommend from, the first first. Where a decision's cost is linear in outcomes,
    ``blended`` is ``bcp``, and ``averaged`` would mix plans; where it is not, noise is worth hedging from the first."""
    if not isinstance(problem, Surrogate):
        return RECOMMENDABLE
    return ("predictive", "bcp") if problem.loss == SQUARED_ERROR else ("bcp", "predictive")


def check_risk(policy: str, risk: Risk | None) -> None:
    """Refuse a risk for a policy that does not minimise one."""
    if risk is not None and not POLICIES[policy].hedges:
        raise InvalidInput(f"a risk needs a policy that minimises it: {' or '.join(HEDGING)}", ("policy",))


def _averaged(problem: DecisionProblem, scenarios: Scenarios, terms: Terms) -> Prescription:
    if problem.relaxation is not problem:
        return _for_outcomes(problem, scenarios.mean(), scenarios, terms)
    each = problem.decide(scenarios.outcomes)
    mean = mean_of_atoms(each, scenarios.weights)
    # Rounding must not carry the mean past a bound that every draw's decision keeps.
    return _evaluated(problem, mean.clamp(each.amin(dim=1), each.amax(dim=1)), scenarios)


def _blended(problem: DecisionProblem, scenarios: Scenarios, terms: Terms) -> Prescription:
    mean, outcomes, alpha = scenarios.mean()[:, None], scenarios.outcomes, terms.alpha
    # From the nearer end, so that both ends are exact.
    drawn_in = mean + alpha * (outcomes - mean) if alpha < 0.5 else outcomes - (1 - alpha) * (outcomes - mean)
    return _judged(
        problem, problem.prescribe(drawn_in, scenarios.weights, terms.risk, terms.time_limit_seconds), scenarios
    )


def _bcp(problem: DecisionProblem, scenarios: Scenarios, terms: Terms) -> Prescription:
    return problem.prescribe(scenarios.outcomes, scenarios.weights, terms.risk, terms.time_limit_seconds)


def _map(problem: DecisionProblem, scenarios: Scenarios, terms: Terms) -> Prescription:
    return _for_outcomes(problem, scenarios.mode, scenarios, terms)


def _thompson(problem: DecisionProblem, scenarios: Scenarios, terms: Terms) -> Prescription:
    contexts = len(scenarios.outcomes)
    uniform = torch.rand(contexts, generator=terms.generator, dtype=scenarios.weights.dtype)
    draw = torch.searchsorted(scenarios.weights.cumsum(0), uniform).clamp_max(len(scenarios.weights) - 1)
    return _for_outcomes(problem, scenarios.outcomes[torch.arange(contexts), draw], scenarios, terms)


def _for_certain(problem: DecisionProblem, outcomes: Tensor, terms: Terms) -> Prescription:
    return problem.prescribe(
        outcomes[:, None], torch.ones(1, dtype=torch.float64), time_limit_seconds=terms.time_limit_seconds
    )


def _for_outcomes(problem: DecisionProblem, outcomes: Tensor, scenarios: Scenarios, terms: Terms) -> Prescription:
    if problem.relaxation is problem:
        return _evaluated(problem, problem.decide(outcomes), scenarios)
    return _judged(problem, _for_certain(problem, outcomes, terms), scenarios)


def _judged(problem: DecisionProblem, prescription: Prescription, scenarios: Scenarios) -> Prescription:
    """The same decisions, their objective the expected cost over the scenarios; gaps stay those of what was solved."""
    return replace(prescription, objective=expected_cost(problem, prescription.decisions, scenarios), bounds=None)


def _evaluated(problem: DecisionProblem, decisions: Tensor, scenarios: Scenarios) -> Prescription:
    known = decisions.isfinite().all(dim=1).tolist()
    status = [Status.OPTIMAL if one else Status.INFEASIBLE for one in known]
    reasons = () if all(known) else tuple("" if one else "no decision keeps all constraints" for one in known)
    return Prescription(decisions, expected_cost(problem, decisions, scenarios), status, reasons)


# Every policy by name: a new one is one function and one line here. The first recommendable one is the default.
POLICIES: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("averaged", _averaged, recommendable=True),
        Policy("blended", _blended, hedges=True, recommendable=True, parameters=("alpha",)),
        Policy("bcp", _bcp, hedges=True, recommendable=True),
        Policy("predictive", _bcp, hedges=True, recommendable=True, predictive=True),
        Policy("map", _map),
        Policy("thompson", _thompson, random=True),
    )
}
HEDGING = tuple(name for name, policy in POLICIES.items() if policy.hedges)
RECOMMENDABLE = tuple(name for name, policy in POLICIES.items() if policy.recommendable)
