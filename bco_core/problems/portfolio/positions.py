"""The portfolios to choose from and their risk: l ≤ z ≤ u, 1'z ≤ budget, and limits on long and short sums.

Σ is a covariance matrix, or loadings and residual variances of a factor model. The kernels of
:mod:`bco_core.solvers.dual_newton` solve for it where they can, and :mod:`bco_core.solvers.cvar_cuts` elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from bco_core import deadline
from bco_core.errors import InvalidInput
from bco_core.solvers import highs
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
from bco_core.status import Status

# Positions, sums and returns are kept to this, relative to their own scale.
TOLERANCE = 1e-9
# A portfolio that may be above the best by more than this share of its cost's terms is looked for by the dense solver.
_GAP = 1e-9


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
        budget = number(spec, "budget", 1.0)
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

    def mean_variance(self, returns: Array) -> tuple[Array, list[bool]]:
        """The portfolio of least ½ z'Σz − y'z: (n, m) → (n, m), and for each whether the dense solver found it.

        Rows that Newton's method leaves open, as nearly riskless assets make them, are solved one by one by the dense
        solver; of two answers the one with the smaller gap is taken.
        """
        found, codes = mean_variance(self.factors, returns)
        dense = [False] * len(found)
        gaps, scale = self.gaps(found, returns)
        for row in np.flatnonzero(~(gaps <= _GAP * scale) | (codes != OPTIMAL)):
            deadline.check()
            other = mean_variance_portfolio(self.dense, returns[row])
            if other is None:
                continue
            (gap,), _ = self.gaps(other[None], returns[row : row + 1])
            if not gaps[row] <= gap:
                found[row], dense[row] = other, True
        return found, dense

    def gaps(self, portfolios: Array, returns: Array) -> tuple[Array, Array]:
        """How far ½ z'Σz − y'z may be above its least, (n,), infinite where z is no portfolio; and its terms' size.

        The cost is convex, so it falls by no more than its slope times the way to the portfolio that the slope likes
        best, which is filled greedily.
        """
        z, least = torch.from_numpy(portfolios), self.lower
        slope = (z @ self.loadings) @ self.loadings.T + z * self.deviations.square() - torch.from_numpy(returns)
        order = slope.argsort(dim=-1)
        most = self.budget - float(least.sum())
        room = (self.upper - least).clamp_max(most).expand_as(slope).gather(-1, order)
        left = (most - (room.cumsum(-1) - room)).clamp_min(0)
        taken = torch.minimum(room, left) * (slope.gather(-1, order) < 0)
        best = (slope * least).sum(-1) + (slope.gather(-1, order) * taken).sum(-1)
        gaps = ((slope * z).sum(-1) - best).where(self.hold(z), math.inf)
        size = 0.5 * self.variance(z) + (torch.from_numpy(returns) * z).abs().sum(-1)
        return gaps.numpy(), size.numpy()

    def keep_tail(self, scenarios: Array, weights: Array, level: float, target: float) -> Tail:
        """The portfolio of least variance whose worst tail over scenarios (K, m) reaches the target, or best effort."""
        rows = None
        if self.has_fast_kernel:
            weights = weights / weights.sum()
            portfolio, code, used = tail_portfolio(self.factors, scenarios, weights, level, target)
            if code == OPTIMAL:
                return Tail(portfolio, 0.0, True, used, np.full(len(used), target))
            rows = tail_rows(self.factors, scenarios, weights, level, target)
        return cvar_portfolio(self.dense, scenarios, weights, level, target, rows)

    def variance_bound(self, found: Tail) -> float:
        """What the variance of no portfolio is below that keeps the rows found.

        The variance is convex, so it is nowhere below its tangent at the portfolio, of which a linear program finds the
        least; its duals prove it.
        """
        z, lower = found.portfolio, self.lower.numpy()
        slope = 2 * (self.covariance.numpy() @ z)
        unit = float(np.abs(slope).max()) or 1.0
        size = np.abs(found.rows).max(axis=1, initial=1e-300)
        matrix = np.vstack([np.ones_like(z), found.rows / size[:, None]])
        upper = np.minimum(self.upper.numpy(), lower + self.budget - lower.sum())
        least, most = np.append(-np.inf, found.bounds / size), np.append(self.budget, np.full(len(size), np.inf))
        model = slope / unit, sparse.csr_array(matrix), least, most, lower, upper
        solver = highs.model_of(*model)
        for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            solver.setOptionValue(name, 1e-10)
        answer = highs.run(solver)
        if answer.status is not Status.OPTIMAL:
            return math.nan
        # The tangent at z is slope'z less the variance.
        return unit * highs.lower_bound(*model, answer) - float(self.variance(torch.from_numpy(z)))


def number(spec: dict[str, Any], name: str, default: float | None = None) -> float:
    """The number of this name in a specification, refused by its name if it is none."""
    value = spec.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput(f"{name} must be a number", (name,))
    return float(value)


def _limit(spec: dict[str, Any], name: str) -> float | None:
    if spec.get(name) is None:
        return None
    value = number(spec, name)
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
