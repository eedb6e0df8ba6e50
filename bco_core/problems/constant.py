"""Plain sample average approximation: one decision for all contexts, the best on the history."""

from __future__ import annotations

import torch
from torch import Tensor

from bco_core.problems.base import DecisionProblem, Prescription


def best_constant(problem: DecisionProblem, outcomes: Tensor) -> Prescription:
    """The constant decision of least mean cost over outcomes (n, d_y): a prescription with B = 1."""
    weights = torch.full((len(outcomes),), 1 / len(outcomes), dtype=outcomes.dtype)
    return problem.prescribe(outcomes[None], weights)
