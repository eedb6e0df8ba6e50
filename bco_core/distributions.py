"""Distributions over θ, the results of inference: mean-field mixtures, matrix Gaussians, or the draws of chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.families import FAMILIES, Family


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
