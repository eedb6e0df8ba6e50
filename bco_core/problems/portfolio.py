"""Portfolios: how much to hold of each asset before its return is known.

``ReturnConstrainedPortfolio`` minimises the variance z'Σz subject to the return: ŷ'z ≥ target for a prediction, and for
scenarios CVaR_α(target − Y'z) ≤ 0, the tractable form of P(Y'z ≥ target) ≥ α (section 6.3 of the paper). Outcomes
decide whether a decision keeps its constraint, not what it costs, and the decision has kinks, so it is learned by
Metropolis–Hastings. Where no portfolio reaches the target, the decision is a best effort: the portfolio of largest
return, or of largest mean return in the worst tail of its scenarios.

``MeanVariancePortfolio`` minimises ½γ z'Σz − y'z. It is linear in the outcome, so the best decision over scenarios is
the one for their mean, and its gradient by the prediction is known wherever no position sits exactly at a bound.

Both hold l ≤ z ≤ u and 1'z ≤ budget. Σ is a covariance matrix, or loadings and residual variances of a factor model.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bco_core.errors import InvalidInput, SolverFailure
from bco_core.problems.base import EXPECTATION, Prescription, Risk, Status
from bco_core.solvers.cvar_cuts import DenseQP, Tail, cvar_portfolio, point_portfolio
from bco_core.solvers.dual_newton import (
    MAXIMUM_RANK,
    OPTIMAL,
    UNSOLVED,
    Array,
    FactorQP,
    least_variance,
    mean_variance,
    tail_portfolio,
    tail_rows,
)

# Positions, sums and returns are kept to this, relative to their own scale.
TOLERANCE = 1e-9
INFEASIBLE = ("best_effort", "error")


@dataclass(frozen=True)
class Portfolios:
    """The portfolios to choose from and their risk: Σ (m, m), bounds (m,), budget, limits on long and short sums.

    Σ is also loadings (m, r) and deviations (m,) of a factor model.

    ``factors`` and ``dense`` are the same set in the form that each solver takes.
    """

    covariance: Tensor
    loadings: Tensor
    deviations: Tensor
    lower: Tensor
    upper: Tensor
    budget: float
    longest: float | None
    shortest: float | None
    factors: FactorQP
    dense: DenseQP

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> Portfolios:
        assets = spec.get("assets") or []
        if not assets:
            raise InvalidInput("a portfolio needs at least one asset", ("assets",))
        budget = _number(spec, "budget", 1.0)
        if budget <= 0:
            raise InvalidInput("the budget must be a positive number", ("budget",))
        lower = _bounds(assets, "minimum", 0.0)
        upper = _bounds(assets, "maximum", math.inf)
        for index in np.flatnonzero(lower > upper).tolist():
            raise InvalidInput("the minimum position is above the maximum", ("assets", index, "minimum"))
        if lower.sum() > budget:
            raise InvalidInput("the minimum positions together exceed the budget", ("budget",))
        longest, shortest = _limit(spec, "maximum_long"), _limit(spec, "maximum_short")
        for name, limit, needed in (
            ("maximum_long", longest, lower.clip(min=0).sum()),
            ("maximum_short", shortest, (-upper).clip(min=0).sum()),
        ):
            if limit is not None and needed > limit:
                raise InvalidInput(f"the bounds of the assets alone exceed {name}", (name,))
        covariance, factors = _risk(spec, lower, upper, budget)
        dense = DenseQP.of(covariance, lower, upper, budget, longest, shortest)
        return Portfolios(
            torch.from_numpy(covariance),
            torch.from_numpy(factors.loadings),
            torch.from_numpy(factors.deviations),
            torch.from_numpy(lower),
            torch.from_numpy(upper),
            budget,
            longest,
            shortest,
            factors,
            dense,
        )

    @property
    def count(self) -> int:
        return len(self.lower)

    @property
    def has_fast_kernel(self) -> bool:
        return self.factors.rank <= MAXIMUM_RANK and self.longest is None and self.shortest is None

    def variance(self, positions: Tensor) -> Tensor:
        """z'Σz: (..., m) → (...)."""
        return (positions @ self.loadings).square().sum(-1) + (positions * self.deviations).square().sum(-1)

    def hold(self, positions: Tensor) -> Tensor:
        """Whether positions (..., m) keep bounds, budget and limits."""
        room = TOLERANCE * max(1.0, self.budget)
        kept = ((positions >= self.lower - room) & (positions <= self.upper + room)).all(-1)
        kept &= positions.sum(-1) <= self.budget + room
        if self.longest is not None:
            kept &= positions.clamp_min(0).sum(-1) <= self.longest + room
        if self.shortest is not None:
            kept &= (-positions).clamp_min(0).sum(-1) <= self.shortest + room
        return kept

    def least_variance(self, returns: Array, target: float) -> Array:
        """The portfolio of least variance that returns the target, or its best effort: (n, m) → (n, m)."""
        if not self.has_fast_kernel:
            return np.array([point_portfolio(self.dense, row, target).portfolio for row in returns]).reshape(
                returns.shape
            )
        found, codes = least_variance(self.factors, returns, target)
        for row in np.flatnonzero(codes == UNSOLVED):
            found[row] = point_portfolio(self.dense, returns[row], target).portfolio
        return found

    def keep_tail(self, scenarios: Array, weights: Array, level: float, target: float) -> Tail:
        """The portfolio of least variance whose worst tail over scenarios (K, m) reaches the target, or best effort."""
        rows = None
        if self.has_fast_kernel:
            weights = weights / weights.sum()
            portfolio, code = tail_portfolio(self.factors, scenarios, weights, level, target)
            if code == OPTIMAL:
                return Tail(portfolio, 0.0, True)
            rows = tail_rows(self.factors, scenarios, weights, level, target)
        return cvar_portfolio(self.dense, scenarios, weights, level, target, rows)


def _number(spec: dict[str, Any], name: str, default: float | None = None) -> float:
    value = spec.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be a number", (name,))
    return float(value)


def _limit(spec: dict[str, Any], name: str) -> float | None:
    if spec.get(name) is None:
        return None
    value = _number(spec, name)
    if value < 0:
        raise InvalidInput(f"{name} must not be negative", (name,))
    return value


def _bounds(assets: list[dict[str, Any]], name: str, default: float) -> Array:
    values = [default if asset.get(name) is None else asset[name] for asset in assets]
    for index, value in enumerate(values):
        if not isinstance(value, int | float) or math.isnan(value) or value == -math.inf:
            raise InvalidInput(f"the {name} position must be a number", ("assets", index, name))
    return np.array(values, dtype=np.float64)


def _matrix(value: Any, where: tuple[str | int, ...], rows: int, columns: int | None) -> Array:
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput("a matrix is a list of rows of numbers, all of the same length", where) from None
    if matrix.ndim != 2 or len(matrix) != rows or columns not in (None, matrix.shape[1]):
        size = f"{rows} rows" if columns is None else f"{rows} rows of {columns} numbers"
        raise InvalidInput(f"with {rows} assets the matrix needs {size}", where)
    if not np.isfinite(matrix).all():
        raise InvalidInput("a matrix needs finite numbers", where)
    return matrix


def _risk(spec: dict[str, Any], lower: Array, upper: Array, budget: float) -> tuple[Array, FactorQP]:
    """The covariance matrix and its factor form, from whichever of the two is given."""
    count = len(lower)
    if (spec.get("covariance") is None) == (spec.get("factors") is None):
        raise InvalidInput("give the risk as covariance or as factors, exactly one of them", ("covariance",))
    if spec.get("factors") is not None:
        loadings = _matrix(spec["factors"].get("loadings"), ("factors", "loadings"), count, None)
        residual = np.array(spec["factors"].get("residual_variances"), dtype=np.float64)
        if residual.shape != (count,) or not (residual > 0).all() or not np.isfinite(residual).all():
            raise InvalidInput("every asset needs a positive residual variance", ("factors", "residual_variances"))
        covariance = loadings @ loadings.T + np.diag(residual)
        return covariance, FactorQP(loadings, np.sqrt(residual), lower, upper, budget)
    covariance = _matrix(spec["covariance"], ("covariance",), count, count)
    if np.abs(covariance - covariance.T).max() > 1e-9 * np.abs(covariance).max():
        raise InvalidInput("the covariance matrix is not symmetric", ("covariance",))
    covariance = (covariance + covariance.T) / 2
    values = np.linalg.eigvalsh(covariance)
    if not values[0] > 1e-10 * values[-1]:
        raise InvalidInput("the covariance matrix must be positive definite", ("covariance",))
    return covariance, FactorQP.of(covariance, lower, upper, budget)


@dataclass(frozen=True)
class ReturnConstrainedPortfolio:
    """Least variance under a return that must be kept with this confidence.

    ``infeasible`` says what a target beyond reach is called: a best effort, or an infeasible answer.
    """

    portfolios: Portfolios
    target: float
    confidence: float
    infeasible: str = "best_effort"

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> ReturnConstrainedPortfolio:
        confidence = _number(spec, "confidence", 0.95)
        if not 0 <= confidence < 1:
            raise InvalidInput("the confidence must be at least 0 and below 1, such as 0.95", ("confidence",))
        infeasible = spec.get("infeasible") or INFEASIBLE[0]
        if infeasible not in INFEASIBLE:
            raise InvalidInput("a target beyond reach may be met by best_effort or be an error", ("infeasible",))
        target = _number(spec, "target_return")
        return ReturnConstrainedPortfolio(Portfolios.from_spec(spec), target, confidence, infeasible)

    @property
    def outcome_dim(self) -> int:
        return self.portfolios.count

    @property
    def decision_dim(self) -> int:
        return self.portfolios.count

    @property
    def differentiable(self) -> bool:
        return False

    @property
    def cost_bound(self) -> float | None:
        return None

    @property
    def cost_floor(self) -> float:
        return 0.0

    @property
    def relaxation(self) -> ReturnConstrainedPortfolio:
        return self

    def decide(self, outcomes: Tensor) -> Tensor:
        rows = outcomes.detach().reshape(-1, self.outcome_dim).numpy()
        return torch.from_numpy(self.portfolios.least_variance(rows, self.target)).view(outcomes.shape)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        variance = self.portfolios.variance(decisions)
        if decisions.shape == outcomes.shape:
            return variance
        return variance.expand(torch.broadcast_shapes(variance.shape, outcomes.shape[:-1]))

    def slack(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """How far the return stays above the target: (..., m), (..., m) → (...)."""
        return (decisions * outcomes).sum(-1) - self.target

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        scale = abs(self.target) + (decisions * outcomes).abs().sum(-1)
        return self.portfolios.hold(decisions) & (self.slack(decisions, outcomes) >= -TOLERANCE * scale)

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit: float | None = None
    ) -> Prescription:
        if risk.cvar_weight:
            raise InvalidInput("the cost is certain here; the risk is in the return, by its confidence", ("risk",))
        until = math.inf if time_limit is None else time.monotonic() + time_limit
        shares = weights.expand(outcomes.shape[:2]).double()
        simple = self.decide(torch.einsum("bky,bk->by", outcomes, shares)).numpy()
        found = [self._prescribe_one(*one, until) for one in zip(outcomes.numpy(), shares.numpy(), simple, strict=True)]
        decisions = torch.from_numpy(np.stack([decision for decision, _, _ in found]))
        status, reasons = [status for _, status, _ in found], tuple(reason for _, _, reason in found)
        return Prescription(decisions, self.portfolios.variance(decisions), status, reasons if any(reasons) else ())

    def _prescribe_one(self, atoms: Array, weights: Array, simple: Array, until: float) -> tuple[Array, Status, str]:
        if time.monotonic() > until:
            return simple, Status.TIME_LIMIT, "there was no time to hedge: this is the decision for the mean outcome"
        tail = self.portfolios.keep_tail(atoms, weights, self.confidence, self.target)
        if not tail.verified:
            return tail.portfolio, Status.TIME_LIMIT, "the allowed rounds did not suffice to prove this decision best"
        if not tail.shortfall:
            return tail.portfolio, Status.OPTIMAL, ""
        status = Status.INFEASIBLE if self.infeasible == "error" else Status.BEST_EFFORT
        return tail.portfolio, status, self._reason(tail.shortfall)

    def _reason(self, shortfall: float) -> str:
        worst = f"in the worst {1 - self.confidence:.3g} of the scenarios" if self.confidence else "on average"
        return (
            f"no portfolio returns {self.target:g} {worst}; "
            f"the best there is returns {self.target - shortfall:.6g}, {shortfall:.3g} less"
        )


@dataclass(frozen=True)
class MeanVariancePortfolio:
    """Least ½γ z'Σz − y'z, with risk aversion γ."""

    portfolios: Portfolios
    risk_aversion: float

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> MeanVariancePortfolio:
        aversion = _number(spec, "risk_aversion", 1.0)
        if aversion <= 0:
            raise InvalidInput("the risk aversion must be a positive number", ("risk_aversion",))
        return MeanVariancePortfolio(Portfolios.from_spec(spec), aversion)

    @property
    def outcome_dim(self) -> int:
        return self.portfolios.count

    @property
    def decision_dim(self) -> int:
        return self.portfolios.count

    @property
    def differentiable(self) -> bool:
        return True

    @property
    def cost_bound(self) -> float | None:
        return None

    @property
    def relaxation(self) -> MeanVariancePortfolio:
        return self

    def decide(self, outcomes: Tensor) -> Tensor:
        decisions: Tensor = _MeanVariance.apply(outcomes, self)  # type: ignore[no-untyped-call]
        return decisions

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return 0.5 * self.risk_aversion * self.portfolios.variance(decisions) - (decisions * outcomes).sum(-1)

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        kept = self.portfolios.hold(decisions)
        return kept.expand(torch.broadcast_shapes(kept.shape, outcomes.shape[:-1]))

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit: float | None = None
    ) -> Prescription:
        if risk.cvar_weight:
            raise InvalidInput("the mean-variance portfolio prescribes for expected cost only", ("risk",))
        weights = weights.expand(outcomes.shape[:2]).to(outcomes)
        decisions = self.decide(torch.einsum("bky,bk->by", outcomes, weights))
        objective = (self.cost(decisions[:, None], outcomes) * weights).sum(-1)
        return Prescription(decisions, objective, [Status.OPTIMAL] * len(decisions))

    def solve(self, outcomes: Tensor) -> Tensor:
        rows = outcomes.detach().double().reshape(-1, self.outcome_dim).numpy() / self.risk_aversion
        found, codes = mean_variance(self.portfolios.factors, rows)
        if (codes != OPTIMAL).any():
            raise SolverFailure("a mean-variance portfolio was not found: are the returns and the covariance sensible?")
        return torch.from_numpy(found).view(outcomes.shape)

    def pull_back(self, decisions: Tensor, gradient: Tensor) -> Tensor:
        """∂L/∂y (..., m) from ∂L/∂z (..., m) at the solution.

        Where positions are strictly between their bounds, z moves by P dy/γ with P the inverse of Σ on those positions,
        projected to a constant sum where the budget is used up. P is symmetric.
        """
        factors, room = self.portfolios.factors, TOLERANCE * max(1.0, self.portfolios.budget)
        scale = torch.from_numpy(1 / factors.deviations)
        lower, upper = self.portfolios.lower, self.portfolios.upper
        free = ((decisions > lower + room * 1e-3) & (decisions < upper - room * 1e-3)).double()
        tight = (decisions.sum(-1, keepdim=True) >= self.portfolios.budget - room).double()
        columns = torch.cat([scale[None], torch.from_numpy(factors.loadings.T) * scale])
        used = torch.cat([tight, torch.ones(*tight.shape[:-1], len(columns) - 1, dtype=torch.float64)], dim=-1)
        masked = columns * free[..., None, :] * used[..., None]
        system = masked @ columns.T * used[..., None, :]
        diagonal = torch.ones(len(columns), dtype=torch.float64)
        diagonal[0] = 1e-30
        system = system + torch.diag_embed(diagonal.where(used > 0, 1.0))
        # A used-up budget with no position left to move pins nothing: its own row is then zero.
        system[..., 0, 0] = torch.where(system[..., 0, 0] < 1e-20, 1.0, system[..., 0, 0])
        right = gradient * scale
        multipliers = torch.linalg.solve(system, (masked @ right[..., None]))
        moved = (right - (multipliers.transpose(-1, -2) @ (columns * used[..., None])).squeeze(-2)) * free
        gradients: Tensor = moved * scale / self.risk_aversion
        return gradients


class _MeanVariance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outcomes: Tensor, problem: MeanVariancePortfolio) -> Tensor:
        decisions = problem.solve(outcomes)
        ctx.save_for_backward(decisions)
        ctx.problem = problem
        return decisions

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (decisions,) = ctx.saved_tensors
        problem: MeanVariancePortfolio = ctx.problem
        return problem.pull_back(decisions, gradients[0]), None
