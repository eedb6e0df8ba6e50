"""Linear predictors: outcomes are affine in the features."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bco_core.predictors.base import Predictor, affine


class Linear(Predictor):
    """θ is a matrix of slopes (features, d_y) and a bias."""

    kind = "linear"
    skips = False

    @staticmethod
    def size(widths: tuple[int, ...]) -> int:
        return (widths[0] + 1) * widths[-1]

    @property
    def linear_dim(self) -> int:
        return self.dim

    def initial(self, count: int, generator: torch.Generator) -> Tensor:
        """Return slopes of variance 1/features and zero biases."""
        inputs, outputs = self.widths
        slopes = torch.randn(count, inputs * outputs, generator=generator) * math.sqrt(1 / max(inputs, 1))
        return torch.cat([slopes, torch.zeros(count, outputs)], dim=1)

    def outputs(self, theta: Tensor, encoded: Tensor) -> Tensor:
        ((slopes, bias),) = affine(theta, [(self.widths[0], self.widths[-1])])
        return torch.baddbmm(bias, encoded, slopes)


class ReluAffine(Linear):
    """Linear and clipped at zero in the user's units: the paper's model for demand."""

    kind = "relu_affine"

    def clip(self, predictions: Tensor) -> Tensor:
        return torch.relu(predictions)
