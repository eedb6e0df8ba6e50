"""Experiment 2's three demand generators, and the exact expected cost of any decision under them.

With X uniform on (0, 1)⁸ demand is Y = m(X) + s(X) ε, so its τ-quantile is f(τ | X) = m(X) + s(X) F⁻¹(τ):

    DGP-1   m = 2 A'X                                              s = 1                         ε ~ Student t₃
    DGP-2   m = exp(0.1 A'X)                                       s = |sin(π B'X)|              ε ~ N(0, 1)
    DGP-3   m = 3X₁ + 4(X₂ − ½)² + 2 sin(πX₃) − 5|X₄ − ½|           s = exp(0.1 (B'X − 0.5))      ε ~ N(0, 1)

With c_u = τ and c_o = 1 − τ the cost is τ(Y − z) + (z − Y)⁺, and with u = (z − m)/s and mean-zero noise

    E[c(z; Y) | X] = (z − m) (F(u) − τ) + s T(u),    T(u) = −E[ε; ε ≤ u],

where T(u) = φ(u) for the normal, and (3 + u²) f(u) / 2 for t₃.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.data import Sample

CONTEXT_DIM = 8
A = torch.tensor([0.409, 0.908, 0, 0, -2.061, 0.254, 3.024, 1.280], dtype=torch.float64)
B = torch.tensor([1.386, -0.902, 5.437, 0, 0, -0.482, 4.611, 0], dtype=torch.float64)
_ROOT3 = math.sqrt(3)


@dataclass(frozen=True)
class Noise:
    """A mean-zero law: its distribution function F, the partial mean T(u) = −E[ε; ε ≤ u], its quantile and draws."""

    distribution: Callable[[Tensor], Tensor]
    partial_mean: Callable[[Tensor], Tensor]
    quantile: Callable[[float], float]
    draw: Callable[[int, torch.Generator], Tensor]


def _normal_density(u: Tensor) -> Tensor:
    return torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)


def _normal_quantile(level: float) -> float:
    return float(torch.special.ndtri(torch.tensor(level, dtype=torch.float64)))


def _normal_draw(count: int, generator: torch.Generator) -> Tensor:
    return torch.randn(count, generator=generator, dtype=torch.float64)


def _student_distribution(u: Tensor) -> Tensor:
    v = u / _ROOT3
    return 0.5 + (v / (1 + v.square()) + torch.atan(v)) / math.pi


def _student_partial_mean(u: Tensor) -> Tensor:
    return _ROOT3 / math.pi / (1 + u.square() / 3)


def _student_quantile(level: float) -> float:
    """Return the quantile by bisection on the closed-form distribution function."""
    low, high = -1e3, 1e3
    for _ in range(100):
        middle = (low + high) / 2
        below = _student_distribution(torch.tensor(middle, dtype=torch.float64)).item() < level
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def _student_draw(count: int, generator: torch.Generator) -> Tensor:
    """Draw a normal divided by the root of an independent χ²₃/3."""
    normal = torch.randn(4, count, generator=generator, dtype=torch.float64)
    return normal[0] / normal[1:].square().mean(dim=0).sqrt()


NORMAL = Noise(torch.special.ndtr, _normal_density, _normal_quantile, _normal_draw)
STUDENT = Noise(_student_distribution, _student_partial_mean, _student_quantile, _student_draw)


@dataclass(frozen=True)
class Demand:
    """One generator: location and scale of demand (n,) for contexts (n, 8), and its noise."""

    location: Callable[[Tensor], Tensor]
    scale: Callable[[Tensor], Tensor]
    noise: Noise

    def draw(self, count: int, generator: torch.Generator) -> Sample:
        contexts = torch.rand(count, CONTEXT_DIM, generator=generator, dtype=torch.float64)
        noise = self.noise.draw(count, generator)
        return Sample(contexts, (self.location(contexts) + self.scale(contexts) * noise)[:, None])

    def quantile(self, level: float, contexts: Tensor) -> Tensor:
        """Return f(τ | x), the oracle's decision: (n, 8) → (n,)."""
        return self.location(contexts) + self.scale(contexts) * self.noise.quantile(level)

    def expected_cost(self, level: float, contexts: Tensor, decisions: Tensor) -> Tensor:
        """Return E[τ(Y − z)⁺ + (1 − τ)(z − Y)⁺ | x] for decisions (n,) in contexts (n, 8): (n,)."""
        location, scale = self.location(contexts), self.scale(contexts)
        # |sin(πB'X)| may vanish: demand is then certain, and the formula's limit is the cost itself.
        u = (decisions - location) / scale.clamp_min(1e-12)
        return (decisions - location) * (self.noise.distribution(u) - level) + scale * self.noise.partial_mean(u)

    def gap(self, level: float, contexts: Tensor, decisions: Tensor) -> float:
        """Return by how many per cent decisions (n,) cost more than the oracle's, over contexts (n, 8)."""
        oracle = self.expected_cost(level, contexts, self.quantile(level, contexts)).mean()
        return 100 * (self.expected_cost(level, contexts, decisions).mean() / oracle - 1).item()


def _sparse(x: Tensor) -> Tensor:
    bend = 4 * (x[:, 1] - 0.5).square() + 2 * torch.sin(math.pi * x[:, 2])
    return 3 * x[:, 0] + bend - 5 * (x[:, 3] - 0.5).abs()


DEMANDS = {
    1: Demand(lambda x: 2 * (x @ A), lambda x: torch.ones(len(x), dtype=x.dtype), STUDENT),
    2: Demand(lambda x: torch.exp(0.1 * (x @ A)), lambda x: torch.sin(math.pi * (x @ B)).abs(), NORMAL),
    3: Demand(_sparse, lambda x: torch.exp(0.1 * (x @ B - 0.5)), NORMAL),
}


def sobol_contexts(count: int = 2**15, seed: int = 0) -> Tensor:
    """Return a scrambled Sobol sequence (count, 8) in the unit cube."""
    engine = torch.quasirandom.SobolEngine(CONTEXT_DIM, scramble=True, seed=seed)
    return engine.draw(count, dtype=torch.float64)
