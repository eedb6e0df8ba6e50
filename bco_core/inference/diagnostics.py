"""What is told of a posterior: how it was learned, how good it is, and a verdict that a planner can act on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.certificates import Certificate
from bco_core.data import FOLDS, Sample, Standardizer
from bco_core.problems.base import DecisionProblem
from bco_core.problems.constant import best_constant
from bco_core.regression import ridge
from bco_core.scenarios import Scenarios
from bco_core.select import Table

FEW_ROWS = 50
_RESIDUALS = 100


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


def regression_costs(problem: DecisionProblem, sample: Sample) -> Tensor | None:
    """Cost (m,) on each row of predicting by ridge regression and deciding over its residuals, without the row's fifth.

    None where there are too few rows for a regression.
    """
    count = len(sample)
    if count < 2 * FOLDS:
        return None
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    inputs = Standardizer.fit(sample.contexts).apply(sample.contexts)
    costs = torch.empty(count, dtype=torch.float64)
    for fold in order.chunk(FOLDS):
        others = torch.ones(count, dtype=torch.bool)
        others[fold] = False
        fitted = ridge(inputs[others], sample.outcomes[others])
        predicted = inputs @ fitted[:-1] + fitted[-1]
        residuals = (sample.outcomes - predicted)[others]
        picks = torch.linspace(0, len(residuals) - 1, min(_RESIDUALS, len(residuals))).long()
        atoms = residuals[residuals.sum(dim=1).argsort()[picks]]
        scenarios = Scenarios.equal(predicted[fold][:, None] + atoms, predicted[fold])
        decisions = problem.prescribe(scenarios.outcomes, scenarios.weights).decisions
        costs[fold] = problem.cost(decisions, sample.outcomes[fold])
    return costs
