"""Warm starts of decision-focused learning: a good predictor, shifted to where its decisions cost least.

Decision costs are flat or kinked far from the optimum, and a network that starts there learns slowly and overfits on
its way. So a member starts from ridge regression on its linear path and a fit to squared error of the rest, shifted by
the constant that makes its decisions cheapest on its own training rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bco_core.gibbs import GibbsTarget
from bco_core.predictors.base import Predictor
from bco_core.problems.base import EXPECTATION, DecisionProblem, Prescription, Risk
from bco_core.regression import ridge

_SHIFT_STEPS = 120


class SquaredError(DecisionProblem):
    """The problem of predicting well: cost ½‖(z − y)/s‖², averaged over outcomes, with s their spread."""

    def __init__(self, spread: Tensor) -> None:
        self.spread = spread

    @property
    def outcome_dim(self) -> int:
        return len(self.spread)

    def decide(self, outcomes: Tensor) -> Tensor:
        return outcomes

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return 0.5 * ((decisions - outcomes) / self.spread).square().mean(-1)

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        return self.optimal((outcomes * weights[..., None]).sum(1), outcomes, weights)


def ridge_start(predictor: Predictor, encoded: Tensor, standardized: Tensor, rows: Tensor, loc: Tensor) -> Tensor:
    """Return ``loc`` (R, d) with each member's linear path, if there is one, set to its ridge regression.

    ``encoded`` (n, width) and ``standardized`` outcomes (n, d_y) are of all rows, ``rows`` (R, m) of each member.
    """
    if not predictor.linear_dim:
        return loc
    paths = [ridge(encoded[r].double(), standardized[r].double()).flatten() for r in rows]
    loc = loc.clone()
    loc[:, -predictor.linear_dim :] = torch.stack(paths).to(loc)
    return loc


def shift_to_decisions(target: GibbsTarget, encoded: Tensor, rows: Tensor, loc: Tensor) -> Tensor:
    """Return ``loc`` (R, d) with output biases shifted by the constant of least decision cost on the rows (R, m)."""
    predictor = target.predictor
    with torch.no_grad():
        predictions = predictor.unclipped(loc, encoded[rows])
    spread = predictor.outcomes.scale * predictor.features.shrink

    def cost(shift: Tensor) -> Tensor:
        shifted = predictions + (shift * spread)[:, None]
        return target.losses(predictor.clip(shifted), rows).mean(dim=1)

    shift = torch.zeros(len(loc), len(spread), dtype=torch.float64)
    first, second = torch.zeros_like(shift), torch.zeros_like(shift)
    for step in range(1, _SHIFT_STEPS + 1):
        shift.requires_grad_()
        (gradient,) = torch.autograd.grad(cost(shift).sum(), shift)
        first.lerp_(gradient, 0.1)
        second.lerp_(gradient.square(), 0.01)
        rate = 0.1 * (1 + math.cos(math.pi * step / _SHIFT_STEPS))
        size = (second / (1 - 0.99**step)).sqrt() + 1e-12
        shift = shift.detach() - rate * (first / (1 - 0.9**step)) / size
    better = cost(shift) < cost(torch.zeros_like(shift))
    loc = loc.clone()
    loc[:, -len(spread) :] += torch.where(better[:, None], shift, torch.zeros_like(shift)).to(loc)
    return loc
