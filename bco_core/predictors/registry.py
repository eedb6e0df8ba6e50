"""Every predictor by name: a new one is one file and one line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bco_core.data import Sample, Standardizer
from bco_core.errors import InvalidInput
from bco_core.features.base import Features
from bco_core.features.registry import FEATURES, features_from_arrays, features_to_arrays
from bco_core.features.standardized import STANDARDIZED, standardize
from bco_core.predictors.base import Predictor
from bco_core.predictors.linear import Linear, ReluAffine
from bco_core.predictors.networks import Network, SkipNetwork

PREDICTORS: dict[str, type[Predictor]] = {kind.kind: kind for kind in (Linear, ReluAffine, Network, SkipNetwork)}
# The kinds that ``auto`` mixes, the one with fewest parameters first.
AUTO = ("linear", "skip_mlp")
# Not a kind of its own: residual models of a boosted rule, on features of its trees.
BOOSTED = "boosted"


@dataclass(frozen=True)
class PredictorOptions:
    """The kind of predictor, its features and, for networks, the widths of its ``hidden`` layers."""

    kind: str = "auto"
    hidden: tuple[int, ...] = (128, 128)
    features: str = STANDARDIZED.name

    def __post_init__(self) -> None:
        for name, value, known in (
            ("kind", self.kind, ("auto", *PREDICTORS, BOOSTED)),
            ("features", self.features, tuple(FEATURES)),
        ):
            if value not in known:
                words = "predictor" if name == "kind" else "features"
                raise InvalidInput(f"the {words} must be one of {', '.join(known)}", ("predictor", name))
        if any(width < 1 for width in self.hidden):
            raise InvalidInput("hidden layers need at least one unit", ("predictor", "hidden"))
        if not self.hidden and self.is_network:
            raise InvalidInput("a network needs at least one hidden layer, such as [128, 128]", ("predictor", "hidden"))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that compete on contexts; none for residual models of boosted trees."""
        if self.kind == BOOSTED:
            return ()
        return AUTO if self.kind == "auto" else (self.kind,)

    @property
    def is_network(self) -> bool:
        """Whether one of the kinds has hidden layers."""
        return self.kind == BOOSTED or any(PREDICTORS[kind].is_network for kind in self.kinds)

    def layers(self, kind: str) -> tuple[int, ...]:
        """Return the widths of the hidden layers of a kind."""
        return self.hidden if PREDICTORS[kind].is_network else ()

    def size(self, features: int, outcomes: int) -> int:
        """Return the length d of the longest parameter vector."""
        return max(PREDICTORS[kind].size((features, *self.layers(kind), outcomes)) for kind in self.kinds or AUTO)


def build_predictor(
    kind: str, sample: Sample, hidden: tuple[int, ...] = (), features: Features | None = None
) -> Predictor:
    """Build a predictor of ``kind`` for this sample's dimensions and scale, on standardised contexts by default."""
    if kind not in PREDICTORS:
        raise InvalidInput(f"the predictor must be one of {', '.join(PREDICTORS)}", ("predictor", "kind"))
    if hidden and not PREDICTORS[kind].is_network:
        networks = [name for name, predictor in PREDICTORS.items() if predictor.is_network]
        raise InvalidInput(f"hidden layers belong to {' and '.join(networks)}", ("predictor", "hidden"))
    PredictorOptions(kind, hidden)
    features = features or standardize(sample)
    widths = (features.width, *hidden, sample.outcomes.shape[1])
    return PREDICTORS[kind](widths, features, features.bases or Standardizer.fit(sample.outcomes))


def predictor_to_arrays(predictor: Predictor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a plain description and its statistics; :func:`predictor_from_arrays` is the inverse."""
    features, arrays = features_to_arrays(predictor.features)
    description: dict[str, Any] = {"kind": predictor.kind, "widths": list(predictor.widths)}
    if features:
        description["features"] = features
    statistics = {"outcome_mean": predictor.outcomes.mean, "outcome_scale": predictor.outcomes.scale}
    return description, arrays | statistics


def predictor_from_arrays(description: dict[str, Any], arrays: dict[str, Tensor]) -> Predictor:
    """Restore a predictor from :func:`predictor_to_arrays`."""
    return PREDICTORS[description["kind"]](
        tuple(description["widths"]),
        features_from_arrays(description.get("features", {}), arrays),
        Standardizer(arrays["outcome_mean"], arrays["outcome_scale"]),
    )
