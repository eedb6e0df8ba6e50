"""PAC-Bayes certificates: an upper bound on the true expected cost that holds with stated confidence.

For a cost in [0, B], rows that are independent, and a prior chosen without them, the bounds of
:mod:`bco_core.pac_bayes` hold for every posterior at once. The certificate is the smallest of them: each may fail with
an equal share of η, so that all hold together. E_ρ[R_n] is estimated by independent draws, with a margin that pays for
the estimate out of η too.

The bound is for the exact posterior: it bounds the cost of a fresh draw's decision (``thompson``) and, by Jensen's
inequality for a convex cost, of the mean of all draws' decisions (``averaged``). Decisions are made with K stored
particles; ``particles`` says how much more their average may cost.

A mixture's KL is at most the mixture of its members' KLs; members of different model classes have a prior that gives
each class equal weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bco_core.distributions import Mixture, strata
from bco_core.gibbs import GibbsTarget
from bco_core.pac_bayes import BOUNDS, Moments, bernstein_margin, largest_average
from bco_core.problems.base import DecisionProblem
from bco_core.problems.surrogate import Surrogate

# Draws of each class and rows that each of them is judged on. Margins shrink with draws, and a million costs are quick.
_DRAWS, _ROWS_A_DRAW = 16_384, 64
_CHUNK = 256
# The share of η that pays for estimating E_ρ[R_n] by draws: there are so many that a small one will do.
_DRAWS_SHARE = 0.1
NO_CERTIFICATE = (
    "this is the posterior of a surrogate of the cost, around a regression on the same rows: a bound for it would say "
    "nothing of what decisions cost"
)


@dataclass(frozen=True)
class ModelClass:
    """Members of one predictor, the target that holds their prior, and the weight of the class in the posterior."""

    target: GibbsTarget
    mixture: Mixture
    weight: float


@dataclass(frozen=True)
class Certificate:
    """The bound with its terms, in the user's units; where an assumption fails there is a reason instead.

    ``by`` names the bound that is the smallest, ``bounds`` gives all of them, ``failure`` how η is split between them
    and the draws. ``particles`` bounds the averaged decision of the stored particles, with its own confidence.
    """

    bound: float | None
    reason: str = ""
    vacuous: bool = False
    confidence: float = 0.0
    policies: tuple[str, ...] = ()
    rows: int = 0
    by: str = ""
    terms: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    failure: dict[str, float] = field(default_factory=dict)
    particles: dict[str, float] = field(default_factory=dict)
    theorem_2: dict[str, Any] = field(default_factory=dict)
    assumes: str = ""
    holds_for: str = ""

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
    classes: Sequence[ModelClass], rows: Tensor | None, confidence: float, particles: int, generator: torch.Generator
) -> Certificate:
    """The bound for these classes of models, of which ``particles`` are stored, or why there is none.

    ``rows`` are those that the prior does not depend on; None if it depends on all of them.
    """
    target = classes[0].target
    if isinstance(target.problem, Surrogate):
        return Certificate.absent(NO_CERTIFICATE)
    scale = target.problem.cost_bound
    if scale is None:
        return Certificate.absent(f"no bound on the cost is known: {target.problem.cost_bound_remedy}")
    if rows is None:
        return Certificate.absent(
            "the prior is scaled with all rows; learn with certify, which sets rows aside to scale it with"
        )
    breach = _outcome_breach(target.problem, target.sample.outcomes)
    if breach:
        return Certificate.absent(breach)
    used = [part for part in classes if part.weight > 0]
    drawn = [_drawn_costs(part, rows, scale, generator) for part in used]
    if max(one.worst for one in drawn) > 1:
        return Certificate.absent(f"the history holds {target.problem.cost_bound_breach}")

    failure, count = round(1 - confidence, 12), len(rows)
    each = (1 - _DRAWS_SHARE) * failure / len(BOUNDS)
    shares = {"draws": _DRAWS_SHARE * failure} | dict.fromkeys(BOUNDS, each)
    # Two averages of each class are estimated.
    estimated, margins = _moments(used, drawn, shares["draws"] / (2 * len(used)))
    divergence = sum(part.weight * (_mean_kl(part) + math.log(part.weight * len(classes))) for part in used)
    upper = Moments(estimated.risk + margins.risk, estimated.square + margins.square)
    bounds = {name: bound(upper, divergence, count, shares[name]) for name, bound in BOUNDS.items()}
    best = min(bounds, key=lambda name: bounds[name].value)
    value = min(bounds[best].value, 1.0)
    temperatures = {f"lambda_{name}": one.inverse_temperature for name, one in bounds.items()}
    return Certificate(
        bound=scale * value,
        vacuous=value >= 1.0,
        confidence=confidence,
        policies=("thompson", "averaged"),
        rows=count,
        by=best,
        terms={
            "empirical_risk": scale * estimated.risk,
            "monte_carlo_margin": scale * margins.risk,
            "deviation": scale * (bounds[best].value - upper.risk),
            "mean_squared_cost": scale**2 * estimated.square,
            "mean_squared_cost_margin": scale**2 * margins.square,
            "kl": divergence,
            "cost_bound": scale,
        }
        | {name: one for name, one in temperatures.items() if one is not None},
        bounds={name: scale * one.value for name, one in bounds.items()},
        failure=shares,
        particles=_particles(used, particles, value, scale, failure),
        theorem_2={
            "deviation": scale * math.sqrt(math.log(1 / failure) / (2 * count)),
            "lambda_over_8": scale * (bounds["lemma"].inverse_temperature or 0.0) / 8,
            "not_computable": ["misspecification E(rho_n)", "aggregation gap Gamma*", "KL of the oracle posterior"],
        },
        assumes="rows are independent draws from the distribution that new contexts come from",
        holds_for="the exact posterior: one fresh draw a decision, or the mean of all draws' decisions; "
        "particles has the bound for the mean of the stored draws' decisions",
    )


def _outcome_breach(problem: DecisionProblem, outcomes: Tensor) -> str:
    """Which outcome (n, d_y) is beyond the bounds that the problem states, in a sentence; "" if none is."""
    bounds = problem.outcome_bounds
    if bounds is None:
        return ""
    lower, upper = bounds
    outside = (outcomes < lower) | (outcomes > upper)
    if not outside.any():
        return ""
    row, column = outside.nonzero()[0].tolist()
    value = outcomes[row, column].item()
    side, limit = ("below", lower) if value < lower[column] else ("above", upper)
    return (
        f"outcome {column} is {value:g} in row {row}, {side} the {limit[column].item():g} that the problem states: "
        f"{int(outside.any(dim=1).sum())} of {len(outcomes)} rows hold {problem.cost_bound_breach}"
    )


class _Drawn(NamedTuple):
    """Of independent posterior draws, each judged on some rows: mean cost and mean squared cost (_DRAWS,), both as
    shares of the largest possible, and the largest single cost met."""

    risk: Tensor
    square: Tensor
    worst: float


def _drawn_costs(part: ModelClass, rows: Tensor, scale: float, generator: torch.Generator) -> _Drawn:
    """Every draw is judged on rows of its own, so that a draw's mean is an unbiased estimate of E_ρ[R_n]."""
    target, mixture = part.target, part.mixture
    encoded, outcomes = target.encoded(mixture.loc.dtype), target.sample.outcomes
    members = torch.multinomial(mixture.weights, _DRAWS, replacement=True, generator=generator)
    risks, squares, worst = [], [], 0.0
    with torch.no_grad():
        for member in members.split(_CHUNK):
            noise = mixture.family.noise((len(member), mixture.dim), generator, mixture.loc.dtype)
            theta = mixture.loc[member] + mixture.scale[member] * noise
            picks = rows[torch.randint(len(rows), (len(member), _ROWS_A_DRAW), generator=generator)]
            decisions = target.problem.decide(target.predictor.forward(theta, encoded[picks]))
            costs = target.problem.cost(decisions, outcomes[picks]) / scale
            risks.append(costs.mean(dim=1))
            squares.append(costs.square().mean(dim=1))
            worst = max(worst, costs.max().item())
    return _Drawn(torch.cat(risks), torch.cat(squares), worst)


def _moments(used: Sequence[ModelClass], drawn: Sequence[_Drawn], failure: float) -> tuple[Moments, Moments]:
    """The estimates, and how far they may be too low; each may fail with this probability."""
    weights = [part.weight for part in used]

    def estimate(values: Sequence[Tensor]) -> tuple[float, float]:
        parts = list(zip(weights, values, strict=True))
        return (
            sum(weight * one.mean().item() for weight, one in parts),
            sum(weight * bernstein_margin(one, failure) for weight, one in parts),
        )

    risk, risk_margin = estimate([one.risk for one in drawn])
    square, square_margin = estimate([one.square for one in drawn])
    return Moments(risk, square), Moments(risk_margin, square_margin)


def _mean_kl(part: ModelClass) -> float:
    """KL of the members to the prior, by their weights."""
    mixture = part.mixture
    kl = mixture.family.kl(mixture.loc.double(), mixture.scale.double(), part.target.prior_scale.double()).sum(dim=1)
    return (kl * mixture.weights.double()).sum().item() / mixture.weights.double().sum().item()


def _particles(used: Sequence[ModelClass], count: int, value: float, scale: float, failure: float) -> dict[str, float]:
    """The bound for the averaged decision of K particles that are drawn once and kept.

    By Jensen's inequality it costs at most the average of the particles' risks: K independent numbers in [0, 1]. Their
    mean expectation is E_ρ[R] but for the rounding that gives every member a whole number of particles.
    """
    weights = torch.cat([part.weight * part.mixture.weights.double() / part.mixture.weights.sum() for part in used])
    taken = strata(weights, count).bincount(minlength=len(weights)) / count
    rounding = (taken - weights / weights.sum()).clamp_min(0).sum().item()
    highest = largest_average(min(value + rounding, 1.0), count, failure)
    return {
        "count": count,
        "margin": scale * (highest - value),
        "bound": scale * highest,
        "failure": failure,
        "confidence": round(1 - 2 * failure, 12),
    }
