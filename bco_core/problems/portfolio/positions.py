"""Feasible portfolios, their risk, and the solver for each set of rules.

Σ is a covariance matrix, or loadings and residual variances of a factor model. :mod:`bco_core.solvers.dual_newton`
solves under bounds and a budget alone, :mod:`bco_core.solvers.cvar_cuts` under limits on long and short sums, and
:mod:`bco_core.solvers.portfolio_qp` under all other rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.batch_kernels import product
from bco_core.problems.portfolio.risk import risk_of
from bco_core.problems.portfolio.rules import Rules, rules_of
from bco_core.solvers import portfolio_qp
from bco_core.solvers.cvar_cuts import DenseQP, Tail, cvar_portfolio, mean_variance_portfolio, point_portfolio
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
from bco_core.solvers.portfolio_qp import LiftedQP
from bco_core.status import CONIC, DENSE

# The dense solver is tried if a portfolio's gap exceeds this share of its cost's terms.
_GAP = 1e-9


@dataclass(frozen=True)
class Portfolios:
    """Feasible portfolios and their risk: rules, and Σ (m, m) as a matrix and as a factor model.

    ``lower`` and ``upper`` (m,) are the bounds of the rules. ``factors``, ``dense`` and ``program`` are the same set in
    the form of each solver; ``dense`` ignores groups, turnover and a budget to be used up. ``source`` tells how Σ was
    estimated, "" if it was stated.
    """

    rules: Rules
    covariance: Tensor
    loadings: Tensor
    deviations: Tensor
    lower: Tensor
    upper: Tensor
    factors: FactorQP
    dense: DenseQP
    program: LiftedQP
    source: str = ""

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> Portfolios:
        rules = rules_of(spec)
        covariance, factors = risk_of(spec, rules)
        bounds = rules.lower, rules.upper, rules.budget, rules.longest, rules.shortest
        return Portfolios(
            rules,
            torch.from_numpy(covariance),
            torch.from_numpy(factors.loadings),
            torch.from_numpy(factors.deviations),
            torch.from_numpy(rules.lower),
            torch.from_numpy(rules.upper),
            factors,
            DenseQP.of(covariance, *bounds),
            rules.program(covariance),
            str(spec.get("covariance_source") or ""),
        )

    @property
    def count(self) -> int:
        return len(self.lower)

    @property
    def has_fast_kernel(self) -> bool:
        return self.factors.rank <= MAXIMUM_RANK and self.rules.simple

    def variance(self, positions: Tensor) -> Tensor:
        """Return z'Σz: (..., m) → (...)."""
        # Without a gradient each row is multiplied alone, so that its digits do not depend on other rows.
        exposed = positions @ self.loadings if positions.requires_grad else product(positions, self.loadings)
        return exposed.square().sum(-1) + (positions * self.deviations).square().sum(-1)

    def turnover(self, positions: Tensor) -> Tensor:
        """Return Σ |z − current|: (..., m) → (...)."""
        if self.rules.current is None:
            return torch.zeros(positions.shape[:-1], dtype=positions.dtype)
        return (positions - torch.from_numpy(self.rules.current)).abs().sum(-1)

    def charge(self, positions: Tensor) -> Tensor:
        """Return the cost of turnover: (..., m) → (...)."""
        return self.rules.turnover_cost * self.turnover(positions)

    def hold(self, positions: Tensor) -> Tensor:
        """Return whether positions (..., m) keep all rules: (...)."""
        rules, tolerance = self.rules, self.rules.rounding_tolerance
        total = positions.sum(-1)
        holds = ((positions >= self.lower - tolerance) & (positions <= self.upper + tolerance)).all(-1)
        holds &= total <= rules.budget + tolerance
        if rules.full:
            holds &= total >= rules.budget - tolerance
        if rules.longest is not None:
            holds &= positions.clamp_min(0).sum(-1) <= rules.longest + tolerance
        if rules.shortest is not None:
            holds &= (-positions).clamp_min(0).sum(-1) <= rules.shortest + tolerance
        for group in rules.groups:
            value = (positions * torch.from_numpy(group.members)).sum(-1)
            holds &= (value >= group.minimum - tolerance) & (value <= group.maximum + tolerance)
        if rules.maximum_turnover is not None:
            holds &= self.turnover(positions) <= rules.maximum_turnover + tolerance
        return holds

    def least_variance(self, returns: Array, target: float) -> Array:
        """Return the portfolio of least variance that returns the target, or the best effort: (n, m) → (n, m)."""
        if self.has_fast_kernel:
            portfolios, codes = least_variance(self.factors, returns, target)
            left = np.flatnonzero(codes == UNSOLVED)
        else:
            portfolios, left = np.empty(returns.shape), np.arange(len(returns))
        for row in left:
            portfolios[row] = self._point(returns[row], target)
        return portfolios

    def _point(self, returns: Array, target: float) -> Array:
        deadlines.check()
        program = self.program
        if not self.rules.needs_program:
            return point_portfolio(self.dense, returns, target).portfolio
        row, nothing = program.lifted(returns)[None], np.zeros(len(program.lower))
        x = portfolio_qp.quick(program, nothing, row, np.array([target / program.size]))
        if x is None:
            x = portfolio_qp.keep_tail(program, returns[None], np.ones(1), 0.0, target).x
        return program.positions(x)

    def mean_variance(self, returns: Array, aversion: float = 1.0, exact: bool = False) -> tuple[Array, list[str]]:
        """Return the portfolio of least ½γ z'Σz − y'z + charge, (n, m) → (n, m), and its solver, "" for Newton's.

        The dense solver retries rows that Newton's method leaves open, as nearly riskless assets do, one by one; of two
        answers the one with the smaller gap is taken. Under more rules than bounds and a budget all rows are solved one
        by one, to the last digits if ``exact``.
        """
        scaled = returns / aversion
        if self.rules.lifts:
            rows = [self._one_mean_variance(row, aversion, exact) for row in scaled]
            return np.array(rows).reshape(returns.shape), [CONIC if exact else DENSE] * len(returns)
        portfolios, codes = mean_variance(self.factors, scaled)
        solvers = [""] * len(portfolios)
        gaps, scale = self.gaps(portfolios, returns, aversion)
        for row in np.flatnonzero(~(gaps <= _GAP * scale) | (codes != OPTIMAL)):
            deadlines.check()
            full = self.rules.full
            other = (
                self._one_mean_variance(scaled[row], aversion, exact=True)
                if full
                else mean_variance_portfolio(self.dense, scaled[row])
            )
            if other is None:
                continue
            (gap,), _ = self.gaps(other[None], returns[row : row + 1], aversion)
            if not gaps[row] <= gap:
                portfolios[row], solvers[row] = other, CONIC if full else DENSE
        return portfolios, solvers

    def _one_mean_variance(self, returns: Array, aversion: float, exact: bool) -> Array:
        deadlines.check()
        program = self.program
        linear = program.linear(returns, aversion)
        none, nothing = np.empty((0, len(linear))), np.empty(0)
        x = None if exact else portfolio_qp.quick(program, linear, none, nothing)
        if x is None:
            solved = portfolio_qp.least(program, linear, none, nothing)
            # Some portfolio always exists.
            x = portfolio_qp.most(program, -linear) if solved is None else solved.x
        return program.positions(x)

    def gaps(self, portfolios: Array, returns: Array, aversion: float = 1.0) -> tuple[Array, Array]:
        """Return upper bounds (n,) of how far ½ z'Σz − y'z/γ + charge/γ is above its minimum, infinite if z breaks a
        rule, and the size of its terms (n,).

        The cost is convex, so it falls by at most its slope times the step to the portfolio of least slope'z. That
        portfolio is filled greedily, or found by a linear program under more rules than bounds and a budget.
        """
        z, y = torch.from_numpy(portfolios), torch.from_numpy(returns / aversion)
        shared = product(product(z, self.loadings), self.loadings.T)
        slope = shared + z * self.deviations.square() - y
        if self.rules.lifts:
            gaps = torch.tensor([self._gap(*one, aversion) for one in zip(portfolios, slope.numpy(), strict=True)])
        else:
            gaps = (slope * z).sum(-1) - self.least_sum(slope)
        size = 0.5 * self.variance(z) + (y * z).abs().sum(-1) + self.charge(z) / aversion
        return gaps.double().where(self.hold(z), math.inf).numpy(), size.numpy()

    def least_sum(self, slope: Tensor) -> Tensor:
        """Return the least slope'z under bounds and budget: (n, m) → (n,)."""
        least, order = self.lower, slope.argsort(dim=-1)
        most = self.rules.budget - float(least.sum())
        room = (self.upper - least).clamp_max(most).expand_as(slope).gather(-1, order)
        left = (most - (room.cumsum(-1) - room)).clamp_min(0)
        taken = torch.minimum(room, left)
        if not self.rules.full:
            taken = taken * (slope.gather(-1, order) < 0)
        return (slope * least).sum(-1) + (slope.gather(-1, order) * taken).sum(-1)

    def _gap(self, portfolio: Array, slope: Array, aversion: float) -> float:
        program = self.program
        whole = np.concatenate([slope, program.price[self.count :] / aversion])
        none = np.empty((0, len(whole)))
        above = whole @ self.rules.lift(portfolio) - portfolio_qp.lower_bound(program, whole, none, np.empty(0))
        return float(above) * program.size

    def keep_tail(self, scenarios: Array, weights: Array, level: float, target: float) -> Tail:
        """Return the portfolio of least variance whose worst tail over scenarios (K, m) reaches the target, or the best
        effort."""
        rows = None
        if self.has_fast_kernel:
            weights = weights / weights.sum()
            portfolio, code, used = tail_portfolio(self.factors, scenarios, weights, level, target)
            if code == OPTIMAL:
                return Tail(portfolio, 0.0, True, used, np.full(len(used), target))
            rows = tail_rows(self.factors, scenarios, weights, level, target)
        if not self.rules.needs_program:
            return cvar_portfolio(self.dense, scenarios, weights, level, target, rows)._replace(solver=DENSE)
        tail = portfolio_qp.keep_tail(self.program, scenarios, weights, level, target)
        bounds = np.array([tail.bound * self.program.size])
        return Tail(self.program.positions(tail.x), tail.shortfall, True, tail.row[None], bounds, CONIC)

    def variance_bound(self, tail: Tail) -> float:
        """Return a lower bound of the variance of all portfolios that keep the tail's rows.

        The variance is convex, so it lies above its tangent at the portfolio. A linear program minimises the tangent,
        and its duals prove the bound.
        """
        z, program = tail.portfolio, self.program
        slope = np.zeros(len(program.lower))
        slope[: len(z)] = 2 * (self.covariance.numpy() @ z)
        rows = np.pad(tail.rows, ((0, 0), (0, len(slope) - tail.rows.shape[1])))
        least = portfolio_qp.lower_bound(program, slope, rows, tail.bounds / program.size)
        # The tangent at z is slope'z minus the variance.
        return least * program.size - float(self.variance(torch.from_numpy(z)))
