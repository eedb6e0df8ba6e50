"""PAC-Bayes certificates: an upper bound on the true expected cost that holds with stated confidence (Lemma EC.2).

For a cost in [0, B], scaled to [0, 1], n independent rows, a prior ρ_0 chosen without them, and any λ > 0, with
probability 1 − η for every posterior ρ at once

    E_ρ[R] ≤ E_ρ[R_n] + (KL(ρ ‖ ρ_0) + ln(1/η)) / (λn) + λ/8.

It bounds the Thompson policy and, by Jensen's inequality for a convex cost, the averaged one. λ is chosen from a grid
at the price of a union bound, and E_ρ[R_n] is estimated by independent draws with an empirical Bernstein margin, so
half of η goes to each. A mixture's KL is at most the mixture of its members' KLs; members of different model classes
have a prior that gives each class equal weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from bco_core.distributions import Mixture
from bco_core.gibbs import GibbsTarget
from bco_core.problems.base import cost_bound_breach, cost_bound_remedy

_DRAWS = 500
_GRID = torch.logspace(-3, 1, 33, dtype=torch.float64)


@dataclass(frozen=True)
class ModelClass:
    """Members of one predictor, the target that holds their prior, and the weight of the class in the posterior."""

    target: GibbsTarget
    mixture: Mixture
    weight: float


@dataclass(frozen=True)
class Certificate:
    """The bound with its terms, in the user's units; where an assumption fails there is a reason instead."""

    bound: float | None
    reason: str = ""
    vacuous: bool = False
    confidence: float = 0.0
    policies: tuple[str, ...] = ()
    rows: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    theorem_2: dict[str, Any] = field(default_factory=dict)
    assumes: str = ""

    @staticmethod
    def absent(reason: str) -> Certificate:
        return Certificate(None, reason)

    def to_json(self) -> dict[str, Any]:
        if self.bound is None:
            return {"bound": None, "reason": self.reason}
        told = asdict(self)
        del told["reason"]
        return told | {"policies": list(self.policies)}


def certify(
    classes: Sequence[ModelClass], rows: Tensor | None, confidence: float, generator: torch.Generator
) -> Certificate:
    """The bound for these classes of models, or why there is none.

    ``rows`` are those that the prior does not depend on; None if it depends on all of them.
    """
    problem = classes[0].target.problem
    bound = problem.cost_bound
    if bound is None:
        return Certificate.absent(f"no bound on the cost is known: {cost_bound_remedy(problem)}")
    if rows is None:
        return Certificate.absent(
            "the prior is scaled with all rows; learn with certify, which sets rows aside to scale it with"
        )
    count, failure = len(rows), 1 - confidence
    used = [part for part in classes if part.weight > 0]
    costs = [_drawn_costs(part, rows, generator) for part in used]
    if max(worst for _, worst in costs) > bound:
        return Certificate.absent(f"the history holds {cost_bound_breach(problem)}")
    risk = sum(part.weight * risks.mean().item() for part, (risks, _) in zip(used, costs, strict=True)) / bound
    share = failure / (2 * len(used))
    margin = sum(p.weight * _bernstein_margin(risks / bound, share) for p, (risks, _) in zip(used, costs, strict=True))
    divergence = sum(part.weight * (_mean_kl(part) + math.log(part.weight * len(classes))) for part in used)
    complexity = (divergence + math.log(2 * len(_GRID) / failure)) / (_GRID * count)
    total = complexity + _GRID / 8
    best = int(total.argmin())
    value = risk + margin + total[best].item()
    return Certificate(
        bound=bound * min(value, 1.0),
        vacuous=value >= 1.0,
        confidence=confidence,
        policies=("thompson", "averaged"),
        rows=count,
        terms={
            "empirical_risk": bound * risk,
            "monte_carlo_margin": bound * margin,
            "complexity": bound * complexity[best].item(),
            "lambda_over_8": bound * _GRID[best].item() / 8,
            "kl": divergence,
            "lambda": _GRID[best].item(),
            "cost_bound": bound,
        },
        theorem_2={
            "deviation": bound * math.sqrt(math.log(1 / failure) / (2 * count)),
            "lambda_over_8": bound * _GRID[best].item() / 8,
            "not_computable": ["misspecification E(rho_n)", "aggregation gap Gamma*", "KL of the oracle posterior"],
        },
        assumes="rows are independent draws from the distribution that new contexts come from",
    )


def _drawn_costs(part: ModelClass, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
    """Mean cost over the rows of independent posterior draws, (_DRAWS,), and the largest single cost met."""
    mixture, sample = part.mixture, part.target.sample.rows(rows)
    member = torch.multinomial(mixture.weights, _DRAWS, replacement=True, generator=generator)
    noise = mixture.family.noise((_DRAWS, mixture.loc.shape[1]), generator, mixture.loc.dtype)
    theta = mixture.loc[member] + mixture.scale[member] * noise
    means, worst = [], 0.0
    for chunk in theta.split(25):
        decisions = part.target.problem.decide(part.target.predictor.predict(chunk, sample.contexts))
        costs = part.target.problem.cost(decisions, sample.outcomes)
        means.append(costs.mean(dim=1))
        worst = max(worst, costs.max().item())
    return torch.cat(means), worst


def _bernstein_margin(values: Tensor, failure: float) -> float:
    """How far the mean of bounded draws may lie below the true mean (empirical Bernstein)."""
    count, log = len(values), math.log(2 / failure)
    return math.sqrt(2 * values.var().item() * log / count) + 7 * log / (3 * (count - 1))


def _mean_kl(part: ModelClass) -> float:
    """KL of the members to the prior, by their weights."""
    mixture = part.mixture
    kl = mixture.family.kl(mixture.loc.double(), mixture.scale.double(), part.target.prior_scale.double()).sum(dim=1)
    return (kl * mixture.weights.double()).sum().item() / mixture.weights.double().sum().item()
