"""Means and paired differences of realised costs, with standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error (infinite for a single observation)."""

    mean: float
    standard_error: float


def estimate(values: Tensor) -> Estimate:
    """Return the mean and standard error of independent values (n,)."""
    count = values.numel()
    error = values.std().item() / math.sqrt(count) if count > 1 else math.inf
    return Estimate(values.mean().item(), error)


def paired_difference(costs: Tensor, reference: Tensor) -> Estimate:
    """Return the mean of ``costs`` − ``reference`` on the same rows (n,): negative is better."""
    return estimate(costs - reference)
