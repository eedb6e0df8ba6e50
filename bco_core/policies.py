"""Policies: from scenarios to one decision for each context.

``averaged``    Σ_k w_k π_θk(x): the mean of the draws' own decisions. For a convex cost and feasible set it costs, by
                Jensen's inequality, no more than the average draw.
``bcp``         π_ρ, the Bayesian contextual policy (Definition 2): minimises expected cost, or another risk, over the
                posterior predictive distribution (Definition 1).
``blended``     BCP over y_k(α) = f̄ + α (f_θk − f̄), with f̄ the mean prediction: α = 0 optimises at the mean prediction,
                α = 1 is BCP.
``predictive``  BCP over predictive scenarios, which add the noise that no predictor removes.
``map``         the decision for the prediction of the posterior's mode (Definition 3).
``thompson``    the decision of one posterior draw, chosen afresh for each context (Definition 3).

Where decisions must be integers their mean need not be an integer, so ``averaged`` decides for f̄ instead.
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
    """Inputs of a policy besides scenarios: its random generator, the risk to minimise, and ``alpha`` for ``blended``.

    ``deadline`` is the time of the monotonic clock at which solvers stop with the best decision they have.
    """

    generator: torch.Generator = field(default_factory=torch.Generator)
    risk: Risk = EXPECTATION
    deadline: float = math.inf
    alpha: float = 0.5

    @property
    def time_limit_seconds(self) -> float | None:
        """Seconds left for solvers; None for no limit."""
        return None if self.deadline == math.inf else max(self.deadline - monotonic(), 0.0)


@dataclass(frozen=True)
class Policy:
    """One policy. ``hedges``: it minimises a risk over scenarios instead of averaging or picking decisions.

    ``recommendable``: it uses the whole posterior. Few members hold out each row, which would flatter a policy that
    needs only one member. ``parameters`` names the terms that only this policy uses. ``predictive``: it decides over
    predictive scenarios instead of posterior draws. ``random``: it draws random numbers for each context.
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
    """Decide for each context over posterior draws or over predictive atoms, as the policy requires."""
    return decide(problem, atoms if POLICIES[policy].predictive else draws, policy, terms)


def decide(problem: DecisionProblem, scenarios: Scenarios, policy: str, terms: Terms | None = None) -> Prescription:
    """Decide for each of B contexts by the named policy."""
    return POLICIES[policy].decide(problem, scenarios, terms or Terms())


def decide_for_outcomes(problem: DecisionProblem, outcomes: Tensor, terms: Terms | None = None) -> Tensor:
    """Return the best admissible decisions (B, d_z) for certain outcomes (B, d_y); NaN where none was found."""
    if problem.relaxation is problem:
        return problem.decide(outcomes)
    return _for_certain(problem, outcomes, terms or Terms()).decisions


def first_policy(problem: DecisionProblem) -> str:
    """Return the default policy, which another replaces only for a clear gain."""
    return competing_policies(problem)[0]


def competing_policies(problem: DecisionProblem) -> tuple[str, ...]:
    """Return the policies that may be recommended from held-out rows, the default first.

    With a surrogate, decisions jump between plans, and ``averaged`` would mix them. Where the cost is linear in
    outcomes, ``blended`` equals ``bcp``; where it is not, hedging against noise is the default.
    """
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
    # Rounding must not move the mean past a bound that every draw's decision keeps.
    return _with_expected_cost(problem, mean.clamp(each.amin(dim=1), each.amax(dim=1)), scenarios)


def _blended(problem: DecisionProblem, scenarios: Scenarios, terms: Terms) -> Prescription:
    mean, outcomes, alpha = scenarios.mean()[:, None], scenarios.outcomes, terms.alpha
    # From the nearer end, so that both ends are exact.
    blend = mean + alpha * (outcomes - mean) if alpha < 0.5 else outcomes - (1 - alpha) * (outcomes - mean)
    return _revalue(
        problem, problem.prescribe(blend, scenarios.weights, terms.risk, terms.time_limit_seconds), scenarios
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
        return _with_expected_cost(problem, problem.decide(outcomes), scenarios)
    return _revalue(problem, _for_certain(problem, outcomes, terms), scenarios)


def _revalue(problem: DecisionProblem, prescription: Prescription, scenarios: Scenarios) -> Prescription:
    """Set the objective to the expected cost over the scenarios; gaps stay those of the problem that was solved."""
    return replace(prescription, objective=expected_cost(problem, prescription.decisions, scenarios), bounds=None)


def _with_expected_cost(problem: DecisionProblem, decisions: Tensor, scenarios: Scenarios) -> Prescription:
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
