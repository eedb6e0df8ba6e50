"""Point predictors f_θ as batched functions of a flat parameter vector.

θ has shape (S, d): the leading axis is the batch of parameter vectors (draws, members, chains, restarts). Layer l maps
width w_l to w_{l+1} with a matrix stored row by row and then a bias; ``skip_mlp`` adds a linear path from context to
outcome, stored last in the same way. So the last d_y coordinates are an output bias in every kind.

Contexts and outcomes are standardised inside, so that a unit prior means the same on every data set; predictions come
back in the user's units, in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from bco_core.data import Sample, Standardizer
from bco_core.errors import InvalidInput

KINDS = ("linear", "relu_affine", "mlp", "skip_mlp")
NETWORKS = ("mlp", "skip_mlp")
# Contexts are evaluated in chunks so that one hidden layer of one chunk stays near this many numbers.
_CHUNK_NUMBERS = 2_000_000


@dataclass(frozen=True)
class Predictor:
    """f_θ with layer ``widths`` (d_x, hidden…, d_y) and ReLU between layers.

    ``nonnegative`` clips predictions at zero in the user's units: the paper's relu-affine model for demand.
    """

    kind: str
    widths: tuple[int, ...]
    contexts: Standardizer
    outcomes: Standardizer

    @property
    def nonnegative(self) -> bool:
        return self.kind == "relu_affine"

    @property
    def dim(self) -> int:
        """Length d of a parameter vector."""
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in self._layers()) + self._skip_dim

    @property
    def linear_dim(self) -> int:
        """How many coordinates at the end of θ are a linear path, slopes and bias: all, some or none."""
        return 0 if self.kind == "mlp" else (self.widths[0] + 1) * self.widths[-1]

    @property
    def _skip_dim(self) -> int:
        return self.linear_dim if self.kind == "skip_mlp" else 0

    def _layers(self) -> list[tuple[int, int]]:
        return list(pairwise(self.widths))

    def context_units(self) -> Tensor:
        """The relative spread of the context column that each coordinate of θ multiplies, (d,); 1 where it is none."""
        spread = self.contexts.scale / self.contexts.scale.square().mean().sqrt()
        units = torch.ones(self.dim, dtype=torch.float64)
        first, last = self.widths[1], self.widths[-1]
        units[: len(spread) * first] = spread.repeat_interleave(first)
        if self._skip_dim:
            units[-self._skip_dim : -last] = spread.repeat_interleave(last)
        return units

    def initial(self, count: int, generator: torch.Generator) -> Tensor:
        """Starting vectors (count, d): weights of variance 2/fan_in before a ReLU and 1/fan_in last, biases zero.

        Beside a skip path, which starts at zero, the network's last layer starts ten times smaller.
        """
        parts = []
        for layer, (fan_in, fan_out) in enumerate(self._layers()):
            last = layer == len(self.widths) - 2
            gain = 2.0 if not last else 0.01 if self._skip_dim else 1.0
            weight = torch.randn(count, fan_in * fan_out, generator=generator) * math.sqrt(gain / max(fan_in, 1))
            parts += [weight, torch.zeros(count, fan_out)]
        return torch.cat([*parts, torch.zeros(count, self._skip_dim)], dim=1)

    def encode(self, contexts: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Raw contexts (..., d_x) to the network's input. Done once before training, not at every step."""
        if contexts.shape[-1] != self.widths[0]:
            raise InvalidInput(f"a context has {self.widths[0]} columns here, not {contexts.shape[-1]}")
        return self.contexts.apply(contexts).to(dtype)

    def forward(self, theta: Tensor, encoded: Tensor) -> Tensor:
        """Predictions (S, n, d_y) for parameters (S, d) and encoded contexts (n, d_x) or (S, n, d_x)."""
        inputs = hidden = encoded.expand(theta.shape[0], *encoded.shape[-2:])
        layers = self._layers()
        ends = (self.widths[0], self.widths[-1])
        maps = [*layers, ends] if self._skip_dim else layers
        # One split, because its gradient is one concatenation; each slice would fill a whole θ with zeros.
        parts = theta.split([size for fan_in, fan_out in maps for size in (fan_in * fan_out, fan_out)], dim=1)
        affine = [
            (weight.view(len(theta), fan_in, fan_out), bias[:, None])
            for (fan_in, fan_out), weight, bias in zip(maps, parts[::2], parts[1::2], strict=True)
        ]
        for layer, (weight, bias) in enumerate(affine[: len(layers)]):
            hidden = torch.baddbmm(bias, torch.relu(hidden) if layer else hidden, weight)
        if self._skip_dim:
            slopes, bias = affine[-1]
            hidden = hidden + torch.baddbmm(bias, inputs, slopes)
        predictions = self.outcomes.undo(hidden.double())
        return torch.relu(predictions) if self.nonnegative else predictions

    def predict(self, theta: Tensor, contexts: Tensor) -> Tensor:
        """Predictions (S, n, d_y) for raw contexts (n, d_x), without gradients, in bounded memory."""
        encoded = self.encode(contexts, theta.dtype)
        rows = max(1, _CHUNK_NUMBERS // (max(self.widths) * len(theta)))
        with torch.no_grad():
            return torch.cat([self.forward(theta, chunk) for chunk in encoded.split(rows)], dim=1)


def build_predictor(kind: str, sample: Sample, hidden: tuple[int, ...] = ()) -> Predictor:
    """A predictor of ``kind`` for this sample's dimensions and scale."""
    if kind not in KINDS:
        raise InvalidInput(f"the predictor must be one of {', '.join(KINDS)}", ("kind",))
    if kind in NETWORKS and not hidden:
        raise InvalidInput("a network needs at least one hidden layer, such as [128, 128]", ("hidden",))
    if kind not in NETWORKS and hidden:
        raise InvalidInput("hidden layers belong to the mlp and skip_mlp predictors", ("hidden",))
    if any(width < 1 for width in hidden):
        raise InvalidInput("hidden layers need at least one unit", ("hidden",))
    return Predictor(
        kind,
        (sample.contexts.shape[1], *hidden, sample.outcomes.shape[1]),
        Standardizer.fit(sample.contexts),
        Standardizer.fit(sample.outcomes),
    )


def predictor_to_arrays(predictor: Predictor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A plain description and the statistics that go with it; :func:`predictor_from_arrays` is the inverse."""
    return {"kind": predictor.kind, "widths": list(predictor.widths)}, {
        "context_mean": predictor.contexts.mean,
        "context_scale": predictor.contexts.scale,
        "outcome_mean": predictor.outcomes.mean,
        "outcome_scale": predictor.outcomes.scale,
    }


def predictor_from_arrays(description: dict[str, Any], arrays: dict[str, Tensor]) -> Predictor:
    return Predictor(
        description["kind"],
        tuple(description["widths"]),
        Standardizer(arrays["context_mean"], arrays["context_scale"]),
        Standardizer(arrays["outcome_mean"], arrays["outcome_scale"]),
    )
