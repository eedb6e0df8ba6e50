"""What is told of a posterior: how it was learned, how good it is, and a verdict that a planner can act on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.certificates import Certificate
from bco_core.data import FOLDS
from bco_core.problems.base import DecisionProblem
from bco_core.problems.constant import best_constant

FEW_ROWS = 50
# Rows for people to read, such as the candidates of a selection with their costs.
Table = list[dict[str, Any]]


@dataclass(frozen=True)
class Quality:
    """``ok``, ``warn`` or ``bad``, with the reason in a sentence."""

    verdict: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """What every method tells. ``method`` is what was asked for, ``inference`` what it came to, and why.

    ``kl_weight`` and its reciprocal are the temperature that was used, for costs divided by ``cost_scale``.
    """

    quality: str
    reason: str
    policy: str
    kl_weight: float
    inverse_temperature: float
    cost_scale: float
    certificate: Certificate
    candidates: Table
    method: str = ""
    inference: str = ""
    inference_reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, texts, lists and dicts."""
        return asdict(self) | {"certificate": self.certificate.to_json()}


def constant_costs(problem: DecisionProblem, outcomes: Tensor) -> Tensor:
    """Cost (m,) of the best constant decision on each row, found without that row's fifth, as ours are."""
    order = torch.randperm(len(outcomes), generator=torch.Generator().manual_seed(0))
    costs = torch.empty(len(outcomes), dtype=outcomes.dtype)
    for fold in order.chunk(FOLDS):
        others = torch.ones(len(outcomes), dtype=torch.bool)
        others[fold] = False
        decision = best_constant(problem, outcomes[others] if others.any() else outcomes).decisions
        costs[fold] = problem.cost(decision, outcomes[fold])
    return costs
