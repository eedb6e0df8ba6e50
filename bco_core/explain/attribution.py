"""Which columns of a context drove its prediction: Shapley values against one baseline context.

A coalition S of columns predicts f̄ where columns of S are as in the context and all others as in the baseline. The
contribution of a column is its mean gain over all orders in which columns may join:

    linear        f̄ is affine in the context, so every order gives slope × (value − baseline)
    exact         all coalitions of up to :data:`MOST_EXACT` columns are predicted
    permutations  a sample of orders, each with its reverse; unbiased, with a fixed seed

Gains of one order telescope, so base + Σ contributions = prediction but for rounding, whichever way it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from bco_core.features.standardized import StandardizedFeatures
from bco_core.posterior import Posterior
from bco_core.predictors.linear import Linear, ReluAffine

MOST_EXACT = 7
ORDERS = 32
LINEAR, EXACT, PERMUTATIONS = "linear", "exact", "permutations"
_SEED = 0

# Contexts (n, d_x) → predictions (n, d_y).
Predict = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Attribution:
    """Of one prediction (d_y,): the baseline's ``base`` (d_y,) and ``contributions`` (columns, d_y)."""

    method: str
    base: Tensor
    contributions: Tensor
    prediction: Tensor

    @property
    def residual(self) -> Tensor:
        """What contributions leave unexplained, (d_y,): rounding."""
        return self.prediction - self.base - self.contributions.sum(dim=0)


def attribute(posterior: Posterior, context: Tensor, columns: Sequence[Sequence[int]], draws: Tensor) -> Attribution:
    """Of the draws' mean prediction at a context (d_x,), against the history's mean context.

    ``columns`` are the entries of a context that belong together, as those of one category do; all of them are in it.
    """
    baseline = mean_context(posterior)

    def predict(contexts: Tensor) -> Tensor:
        seen = posterior.encode(contexts).to(draws.dtype)
        return posterior.predictor.predict_encoded(draws, seen).mean(dim=0)

    predictor = posterior.predictor
    linear = isinstance(predictor, Linear) and not isinstance(predictor, ReluAffine)
    if linear and isinstance(predictor.features, StandardizedFeatures):
        return _linear(predict, context, baseline, columns)
    return shapley(predict, context, baseline, columns)


def mean_context(posterior: Posterior) -> Tensor:
    """The history's mean context (d_x,); of a category, the share of rows that have it."""
    return posterior.predictor.features.to_arrays()[1]["context_mean"]


def _linear(predict: Predict, context: Tensor, baseline: Tensor, columns: Sequence[Sequence[int]]) -> Attribution:
    """One column at a time is moved, since no column changes what another one does."""
    found = predict(torch.stack([baseline, context, *(_moved(baseline, context, columns, [j]) for j in _all(columns))]))
    return Attribution(LINEAR, found[0], found[2:] - found[0], found[1])


def shapley(predict: Predict, context: Tensor, baseline: Tensor, columns: Sequence[Sequence[int]]) -> Attribution:
    """Over all coalitions where columns are few, else over a sample of orders."""
    if len(columns) <= MOST_EXACT:
        return _exact(predict, context, baseline, columns)
    generator = torch.Generator().manual_seed(_SEED)
    drawn = [torch.randperm(len(columns), generator=generator).tolist() for _ in range(ORDERS // 2)]
    orders = [order for one in drawn for order in (one, one[::-1])]
    ends = [_moved(baseline, context, columns, []), _moved(baseline, context, columns, _all(columns))]
    between = [
        _moved(baseline, context, columns, order[:joined]) for order in orders for joined in range(1, len(columns))
    ]
    found = predict(torch.stack([*ends, *between]))
    base, prediction = found[0], found[1]
    steps = found[2:].view(len(orders), len(columns) - 1, -1)
    path = torch.cat([base.expand(len(orders), 1, -1), steps, prediction.expand(len(orders), 1, -1)], dim=1)
    gains, contributions = path.diff(dim=1), torch.zeros(len(columns), len(base), dtype=torch.float64)
    for order, gained in zip(orders, gains, strict=True):
        contributions[order] += gained / len(orders)
    return Attribution(PERMUTATIONS, base, contributions, prediction)


def _exact(predict: Predict, context: Tensor, baseline: Tensor, columns: Sequence[Sequence[int]]) -> Attribution:
    count = len(columns)
    coalitions = [chosen for size in range(count + 1) for chosen in combinations(range(count), size)]
    found = predict(torch.stack([_moved(baseline, context, columns, chosen) for chosen in coalitions]))
    value = dict(zip(coalitions, found, strict=True))
    contributions = torch.zeros(count, found.shape[1], dtype=torch.float64)
    for chosen in coalitions:
        share = 1 / (count * math.comb(count - 1, len(chosen))) if len(chosen) < count else 0.0
        for j in set(range(count)) - set(chosen):
            contributions[j] += share * (value[tuple(sorted((*chosen, j)))] - value[chosen])
    return Attribution(EXACT, found[0], contributions, found[-1])


def _all(columns: Sequence[Sequence[int]]) -> range:
    return range(len(columns))


def _moved(baseline: Tensor, context: Tensor, columns: Sequence[Sequence[int]], chosen: Sequence[int]) -> Tensor:
    """The baseline with the chosen columns as in the context."""
    moved = baseline.clone()
    entries = [entry for j in chosen for entry in columns[j]]
    moved[entries] = context[entries]
    return moved
