"""Portfolios of least variance that keep a return.

Minimise the variance z'Σz subject to the return: ŷ'z ≥ target for a prediction, and for scenarios
CVaR_α(target − Y'z) ≤ 0, the tractable form of P(Y'z ≥ target) ≥ α (section 6.3 of the paper). A target on the mean is
that with α = 0. What turnover costs is taken from the return. Outcomes decide whether
a decision keeps its constraint, not what it costs, and the decision has kinks, so it is learned by
Metropolis–Hastings. Where no portfolio reaches the target, the decision is a best effort: the portfolio of largest
return, or of largest mean return in the worst tail of its scenarios.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bco_core import deadline
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.problems.base import EXPECTATION, Breach, DecisionProblem, Prescription, Price, Risk, Status
from bco_core.problems.portfolio.facts import facts_of
from bco_core.problems.portfolio.positions import Portfolios
from bco_core.problems.portfolio.prices import edge_of_tail, prices_of
from bco_core.problems.portfolio.reading import number
from bco_core.problems.portfolio.rules import TOLERANCE
from bco_core.solvers.dual_newton import Array
from bco_core.status import GAP

INFEASIBLE = ("best_effort", "error")
TAIL, MEAN = "tail", "mean"
_CONFIDENCE = 0.95
_OPEN = "the solvers could not prove this portfolio best; the gap says how much less variance another may have"


class _Found(NamedTuple):
    """A decision (m,), how its search ended, why, what no variance is below, NaN where nothing is proven, and by what
    it was found."""

    decision: Array
    status: Status
    reason: str
    bound: float = math.nan
    solver: str = ""


@dataclass(frozen=True)
class ReturnConstrainedPortfolio(DecisionProblem):
    """Least variance under a return that must be kept with this confidence.

    A confidence of zero asks for the mean return alone. ``infeasible`` says what a target beyond reach is called: a
    best effort, or an infeasible answer.
    """

    portfolios: Portfolios
    target: float
    confidence: float
    infeasible: str = "best_effort"

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> ReturnConstrainedPortfolio:
        target_on = spec.get("target_on") or TAIL
        if target_on not in (TAIL, MEAN):
            raise InvalidInput("a target is on the tail or on the mean of the return", ("target_on",))
        if target_on == MEAN and spec.get("confidence"):
            raise InvalidInput("a target on the mean return has no confidence; leave it out", ("confidence",))
        confidence = number(spec, "confidence", 0.0 if target_on == MEAN else _CONFIDENCE)
        if not 0 <= confidence < 1:
            raise InvalidInput("the confidence must be at least 0 and below 1, such as 0.95", ("confidence",))
        infeasible = spec.get("infeasible") or INFEASIBLE[0]
        if infeasible not in INFEASIBLE:
            raise InvalidInput("a target beyond reach may be met by best_effort or be an error", ("infeasible",))
        target = number(spec, "target_return")
        return ReturnConstrainedPortfolio(Portfolios.from_spec(spec), target, confidence, infeasible)

    @property
    def outcome_dim(self) -> int:
        return self.portfolios.count

    @property
    def differentiable(self) -> bool:
        return False

    @property
    def cost_floor(self) -> float:
        return 0.0

    def decide(self, outcomes: Tensor) -> Tensor:
        rows = outcomes.detach().reshape(-1, self.outcome_dim).numpy()
        return torch.from_numpy(self.portfolios.least_variance(rows, self.target)).view(outcomes.shape)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        variance = self.portfolios.variance(decisions)
        if decisions.shape == outcomes.shape:
            return variance
        return variance.expand(torch.broadcast_shapes(variance.shape, outcomes.shape[:-1]))

    def slack(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """How far the return, after turnover, stays above the target: (..., m), (..., m) → (...)."""
        kept = (decisions * outcomes).sum(-1) - self.target
        return kept - self.portfolios.charge(decisions) if self.portfolios.rules.turnover_cost else kept

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        scale = abs(self.target) + (decisions * outcomes).abs().sum(-1)
        return self.portfolios.hold(decisions) & (self.slack(decisions, outcomes) >= -TOLERANCE * scale)

    def within(self, decisions: Tensor) -> Tensor:
        return self.portfolios.hold(decisions)

    def breaches(self, decision: Tensor) -> list[Breach]:
        return self.portfolios.rules.breaches(decision.numpy())

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """By how much the least variance over the scenarios would fall for one more unit of each binding rule."""
        found = self.prescribe(outcomes[None].double(), weights)
        if found.status[0] != Status.OPTIMAL:
            return []
        best, atoms, shares = found.decisions[0].numpy(), outcomes.double().numpy(), weights.double().numpy()
        target = edge_of_tail(atoms, shares, best, self.confidence)
        return prices_of(self.portfolios.rules, 2 * self.portfolios.covariance.numpy() @ best, best, target, 0.0)

    def facts(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
        found = facts_of(self.portfolios, decision, outcomes, weights, self.confidence)
        return {"target_return": self.target, **found}

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit: float | None = None
    ) -> Prescription:
        if risk.cvar_weight:
            raise InvalidInput("the cost is certain here; the risk is in the return, by its confidence", ("risk",))
        until = math.inf if time_limit is None else time.monotonic() + time_limit
        shares = weights.expand(outcomes.shape[:2]).double()
        simple = self.decide(torch.einsum("bky,bk->by", outcomes, shares)).numpy()
        each = zip(outcomes.double().numpy(), shares.numpy(), simple, strict=True)
        found = [self._prescribe_one(*one, until) for one in each]
        decisions = torch.from_numpy(np.stack([one.decision for one in found]))
        reasons, variances = tuple(one.reason for one in found), self.portfolios.variance(decisions)
        bounds = torch.tensor([one.bound for one in found], dtype=torch.float64)
        shares_open = [GAP.share(*one, 0.0) for one in zip(variances.tolist(), bounds.tolist(), strict=True)]
        return Prescription(
            decisions,
            variances,
            [one.status for one in found],
            reasons if any(reasons) else (),
            tuple(one.solver for one in found) if any(one.solver for one in found) else (),
            gaps=torch.tensor(shares_open, dtype=torch.float64),
            bounds=bounds,
        )

    def _prescribe_one(self, atoms: Array, weights: Array, simple: Array, until: float) -> _Found:
        try:
            with deadline.until(until):
                deadline.check()
                tail = self.portfolios.keep_tail(atoms, weights, self.confidence, self.target)
        except OutOfTime:
            deadline.check()
            reason = "there was no time to hedge: this is the decision for the mean outcome"
            return _Found(simple, Status.TIME_LIMIT, reason)
        if not tail.verified:
            reason = "the allowed rounds did not suffice to prove this decision best"
            return _Found(tail.portfolio, Status.TIME_LIMIT, reason, solver=tail.solver)
        if tail.shortfall:
            status = Status.INFEASIBLE if self.infeasible == "error" else Status.BEST_EFFORT
            return _Found(tail.portfolio, status, self._reason(tail.shortfall), solver=tail.solver)
        variance = float(self.portfolios.variance(torch.from_numpy(tail.portfolio)))
        bound = self.portfolios.variance_bound(tail)
        # Beside the variance of one unit in all, what is this small is rounding.
        small = 1e-12 * float(self.portfolios.covariance.diagonal().mean()) * self.portfolios.rules.budget**2
        if replace(GAP, absolute=small).closes(variance, bound, 0.0):
            return _Found(tail.portfolio, Status.OPTIMAL, "", bound, tail.solver)
        return _Found(tail.portfolio, Status.BEST_EFFORT, _OPEN, bound, tail.solver)

    def _reason(self, shortfall: float) -> str:
        worst = f"in the worst {1 - self.confidence:.3g} of the scenarios" if self.confidence else "on average"
        return (
            f"no portfolio returns {self.target:g} {worst}; "
            f"the best there is returns {self.target - shortfall:.6g}, {shortfall:.3g} less"
        )
