"""Portfolios of least variance whose return reaches a target.

Minimise the variance z'Σz subject to the return: ŷ'z ≥ target for a prediction, and for scenarios
CVaR_α(target − Y'z) ≤ 0, the tractable form of P(Y'z ≥ target) ≥ α (section 6.3 of the paper). A target on the mean has
α = 0. The cost of turnover is subtracted from the return. Outcomes determine whether a decision keeps its constraint,
not its cost, and the decision has kinks, so it is learned by Metropolis–Hastings. If no portfolio reaches the target,
the decision is a best effort: the portfolio of largest return, or of largest mean return in the worst tail.

:func:`check_target` refuses a target that is out of reach, as far as a history of returns tells. With perfect foresight
one would hold the best portfolio for each row, and no predictor does better; a target that even foresight misses too
often is refused. A target above the best constant portfolio's return needs contexts that predict returns.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.errors import InvalidInput, OutOfTime
from bco_core.problems.base import EXPECTATION, Breach, DecisionProblem, Prescription, Price, Risk, Status
from bco_core.problems.portfolio.positions import Portfolios
from bco_core.problems.portfolio.report import edge_of_tail, facts_of, prices_of
from bco_core.problems.portfolio.risk import with_risk
from bco_core.problems.portfolio.rules import TOLERANCE, number
from bco_core.solvers.dual_newton import Array
from bco_core.solvers.portfolio_qp import best_tail, most
from bco_core.status import GAP

INFEASIBLE = ("best_effort", "error")
TAIL, MEAN = "tail", "mean"
_CONFIDENCE = 0.95
_OPEN = "the solvers could not prove this portfolio optimal; the gap bounds how much less variance another may have"
# Rows checked, evenly spread over the history: by formula, and by linear programs.
_ROWS, _PROGRAMS = 20_000, 300
_STANDARD_ERRORS = 2.0


class _PortfolioSolution(NamedTuple):
    """A decision (m,), its status and reason, a lower bound of the variance, NaN if none is proven, and the solver."""

    decision: Array
    status: Status
    reason: str
    bound: float = math.nan
    solver: str = ""


@dataclass(frozen=True)
class ReturnConstrainedPortfolio(DecisionProblem):
    """Minimise the variance under a return target that holds with this confidence.

    A confidence of zero constrains the mean return. ``infeasible`` is how to answer a target beyond reach: with a best
    effort or as infeasible.
    """

    portfolios: Portfolios
    target: float
    confidence: float
    infeasible: str = "best_effort"

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> ReturnConstrainedPortfolio:
        target_on = spec.get("target_on") or TAIL
        if target_on not in (TAIL, MEAN):
            raise InvalidInput("target_on must be tail or mean", ("target_on",))
        if target_on == MEAN and spec.get("confidence"):
            raise InvalidInput("a target on the mean return has no confidence; leave it out", ("confidence",))
        confidence = number(spec, "confidence", 0.0 if target_on == MEAN else _CONFIDENCE)
        if not 0 <= confidence < 1:
            raise InvalidInput("the confidence must be at least 0 and below 1, such as 0.95", ("confidence",))
        infeasible = spec.get("infeasible") or INFEASIBLE[0]
        if infeasible not in INFEASIBLE:
            raise InvalidInput("infeasible must be best_effort or error", ("infeasible",))
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
        """Return how far the return, net of turnover, is above the target: (..., m), (..., m) → (...)."""
        slack = (decisions * outcomes).sum(-1) - self.target
        return slack - self.portfolios.charge(decisions) if self.portfolios.rules.turnover_cost else slack

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        scale = abs(self.target) + (decisions * outcomes).abs().sum(-1)
        return self.portfolios.hold(decisions) & (self.slack(decisions, outcomes) >= -TOLERANCE * scale)

    def within(self, decisions: Tensor) -> Tensor:
        return self.portfolios.hold(decisions)

    def breaches(self, decision: Tensor) -> list[Breach]:
        return self.portfolios.rules.breaches(decision.numpy())

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """Return by how much the least variance over the scenarios falls for one more unit of each binding rule."""
        answer = self.prescribe(outcomes[None].double(), weights)
        if answer.status[0] != Status.OPTIMAL:
            return []
        best, atoms, shares = answer.decisions[0].numpy(), outcomes.double().numpy(), weights.double().numpy()
        target = edge_of_tail(atoms, shares, best, self.confidence)
        return prices_of(self.portfolios.rules, 2 * self.portfolios.covariance.numpy() @ best, best, target, 0.0)

    def facts(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
        facts = facts_of(self.portfolios, decision, outcomes, weights, self.confidence)
        return {"target_return": self.target, **facts}

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        if risk.cvar_weight:
            raise InvalidInput("the cost of this portfolio is certain: state the risk by confidence", ("risk",))
        deadline = math.inf if time_limit_seconds is None else time.monotonic() + time_limit_seconds
        shares = weights.expand(outcomes.shape[:2]).double()
        simple = self.decide(torch.einsum("bky,bk->by", outcomes, shares)).numpy()
        each = zip(outcomes.double().numpy(), shares.numpy(), simple, strict=True)
        solutions = [self._prescribe_one(*one, deadline) for one in each]
        decisions = torch.from_numpy(np.stack([one.decision for one in solutions]))
        reasons, variances = tuple(one.reason for one in solutions), self.portfolios.variance(decisions)
        bounds = torch.tensor([one.bound for one in solutions], dtype=torch.float64)
        shares_open = [GAP.share(*one, 0.0) for one in zip(variances.tolist(), bounds.tolist(), strict=True)]
        return Prescription(
            decisions,
            variances,
            [one.status for one in solutions],
            reasons if any(reasons) else (),
            tuple(one.solver for one in solutions) if any(one.solver for one in solutions) else (),
            gaps=torch.tensor(shares_open, dtype=torch.float64),
            bounds=bounds,
        )

    def _prescribe_one(self, atoms: Array, weights: Array, simple: Array, deadline: float) -> _PortfolioSolution:
        try:
            with deadlines.until(deadline):
                deadlines.check()
                tail = self.portfolios.keep_tail(atoms, weights, self.confidence, self.target)
        except OutOfTime:
            deadlines.check()
            reason = "time limit reached before hedging: this is the decision for the mean outcome"
            return _PortfolioSolution(simple, Status.TIME_LIMIT, reason)
        if not tail.verified:
            reason = "the solver ran out of rounds before it proved this decision optimal"
            return _PortfolioSolution(tail.portfolio, Status.TIME_LIMIT, reason, solver=tail.solver)
        if tail.shortfall:
            status = Status.INFEASIBLE if self.infeasible == "error" else Status.BEST_EFFORT
            return _PortfolioSolution(tail.portfolio, status, self._reason(tail.shortfall), solver=tail.solver)
        variance = float(self.portfolios.variance(torch.from_numpy(tail.portfolio)))
        bound = self.portfolios.variance_bound(tail)
        # Differences this small relative to the variance of the whole budget are rounding.
        small = 1e-12 * float(self.portfolios.covariance.diagonal().mean()) * self.portfolios.rules.budget**2
        if replace(GAP, absolute=small).closes(variance, bound, 0.0):
            return _PortfolioSolution(tail.portfolio, Status.OPTIMAL, "", bound, tail.solver)
        return _PortfolioSolution(tail.portfolio, Status.BEST_EFFORT, _OPEN, bound, tail.solver)

    def _reason(self, shortfall: float) -> str:
        worst = f"in the worst {1 - self.confidence:.3g} of the scenarios" if self.confidence else "on average"
        return (
            f"no portfolio returns {self.target:g} {worst}; "
            f"the best one returns {self.target - shortfall:.6g}, {shortfall:.3g} less"
        )


def check_target(spec: dict[str, Any], returns: Array) -> list[str]:
    """Refuse a target that no portfolio reaches in returns (n, m) with the required confidence, or on average; return a
    warning if a constant portfolio falls short."""
    problem = ReturnConstrainedPortfolio.from_spec(with_risk(spec, None))
    target, confidence = problem.target, problem.confidence
    foreseen = _returns_with_foresight(problem.portfolios, returns)
    reached = foreseen >= target - 1e-9 * (abs(target) + np.abs(foreseen).max())
    if confidence:
        error = math.sqrt(confidence * (1 - confidence) / len(foreseen))
        if reached.mean() < confidence - _STANDARD_ERRORS * error:
            best = float(np.quantile(foreseen, 1 - confidence, method="lower"))
            raise InvalidInput(
                f"the target is out of reach: even with perfect foresight, portfolios return {target:g} in "
                f"{reached.mean():.1%} of the rows, and {confidence:.0%} is required; the largest target within reach "
                f"is {best:.6g}",
                ("target_return",),
            )
    elif foreseen.mean() + _STANDARD_ERRORS * foreseen.std() / math.sqrt(len(foreseen)) < target:
        raise InvalidInput(
            f"the target is out of reach: even with perfect foresight, portfolios return {foreseen.mean():.6g} on "
            f"average, and {target:g} is required",
            ("target_return",),
        )
    constant = _best_constant_return(problem.portfolios, returns, confidence)
    if constant >= target:
        return []
    where = f"in the worst {1 - confidence:.3g} of the rows" if confidence else "on average"
    return [
        f"a constant portfolio returns at most {constant:.6g} {where}, and the target is {target:g}: it can be kept "
        "only if contexts predict returns"
    ]


def _spread_rows(returns: Array, count: int) -> Array:
    """Return at most ``count`` rows, evenly spread."""
    if len(returns) <= count:
        return returns
    return returns[np.linspace(0, len(returns) - 1, count).astype(np.int64)]


def _returns_with_foresight(portfolios: Portfolios, returns: Array) -> Array:
    """Return the return (rows,) of the best portfolio for each row."""
    if portfolios.rules.simple:
        return -portfolios.least_sum(torch.from_numpy(-_spread_rows(returns, _ROWS))).numpy()
    program = portfolios.program
    rows = program.lifted(_spread_rows(returns, _PROGRAMS))
    return np.array([row @ most(program, row) for row in rows]) * program.size


def _best_constant_return(portfolios: Portfolios, returns: Array, confidence: float) -> float:
    """Return the largest return of one portfolio for all rows in their worst 1 − confidence."""
    rows = portfolios.program.lifted(_spread_rows(returns, _PROGRAMS) if confidence else returns.mean(axis=0)[None])
    shares = np.full(len(rows), 1 / len(rows))
    return best_tail(portfolios.program, rows, shares, confidence)[1] * portfolios.program.size
