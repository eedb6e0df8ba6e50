"""The newsvendor, one item or several: c(z; y) = Σ_j u_j (y_j − z_j)⁺ + o_j (z_j − y_j)⁺, l_j ≤ z_j ≤ m_j.

Items do not interact, so every answer has a closed form: the decision for a point prediction is that prediction
clipped to the order bounds, and over weighted scenarios it is the weighted τ-quantile, τ = u/(u + o), clipped likewise
(the cost is convex in each z_j, so clipping the free optimum is optimal).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Prescription, Problem, Risk
from bco_core.weighted import weighted_quantile


@dataclass(frozen=True)
class Newsvendor(Problem):
    """Unit costs, order bounds and the most demand there can be, each (d_y,), float64."""

    underage: Tensor
    overage: Tensor
    minimum: Tensor
    maximum: Tensor
    most: Tensor

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> Newsvendor:
        """Build from ``{"items": [{"underage_cost": 3, "overage_cost": 1, "minimum_order": 0}]}``."""
        items = spec.get("items") or []
        if not items:
            raise InvalidInput("a newsvendor needs at least one item", ("items",))

        def column(name: str, default: float | None, allowed: Callable[[float], bool], remedy: str) -> Tensor:
            values = [default if item.get(name) is None else item[name] for item in items]
            for index, value in enumerate(values):
                if not (isinstance(value, int | float) and allowed(value)):
                    raise InvalidInput(remedy, ("items", index, name))
            return torch.tensor(values, dtype=torch.float64)

        def positive(value: float) -> bool:
            return math.isfinite(value) and value > 0

        def known(value: float) -> bool:
            return not math.isnan(value)

        def positive_or_unknown(value: float) -> bool:
            return value > 0

        problem = Newsvendor(
            column("underage_cost", None, positive, "a unit cost must be a positive number"),
            column("overage_cost", None, positive, "a unit cost must be a positive number"),
            column("minimum_order", -math.inf, known, "an order bound must be a number, or nothing for no limit"),
            column("maximum_order", math.inf, known, "an order bound must be a number, or nothing for no limit"),
            column("maximum_demand", math.inf, positive_or_unknown, "the most demand must be a positive number"),
        )
        for index, empty in enumerate((problem.minimum > problem.maximum).tolist()):
            if empty:
                raise InvalidInput("the minimum order is above the maximum order", ("items", index, "minimum_order"))
        return problem

    @property
    def outcome_dim(self) -> int:
        return len(self.underage)

    @property
    def cost_bound(self) -> float | None:
        """With demand from 0 to its stated most and orders between bounds, each item's cost is largest at a corner."""
        short = self.underage * (self.most - self.minimum).clamp_min(0)
        left = self.overage * self.maximum.clamp_min(0)
        bound = torch.maximum(short, left).sum().item()
        return bound if math.isfinite(bound) and bool((self.minimum >= 0).all()) else None

    @property
    def cost_bound_remedy(self) -> str:
        return "give every item a maximum_order and a maximum_demand"

    @property
    def cost_bound_breach(self) -> str:
        return "demand beyond the bounds that the problem states, from 0 to maximum_demand"

    @property
    def outcome_bounds(self) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(self.most), self.most

    @property
    def decides_alone(self) -> bool:
        return True

    def decide(self, outcomes: Tensor) -> Tensor:
        return outcomes.clamp(self.minimum, self.maximum)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        short = outcomes - decisions
        return torch.where(short > 0, self.underage * short, -self.overage * short).sum(-1)

    def within(self, decisions: Tensor) -> Tensor:
        return ((decisions >= self.minimum) & (decisions <= self.maximum)).all(-1)

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit: float | None = None
    ) -> Prescription:
        if risk.cvar_weight:
            raise InvalidInput("the newsvendor prescribes for expected cost only", ("risk",))
        weights = weights.to(outcomes)
        decisions = self.decide(weighted_quantile(outcomes, weights, self.underage / (self.underage + self.overage)))
        return self.optimal(decisions, outcomes, weights)
