"""Point predictors f_θ as batched functions of a flat parameter vector.

θ has shape (S, d): the leading axis is the batch of parameter vectors (draws, members, chains, restarts). A linear map
from width a to width b is stored as its matrix, row by row, and then its bias. A linear path from features to outcomes,
where there is one, comes last in θ, so the last d_y coordinates are an output bias in every kind.

Features and outcomes are standardised inside, so that a unit prior means the same on every data set; predictions are
returned in the user's units, in float64. Where features include a prediction of their own, the base, f_θ is a residual
model: θ = 0 predicts the base, and outputs are in units of the base's errors.

Prescribing spends most of its time reading parameters: hundreds of networks of some megabytes, of which a core's cache
holds one or two. So the compiled kernel loops over parameter vectors outermost, reads each from memory once, and
evaluates all its layers for all contexts meanwhile. A prediction does not depend on the other contexts of the batch,
bit for bit: contexts pass in blocks of ``ROWS``, the last one padded with zeros, so all meet the same instructions, and
every sum runs over inputs in their order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numba
import numpy as np
import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.batch_kernels import OPTIONS, compiled
from bco_core.data import Standardizer
from bco_core.errors import InvalidInput
from bco_core.features.base import Features

# Contexts are evaluated in chunks so that one hidden layer of one chunk stays near this many numbers.
_CHUNK_NUMBERS = 2_000_000
# Contexts in a block, which share each load of parameters.
ROWS = 4
# The widest layer that the kernel supports.
WIDEST = 4096
# Stride between rows of a block: a constant, so that rows are vectorised, and not a multiple of a page, so that rows
# do not evict each other from the cache.
_B = WIDEST + 16
_C, _D = 2 * _B, 3 * _B


@dataclass(frozen=True)
class Predictor(ABC):
    """f_θ with layer ``widths`` (features, hidden…, d_y): the interface that inference uses."""

    widths: tuple[int, ...]
    features: Features
    outcomes: Standardizer

    kind: ClassVar[str]
    # Whether there are hidden layers, which need a warm start and a training recipe of their own.
    is_network: ClassVar[bool] = False
    # Whether a linear path follows the layers in θ; None where outputs are not plain layers with ReLU between them.
    skips: ClassVar[bool | None] = None

    @staticmethod
    @abstractmethod
    def size(widths: tuple[int, ...]) -> int:
        """Return the length d of a parameter vector for these widths."""

    @property
    @abstractmethod
    def linear_dim(self) -> int:
        """Number of coordinates at the end of θ that form a linear path, slopes and bias: all, some or none."""

    @abstractmethod
    def initial(self, count: int, generator: torch.Generator) -> Tensor:
        """Return starting vectors (count, d)."""

    @abstractmethod
    def outputs(self, theta: Tensor, encoded: Tensor) -> Tensor:
        """Return standardised predictions (S, n, d_y) for parameters (S, d) and features (S, n, width)."""

    @property
    def dim(self) -> int:
        """Length d of a parameter vector."""
        return self.size(self.widths)

    @property
    def outcome_dim(self) -> int:
        return self.widths[-1]

    def units(self) -> Tensor:
        """Return the relative spread of the feature that each coordinate of θ multiplies, (d,); 1 for biases."""
        spread = self.features.spread / self.features.spread.square().mean().sqrt()
        units = torch.ones(self.dim, dtype=torch.float64)
        first, last = self.widths[1], self.widths[-1]
        units[: len(spread) * first] = spread.repeat_interleave(first)
        if self.linear_dim:
            units[-self.linear_dim : -last] = spread.repeat_interleave(last)
        return units

    def clip(self, predictions: Tensor) -> Tensor:
        """Clip predictions in the user's units to the range of the kind: here without limits."""
        return predictions

    def encode(self, contexts: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the features (..., width) of new contexts (..., d_x), followed by the bases."""
        if contexts.shape[-1] != self.features.context_dim:
            raise InvalidInput(f"a context needs {self.features.context_dim} columns and has {contexts.shape[-1]}")
        return self.features.of_new(contexts).to(dtype)

    def unclipped(self, theta: Tensor, encoded: Tensor) -> Tensor:
        """Return predictions (S, n, d_y) before clipping, for features and bases (n, width) or (S, n, width)."""
        inputs = encoded.expand(theta.shape[0], *encoded.shape[-2:])
        return self._from_outputs(self.outputs(theta, inputs[..., : self.widths[0]]).double(), inputs)

    def _from_outputs(self, outputs: Tensor, encoded: Tensor) -> Tensor:
        """Return predictions in the user's units for outputs (..., d_y), added to the bases in ``encoded``."""
        if self.features.bases is not None:
            outputs = outputs * self.features.shrink + encoded[..., self.widths[0] :]
        return self.outcomes.undo(outputs)

    def wanted(self, outcomes: Tensor, encoded: Tensor) -> Tensor:
        """Return the outputs (n, d_y) that predict outcomes (n, d_y) exactly: the inverse of :meth:`unclipped`."""
        standardized = self.outcomes.apply(outcomes)
        if self.features.bases is not None:
            standardized = (standardized - encoded[..., self.widths[0] :]) / self.features.shrink
        return standardized

    def forward(self, theta: Tensor, encoded: Tensor) -> Tensor:
        """Return predictions (S, n, d_y) for parameters (S, d) and features (n, width) or (S, n, width)."""
        return self.clip(self.unclipped(theta, encoded))

    def predict(self, theta: Tensor, contexts: Tensor) -> Tensor:
        """Return predictions (S, n, d_y) for new contexts (n, d_x), without gradients, in bounded memory."""
        return self.predict_encoded(theta, self.encode(contexts, theta.dtype))

    @property
    def predicts_alone(self) -> bool:
        """Whether :meth:`predict_each` gives a context the same bits whatever other contexts are in the batch."""
        return self.skips is not None and max(self.widths) <= WIDEST

    def predict_each(self, theta: Tensor, contexts: Tensor) -> Tensor:
        """Return predictions (n, S, d_y) for new contexts (n, d_x), by the compiled kernel where it supports the kind.

        They equal those of :meth:`predict` up to rounding.
        """
        return self.predict_each_encoded(theta, self.encode(contexts, theta.dtype))

    def predict_each_encoded(self, theta: Tensor, features: Tensor) -> Tensor:
        """Return the same for features (n, width)."""
        if self.skips is None or not self.predicts_alone:
            return self.predict_encoded(theta, features).transpose(0, 1)
        encoded = features.numpy()
        rows = np.zeros((-(-len(encoded) // ROWS) * ROWS, self.widths[0]), encoded.dtype)
        rows[: len(encoded)] = encoded[:, : self.widths[0]]
        result = np.empty((len(rows), len(theta), self.outcome_dim), encoded.dtype)
        _layer_outputs(theta.contiguous().numpy(), rows, np.array(self.widths), self.skips, result)
        outputs = torch.from_numpy(result[: len(encoded)]).double()
        return self.clip(self._from_outputs(outputs, torch.from_numpy(encoded)[:, None]))

    def predict_encoded(self, theta: Tensor, encoded: Tensor) -> Tensor:
        """Return the same for features (n, width)."""
        rows = max(1, _CHUNK_NUMBERS // (max(self.widths) * len(theta)))
        with torch.no_grad():
            return torch.cat([self._in_time(theta, chunk) for chunk in encoded.split(rows)], dim=1)

    def _in_time(self, theta: Tensor, chunk: Tensor) -> Tensor:
        deadlines.check()
        return self.forward(theta, chunk)


def affine(theta: Tensor, layers: list[tuple[int, int]]) -> list[tuple[Tensor, Tensor]]:
    """Return the matrices (S, a, b) and biases (S, 1, b) that θ (S, d) holds for these layers of widths (a, b).

    One split has one concatenation as its gradient; the gradient of each slice would be a whole θ of zeros.
    """
    parts = theta.split([size for fan_in, fan_out in layers for size in (fan_in * fan_out, fan_out)], dim=1)
    return [
        (weight.view(len(theta), fan_in, fan_out), bias[:, None])
        for (fan_in, fan_out), weight, bias in zip(layers, parts[::2], parts[1::2], strict=True)
    ]


@numba.njit(inline="always", **OPTIONS)
def _add_layer(theta, at, fan_in, fan_out, inputs, into):  # type: ignore[no-untyped-def]
    """Add inputs[r, :fan_in] W to into[r, :fan_out], four inputs at a time, with W (fan_in, fan_out) at ``at`` of θ."""
    whole = fan_in - fan_in % 4
    for i in range(0, whole, 4):
        first = at + i * fan_out
        w0, w1 = theta[first : first + fan_out], theta[first + fan_out : first + 2 * fan_out]
        w2, w3 = theta[first + 2 * fan_out : first + 3 * fan_out], theta[first + 3 * fan_out : first + 4 * fan_out]
        a0, a1, a2, a3 = inputs[i], inputs[i + 1], inputs[i + 2], inputs[i + 3]
        b0, b1, b2, b3 = inputs[_B + i], inputs[_B + i + 1], inputs[_B + i + 2], inputs[_B + i + 3]
        c0, c1, c2, c3 = inputs[_C + i], inputs[_C + i + 1], inputs[_C + i + 2], inputs[_C + i + 3]
        d0, d1, d2, d3 = inputs[_D + i], inputs[_D + i + 1], inputs[_D + i + 2], inputs[_D + i + 3]
        for j in range(fan_out):
            p, q, r, s = w0[j], w1[j], w2[j], w3[j]
            into[j] = (((into[j] + a0 * p) + a1 * q) + a2 * r) + a3 * s
            into[_B + j] = (((into[_B + j] + b0 * p) + b1 * q) + b2 * r) + b3 * s
            into[_C + j] = (((into[_C + j] + c0 * p) + c1 * q) + c2 * r) + c3 * s
            into[_D + j] = (((into[_D + j] + d0 * p) + d1 * q) + d2 * r) + d3 * s
    for i in range(whole, fan_in):
        w0 = theta[at + i * fan_out : at + (i + 1) * fan_out]
        a0, b0, c0, d0 = inputs[i], inputs[_B + i], inputs[_C + i], inputs[_D + i]
        for j in range(fan_out):
            p = w0[j]
            into[j] += a0 * p
            into[_B + j] += b0 * p
            into[_C + j] += c0 * p
            into[_D + j] += d0 * p


@compiled
def _layer_outputs(theta, encoded, widths, skip, result):  # type: ignore[no-untyped-def]
    """Fill ``found`` (n, S, d_y) with standardised predictions for parameters (S, d) and features (n, width).

    n is a multiple of ``ROWS``. Layers of these ``widths`` have ReLU between them; with ``skip`` a linear path from
    features to outcomes follows them in θ.
    """
    zero = theta.dtype.type(0)
    features, outcomes, layers = widths[0], widths[-1], len(widths) - 1
    first = np.zeros(ROWS * _B, theta.dtype)
    here, there = np.zeros(ROWS * _B, theta.dtype), np.zeros(ROWS * _B, theta.dtype)
    for number in range(len(theta)):
        one = theta[number]
        for begin in range(0, len(encoded), ROWS):
            for row in range(ROWS):
                for i in range(features):
                    first[row * _B + i] = encoded[begin + row, i]
            inputs, at = first, 0
            for layer in range(layers):
                fan_in, fan_out = widths[layer], widths[layer + 1]
                bias = at + fan_in * fan_out
                for row in range(ROWS):
                    for j in range(fan_out):
                        here[row * _B + j] = one[bias + j]
                _add_layer(one, at, fan_in, fan_out, inputs, here)
                if layer < layers - 1:
                    for row in range(ROWS):
                        for j in range(fan_out):
                            value = here[row * _B + j]
                            # NaN stays NaN.
                            here[row * _B + j] = zero if value < zero else value
                at, inputs = bias + fan_out, here
                here, there = there, here
            if skip:
                bias = at + features * outcomes
                for row in range(ROWS):
                    for j in range(outcomes):
                        inputs[row * _B + j] += one[bias + j]
                _add_layer(one, at, features, outcomes, first, inputs)
            for row in range(ROWS):
                for j in range(outcomes):
                    result[begin + row, number, j] = inputs[row * _B + j]
