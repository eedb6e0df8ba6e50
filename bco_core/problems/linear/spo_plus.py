"""SPO+, the convex surrogate of the regret of deciding by a predicted cost (Elmachtoub and Grigas).

With costs c(y) affine in the outcomes and z*(y) a best decision for them,

    ℓ(ŷ, y) = c(2ŷ − y)'z*(y) − min_z c(2ŷ − y)'z,    ∂ℓ/∂ŷ = 2 ∂c' (z*(y) − z*(2ŷ − y)),

since 2c(ŷ) − c(y) = c(2ŷ − y). It is convex in ŷ, zero at ŷ = y, and no less than c(y)'(z*(ŷ) − z*(y)). Decisions
enter only by ∂c'z and by their cost at y = 0, so only numbers of the outcomes' dimension are kept, however many
decisions there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bco_core.problems.surrogate import Hindsight
from bco_core.solvers.linear_form import Array

# Of best decisions for outcomes (n, d_y): ∂c'z (n, d_y) and their cost at y = 0 (n,).
Best = Callable[[Array], tuple[Array, Array]]


def loss_and_slope(predictions: Array, outcomes: Array, known: Hindsight, best: Best) -> tuple[Array, Array]:
    """ℓ(ŷ, y) (n,) and ∂ℓ/∂ŷ (n, d_y); infinite, without a slope, where 2ŷ − y has no best decision."""
    beyond = 2 * predictions
    beyond -= outcomes
    slopes, levels = best(beyond)
    apart = known.slopes.numpy() - slopes
    # Up to rounding, nothing is cheaper than the best decision.
    losses = np.maximum(known.levels.numpy() - levels + np.einsum("ny,ny->n", apart, beyond), 0.0)
    missing = np.isnan(losses)
    if missing.any():
        losses[missing], apart[missing] = np.inf, 0.0
    apart *= 2
    return losses, apart


class _SpoPlus(torch.autograd.Function):
    """Predictions (n, d_y) → losses (n,)."""

    @staticmethod
    def forward(ctx: Any, predictions: Tensor, outcomes: Tensor, known: Hindsight, best: Best) -> Tensor:
        losses, slope = loss_and_slope(predictions.detach().numpy(), outcomes.numpy(), known, best)
        ctx.save_for_backward(torch.from_numpy(slope))
        return torch.from_numpy(losses)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradients[0][:, None], None, None, None


def spo_plus(predictions: Tensor, outcomes: Tensor, known: Hindsight, best: Best) -> Tensor:
    """ℓ(ŷ, y) (...) of predictions and outcomes, each (..., d_y), with the outcomes' own best decisions known."""
    shape = torch.broadcast_shapes(predictions.shape, outcomes.shape)
    flat = Hindsight(known.slopes.expand(shape).reshape(-1, shape[-1]), known.levels.expand(shape[:-1]).reshape(-1))
    predictions, outcomes = (one.expand(shape).reshape(-1, shape[-1]) for one in (predictions, outcomes.detach()))
    losses: Tensor = _SpoPlus.apply(predictions, outcomes, flat, best)  # type: ignore[no-untyped-call]
    return losses.view(shape[:-1])
