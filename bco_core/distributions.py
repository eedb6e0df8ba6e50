"""Distributions over θ: mean-field families, and the results of inference that are built from them.

A member of a family is a product of independent coordinates with location μ and scale σ (for Laplace, σ is the usual
b). The prior is centred at zero with scale s. The KL divergence has a closed form in each coordinate (section 5.1 of
the paper):

    KL(N(μ, σ²) ‖ N(0, s²))       = ½ (μ² + σ²)/s² − ½ − ln(σ/s)
    KL(Lap(μ, σ) ‖ Lap(0, s))     = |μ|/s + (σ/s) exp(−|μ|/σ) − 1 − ln(σ/s)

Every learning step needs the gradient of a risk plus κ KL, so it is compiled as one pass over memory. Inference returns
a mixture of members, a matrix Gaussian, or the draws of chains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numba import njit
from torch import Tensor

from bco_core.errors import InvalidInput

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Family:
    """One location–scale family; ``noise``, ``log_prob`` and ``kl`` (of each coordinate to the prior) broadcast."""

    name: str
    noise: Callable[[tuple[int, ...], torch.Generator, torch.dtype], Tensor]
    log_prob: Callable[[Tensor, Tensor, Tensor], Tensor]
    kl: Callable[[Tensor, Tensor, Tensor], Tensor]
    add_kl_gradient: Callable[[Array, Array, Array, Array, float], None]

    def gradient(
        self, by_theta: Tensor, noise: Tensor, loc: Tensor, scale: Tensor, prior_scale: Tensor, kl_weight: Tensor
    ) -> Tensor:
        """Return ∇(risk + κ KL) with respect to (μ, ρ), (2, R, d), in single precision.

        ``by_theta`` (R, S, d) is the gradient of each member's risk with respect to its S draws θ = μ + σ ∘ noise, with
        σ = softplus(ρ) of shape (R, d) and κ of shape (R,).
        """
        gradient = torch.empty(2, *loc.shape, dtype=loc.dtype)
        _reparametrised(by_theta.numpy(), noise.numpy(), gradient.numpy())
        self.add_kl_gradient(gradient.numpy(), loc.numpy(), scale.numpy(), kl_weight.numpy(), (1 / prior_scale).item())
        _by_softplus(gradient[1].numpy(), scale.numpy())
        return gradient


def _gaussian_noise(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=dtype)


def _gaussian_log_prob(theta: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * ((theta - loc) / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)


def _gaussian_kl(loc: Tensor, scale: Tensor, prior_scale: Tensor) -> Tensor:
    return 0.5 * (loc.square() + scale.square()) / prior_scale**2 - 0.5 - (scale / prior_scale).log()


def _laplace_noise(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Draw ξ = −sign(u) ln(1 − |u|), u uniform on (−1, 1): Algorithm 1, line 4. |u| = 1, infinite, is clipped."""
    u = torch.empty(shape, dtype=dtype).uniform_(-1, 1, generator=generator)
    size = u.abs().neg_().clamp_min_(torch.finfo(dtype).eps - 1).log1p_()
    return size.copysign_(u)


def _laplace_log_prob(theta: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -(theta - loc).abs() / scale - scale.log() - math.log(2)


def _laplace_kl(loc: Tensor, scale: Tensor, prior_scale: Tensor) -> Tensor:
    near = (scale / prior_scale) * torch.exp(-loc.abs() / scale)
    return loc.abs() / prior_scale + near - 1 - (scale / prior_scale).log()


# A library's exponential is called number by number; this one is inlined into vectorised loops.
_ZERO, _ONE = np.float32(0), np.float32(1)
_SERIES = tuple(np.float32(1 / math.factorial(k)) for k in range(7))


@njit(fastmath=True, error_model="numpy", cache=True)
def _exp_of_negative(x: Any) -> Any:
    """exp(x) for x ≤ 0 to single precision: 2^k times the series on |r| ≤ ½ ln 2."""
    x = x if x > np.float32(-87.0) else np.float32(-87.0)
    k = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    # ln 2 in two parts, the first of few digits, so that k times it is exact.
    r = (x - k * np.float32(0.693359375)) + k * np.float32(2.12194440e-4)
    p = _SERIES[6]
    p = p * r + _SERIES[5]
    p = p * r + _SERIES[4]
    p = p * r + _SERIES[3]
    p = p * r + _SERIES[2]
    p = p * r + _ONE
    p = p * r + _ONE
    return p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(fastmath=True, error_model="numpy", cache=True)
def _reparametrised(by_theta: Array, noise: Array, gradient: Array) -> None:
    """∂θ/∂μ = 1 and ∂θ/∂σ = noise, summed over draws."""
    members, draws, dim = by_theta.shape
    for r in range(members):
        for j in range(dim):
            gradient[0, r, j] = by_theta[r, 0, j]
            gradient[1, r, j] = by_theta[r, 0, j] * noise[r, 0, j]
        for s in range(1, draws):
            for j in range(dim):
                gradient[0, r, j] += by_theta[r, s, j]
                gradient[1, r, j] += by_theta[r, s, j] * noise[r, s, j]


@njit(fastmath=True, error_model="numpy", cache=True)
def _by_softplus(by_scale: Array, scale: Array) -> None:
    """∂σ/∂ρ = 1 − exp(−σ), from its series where that would cancel."""
    members, dim = scale.shape
    for r in range(members):
        for j in range(dim):
            s = scale[r, j]
            near_zero, elsewhere = s * (_ONE - s * (_SERIES[2] - s * _SERIES[3])), _ONE - _exp_of_negative(-s)
            by_scale[r, j] *= near_zero if s < np.float32(0.03) else elsewhere


@njit(fastmath=True, error_model="numpy", cache=True)
def _add_gaussian_kl_gradient(gradient: Array, loc: Array, scale: Array, kl_weight: Array, precision: float) -> None:
    squared = np.float32(precision * precision)
    for r in range(loc.shape[0]):
        weight = kl_weight[r]
        for j in range(loc.shape[1]):
            gradient[0, r, j] += weight * loc[r, j] * squared
            gradient[1, r, j] += weight * (scale[r, j] * squared - _ONE / scale[r, j])


@njit(fastmath=True, error_model="numpy", cache=True)
def _add_laplace_kl_gradient(gradient: Array, loc: Array, scale: Array, kl_weight: Array, precision: float) -> None:
    for r in range(loc.shape[0]):
        weight, by_prior = kl_weight[r], kl_weight[r] * np.float32(precision)
        for j in range(loc.shape[1]):
            m, inverse = loc[r, j], _ONE / scale[r, j]
            steps = abs(m) * inverse
            near = _exp_of_negative(-steps)
            away = by_prior * (_ONE - near)
            gradient[0, r, j] += away if m > _ZERO else -away
            gradient[1, r, j] += by_prior * near * (_ONE + steps) - weight * inverse


FAMILIES = {
    "gaussian": Family("gaussian", _gaussian_noise, _gaussian_log_prob, _gaussian_kl, _add_gaussian_kl_gradient),
    "laplace": Family("laplace", _laplace_noise, _laplace_log_prob, _laplace_kl, _add_laplace_kl_gradient),
}


class Distribution(Protocol):
    """A distribution over parameter vectors of length d."""

    @property
    def dim(self) -> int: ...

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Return draws (count, d) of equal weight."""
        ...

    def mode(self) -> Tensor:
        """Return the point of highest density, (d,)."""
        ...

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return a plain description, whose ``family`` names the kind of distribution, and arrays."""
        ...


@dataclass(frozen=True)
class Mixture:
    """Σ_r weights_r Π_j q(θ_j; loc_rj, scale_rj): weights (R,), loc and scale (R, d). R = 1 is the paper's."""

    family: Family
    weights: Tensor
    loc: Tensor
    scale: Tensor

    @property
    def dim(self) -> int:
        return self.loc.shape[1]

    def __post_init__(self) -> None:
        if self.loc.ndim != 2 or self.loc.shape != self.scale.shape or self.weights.shape != self.loc.shape[:1]:
            raise InvalidInput("a mixture needs weights (R,), locations (R, d) and scales (R, d)")

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Return stratified draws (count, d): member r contributes count·weights_r of them, up to rounding."""
        member = strata(self.weights, count)[torch.randperm(count, generator=generator)]
        noise = self.family.noise((count, self.loc.shape[1]), generator, self.loc.dtype)
        return self.around(member, noise)

    def around(self, member: Tensor, noise: Tensor) -> Tensor:
        """Return draws (S, d) of members (S,) for noise (S, d) of the family."""
        return self.loc[member] + self.scale[member] * noise

    def log_prob(self, theta: Tensor) -> Tensor:
        """Return the log density (S,) of parameter vectors (S, d)."""
        parts = self.family.log_prob(theta[:, None], self.loc, self.scale).sum(-1)
        return torch.logsumexp(parts + (self.weights / self.weights.sum()).log(), dim=1)

    def mode(self) -> Tensor:
        """Return the location (d,) of the heaviest component and, among equals, of the one with the highest density.

        Components hardly overlap, so each has a mode at its own location. Densities of components in spaces of
        different dimension cannot be compared, so the weight decides first.
        """
        heaviest = self.weights >= self.weights.max() * (1 - 1e-6)
        height = torch.where(heaviest, -self.scale.log().sum(dim=1), -torch.inf)
        return self.loc[height.argmax()]

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"family": self.family.name}, {"weights": self.weights, "loc": self.loc, "scale": self.scale}


@dataclass(frozen=True)
class MatrixGaussian(Mixture):
    """A mixture of matrix Gaussians: θ, read row by row, is M + A Z B' with Z standard normal.

    ``by_rows`` A (R, a, a) and ``by_columns`` B (R, b, b) are the factors of the row and column covariances; ``scale``
    is the standard deviation of each entry.
    """

    by_rows: Tensor
    by_columns: Tensor

    @staticmethod
    def of(loc: Tensor, by_rows: Tensor, by_columns: Tensor) -> MatrixGaussian:
        """Return members of equal weight around matrices (R, a, b)."""
        count = len(loc)
        spread = by_rows.square().sum(-1).sqrt()[:, :, None] * by_columns.square().sum(-1).sqrt()[:, None]
        weights = torch.full((count,), 1 / count, dtype=loc.dtype)
        return MatrixGaussian(FAMILIES["gaussian"], weights, loc.flatten(1), spread.flatten(1), by_rows, by_columns)

    def around(self, member: Tensor, noise: Tensor) -> Tensor:
        matrix = noise.view(len(noise), self.by_rows.shape[1], self.by_columns.shape[1])
        spread = self.by_rows[member] @ matrix @ self.by_columns[member].transpose(1, 2)
        return self.loc[member] + spread.flatten(1)

    def log_prob(self, theta: Tensor) -> Tensor:
        rows, columns = self.by_rows.double(), self.by_columns.double()
        apart = (theta.double()[:, None] - self.loc.double()).view(len(theta), -1, rows.shape[1], columns.shape[1])
        left = torch.linalg.solve(rows, apart)
        noise = torch.linalg.solve(columns, left.transpose(2, 3)).flatten(2)
        volume = columns.shape[1] * rows.det().abs().log() + rows.shape[1] * columns.det().abs().log()
        zero = torch.zeros((), dtype=torch.float64)
        parts = self.family.log_prob(noise, zero, zero + 1).sum(-1) - volume
        return torch.logsumexp(parts + (self.weights / self.weights.sum()).log(), dim=1)

    def mode(self) -> Tensor:
        return self.loc[self.weights.argmax()]

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        _, arrays = super().to_arrays()
        return {"family": _MATRIX}, arrays | {"by_rows": self.by_rows, "by_columns": self.by_columns}


def strata(weights: Tensor, count: int) -> Tensor:
    """Return the member that each of ``count`` stratified draws comes from, by weights (R,): (count,), in order."""
    edges = weights.double().cumsum(0)
    offsets = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return torch.searchsorted(edges / edges[-1], offsets).clamp_max(len(edges) - 1)


def equal_mixture(family: Family, loc: Tensor, scale: Tensor) -> Mixture:
    """Return the mixture of members (R, d) with equal weights."""
    return Mixture(family, torch.full((len(loc),), 1 / len(loc), dtype=loc.dtype), loc, scale)


@dataclass(frozen=True)
class ChainDraws:
    """Draws (N, d) of equal weight from a sampler; ``best`` is the one with the highest posterior density."""

    loc: Tensor
    best: int

    def __post_init__(self) -> None:
        if self.loc.ndim != 2 or not 0 <= self.best < len(self.loc):
            raise InvalidInput("chains need draws (N, d), and the best must be one of them")

    @property
    def dim(self) -> int:
        return self.loc.shape[1]

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Return ``count`` of the draws in random order; none repeats before all have been drawn."""
        rounds = -(-count // len(self.loc))
        order = torch.cat([torch.randperm(len(self.loc), generator=generator) for _ in range(rounds)])
        return self.loc[order[:count]]

    def mode(self) -> Tensor:
        return self.loc[self.best]

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"family": CHAINS, "best": self.best}, {"loc": self.loc}


CHAINS, _MATRIX = "chains", "matrix_gaussian"


def _mixture(description: dict[str, Any], arrays: dict[str, Tensor]) -> Mixture:
    return Mixture(FAMILIES[description["family"]], arrays["weights"], arrays["loc"], arrays["scale"])


def _chain_draws(description: dict[str, Any], arrays: dict[str, Tensor]) -> ChainDraws:
    return ChainDraws(arrays["loc"], description["best"])


def _matrix_gaussian(description: dict[str, Any], arrays: dict[str, Tensor]) -> MatrixGaussian:
    named = (arrays[name] for name in ("weights", "loc", "scale", "by_rows", "by_columns"))
    return MatrixGaussian(FAMILIES["gaussian"], *named)


# The function that restores each distribution, by its family.
DISTRIBUTIONS: dict[str, Callable[[dict[str, Any], dict[str, Tensor]], Distribution]] = {
    **dict.fromkeys(FAMILIES, _mixture),
    CHAINS: _chain_draws,
    _MATRIX: _matrix_gaussian,
}


def distribution_from_arrays(description: dict[str, Any], arrays: dict[str, Tensor]) -> Distribution:
    """Restore a distribution from :meth:`Distribution.to_arrays`."""
    return DISTRIBUTIONS[description["family"]](description, arrays)
