"""Networks of fully connected layers with ReLU between them."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from bco_core.predictors.base import Predictor, affine


class Network(Predictor):
    """Layer l maps width w_l to w_{l+1}."""

    kind = "mlp"
    is_network = True
    skips = False
    # Factor on the variance 1/fan_in of the last layer's initial weights.
    last_gain = 1.0

    @staticmethod
    def size(widths: tuple[int, ...]) -> int:
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(widths))

    @property
    def linear_dim(self) -> int:
        return 0

    def initial(self, count: int, generator: torch.Generator) -> Tensor:
        """Return weights of variance 2/fan_in before a ReLU and 1/fan_in last, biases zero."""
        parts = []
        for layer, (fan_in, fan_out) in enumerate(pairwise(self.widths)):
            gain = self.last_gain if layer == len(self.widths) - 2 else 2.0
            weight = torch.randn(count, fan_in * fan_out, generator=generator) * math.sqrt(gain / max(fan_in, 1))
            parts += [weight, torch.zeros(count, fan_out)]
        return torch.cat([*parts, torch.zeros(count, self.linear_dim)], dim=1)

    def outputs(self, theta: Tensor, encoded: Tensor) -> Tensor:
        return _through(affine(theta, list(pairwise(self.widths))), encoded)


class SkipNetwork(Network):
    """A network plus a linear path from features to outcomes, stored last in θ.

    The linear path starts at zero, and the network's last layer starts ten times smaller than without it.
    """

    kind = "skip_mlp"
    skips = True
    last_gain = 0.01

    @staticmethod
    def size(widths: tuple[int, ...]) -> int:
        return Network.size(widths) + (widths[0] + 1) * widths[-1]

    @property
    def linear_dim(self) -> int:
        return (self.widths[0] + 1) * self.widths[-1]

    def outputs(self, theta: Tensor, encoded: Tensor) -> Tensor:
        *layers, (slopes, bias) = affine(theta, [*pairwise(self.widths), (self.widths[0], self.widths[-1])])
        return _through(layers, encoded) + torch.baddbmm(bias, encoded, slopes)


def _through(layers: list[tuple[Tensor, Tensor]], inputs: Tensor) -> Tensor:
    hidden = inputs
    for layer, (weight, bias) in enumerate(layers):
        hidden = torch.baddbmm(bias, torch.relu(hidden) if layer else hidden, weight)
    return hidden
