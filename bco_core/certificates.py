"""PAC-Bayes certificates: an upper bound on the true expected cost that holds with a stated confidence.

Each bound is on a risk in [0, 1] (the cost divided by its bound B) and holds, with probability 1 − η over n independent
rows, for every posterior ρ at once; the prior ρ_0 is chosen without the rows. KL is KL(ρ ‖ ρ_0), R the true and R_n the
empirical risk, S_n the mean of the squared losses on the rows.

    lemma       E_ρ[R] ≤ E_ρ[R_n] + (KL + ln(1/η)) / (λn) + λ/8                             (Lemma EC.2)
    kl          kl(E_ρ[R_n] ‖ E_ρ[R]) ≤ (KL + ln(2√n/η)) / n                                (Seeger; Maurer, 2004)
    bernstein   E_ρ[R] ≤ E_ρ[R_n] + (KL + ln(1/η)) / (λn) + (−ln(1 − λ) − λ)/λ · E_ρ[S_n]   (Mhammedi et al., 2019)

with kl(q ‖ p) between Bernoulli variables. λ > 0, below 1 in the last, is chosen from a grid at the price of a union
bound: η is divided by the number of grid points. The last bound follows from exp(−λℓ + (λ + ln(1 − λ)) ℓ²) ≤ 1 − λℓ for
a loss ℓ ≤ 1 (Fan et al., 2015); it is the smallest where losses are small compared with the largest possible one.

The certificate is the smallest of the three. Each may fail with an equal share of η, so all hold together. E_ρ[R_n] is
estimated from independent draws, and a margin, also paid for out of η, covers the error of that estimate.

The bound is for the exact posterior: it bounds the cost of a fresh draw's decision (``thompson``) and, by Jensen's
inequality for a convex cost, of the mean of all draws' decisions (``averaged``). Decisions are made with K stored
particles; ``particles`` bounds how much more their average may cost.

The KL of a mixture is at most the mixture of its members' KLs. Where members belong to different model classes, the
prior gives each class equal weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bco_core.distributions import Mixture, strata
from bco_core.gibbs import GibbsTarget
from bco_core.problems.base import DecisionProblem
from bco_core.problems.surrogate import Surrogate

LEMMA_GRID = torch.logspace(-3, 1, 33, dtype=torch.float64)
# Off by half a step of this grid, λ costs 2 % of the deviation.
BERNSTEIN_GRID = torch.logspace(-2, math.log10(0.95), 12, dtype=torch.float64)


class Moments(NamedTuple):
    """E_ρ[R_n] and E_ρ[S_n], or upper bounds on them."""

    risk: float
    square: float


class Bound(NamedTuple):
    """An upper bound on E_ρ[R], and the λ of least bound."""

    value: float
    inverse_temperature: float | None = None


def lemma(moments: Moments, divergence: float, rows: int, failure: float) -> Bound:
    complexity = divergence + math.log(len(LEMMA_GRID) / failure)
    return _smallest(LEMMA_GRID, moments.risk + complexity / (LEMMA_GRID * rows) + LEMMA_GRID / 8)


def kl(moments: Moments, divergence: float, rows: int, failure: float) -> Bound:
    budget = (divergence + math.log(2 * math.sqrt(rows) / failure)) / rows
    return Bound(largest_mean(min(moments.risk, 1.0), budget))


def bernstein(moments: Moments, divergence: float, rows: int, failure: float) -> Bound:
    grid = BERNSTEIN_GRID
    complexity = divergence + math.log(len(grid) / failure)
    by_square = (-torch.log1p(-grid) - grid) / grid
    return _smallest(grid, moments.risk + complexity / (grid * rows) + by_square * moments.square)


# Every bound by name: a function of the moments, KL, the number of rows and the probability of failure.
BOUNDS: dict[str, Callable[[Moments, float, int, float], Bound]] = {"lemma": lemma, "kl": kl, "bernstein": bernstein}


def _smallest(grid: Tensor, values: Tensor) -> Bound:
    best = int(values.argmin())
    return Bound(values[best].item(), grid[best].item())


def divergence_of(observed: float, mean: float) -> float:
    """Return kl(observed ‖ mean) of Bernoulli variables."""
    parts = ((observed, mean), (1 - observed, 1 - mean))
    if any(a > 0 and b <= 0 for a, b in parts):
        return math.inf
    return sum(a * math.log(a / b) for a, b in parts if a > 0)


def largest_mean(observed: float, budget: float) -> float:
    """Return the largest mean p ≥ ``observed`` with kl(observed ‖ p) ≤ ``budget``."""
    return _largest(observed, lambda mean: divergence_of(observed, mean) <= budget)


def largest_average(mean: float, count: int, failure: float) -> float:
    """Return the value that the average of ``count`` independent draws from [0, 1] exceeds with probability at most
    ``failure`` if the mean of their expectations is ``mean`` (Hoeffding, 1963, Theorem 1: kl(average ‖ mean) ≤
    ln(1/η)/count)."""
    budget = math.log(1 / failure) / count
    return _largest(mean, lambda average: divergence_of(average, mean) <= budget)


def _largest(low: float, holds: Callable[[float], bool]) -> float:
    """Return the end, rounded up, of the interval from ``low`` towards one on which ``holds`` is true."""
    high = 1.0
    if holds(high):
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


def bernstein_margin(values: Tensor, failure: float) -> float:
    """Return how far the average of independent draws (m,) from [0, 1] lies below their mean at most, except with
    probability ``failure`` (empirical Bernstein: Maurer and Pontil, 2009, Theorem 4)."""
    count, log = len(values), math.log(2 / failure)
    return math.sqrt(2 * values.var().item() * log / count) + 7 * log / (3 * (count - 1))


# Draws of each class, and rows that price each draw. Margins shrink with draws, and a million costs are quick.
_DRAWS, _ROWS_A_DRAW = 16_384, 64
_CHUNK = 256
# The share of η for estimating E_ρ[R_n] from draws: with this many draws a small share is enough.
_DRAWS_SHARE = 0.1
NO_CERTIFICATE = (
    "this posterior minimises a surrogate of the cost, around a regression on the same rows: a bound on the surrogate "
    "would not bound the cost of decisions"
)


@dataclass(frozen=True)
class ModelClass:
    """Members of one predictor, the target that holds their prior, and the weight of the class in the posterior."""

    target: GibbsTarget
    mixture: Mixture
    weight: float


@dataclass(frozen=True)
class Certificate:
    """The bound with its terms, in the user's units, or the reason why an assumption fails.

    ``by`` names the smallest bound, ``bounds`` holds all of them, ``failure`` the split of η between them and the
    draws. ``particles`` bounds the averaged decision of the stored particles, with a confidence of its own.
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
        fields = asdict(self)
        del fields["reason"]
        return fields | {"policies": list(self.policies)}


def certify(
    classes: Sequence[ModelClass], rows: Tensor | None, confidence: float, particles: int, generator: torch.Generator
) -> Certificate:
    """Return the certificate of these model classes with ``particles`` stored draws, or the reason for its absence.

    ``rows`` (m,) are those that the prior does not depend on; None if it depends on all of them.
    """
    target = classes[0].target
    if isinstance(target.problem, Surrogate):
        return Certificate.absent(NO_CERTIFICATE)
    scale = target.problem.cost_bound
    if scale is None:
        return Certificate.absent(f"no bound on the cost is known: {target.problem.cost_bound_remedy}")
    if rows is None:
        return Certificate.absent(
            "the prior is scaled with all rows; learn with certify, which sets rows aside to scale it"
        )
    breach = _outcome_breach(target.problem, target.sample.outcomes)
    if breach:
        return Certificate.absent(breach)
    used = [part for part in classes if part.weight > 0]
    drawn = [_draw_costs(part, rows, scale, generator) for part in used]
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
    """Return a sentence on the first outcome (n, d_y) beyond the problem's stated bounds; "" if there is none."""
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


class _CostDraws(NamedTuple):
    """Costs of independent posterior draws, each on rows of its own: mean and mean square (_DRAWS,), as shares of the
    largest possible cost, and the largest single cost."""

    risk: Tensor
    square: Tensor
    worst: float


def _draw_costs(part: ModelClass, rows: Tensor, scale: float, generator: torch.Generator) -> _CostDraws:
    """Price every draw on rows of its own, so that its mean cost is an unbiased estimate of E_ρ[R_n]."""
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
    return _CostDraws(torch.cat(risks), torch.cat(squares), worst)


def _moments(used: Sequence[ModelClass], drawn: Sequence[_CostDraws], failure: float) -> tuple[Moments, Moments]:
    """Return the estimates and their margins; each margin may fail with probability ``failure``."""
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
    """Return the weighted mean KL of the members to the prior."""
    mixture = part.mixture
    kl = mixture.family.kl(mixture.loc.double(), mixture.scale.double(), part.target.prior_scale.double()).sum(dim=1)
    return (kl * mixture.weights.double()).sum().item() / mixture.weights.double().sum().item()


def _particles(used: Sequence[ModelClass], count: int, value: float, scale: float, failure: float) -> dict[str, float]:
    """Return the bound for the averaged decision of K particles that are drawn once and stored.

    By Jensen's inequality it costs at most the average of the particles' risks: K independent numbers in [0, 1]. Their
    mean expectation is E_ρ[R], up to the rounding that gives every member a whole number of particles.
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
