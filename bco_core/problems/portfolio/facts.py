"""What a planner asks of a portfolio besides its cost."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from bco_core.problems.portfolio.positions import Portfolios
from bco_core.weighted_stats import sort_atoms, sorted_cvar


def facts_of(
    portfolios: Portfolios, decision: Tensor, outcomes: Tensor, weights: Tensor, tail: float | None = None
) -> dict[str, Any]:
    """Of a portfolio (m,) over returns (K, m) with weights (K,): return, risk, turnover, and the bounds of positions.

    Returns are what is left after turnover; ``tail`` adds their mean over the worst 1 − tail of the weight.
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
