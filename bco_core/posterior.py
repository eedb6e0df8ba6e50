"""The posterior: all that passes from learning to prescribing, as a frozen value of plain arrays."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.families import FAMILIES, Mixture
from bco_core.predictors import Predictor, predictor_from_arrays, predictor_to_arrays
from bco_core.scenarios import History, Scenarios

Arrays = dict[str, np.ndarray[Any, Any]]
_CHAINS = "chains"


@dataclass(frozen=True)
class ChainDraws:
    """What a sampler found: draws (N, d) of equal weight, and which of them has the highest posterior density."""

    loc: Tensor
    best: int

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` of the draws in random order, none twice before all came once."""
        rounds = -(-count // len(self.loc))
        order = torch.cat([torch.randperm(len(self.loc), generator=generator) for _ in range(rounds)])
        return self.loc[order[:count]]

    def mode(self) -> Tensor:
        return self.loc[self.best]


@dataclass(frozen=True)
class Posterior:
    """A weighted mixture of mean-field components over θ, or the draws of chains, with the particles to decide from.

    ``particles`` (K, d) are draws of equal weight, kept so that everyone prescribes from the same ones; ``mixture``
    makes fresh draws of any number. ``seed`` is what the particles were drawn with. ``history`` serves predictive
    scenarios.
    """

    predictor: Predictor
    mixture: Mixture | ChainDraws
    particles: Tensor
    seed: int
    history: History | None = None

    def __post_init__(self) -> None:
        for name, values in (("particles", self.particles), ("locations", self.mixture.loc)):
            if values.ndim != 2 or values.shape[1] != self.predictor.dim:
                raise InvalidInput(f"{name} do not fit a predictor of {self.predictor.dim} parameters")

    def draws(self, count: int | None = None, seed: int | None = None) -> Tensor:
        """K parameter vectors: the first stored particles, or fresh draws when a seed or more of them are asked for."""
        if seed is None and (count is None or count <= len(self.particles)):
            return self.particles[:count]
        generator = torch.Generator().manual_seed(self.seed if seed is None else seed)
        return self.mixture.sample(len(self.particles) if count is None else count, generator)

    def scenarios(self, contexts: Tensor, draws: Tensor) -> Scenarios:
        """The predictive distribution for contexts (B, d_x), by parameter vectors (K, d) of equal weight."""
        outcomes = self.predictor.predict(draws, contexts).transpose(0, 1)
        mode = self.predictor.predict(self.mixture.mode()[None], contexts)[0]
        return Scenarios(outcomes, torch.full((len(draws),), 1 / len(draws), dtype=torch.float64), mode)

    def to_arrays(self) -> tuple[dict[str, Any], Arrays]:
        """A JSON-able description and plain arrays; :meth:`from_arrays` restores exactly this posterior."""
        predictor, statistics = predictor_to_arrays(self.predictor)
        arrays = statistics | {"loc": self.mixture.loc, "particles": self.particles}
        description = {"predictor": predictor, "family": _CHAINS, "seed": self.seed}
        if isinstance(self.mixture, ChainDraws):
            description["best"] = self.mixture.best
        else:
            arrays |= {"weights": self.mixture.weights, "scale": self.mixture.scale}
            description["family"] = self.mixture.family.name
        if self.history is not None:
            arrays |= {"history_predictions": self.history.predictions, "history_outcomes": self.history.outcomes}
        return description, {name: values.numpy() for name, values in arrays.items()}

    @staticmethod
    def from_arrays(description: dict[str, Any], arrays: Arrays) -> Posterior:
        tensors = {name: torch.from_numpy(np.array(values)) for name, values in arrays.items()}
        mixture: Mixture | ChainDraws
        if description["family"] == _CHAINS:
            mixture = ChainDraws(tensors["loc"], description["best"])
        else:
            mixture = Mixture(FAMILIES[description["family"]], tensors["weights"], tensors["loc"], tensors["scale"])
        predictor = predictor_from_arrays(description["predictor"], tensors)
        history = None
        if "history_outcomes" in tensors:
            spread = predictor.outcomes.scale
            history = History.of(tensors["history_predictions"], tensors["history_outcomes"], spread)
        return Posterior(predictor, mixture, tensors["particles"], description["seed"], history)


def digest(description: dict[str, Any], arrays: Arrays) -> str:
    """sha256 over the description and every array's name, type, shape and bytes."""
    hasher = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name}:{values.dtype.str}:{values.shape}".encode())
        hasher.update(values.data)
    return hasher.hexdigest()
