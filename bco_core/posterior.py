"""The posterior: everything that passes from learning to prescribing, as one frozen value of plain arrays."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bco_core.data import Arrays
from bco_core.distributions import Distribution, distribution_from_arrays
from bco_core.errors import InvalidInput
from bco_core.predictive import History, predictive_scenarios
from bco_core.predictors.base import Predictor
from bco_core.predictors.registry import predictor_from_arrays, predictor_to_arrays
from bco_core.scenarios import Scenarios


@dataclass(frozen=True)
class Posterior:
    """A distribution over the predictor's θ, with the particles to decide from.

    ``particles`` (K, d) are draws of equal weight, stored so that every prescription uses the same ones;
    ``distribution`` makes any number of fresh draws. ``seed`` is the seed of the particles. ``history`` provides
    predictive scenarios.
    """

    predictor: Predictor
    distribution: Distribution
    particles: Tensor
    seed: int
    history: History | None = None

    def __post_init__(self) -> None:
        if self.particles.ndim != 2:
            raise InvalidInput("particles are a table of parameter vectors")
        for name, length in (("particles", self.particles.shape[1]), ("locations", self.distribution.dim)):
            if length != self.predictor.dim:
                raise InvalidInput(f"{name} do not fit a predictor of {self.predictor.dim} parameters")

    def draws(self, count: int | None = None, seed: int | None = None) -> Tensor:
        """Return parameter vectors (K, d): the first stored particles, or fresh draws for a seed or a larger count."""
        if seed is None and (count is None or count <= len(self.particles)):
            return self.particles[:count]
        generator = torch.Generator().manual_seed(self.seed if seed is None else seed)
        return self.distribution.sample(len(self.particles) if count is None else count, generator)

    def encode(self, contexts: Tensor) -> Tensor:
        """Return the features of contexts (B, d_x), for callers that use the same contexts more than once."""
        return self.predictor.encode(contexts, torch.float64)

    def scenarios(self, contexts: Tensor, draws: Tensor, encoded: Tensor | None = None) -> Scenarios:
        """Return the posterior predictive distribution for contexts (B, d_x), from draws (K, d) of equal weight."""
        features = (self.encode(contexts) if encoded is None else encoded).to(draws.dtype)
        outcomes = self.predictor.predict_each_encoded(draws, features)
        return Scenarios.equal(outcomes, self.predictor.predict_each_encoded(self._mode, features)[:, 0])

    @cached_property
    def _mode(self) -> Tensor:
        """The mode as a table (1, d), cached because finding it takes as long as many predictions."""
        return self.distribution.mode()[None]

    def predictive(
        self, contexts: Tensor, predictions: Tensor, count: int, encoded: Tensor | None = None
    ) -> Scenarios | None:
        """Return predictive scenarios for contexts (B, d_x) with mean predictions (B, d_y); None without a history."""
        if self.history is None:
            return None
        features = self.encode(contexts) if encoded is None else encoded
        return predictive_scenarios(self.history, predictions, count, features)

    def to_arrays(self) -> tuple[dict[str, Any], Arrays]:
        """Return a JSON-able description and plain arrays; :meth:`from_arrays` restores exactly this posterior."""
        predictor, statistics = predictor_to_arrays(self.predictor)
        distribution, arrays = self.distribution.to_arrays()
        arrays = statistics | arrays | {"particles": self.particles}
        description = {"predictor": predictor, "seed": self.seed} | distribution
        if self.history is not None:
            description["history"], history_arrays = self.history.to_arrays()
            arrays |= history_arrays
        return description, {name: values.numpy() for name, values in arrays.items()}

    @staticmethod
    def from_arrays(description: dict[str, Any], arrays: Arrays, copy: bool = True) -> Posterior:
        """Restore a posterior. Without ``copy`` it takes over the arrays, which must then be writable."""
        tensors = {name: torch.from_numpy(np.array(values) if copy else values) for name, values in arrays.items()}
        predictor = predictor_from_arrays(description["predictor"], tensors)
        distribution = distribution_from_arrays(description, tensors)
        history = None
        if "history" in description:
            history = History.from_arrays(description["history"], tensors, predictor.outcomes.scale)
        return Posterior(predictor, distribution, tensors["particles"], description["seed"], history)


def draw_particles(description: dict[str, Any], arrays: Arrays, count: int) -> np.ndarray[Any, Any]:
    """Draw ``count`` particles (K, d) as learning draws them when it makes a posterior from a mixture."""
    distribution = distribution_from_arrays(
        description, {name: torch.tensor(values) for name, values in arrays.items()}
    )
    generator = torch.Generator().manual_seed(description["seed"])
    return np.asarray(distribution.sample(count, generator).numpy())


def strip_particles(description: dict[str, Any], arrays: Arrays) -> Arrays:
    """Return the arrays to store: without particles where drawing reproduces them exactly, as it does for mixtures."""
    particles = arrays["particles"]
    again = draw_particles(description, arrays, len(particles))
    if again.dtype != particles.dtype or not np.array_equal(again, particles):
        return arrays
    return {name: values for name, values in arrays.items() if name != "particles"}


def digest(description: dict[str, Any], arrays: Arrays) -> str:
    """Return the sha256 of the description and every array's name, type, shape and bytes."""
    hasher = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name}:{values.dtype.str}:{values.shape}".encode())
        hasher.update(values.data)
    return hasher.hexdigest()
