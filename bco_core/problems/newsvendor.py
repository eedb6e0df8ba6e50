"""The newsvendor, one item or several: c(z; y) = Σ_j u_j (y_j − z_j)⁺ + o_j (z_j − y_j)⁺, l_j ≤ z_j ≤ m_j.

Items do not interact, so every answer has a closed form: the decision for a point prediction is that prediction
clipped to the order bounds, and over weighted scenarios it is the weighted τ-quantile, τ = u/(u + o), clipped likewise
(the cost is convex in each z_j, so clipping the free optimum is optimal).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Prescription, Risk, Status
from bco_core.weighted import weighted_quantile


@dataclass(frozen=True)
class Newsvendor:
    """Unit costs and order bounds (d_y,), float64."""

    underage: Tensor
    overage: Tensor
    minimum: Tensor
    maximum: Tensor

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> Newsvendor:
        """Build from ``{"items": [{"underage_cost": 3, "overage_cost": 1, "minimum_order": 0}]}``."""
        items = spec.get("items") or []
        if not items:
            raise InvalidInput("a newsvendor needs at least one item", ("items",))

        def column(name: str, default: float | None = None) -> Tensor:
            values = [item.get(name) for item in items]
            return torch.tensor([default if v is None else v for v in values], dtype=torch.float64)

        problem = Newsvendor(
            column("underage_cost"),
            column("overage_cost"),
            column("minimum_order", -math.inf),
            column("maximum_order", math.inf),
        )
        for name, values in (("underage_cost", problem.underage), ("overage_cost", problem.overage)):
            for item, value in enumerate(values.tolist()):
                if not (math.isfinite(value) and value > 0):
                    raise InvalidInput("a unit cost must be a positive number", ("items", item, name))
        for item, empty in enumerate((problem.minimum > problem.maximum).tolist()):
            if empty:
                raise InvalidInput("the minimum order is above the maximum order", ("items", item, "minimum_order"))
        return problem

    @property
    def outcome_dim(self) -> int:
        return len(self.underage)

    @property
    def decision_dim(self) -> int:
        return len(self.underage)

    @property
    def differentiable(self) -> bool:
        return True

    def decide(self, outcomes: Tensor) -> Tensor:
        return outcomes.clamp(self.minimum, self.maximum)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        short = outcomes - decisions
        return torch.where(short > 0, self.underage * short, -self.overage * short).sum(-1)

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        within = ((decisions >= self.minimum) & (decisions <= self.maximum)).all(-1)
        return within.expand(torch.broadcast_shapes(within.shape, outcomes.shape[:-1]))

    def prescribe(self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION) -> Prescription:
        if risk.cvar_weight:
            raise InvalidInput("the newsvendor prescribes for expected cost only", ("risk",))
        weights = weights.expand(outcomes.shape[:2]).to(outcomes)
        decisions = self.decide(weighted_quantile(outcomes, weights, self.underage / (self.underage + self.overage)))
        objective = (self.cost(decisions[:, None], outcomes) * weights).sum(-1)
        return Prescription(decisions, objective, [Status.OPTIMAL] * len(decisions))
