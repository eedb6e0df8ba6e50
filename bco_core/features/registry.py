"""Every kind of features by name: a new kind is one file and one line here."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bco_core.features.base import FeatureKind, Features
from bco_core.features.boosted import BOOSTED
from bco_core.features.products import PRODUCTS
from bco_core.features.standardized import STANDARDIZED

FEATURES: dict[str, FeatureKind] = {kind.name: kind for kind in (STANDARDIZED, BOOSTED, PRODUCTS)}


def features_to_arrays(features: Features) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a plain description, empty for the default kind, and arrays; inverse of :func:`features_from_arrays`."""
    description, arrays = features.to_arrays()
    if features.kind != STANDARDIZED.name:
        description = description | {"kind": features.kind}
    return description, arrays


def features_from_arrays(description: dict[str, Any], arrays: dict[str, Tensor]) -> Features:
    return FEATURES[description.get("kind", STANDARDIZED.name)].from_arrays(description, arrays)
