"""Mean-field families for prior and posterior.

A member is a product of independent coordinates with location μ and scale σ (for Laplace, σ is the usual b). The prior
is centred at zero with scale s. The KL divergence has a closed form in each coordinate (section 5.1 of the paper):

    KL(N(μ, σ²) ‖ N(0, s²))       = ½ (μ² + σ²)/s² − ½ − ln(σ/s)
    KL(Lap(μ, σ) ‖ Lap(0, s))     = |μ|/s + (σ/s) exp(−|μ|/σ) − 1 − ln(σ/s)

Every learning step needs the gradient of a risk plus κ KL, so it is compiled as one pass over memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

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
