"""Statistics of weighted atoms, batched over contexts."""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_quantile(values: Tensor, weights: Tensor, levels: Tensor) -> Tensor:
    """Smallest value whose cumulated weight reaches a level: values (B, K, m), weights (B, K), levels (m,) → (B, m)."""
    ordered, order = values.sort(dim=1)
    cumulated = weights[:, :, None].expand_as(values).gather(1, order).cumsum(1)
    # Weights that sum to the level but for rounding have reached it.
    short = cumulated < levels * cumulated[:, -1:] * (1 - 1e-12)
    return ordered.gather(1, short.sum(dim=1, keepdim=True)).squeeze(1)


def conditional_value_at_risk(values: Tensor, weights: Tensor, level: float) -> Tensor:
    """Mean of the worst (1 − level) share, by the sorted-tail formula: values and weights (B, K) → (B,)."""
    ordered, order = values.sort(dim=1, descending=True)
    mass = weights.gather(1, order)
    tail = (1 - level) * mass.sum(dim=1, keepdim=True)
    before = mass.cumsum(1) - mass
    taken = torch.minimum(mass, (tail - before).clamp_min(0))
    return (ordered * taken).sum(1) / tail.squeeze(1)
