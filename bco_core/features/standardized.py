"""Contexts in unit scale, so that a unit prior means the same on every data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bco_core.data import Sample, Standardizer
from bco_core.features.base import FeatureKind, Features


@dataclass(frozen=True)
class StandardizedFeatures(Features):
    """(context − mean) / scale, column by column."""

    contexts: Standardizer

    @property
    def kind(self) -> str:
        return "standardized"

    @property
    def context_dim(self) -> int:
        return len(self.contexts.mean)

    @property
    def width(self) -> int:
        return len(self.contexts.mean)

    @property
    def spread(self) -> Tensor:
        return self.contexts.scale

    def of_new(self, contexts: Tensor) -> Tensor:
        return self.contexts.apply(contexts)

    def of_history(self, sample: Sample) -> Tensor:
        return self.contexts.apply(sample.contexts)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {"context_mean": self.contexts.mean, "context_scale": self.contexts.scale}


def standardize(sample: Sample, folds: Tensor | None = None) -> StandardizedFeatures:
    """Fit to the contexts alone, so that folds make no difference."""
    return StandardizedFeatures(Standardizer.fit(sample.contexts))


def from_arrays(description: dict[str, Any], arrays: dict[str, Tensor]) -> StandardizedFeatures:
    return StandardizedFeatures(Standardizer(arrays["context_mean"], arrays["context_scale"]))


STANDARDIZED = FeatureKind("standardized", standardize, from_arrays)
