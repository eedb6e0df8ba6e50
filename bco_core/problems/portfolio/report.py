"""Figures of a portfolio for planners, and the prices of the rules that bind it.

At the best portfolio the gradient of the objective and those of the binding rules, each times its price, add up to
zero. The prices are found by nonnegative least squares; if nothing balances, no prices are reported. A target on the
tail of the return binds through the scenarios in the tail, and through a mixture of those at its edge.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from bco_core.problems.base import Price
from bco_core.problems.portfolio.positions import Portfolios
from bco_core.problems.portfolio.rules import Rules, Where
from bco_core.solvers.dual_newton import Array
from bco_core.weighted_stats import sort_atoms, sorted_cvar

# Rules bind if they are within the first of their limit, relative to its scale; the second is the tolerance of balance.
_BINDS, _BALANCED = 1e-6, 1e-5
_SMALLEST = 1e-9


def facts_of(
    portfolios: Portfolios, decision: Tensor, outcomes: Tensor, weights: Tensor, tail: float | None = None
) -> dict[str, Any]:
    """Return figures of a portfolio (m,) over returns (K, m) with weights (K,): return, risk, turnover, and bounds.

    Returns are net of turnover; ``tail`` adds their mean over the worst 1 − tail of the weight.
    """
    rules = portfolios.rules
    charge = float(portfolios.charge(decision))
    returns = outcomes @ decision - charge
    variance = float(portfolios.variance(decision))
    facts: dict[str, Any] = {
        "expected_return": float(returns @ weights),
        "variance": variance,
        "volatility": math.sqrt(variance),
        "invested": float(decision.sum()),
    }
    if tail:
        facts["tail_return"] = -float(sorted_cvar(*sort_atoms(-returns, weights), tail))
    if rules.current is not None:
        facts |= {"turnover": float(portfolios.turnover(decision)), "turnover_cost": charge}
    lower, upper = rules.reach
    facts["bounds"] = {
        name: [low, high] for name, low, high in zip(rules.names, lower.tolist(), upper.tolist(), strict=True)
    }
    if portfolios.source:
        facts["covariance"] = portfolios.source
    return facts


def prices_of(rules: Rules, gradient: Array, positions: Array, target: list[Array], turnover: float) -> list[Price]:
    """Return the prices of binding rules at positions (m,) that minimise an objective with this gradient (m,) plus a
    cost per unit of turnover. ``target`` are gradients (m,) of the return through which a target binds, if one does."""
    # scipy.optimize is slow to import.
    from scipy.optimize import nnls

    m = len(positions)
    rows, places, n = rules.rows()
    lifted = np.concatenate([positions, *(_lifted(rules, positions, name) for name in _lifts(rules))])
    whole = np.zeros(n)
    whole[:m] = gradient
    charged = np.zeros(n)
    if rules.current is not None:
        charged[m : 2 * m] = 1.0
        whole += turnover * charged
    columns: list[Array] = []
    owners: list[Where] = []

    def add(column: Array, where: Where) -> None:
        columns.append(column)
        owners.append(where)

    for j in range(m):
        unit = np.zeros(n)
        unit[j] = 1.0
        if _meet(positions[j], rules.upper[j]):
            add(unit, ("assets", j, "maximum"))
        if _meet(positions[j], rules.lower[j]):
            # Nobody stated that positions are not negative, so that rule has no price to report.
            add(-unit, ("assets", j, "minimum") if rules.lower[j] else ())
    for (row, low, high), where in zip(rows, places, strict=True):
        value = float(row @ lifted)
        if _meet(value, high):
            add(row, where)
        if _meet(value, low):
            add(-row, ("fully_invested",) if where == ("budget",) else (*where[:-1], "minimum"))
    for one in target:
        column = rules.turnover_cost * charged
        column[:m] -= one
        add(column, ("target_return",))
    if not columns:
        return []
    matrix = np.stack(columns, axis=1)
    scales = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    scaled_prices, residual = nnls(matrix / scales, -whole)
    if residual > _BALANCED * max(float(np.linalg.norm(whole)), 1e-300):
        return []
    totals: dict[Where, float] = {}
    for where, value in zip(owners, (scaled_prices / scales).tolist(), strict=True):
        if where:
            totals[where] = totals.get(where, 0.0) + value
    return [Price(where, value) for where, value in totals.items() if value > _SMALLEST * float(np.abs(whole).max())]


def edge_of_tail(outcomes: Array, weights: Array, positions: Array, confidence: float) -> list[Array]:
    """Return gradients (m,) of the mean return in the worst 1 − confidence of scenarios (K, m), one for each scenario
    that may be the last one in the tail."""
    if not confidence:
        return [weights @ outcomes]
    returns, share = outcomes @ positions, 1 - confidence
    order = np.argsort(returns, kind="stable")
    last = order[min(int(np.searchsorted(np.cumsum(weights[order]), share - 1e-12)), len(order) - 1)]
    room = _BINDS * max(1.0, float(np.abs(returns).max()))
    inside = returns < returns[last] - room
    edge = np.flatnonzero(np.abs(returns - returns[last]) <= room)
    within = (weights[inside] @ outcomes[inside]) / share
    left = 1 - float(weights[inside].sum()) / share
    return [within + left * outcomes[k] for k in edge]


def _lifts(rules: Rules) -> list[str]:
    limits = {"turnover": rules.current, "long": rules.longest, "short": rules.shortest}
    return [name for name, limit in limits.items() if limit is not None]


def _lifted(rules: Rules, positions: Array, name: str) -> Array:
    if name == "turnover" and rules.current is not None:
        return np.abs(positions - rules.current)
    return positions.clip(min=0) if name == "long" else (-positions).clip(min=0)


def _meet(value: float, limit: float) -> bool:
    return bool(np.isfinite(limit)) and abs(value - limit) <= _BINDS * max(1.0, abs(limit))
