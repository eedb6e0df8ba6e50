"""Scenarios: what may happen in each context, and what a decision would cost over them.

Posterior draws say how unsure the predictor is; they leave out the noise that no predictor can remove. For what a
decision will cost, :func:`predictive_scenarios` looks at what really happened in the most similar rows of the history,
similar in prediction: weights ∝ exp(−‖f̄(x) − f̄_i‖ / h), with f̄_i the out-of-fold prediction of row i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.problems.base import DecisionProblem
from bco_core.weighted import sort_atoms, sorted_cvar, sorted_quantile

_PAIRED_ROWS = 1000
_CHUNK_NUMBERS = 2_000_000
_LARGEST_RATIO = 3.0


@dataclass(frozen=True)
class Scenarios:
    """The posterior predictive distribution m(x; ρ) for B contexts, by K weighted atoms.

    ``outcomes`` (B, K, d_y) are f_θk(x_b) with θ_k ~ ρ, ``weights`` (K,) sum to one, and ``mode`` (B, d_y) is the
    prediction of the posterior's mode.
    """

    outcomes: Tensor
    weights: Tensor
    mode: Tensor

    @staticmethod
    def equal(outcomes: Tensor, mode: Tensor) -> Scenarios:
        """Atoms (B, K, d_y) of equal weight."""
        count = outcomes.shape[1]
        return Scenarios(outcomes, torch.full((count,), 1 / count, dtype=torch.float64), mode)

    def mean(self) -> Tensor:
        """f̄(x), the mean prediction, (B, d_y)."""
        return torch.einsum("bky,k->by", self.outcomes, self.weights)


@dataclass(frozen=True)
class History:
    """Rows kept with a posterior for predictive scenarios: out-of-fold predictions and outcomes, both (H, d_y).

    ``bandwidth`` is half the median distance between predictions, in units of the outcomes' ``spread`` (d_y,).
    ``scales`` tells that outcomes are non-negative and predictions safely positive, so that an outcome may be carried
    over to another level of prediction in proportion.
    """

    predictions: Tensor
    outcomes: Tensor
    spread: Tensor
    bandwidth: float
    scales: bool

    @staticmethod
    def of(predictions: Tensor, outcomes: Tensor, spread: Tensor) -> History:
        distances = torch.pdist(predictions[:_PAIRED_ROWS] / spread)
        median = distances.median().item() if len(distances) else 0.0
        scales = bool((outcomes >= 0).all() and (predictions > 0.05 * outcomes.mean(dim=0)).all())
        return History(predictions, outcomes, spread, max(0.5 * median, 1e-6), scales)


@dataclass(frozen=True)
class CostDistribution:
    """The cost of each decision over its scenarios: mean (B,), quantiles (B, m) and CVaR (B,) at one level."""

    mean: Tensor
    quantiles: Tensor
    cvar: Tensor


def predictive_scenarios(history: History, predictions: Tensor, count: int) -> Scenarios:
    """``count`` equally weighted atoms for predictions f̄(x) (B, d_y), by systematic resampling of the history."""
    parts = [
        _resampled(history, chunk, count)
        for chunk in predictions.split(max(1, _CHUNK_NUMBERS // len(history.outcomes)))
    ]
    return Scenarios.equal(torch.cat(parts), predictions)


def _resampled(history: History, predictions: Tensor, count: int) -> Tensor:
    distance = torch.cdist(predictions / history.spread, history.predictions / history.spread)
    # The nearest row always counts, however far it is.
    nearness = (distance.amin(dim=1, keepdim=True) - distance) / history.bandwidth
    share = nearness.exp().cumsum(dim=1)
    places = (torch.arange(count, dtype=torch.float64) + 0.5) / count * share[:, -1:]
    chosen = torch.searchsorted(share, places).clamp_max(len(history.outcomes) - 1)
    atoms = history.outcomes[chosen]
    if history.scales:
        ratio = predictions[:, None] / history.predictions[chosen]
        atoms = atoms * ratio.clamp(1 / _LARGEST_RATIO, _LARGEST_RATIO)
    return atoms


def expected_cost(problem: DecisionProblem, decisions: Tensor, scenarios: Scenarios) -> Tensor:
    """E[c(z_b; Y)] over the scenarios of each context: decisions (B, d_z) → (B,)."""
    return problem.cost(decisions[:, None], scenarios.outcomes) @ scenarios.weights


def cost_distribution(
    problem: DecisionProblem, decisions: Tensor, scenarios: Scenarios, levels: Tensor, cvar_level: float
) -> CostDistribution:
    """Mean, weighted quantiles and CVaR of the cost of decisions (B, d_z)."""
    costs = problem.cost(decisions[:, None], scenarios.outcomes)
    ordered, share = sort_atoms(costs, scenarios.weights)
    quantiles = sorted_quantile(ordered, share, levels)
    return CostDistribution(costs @ scenarios.weights, quantiles, sorted_cvar(ordered, share, cvar_level))
