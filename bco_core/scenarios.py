"""Scenarios: possible outcomes of each context with their weights, and the cost of decisions over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.batch_kernels import mean_of_atoms
from bco_core.problems.base import DecisionProblem
from bco_core.weighted_stats import sort_atoms, sorted_cvar, sorted_quantile


@dataclass(frozen=True)
class Scenarios:
    """The posterior predictive distribution m(x; ρ) (Definition 1) for B contexts, as K weighted atoms.

    ``outcomes`` (B, K, d_y) are f_θk(x_b) with θ_k ~ ρ, ``weights`` (K,) sum to one, and ``mode`` (B, d_y) is the
    prediction of the posterior's mode.
    """

    outcomes: Tensor
    weights: Tensor
    mode: Tensor

    @staticmethod
    def equal(outcomes: Tensor, mode: Tensor) -> Scenarios:
        """Return scenarios of atoms (B, K, d_y) of equal weight."""
        count = outcomes.shape[1]
        return Scenarios(outcomes, torch.full((count,), 1 / count, dtype=torch.float64), mode)

    def mean(self) -> Tensor:
        """Return f̄(x), the mean prediction, (B, d_y)."""
        return mean_of_atoms(self.outcomes, self.weights)


@dataclass(frozen=True)
class CostDistribution:
    """The cost of each decision over its scenarios: mean (B,), quantiles (B, m) and CVaR (B,) at one level."""

    mean: Tensor
    quantiles: Tensor
    cvar: Tensor


def expected_cost(problem: DecisionProblem, decisions: Tensor, scenarios: Scenarios) -> Tensor:
    """Return E[c(z_b; Y)] over the scenarios of each context: decisions (B, d_z) → (B,)."""
    return mean_of_atoms(problem.cost(decisions[:, None], scenarios.outcomes), scenarios.weights)


def cost_distribution(
    problem: DecisionProblem, decisions: Tensor, scenarios: Scenarios, levels: Tensor, cvar_level: float
) -> CostDistribution:
    """Return the mean, weighted quantiles and CVaR of the cost of decisions (B, d_z)."""
    costs = problem.cost(decisions[:, None], scenarios.outcomes)
    ordered, share = sort_atoms(costs, scenarios.weights)
    quantiles = sorted_quantile(ordered, share, levels)
    mean = mean_of_atoms(costs, scenarios.weights)
    return CostDistribution(mean, quantiles, sorted_cvar(ordered, share, cvar_level))
