"""Contexts and the products of every two of them, in unit scale: a linear model of these is quadratic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.data import Sample, Standardizer
from bco_core.features.base import FeatureKind, Features


@dataclass(frozen=True)
class ProductFeatures(Features):
    """Standardised contexts, then standardised products of two of them, squares included."""

    contexts: Standardizer
    products: Standardizer

    @property
    def kind(self) -> str:
        return "products"

    @property
    def context_dim(self) -> int:
        return len(self.contexts.mean)

    @property
    def width(self) -> int:
        return self.context_dim + len(self.products.mean)

    @property
    def spread(self) -> Tensor:
        return torch.cat([self.contexts.scale, self.products.scale])

    def of_new(self, contexts: Tensor) -> Tensor:
        straight = self.contexts.apply(contexts)
        return torch.cat([straight, self.products.apply(_products(straight))], dim=-1)

    def of_history(self, sample: Sample) -> Tensor:
        return self.of_new(sample.contexts)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {}, {
            "context_mean": self.contexts.mean,
            "context_scale": self.contexts.scale,
            "product_mean": self.products.mean,
            "product_scale": self.products.scale,
        }


def products_width(contexts: int) -> int:
    """Return the number of columns for this many contexts."""
    return contexts + contexts * (contexts + 1) // 2


def _products(contexts: Tensor) -> Tensor:
    first, second = torch.triu_indices(contexts.shape[-1], contexts.shape[-1])
    return contexts[..., first] * contexts[..., second]


def fit(sample: Sample, folds: Tensor | None = None) -> ProductFeatures:
    """Fit to the contexts alone, so that folds make no difference."""
    contexts = Standardizer.fit(sample.contexts)
    return ProductFeatures(contexts, Standardizer.fit(_products(contexts.apply(sample.contexts))))


def from_arrays(description: dict[str, Any], arrays: dict[str, Tensor]) -> ProductFeatures:
    return ProductFeatures(
        Standardizer(arrays["context_mean"], arrays["context_scale"]),
        Standardizer(arrays["product_mean"], arrays["product_scale"]),
    )


PRODUCTS = FeatureKind("products", fit, from_arrays)
