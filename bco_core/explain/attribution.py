"""Attribution of a prediction to the columns of its context: Shapley values against one baseline context.

A coalition S of columns has the prediction f̄ of the context whose columns in S are those of the context and whose other
columns are those of the baseline. The contribution of a column is its mean gain over all orders in which columns join:

    linear        f̄ is affine in the context, so every order gives slope × (value − baseline)
    exact         all coalitions of up to :data:`MOST_EXACT` columns are predicted
    permutations  a sample of orders, each with its reverse; unbiased, with a fixed seed

The gains of one order telescope, so base + Σ contributions = prediction up to rounding in all three.
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
    """Shapley values of a ``prediction`` (d_y,): the baseline's ``base`` (d_y,), ``contributions`` (columns, d_y)."""

    method: str
    base: Tensor
    contributions: Tensor
    prediction: Tensor

    @property
    def residual(self) -> Tensor:
        """The unexplained remainder (d_y,), which is rounding."""
        return self.prediction - self.base - self.contributions.sum(dim=0)


def attribute(posterior: Posterior, context: Tensor, columns: Sequence[Sequence[int]], draws: Tensor) -> Attribution:
    """Attribute the draws' mean prediction at a context (d_x,), against the history's mean context.

    ``columns`` partitions the entries of a context into columns; the entries of one category belong together.
    """
    baseline = mean_context(posterior)

    def predict(contexts: Tensor) -> Tensor:
        features = posterior.encode(contexts).to(draws.dtype)
        return posterior.predictor.predict_encoded(draws, features).mean(dim=0)

    predictor = posterior.predictor
    linear = isinstance(predictor, Linear) and not isinstance(predictor, ReluAffine)
    if linear and isinstance(predictor.features, StandardizedFeatures):
        return _linear(predict, context, baseline, columns)
    return shapley(predict, context, baseline, columns)


def mean_context(posterior: Posterior) -> Tensor:
    """Return the history's mean context (d_x,); for a category, the share of rows that have it."""
    return posterior.predictor.features.to_arrays()[1]["context_mean"]


def _linear(predict: Predict, context: Tensor, baseline: Tensor, columns: Sequence[Sequence[int]]) -> Attribution:
    """Change one column at a time, since columns do not interact in a linear model."""
    predictions = predict(
        torch.stack([baseline, context, *(_with_columns(baseline, context, columns, [j]) for j in _all(columns))])
    )
    return Attribution(LINEAR, predictions[0], predictions[2:] - predictions[0], predictions[1])


def shapley(predict: Predict, context: Tensor, baseline: Tensor, columns: Sequence[Sequence[int]]) -> Attribution:
    """Return Shapley values, over all coalitions where columns are few, else over a sample of orders."""
    if len(columns) <= MOST_EXACT:
        return _exact(predict, context, baseline, columns)
    generator = torch.Generator().manual_seed(_SEED)
    half = [torch.randperm(len(columns), generator=generator).tolist() for _ in range(ORDERS // 2)]
    orders = [order for one in half for order in (one, one[::-1])]
    ends = [_with_columns(baseline, context, columns, []), _with_columns(baseline, context, columns, _all(columns))]
    between = [
        _with_columns(baseline, context, columns, order[:joined])
        for order in orders
        for joined in range(1, len(columns))
    ]
    predictions = predict(torch.stack([*ends, *between]))
    base, prediction = predictions[0], predictions[1]
    steps = predictions[2:].view(len(orders), len(columns) - 1, -1)
    path = torch.cat([base.expand(len(orders), 1, -1), steps, prediction.expand(len(orders), 1, -1)], dim=1)
    gains, contributions = path.diff(dim=1), torch.zeros(len(columns), len(base), dtype=torch.float64)
    for order, gain in zip(orders, gains, strict=True):
        contributions[order] += gain / len(orders)
    return Attribution(PERMUTATIONS, base, contributions, prediction)


def _exact(predict: Predict, context: Tensor, baseline: Tensor, columns: Sequence[Sequence[int]]) -> Attribution:
    count = len(columns)
    coalitions = [chosen for size in range(count + 1) for chosen in combinations(range(count), size)]
    predictions = predict(torch.stack([_with_columns(baseline, context, columns, chosen) for chosen in coalitions]))
    value = dict(zip(coalitions, predictions, strict=True))
    contributions = torch.zeros(count, predictions.shape[1], dtype=torch.float64)
    for chosen in coalitions:
        share = 1 / (count * math.comb(count - 1, len(chosen))) if len(chosen) < count else 0.0
        for j in set(range(count)) - set(chosen):
            contributions[j] += share * (value[tuple(sorted((*chosen, j)))] - value[chosen])
    return Attribution(EXACT, predictions[0], contributions, predictions[-1])


def _all(columns: Sequence[Sequence[int]]) -> range:
    return range(len(columns))


def _with_columns(baseline: Tensor, context: Tensor, columns: Sequence[Sequence[int]], chosen: Sequence[int]) -> Tensor:
    """Return the baseline with the chosen columns as in the context."""
    values = baseline.clone()
    entries = [entry for j in chosen for entry in columns[j]]
    values[entries] = context[entries]
    return values
