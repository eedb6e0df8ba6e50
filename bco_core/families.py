"""Mean-field families for prior and posterior, and mixtures of them.

A member is a product of independent coordinates with location μ and scale σ (for Laplace, σ is the usual b). The prior
is centred at zero with scale s. Closed forms, per coordinate:

    KL(N(μ, σ²) ‖ N(0, s²))       = ½ (μ² + σ²)/s² − ½ − ln(σ/s)
    KL(Lap(μ, σ) ‖ Lap(0, s))     = |μ|/s + (σ/s) exp(−|μ|/σ) − 1 − ln(σ/s)

Their gradients are written out too: learning meets them at every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.errors import InvalidInput

# Value and gradients by location and scale, for location, scale and prior scale.
KLTerms = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Family:
    """One location–scale family; all functions broadcast."""

    name: str
    noise: Callable[[tuple[int, ...], torch.Generator, torch.dtype], Tensor]
    log_prob: Callable[[Tensor, Tensor, Tensor], Tensor]
    kl_terms: KLTerms

    def kl(self, loc: Tensor, scale: Tensor, prior_scale: Tensor) -> Tensor:
        """KL of each coordinate to the prior centred at zero."""
        value: Tensor = _closed_form_kl(loc, scale, prior_scale, self.kl_terms)
        return value


def _gaussian_noise(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=dtype)


def _gaussian_log_prob(theta: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * ((theta - loc) / scale).square() - scale.log() - 0.5 * math.log(2 * math.pi)


def _gaussian_kl(loc: Tensor, scale: Tensor, prior_scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    precision = prior_scale**-2
    value = (loc.square() + scale.square()).mul_(0.5 * precision).sub_((scale / prior_scale).log_()).sub_(0.5)
    return value, loc * precision, scale * precision - scale.reciprocal()


def _laplace_noise(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """ξ = −sign(u) ln(1 − |u|), u uniform on (−1, 1): Algorithm 1, line 4. A sampled 1 would give infinity: clip it."""
    u = torch.rand(shape, generator=generator, dtype=dtype).mul_(2).sub_(1)
    size = u.abs().clamp_max_(1 - torch.finfo(dtype).eps).neg_().log1p_()
    return size.copysign_(u)


def _laplace_log_prob(theta: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -(theta - loc).abs() / scale - scale.log() - math.log(2)


def _laplace_kl(loc: Tensor, scale: Tensor, prior_scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    inverse = scale.reciprocal()
    steps = loc.abs().mul_(inverse)
    near = torch.exp(-steps)
    # With |μ| = steps·σ, all terms but the logarithm are σ/s times a function of the steps.
    value = (near + steps).mul_(scale / prior_scale)
    value.sub_((scale / prior_scale).log_()).sub_(1.0)
    by_scale = torch.addcmul(near, near, steps).div_(prior_scale).sub_(inverse)
    by_loc = torch.copysign(near.neg_().add_(1.0), loc).div_(prior_scale)
    return value, by_loc, by_scale


class _ClosedFormKL(torch.autograd.Function):
    """A coordinate-wise KL whose gradient is known: (value, by location, by scale)."""

    @staticmethod
    def forward(ctx: Any, loc: Tensor, scale: Tensor, prior_scale: Tensor, terms: KLTerms) -> Tensor:
        value, by_loc, by_scale = terms(loc, scale, prior_scale)
        ctx.save_for_backward(by_loc, by_scale)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        by_loc, by_scale = ctx.saved_tensors
        return gradients[0] * by_loc, gradients[0] * by_scale, None, None


_closed_form_kl: Callable[..., Tensor] = _ClosedFormKL.apply

FAMILIES = {
    "gaussian": Family("gaussian", _gaussian_noise, _gaussian_log_prob, _gaussian_kl),
    "laplace": Family("laplace", _laplace_noise, _laplace_log_prob, _laplace_kl),
}


@dataclass(frozen=True)
class Mixture:
    """Σ_r weights_r Π_j q(θ_j; loc_rj, scale_rj): weights (R,), loc and scale (R, d). R = 1 is the paper's."""

    family: Family
    weights: Tensor
    loc: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        if self.loc.shape != self.scale.shape or self.weights.shape != self.loc.shape[:1]:
            raise InvalidInput("a mixture needs weights (R,), locations (R, d) and scales (R, d)")

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` draws (count, d), stratified: member r contributes count·weights_r draws up to rounding."""
        edges = self.weights.double().cumsum(0)
        offsets = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        member = torch.searchsorted(edges / edges[-1], offsets).clamp_max(len(edges) - 1)
        member = member[torch.randperm(count, generator=generator)]
        noise = self.family.noise((count, self.loc.shape[1]), generator, self.loc.dtype)
        return self.loc[member] + self.scale[member] * noise

    def log_prob(self, theta: Tensor) -> Tensor:
        """log density (S,) of parameter vectors (S, d)."""
        parts = self.family.log_prob(theta[:, None], self.loc, self.scale).sum(-1)
        return torch.logsumexp(parts + (self.weights / self.weights.sum()).log(), dim=1)

    def mode(self) -> Tensor:
        """The location (d,) of the heaviest component and, among equals, of the one with the highest density.

        Components hardly overlap, so each has a mode at its own location. Densities of components that live in spaces
        of different dimension cannot be compared, so weight decides first.
        """
        heaviest = self.weights >= self.weights.max() * (1 - 1e-6)
        height = torch.where(heaviest, -self.scale.log().sum(dim=1), -torch.inf)
        return self.loc[height.argmax()]


def equal_mixture(family: Family, loc: Tensor, scale: Tensor) -> Mixture:
    """The mixture of members (R, d) of equal weight."""
    return Mixture(family, torch.full((len(loc),), 1 / len(loc), dtype=loc.dtype), loc, scale)
