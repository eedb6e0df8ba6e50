"""The Gibbs posterior ρ_n ∝ exp(−λn R_n(θ)) ρ_0(θ): its empirical risk, its log density and its temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from bco_core.data import Sample
from bco_core.errors import InvalidInput
from bco_core.families import Family
from bco_core.predictors.base import Predictor
from bco_core.problems.base import DecisionProblem
from bco_core.problems.constant import best_constant
from bco_core.problems.surrogate import Hindsight, Surrogate

REFERENCE_ROWS = 256


@dataclass(frozen=True)
class GibbsTarget:
    """What inference needs to know: the rows, the problem, the predictor and the prior.

    ``features`` (n, width) are the rows as the predictor sees them. Costs are divided by ``cost_scale``, what the best
    constant decision costs more than foresight would, so that a temperature means the same on every problem, whatever
    fixed costs it has; users only ever see costs in their own units.
    """

    problem: DecisionProblem
    predictor: Predictor
    sample: Sample
    features: Tensor
    family: Family
    prior_scale: Tensor
    cost_scale: float

    def rows(self, index: Tensor) -> GibbsTarget:
        """The target of some of the rows, with the costs' scale of all."""
        return replace(self, sample=self.sample.rows(index), features=self.features[index])

    def encoded(self, dtype: torch.dtype | None = None) -> Tensor:
        """The features (n, width) in the precision that θ has, by default the prior's."""
        return self.features.to(dtype or self.prior_scale.dtype)

    def costs(self, theta: Tensor, encoded: Tensor, outcomes: Tensor) -> Tensor:
        """Scaled cost (S, n) of π_θ for features and outcomes, each (n, ·) or (S, n, ·)."""
        decisions = self.problem.decide(self.predictor.forward(theta, encoded))
        return self.problem.cost(decisions, outcomes) / self.cost_scale

    @cached_property
    def hindsight(self) -> Hindsight | None:
        """What the problem's surrogate needs to know of the rows; None where costs are learned on."""
        return self.problem.hindsight(self.sample.outcomes) if isinstance(self.problem, Surrogate) else None

    def losses(self, predictions: Tensor, rows: Tensor) -> Tensor:
        """Scaled loss (S, n) that gradients are taken of, for predictions (S, n, d_y) of rows (n,) or (S, n): the
        problem's surrogate where it has one, else what decisions cost."""
        outcomes = self.sample.outcomes[rows]
        if isinstance(self.problem, Surrogate) and self.hindsight is not None:
            return self.problem.surrogate(predictions, outcomes, self.hindsight.rows(rows)) / self.cost_scale
        return self.problem.cost(self.problem.decide(predictions), outcomes) / self.cost_scale

    def empirical_risk(self, theta: Tensor) -> Tensor:
        """R_n(θ), scaled: (S, d) → (S,)."""
        return self.costs(theta, self.encoded(theta.dtype), self.sample.outcomes).mean(dim=1)

    def log_density(self, theta: Tensor, inverse_temperature: float) -> Tensor:
        """log ρ_n(θ) up to a constant: (S, d) → (S,)."""
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
    """The target for this sample, with costs scaled by what there is to gain over the best constant decision.

    ``features`` (n, width) are the rows as the predictor sees them, if it was not fitted to them.
    """
    constant = best_constant(problem, sample.outcomes).objective.item()
    gain = constant - perfect_cost(problem, sample.outcomes)
    # A history that a constant decision serves as well as foresight has no such scale: keep the costs' own.
    scale = gain if gain > 1e-9 * abs(constant) else abs(constant) or 1.0
    features = predictor.features.of_history(sample) if features is None else features
    return GibbsTarget(problem, predictor, sample, features, family, torch.tensor(prior_scale), scale)


def perfect_cost(problem: DecisionProblem, outcomes: Tensor) -> float:
    """The mean cost of decisions that know the outcomes (n, d_y)."""
    with torch.no_grad():
        return problem.cost(problem.decide(outcomes), outcomes).nanmean().item()


def resolve_kl_weight(rows: int, kl_weight: float | None, inverse_temperature: float | None, default: float) -> float:
    """κ = 1/(λn) from whichever the caller gave; otherwise the default for 256 rows times (rows/256)^-½ (Theorem 2)."""
    if kl_weight is not None and inverse_temperature is not None:
        raise InvalidInput("give kl_weight or inverse_temperature, not both", ("kl_weight",))
    if inverse_temperature is not None:
        return 1 / inverse_temperature
    if kl_weight is not None:
        return kl_weight
    return default * math.sqrt(REFERENCE_ROWS / rows)
