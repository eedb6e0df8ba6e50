"""PAC-Bayes bounds on a risk in [0, 1], and how far draws may stray from their mean.

Each bound holds, with probability 1 − η over n independent rows, for every posterior ρ at once; the prior ρ_0 is chosen
without the rows. KL is KL(ρ ‖ ρ_0), R the true and R_n the empirical risk, S_n the mean of squared losses on the rows.

    lemma       E_ρ[R] ≤ E_ρ[R_n] + (KL + ln(1/η)) / (λn) + λ/8                             (Lemma EC.2)
    kl          kl(E_ρ[R_n] ‖ E_ρ[R]) ≤ (KL + ln(2√n/η)) / n                                (Seeger; Maurer, 2004)
    bernstein   E_ρ[R] ≤ E_ρ[R_n] + (KL + ln(1/η)) / (λn) + (−ln(1 − λ) − λ)/λ · E_ρ[S_n]   (Mhammedi et al., 2019)

with kl(q ‖ p) between Bernoulli variables. λ > 0, below 1 in the last, is chosen from a grid at the price of a union
bound: η is divided by the number of its points. The last bound follows from exp(−λℓ + (λ + ln(1 − λ)) ℓ²) ≤ 1 − λℓ for
a loss ℓ ≤ 1 (Fan et al., 2015). It is the smallest where losses are small beside the largest possible one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

LEMMA_GRID = torch.logspace(-3, 1, 33, dtype=torch.float64)
# Off by half a step of this grid, λ costs 2 % of the deviation.
BERNSTEIN_GRID = torch.logspace(-2, math.log10(0.95), 12, dtype=torch.float64)


class Moments(NamedTuple):
    """E_ρ[R_n] and E_ρ[S_n], or upper bounds on them."""

    risk: float
    square: float


class Bound(NamedTuple):
    """An upper bound on E_ρ[R], and the λ that it was found with."""

    value: float
    inverse_temperature: float | None = None


def lemma(found: Moments, divergence: float, rows: int, failure: float) -> Bound:
    complexity = divergence + math.log(len(LEMMA_GRID) / failure)
    return _smallest(LEMMA_GRID, found.risk + complexity / (LEMMA_GRID * rows) + LEMMA_GRID / 8)


def kl(found: Moments, divergence: float, rows: int, failure: float) -> Bound:
    budget = (divergence + math.log(2 * math.sqrt(rows) / failure)) / rows
    return Bound(largest_mean(min(found.risk, 1.0), budget))


def bernstein(found: Moments, divergence: float, rows: int, failure: float) -> Bound:
    grid = BERNSTEIN_GRID
    complexity = divergence + math.log(len(grid) / failure)
    by_square = (-torch.log1p(-grid) - grid) / grid
    return _smallest(grid, found.risk + complexity / (grid * rows) + by_square * found.square)


# Every bound by name. Each is a function of the moments, KL, the number of rows and the probability that it may fail.
BOUNDS: dict[str, Callable[[Moments, float, int, float], Bound]] = {"lemma": lemma, "kl": kl, "bernstein": bernstein}


def _smallest(grid: Tensor, values: Tensor) -> Bound:
    best = int(values.argmin())
    return Bound(values[best].item(), grid[best].item())


def divergence_of(observed: float, mean: float) -> float:
    """kl(observed ‖ mean) of Bernoulli variables."""
    parts = ((observed, mean), (1 - observed, 1 - mean))
    if any(a > 0 and b <= 0 for a, b in parts):
        return math.inf
    return sum(a * math.log(a / b) for a, b in parts if a > 0)


def largest_mean(observed: float, budget: float) -> float:
    """The largest mean p ≥ ``observed`` with kl(observed ‖ p) ≤ ``budget``."""
    return _largest(observed, lambda mean: divergence_of(observed, mean) <= budget)


def largest_average(mean: float, count: int, failure: float) -> float:
    """What the average of ``count`` independent draws from [0, 1] exceeds with probability ``failure`` at most, if the
    mean of their expectations is ``mean`` (Hoeffding, 1963, Theorem 1: kl(average ‖ mean) ≤ ln(1/η)/count)."""
    budget = math.log(1 / failure) / count
    return _largest(mean, lambda average: divergence_of(average, mean) <= budget)


def _largest(low: float, holds: Callable[[float], bool]) -> float:
    """The end, rounded up, of the interval from ``low`` towards one on which ``holds`` is true."""
    high = 1.0
    if holds(high):
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


def bernstein_margin(values: Tensor, failure: float) -> float:
    """How far the average of independent draws (m,) from [0, 1] lies below their mean at most, but for ``failure``
    (empirical Bernstein: Maurer and Pontil, 2009, Theorem 4)."""
    count, log = len(values), math.log(2 / failure)
    return math.sqrt(2 * values.var().item() * log / count) + 7 * log / (3 * (count - 1))
