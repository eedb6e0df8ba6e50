"""Whether a target can be reached at all, as far as a history of returns tells, before anything is learned.

Whoever knew every row's returns beforehand would hold the best portfolio for each. No predictor does better, so a
target that even this misses too often is out of reach. A target above what a portfolio that never changes reaches lives
on what contexts tell.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from bco_core.errors import InvalidInput
from bco_core.problems.portfolio.positions import Portfolios
from bco_core.problems.portfolio.return_constrained import ReturnConstrainedPortfolio
from bco_core.problems.portfolio.risk import with_risk
from bco_core.solvers.dual_newton import Array
from bco_core.solvers.portfolio_qp import best_tail, most

# Rows that are looked at, evenly spread over the history: of these many, and of fewer by linear programs.
_ROWS, _PROGRAMS = 20_000, 300
_STANDARD_ERRORS = 2.0


def check_reach(spec: dict[str, Any], returns: Array) -> list[str]:
    """Refuse a target that no portfolio reaches in returns (n, m) as often as is asked, or on average; say how far one
    that does not change with the context falls short."""
    problem = ReturnConstrainedPortfolio.from_spec(with_risk(spec, None))
    target, confidence = problem.target, problem.confidence
    foreseen = _foreseen(problem.portfolios, returns)
    reached = foreseen >= target - 1e-9 * (abs(target) + np.abs(foreseen).max())
    if confidence:
        error = math.sqrt(confidence * (1 - confidence) / len(foreseen))
        if reached.mean() < confidence - _STANDARD_ERRORS * error:
            best = float(np.quantile(foreseen, 1 - confidence, method="lower"))
            raise InvalidInput(
                f"the target is out of reach: even if all returns were known beforehand, portfolios return {target:g} "
                f"in {reached.mean():.1%} of the rows, and {confidence:.0%} is asked; the largest target that they "
                f"reach so often is {best:.6g}",
                ("target_return",),
            )
    elif foreseen.mean() + _STANDARD_ERRORS * foreseen.std() / math.sqrt(len(foreseen)) < target:
        raise InvalidInput(
            f"the target is out of reach: even if all returns were known beforehand, portfolios return "
            f"{foreseen.mean():.6g} on average, and {target:g} is asked",
            ("target_return",),
        )
    constant = _constant(problem.portfolios, returns, confidence)
    if constant >= target:
        return []
    where = f"in the worst {1 - confidence:.3g} of the rows" if confidence else "on average"
    return [
        f"a portfolio that never changes returns at most {constant:.6g} {where}, and the target is {target:g}: it can "
        "only be kept as far as contexts tell returns"
    ]


def _spread(returns: Array, count: int) -> Array:
    """So many rows, evenly spread."""
    if len(returns) <= count:
        return returns
    return returns[np.linspace(0, len(returns) - 1, count).astype(np.int64)]


def _foreseen(portfolios: Portfolios, returns: Array) -> Array:
    """What the best portfolio for each row returns, (rows,)."""
    if portfolios.rules.simple:
        return -portfolios.least_sum(torch.from_numpy(-_spread(returns, _ROWS))).numpy()
    program = portfolios.program
    rows = program.lifted(_spread(returns, _PROGRAMS))
    return np.array([row @ most(program, row) for row in rows]) * program.size


def _constant(portfolios: Portfolios, returns: Array, confidence: float) -> float:
    """The most that one portfolio for all rows returns in their worst 1 − confidence."""
    rows = portfolios.program.lifted(_spread(returns, _PROGRAMS) if confidence else returns.mean(axis=0)[None])
    shares = np.full(len(rows), 1 / len(rows))
    return best_tail(portfolios.program, rows, shares, confidence)[1] * portfolios.program.size
