"""The Gibbs posterior ρ_n(θ) ∝ exp(−λn R_n(θ)) ρ_0(θ), equation (8) of the paper.

R_n(θ) = (1/n) Σ_i c(π_θ(x_i); y_i) is the empirical risk, equation (6), and exp(−λn R_n) the operational likelihood,
equation (7). ρ_n is the unique minimiser of E_ρ[R_n] + KL(ρ ‖ ρ_0)/(λn), equation (9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.distributions import Family
from bco_core.errors import InvalidInput
from bco_core.predictors.base import Predictor
from bco_core.problems.base import DecisionProblem, best_constant
from bco_core.problems.surrogate import Hindsight, Surrogate

REFERENCE_ROWS = 256


@dataclass(frozen=True)
class GibbsTarget:
    """The target density of inference: rows, problem, predictor and prior.

    ``features`` (n, width) are the predictor's features of the rows. Costs are divided by ``cost_scale``, the cost of
    the best constant decision less the cost with perfect foresight, so that a temperature means the same on every
    problem, whatever its fixed costs. Users see costs in their own units only.
    """

    problem: DecisionProblem
    predictor: Predictor
    sample: Sample
    features: Tensor
    family: Family
    prior_scale: Tensor
    cost_scale: float

    def rows(self, index: Tensor) -> GibbsTarget:
        """Return the target of some of the rows, with the cost scale of all rows."""
        return replace(self, sample=self.sample.rows(index), features=self.features[index])

    def encoded(self, dtype: torch.dtype | None = None) -> Tensor:
        """Return the features (n, width) in the precision of θ, by default the prior's."""
        return self.features.to(dtype or self.prior_scale.dtype)

    def costs(self, theta: Tensor, encoded: Tensor, outcomes: Tensor) -> Tensor:
        """Return the scaled cost (S, n) of π_θ for features and outcomes, each (n, ·) or (S, n, ·)."""
        decisions = self.problem.decide(self.predictor.forward(theta, encoded))
        return self.problem.cost(decisions, outcomes) / self.cost_scale

    @cached_property
    def hindsight(self) -> Hindsight | None:
        """The rows' data for the problem's surrogate loss; None where the loss is the cost itself."""
        return self.problem.hindsight(self.sample.outcomes) if isinstance(self.problem, Surrogate) else None

    def losses(self, predictions: Tensor, rows: Tensor) -> Tensor:
        """Return the scaled, differentiable loss (S, n) of predictions (S, n, d_y) for rows (n,) or (S, n).

        It is the problem's surrogate where there is one, else the cost of decisions.
        """
        outcomes = self.sample.outcomes[rows]
        if isinstance(self.problem, Surrogate) and self.hindsight is not None:
            return self.problem.surrogate(predictions, outcomes, self.hindsight.rows(rows)) / self.cost_scale
        return self.problem.cost(self.problem.decide(predictions), outcomes) / self.cost_scale

    def empirical_risk(self, theta: Tensor) -> Tensor:
        """Return the scaled empirical risk R_n(θ), equation (6): (S, d) → (S,)."""
        return self.costs(theta, self.encoded(theta.dtype), self.sample.outcomes).mean(dim=1)

    def log_density(self, theta: Tensor, inverse_temperature: float) -> Tensor:
        """Return log ρ_n(θ) up to a constant, equation (8): (S, d) → (S,)."""
        prior = self.family.log_prob(theta, torch.zeros_like(theta), self.prior_scale).sum(dim=1)
        return prior - inverse_temperature * self.empirical_risk(theta)


def make_target(
    problem: DecisionProblem,
    predictor: Predictor,
    sample: Sample,
    family: Family,
    prior_scale: float = 1.0,
    features: Tensor | None = None,
) -> GibbsTarget:
    """Return the target for this sample, with costs scaled by the possible gain over the best constant decision.

    ``features`` (n, width) are the predictor's features of the rows, given if it was not fitted to these rows.
    """
    constant = best_constant(problem, sample.outcomes).objective.item()
    gain = constant - perfect_cost(problem, sample.outcomes)
    # Where a constant decision is as good as foresight, there is no gain to scale by: use the cost itself.
    scale = gain if gain > 1e-9 * abs(constant) else abs(constant) or 1.0
    features = predictor.features.of_history(sample) if features is None else features
    return GibbsTarget(problem, predictor, sample, features, family, torch.tensor(prior_scale), scale)


def perfect_cost(problem: DecisionProblem, outcomes: Tensor) -> float:
    """Return the mean cost with perfect foresight of outcomes (n, d_y)."""
    with torch.no_grad():
        return problem.cost(problem.decide(outcomes), outcomes).nanmean().item()


def resolve_kl_weight(rows: int, kl_weight: float | None, inverse_temperature: float | None, default: float) -> float:
    """Return κ = 1/(λn): as given, or the default for 256 rows times (rows/256)^-½ (Theorem 2)."""
    if kl_weight is not None and inverse_temperature is not None:
        raise InvalidInput("give kl_weight or inverse_temperature, not both", ("kl_weight",))
    if inverse_temperature is not None:
        return 1 / inverse_temperature
    if kl_weight is not None:
        return kl_weight
    return default * math.sqrt(REFERENCE_ROWS / rows)
