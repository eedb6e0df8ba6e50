"""A history of predictions and outcomes, and leave-one-out scenarios from its formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bco_core.predictive import Carrier, History

Array = np.ndarray[Any, Any]


def make_history(items: int, carry: str, bandwidth: float | None, rows: int = 60) -> tuple[History, torch.Tensor]:
    draw = torch.Generator().manual_seed(items)
    features = torch.randn(rows, 2, generator=draw, dtype=torch.float64)
    predictions = 10 + 2 * torch.randn(rows, items, generator=draw, dtype=torch.float64)
    outcomes = predictions + torch.randn(rows, items, generator=draw, dtype=torch.float64)
    shrink = torch.full((items,), 0.9, dtype=torch.float64)
    return History(predictions, outcomes, outcomes.std(dim=0), Carrier(carry, bandwidth, shrink)), features


def leave_one_out(history: History, row: int) -> tuple[Array, Array]:
    """Return atoms (H − 1, d_y) and their weights for one row, from the other rows only."""
    others = np.arange(len(history)) != row
    predictions, outcomes = history.predictions.numpy(), history.outcomes.numpy()
    atoms = outcomes[others]
    if history.carrier.carry == "shift":
        atoms = predictions[row] + history.carrier.shrink.numpy() * (outcomes - predictions)[others]
    far = np.linalg.norm((predictions[others] - predictions[row]) / history.spread.numpy(), axis=1)
    shares = np.ones(len(far)) if history.carrier.bandwidth is None else np.exp(-far / history.carrier.bandwidth)
    return atoms, shares / shares.sum()
