"""Weighted sample average approximation (Bertsimas and Kallus): rows weighted by similarity to the new context.

The weights come from a kernel (ENW), nearest neighbours or a random forest. Each has one setting, chosen by least cost
on validation rows. Kernels and neighbours use distances of contexts that are not standardised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.problems.base import DecisionProblem

# Weights (B, n) that sum to one, for new contexts (B, d_x).
Weights = Callable[[Tensor], Tensor]

# The paper's grid ends at 0.5, where its best values are; a wider one makes the baseline as strong as it can be.
BANDWIDTHS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
NEIGHBOURS = (5, 10, 20, 40, 80, 160)
LEAF_ROWS = (5, 10, 20, 40)
# Rows that together hold less than this share of the weight are left out.
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class WeightedHistory:
    """The rows of ``sample`` with a fitted weight function and its chosen setting."""

    sample: Sample
    weights: Weights
    setting: float

    def decisions(self, problem: DecisionProblem, contexts: Tensor) -> Tensor:
        """Return decisions (B, d_z) of least weighted cost over the history."""
        return _decisions(problem, self.sample, self.weights(contexts))


def kernel_weights(sample: Sample, bandwidth: float) -> Weights:
    """Return weights ∝ exp(−‖x − x_i‖ / h)."""
    return lambda contexts: torch.softmax(-torch.cdist(contexts, sample.contexts) / bandwidth, dim=1)


def neighbour_weights(sample: Sample, count: int) -> Weights:
    """Return equal weights of the nearest rows."""
    count = min(count, len(sample))

    def weights(contexts: Tensor) -> Tensor:
        nearest = torch.cdist(contexts, sample.contexts).topk(count, dim=1, largest=False).indices
        return torch.zeros(len(contexts), len(sample), dtype=torch.float64).scatter_(1, nearest, 1 / count)

    return weights


def forest_weights(sample: Sample, leaf_rows: int, seed: int = 0) -> Weights:
    """Return random-forest weights: each tree shares one vote among the rows in the new context's leaf."""
    from sklearn.ensemble import RandomForestRegressor

    forest = RandomForestRegressor(n_estimators=200, min_samples_leaf=leaf_rows, random_state=seed, n_jobs=1)
    outcomes = sample.outcomes.numpy()
    forest.fit(sample.contexts.numpy(), outcomes[:, 0] if outcomes.shape[1] == 1 else outcomes)
    leaves = forest.apply(sample.contexts.numpy())

    def weights(contexts: Tensor) -> Tensor:
        reached = forest.apply(contexts.numpy())
        total = np.zeros((len(contexts), len(sample)))
        for tree in range(leaves.shape[1]):
            together = reached[:, tree, None] == leaves[None, :, tree]
            total += together / together.sum(axis=1, keepdims=True)
        return torch.from_numpy(total / leaves.shape[1])

    return weights


def fit_enw(problem: DecisionProblem, train: Sample, validation: Sample) -> WeightedHistory:
    return _select(problem, train, validation, kernel_weights, BANDWIDTHS)


def fit_neighbours(problem: DecisionProblem, train: Sample, validation: Sample) -> WeightedHistory:
    return _select(problem, train, validation, neighbour_weights, NEIGHBOURS)


def fit_forest(problem: DecisionProblem, train: Sample, validation: Sample) -> WeightedHistory:
    return _select(problem, train, validation, forest_weights, LEAF_ROWS)


def _select(
    problem: DecisionProblem,
    train: Sample,
    validation: Sample,
    kind: Callable[..., Weights],
    settings: Sequence[float],
) -> WeightedHistory:
    """Return the weights with the setting of least validation cost."""
    fitted = [WeightedHistory(train, kind(train, setting), setting) for setting in settings]
    costs = [
        problem.cost(one.decisions(problem, validation.contexts), validation.outcomes).mean().item() for one in fitted
    ]
    return fitted[int(np.argmin(costs))]


def _decisions(problem: DecisionProblem, sample: Sample, weights: Tensor) -> Tensor:
    weights = torch.where(weights > _NEGLIGIBLE / len(sample), weights, torch.zeros_like(weights))
    outcomes = sample.outcomes.expand(len(weights), -1, -1)
    return problem.prescribe(outcomes, weights / weights.sum(dim=1, keepdim=True)).decisions
