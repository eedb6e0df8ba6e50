"""Boosted features as they are used: what gradient-boosted trees say of each outcome, and a base to depart from.

How they are fitted is in :mod:`bco_core.features.boosting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bco_core.batch_kernels import compiled
from bco_core.data import Arrays, Sample, Standardizer
from bco_core.features.base import Features
from bco_core.features.trees import Forest

Array = np.ndarray[Any, np.dtype[np.float64]]

# The level of a model of the mean; others are those of quantiles.
MEAN = -1.0


class Model(NamedTuple):
    """One thing to boost: the mean or a quantile (``level``) of an outcome, looked at in one of the ways."""

    outcome: int
    level: float
    view: str


@dataclass(frozen=True)
class Boosted(Features):
    """Fitted: contexts in unit scale, what trees say of outcomes in units of these, and the base once more, last.

    ``forest`` holds the ``models`` of every fit in turn, ``ridge`` (fits, d_x + 1, d_y) the regressions beside them;
    ``blend`` (P, C) averages models into ``columns``. ``kept`` are the columns that predictors see, of contexts and of
    what trees say.
    """

    contexts: Standardizer
    outcomes: Standardizer
    forest: Forest
    ridge: Array
    models: tuple[Model, ...]
    levels: tuple[int, ...]
    least_levels: Array
    blend: Array
    columns: tuple[tuple[int, float], ...]
    base: tuple[int, ...]
    error_scale: Tensor
    kept: tuple[int, ...]
    history: Tensor | None = None

    def only(self, contexts: bool) -> Boosted:
        """What trees say alone, or with contexts beside it."""
        kept = tuple(range(0 if contexts else self.context_dim, self.context_dim + len(self.columns)))
        if self.history is None or self.kept == kept:
            return replace(self, kept=kept)
        if len(self.kept) < self.context_dim + len(self.columns):
            raise RuntimeError("columns that were left out are gone from the history")
        last = list(range(len(self.kept), len(self.kept) + len(self.base)))
        return replace(self, kept=kept, history=self.history[:, [*kept, *last]])

    @property
    def kind(self) -> str:
        return "boosted"

    @property
    def context_dim(self) -> int:
        return len(self.contexts.mean)

    @property
    def width(self) -> int:
        return len(self.kept)

    @property
    def bases(self) -> Standardizer:
        return self.outcomes

    @property
    def shrink(self) -> Tensor:
        return self.error_scale

    @property
    def base_columns(self) -> tuple[int, ...]:
        return tuple(self.kept.index(self.context_dim + column) for column in self.base)

    @property
    def spread(self) -> Tensor:
        told = self.outcomes.scale[[outcome for outcome, _ in self.columns]]
        return torch.cat([self.contexts.scale, told])[list(self.kept)]

    def of_new(self, contexts: Tensor) -> Tensor:
        rows = np.ascontiguousarray(contexts.reshape(-1, self.context_dim).numpy(), np.float64)
        fits, count = len(self.ridge), len(self.models)
        found = np.zeros((len(rows), count))
        units = units_of(self.models, rows, self.levels, self.least_levels)
        forest = self.forest
        for fit in range(fits):
            wide = beside(rows, self.ridge[fit])
            part = slice(fit * count, (fit + 1) * count)
            starts = forest.model_start[part.start : part.stop + 1]
            found += replace(forest, model_start=starts).predict(wide)
        found *= units / fits
        told = np.zeros((len(rows), len(self.columns)))
        for model in range(count):
            told += found[:, model : model + 1] * self.blend[model]
        arranged = self.arranged(contexts.reshape(-1, self.context_dim), torch.from_numpy(told))
        return arranged.reshape(*contexts.shape[:-1], arranged.shape[1])

    def of_history(self, sample: Sample) -> Tensor:
        if self.history is None or len(self.history) != len(sample):
            raise RuntimeError("boosted features know their history only while they are being fitted")
        return self.history

    def arranged(self, contexts: Tensor, told: Tensor) -> Tensor:
        of = [outcome for outcome, _ in self.columns]
        told = (told - self.outcomes.mean[of]) / self.outcomes.scale[of]
        features = torch.cat([self.contexts.apply(contexts), told], dim=1)
        return torch.cat([features[:, list(self.kept)], told[:, list(self.base)]], dim=1)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        description = {
            "models": [list(model) for model in self.models],
            "levels": list(self.levels),
            "columns": [list(column) for column in self.columns],
            "base": list(self.base),
            "kept": list(self.kept),
        }
        arrays: Arrays = self.forest.to_arrays("trees_") | {
            "boosted_ridge": self.ridge,
            "boosted_blend": self.blend,
            "boosted_least_levels": self.least_levels,
        }
        tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
        return description, tensors | {
            "context_mean": self.contexts.mean,
            "context_scale": self.contexts.scale,
            "boosted_mean": self.outcomes.mean,
            "boosted_scale": self.outcomes.scale,
            "boosted_error_scale": self.error_scale,
        }


def from_arrays(description: dict[str, Any], arrays: dict[str, Tensor]) -> Boosted:
    plain = {name: values.numpy() for name, values in arrays.items() if name.startswith(("trees_", "boosted_"))}
    return Boosted(
        contexts=Standardizer(arrays["context_mean"], arrays["context_scale"]),
        outcomes=Standardizer(arrays["boosted_mean"], arrays["boosted_scale"]),
        forest=Forest.from_arrays("trees_", plain),
        ridge=plain["boosted_ridge"],
        models=tuple(Model(*model) for model in description["models"]),
        levels=tuple(description["levels"]),
        least_levels=plain["boosted_least_levels"],
        blend=plain["boosted_blend"],
        columns=tuple((outcome, level) for outcome, level in description["columns"]),
        base=tuple(description["base"]),
        error_scale=arrays["boosted_error_scale"],
        kept=tuple(description["kept"]),
    )


def beside(contexts: Array, coefficients: Array) -> Array:
    """Contexts (n, d_x) and the regression's predictions (n, d_y)."""
    wide = np.empty((len(contexts), contexts.shape[1] + coefficients.shape[1]))
    _fill(np.ascontiguousarray(contexts), np.ascontiguousarray(coefficients), wide)
    return wide


@compiled
def _fill(contexts, coefficients, wide):  # type: ignore[no-untyped-def]
    width, count = contexts.shape[1], coefficients.shape[1]
    for row in range(len(contexts)):
        for i in range(width):
            wide[row, i] = contexts[row, i]
        for j in range(count):
            total = coefficients[width, j]
            for i in range(width):
                total += contexts[row, i] * coefficients[i, j]
            wide[row, width + j] = total


def units_of(models: Sequence[Model], rows: Array, levels: Sequence[int], least: Array) -> Array:
    """What the outcome of each model is measured in, (n, P): the level of its series, kept away from zero so that what
    is divided by it stays in reach, or one."""
    units = np.ones((len(rows), len(models)))
    if levels:
        held = np.maximum(rows[:, list(levels)], least)
        for index, model in enumerate(models):
            if model.view == "level":
                units[:, index] = held[:, model.outcome]
    return units
