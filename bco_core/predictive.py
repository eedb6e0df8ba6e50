"""Predictive scenarios: possible outcomes with noise, made from the residuals of the history.

Posterior draws show how uncertain the predictor is; they leave out the noise that no predictor removes. Here every row
i of a stored history, with its out-of-fold prediction f̄_i and its outcome y_i, gives a possible outcome at a new
prediction f̄. The outcome is *carried* there in one of four ways, as a whole vector, so dependence between outcomes
survives:

    shift     f̄ + g (y_i − f̄_i)
    scaled    f̄ + g s(x) (y_i − f̄_i) / s_i,   s the spread of residuals in a context, log-linear in its features
    stretch   f̄ (1 + g (y_i / f̄_i − 1))       for outcomes whose noise grows with their level
    keep      y_i                              unchanged, only with kernel weights

Rows count equally, or by the similarity of their predictions: weights ∝ exp(−‖f̄ − f̄_i‖ / h). The factor g ≤ 1 shrinks
residuals, because all members together predict better than the few that predicted each row out of fold. The carrier and
h are chosen by a proper score on held-out rows (:mod:`bco_core.predictive_choice`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.batch_kernels import exp_affine, sample_near
from bco_core.scenarios import Scenarios

CARRIES = ("shift", "scaled", "stretch", "keep")
_CHUNK_NUMBERS = 2_000_000
# A larger ratio comes from a prediction near zero, not from the outcome.
_LARGEST_RATIO = 10.0


@dataclass(frozen=True)
class Carrier:
    """How outcomes are carried to a new prediction.

    ``bandwidth`` h is in units of the outcomes' spread, None where all rows count equally; ``shrink`` is g (d_y,);
    ``slopes`` (width + 1, d_y) of ln s on features and a constant, None unless scaled.
    """

    carry: str
    bandwidth: float | None
    shrink: Tensor
    slopes: Tensor | None = None


@dataclass(frozen=True)
class History:
    """Rows stored with a posterior: out-of-fold predictions and outcomes, both (H, d_y), the outcomes' ``spread``
    (d_y,), their carrier and, where it is scaled, the ``scales`` (H, d_y) of the rows.

    Rows are in the order of their residuals, so a systematic sample of them is a stratified one.
    """

    predictions: Tensor
    outcomes: Tensor
    spread: Tensor
    carrier: Carrier
    scales: Tensor | None = None

    def __len__(self) -> int:
        return len(self.outcomes)

    def scales_at(self, features: Tensor) -> Tensor | None:
        """Return s(x) (B, d_y) for features (B, width), clamped to the history's range; None unless scaled."""
        if self.carrier.slopes is None or self.scales is None:
            return None
        return spread_at(self.carrier.slopes, features).clamp(*self._ends_of_scales)

    @cached_property
    def _ends_of_scales(self) -> tuple[Tensor, Tensor]:
        """The smallest and the largest scales of the rows, (d_y,) each."""
        if self.scales is None:
            raise RuntimeError("only scaled histories have scales")
        return self.scales.amin(dim=0), self.scales.amax(dim=0)

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return a plain description and arrays; :meth:`from_arrays` is the inverse."""
        arrays = {
            "history_predictions": self.predictions,
            "history_outcomes": self.outcomes,
            "history_shrink": self.carrier.shrink,
        }
        if self.carrier.slopes is not None and self.scales is not None:
            arrays |= {"history_slopes": self.carrier.slopes, "history_scales": self.scales}
        return {"carry": self.carrier.carry, "bandwidth": self.carrier.bandwidth}, arrays

    @staticmethod
    def from_arrays(description: dict[str, Any], arrays: dict[str, Tensor], spread: Tensor) -> History:
        slopes, scales = arrays.get("history_slopes"), arrays.get("history_scales")
        carrier = Carrier(description["carry"], description["bandwidth"], arrays["history_shrink"], slopes)
        return History(arrays["history_predictions"], arrays["history_outcomes"], spread, carrier, scales)


def spread_at(slopes: Tensor, features: Tensor) -> Tensor:
    """Return s(x), exp of an affine function of features (B, width): (B, d_y)."""
    return exp_affine(features, slopes)


def predictive_scenarios(
    history: History, predictions: Tensor, count: int, features: Tensor | None = None, own: Tensor | None = None
) -> Scenarios:
    """Return ``count`` equally weighted atoms for predictions f̄(x) (B, d_y), by systematic sampling of the history.

    A scaled carrier needs ``features`` (B, width). ``own`` (B,) is the row of the history that each context must not
    use, because it is the context's own; −1 for none.
    """
    scales = None if features is None else history.scales_at(features)
    size = max(1, _CHUNK_NUMBERS // max(len(history), count))
    parts = []
    for first in range(0, len(predictions), size):
        deadlines.check()
        chunk = slice(first, first + size)
        chosen = sample_rows(history, predictions[chunk], count, None if own is None else own[chunk])
        parts.append(carry_outcomes(history, chosen, predictions[chunk], None if scales is None else scales[chunk]))
    return Scenarios.equal(torch.cat(parts), predictions)


def row_weights(history: History, predictions: Tensor, own: Tensor | None = None) -> Tensor:
    """Return the weight of each row of the history at predictions (B, d_y): (B, H), the largest near one."""
    if history.carrier.bandwidth is None:
        distance = torch.zeros(len(predictions), len(history), dtype=torch.float64)
    else:
        distance = torch.cdist(predictions / history.spread, history.predictions / history.spread)
        distance = distance / history.carrier.bandwidth
    if own is not None:
        known = own >= 0
        distance[known.nonzero().flatten(), own[known]] = torch.inf
    # The nearest row always counts, however far it is; a row that must not be seen is not the nearest.
    return (distance.amin(dim=1, keepdim=True) - distance).exp()


def carry_outcomes(history: History, chosen: Tensor, predictions: Tensor, scales: Tensor | None) -> Tensor:
    """Carry the outcomes of chosen rows (B, K) to predictions (B, d_y): (B, K, d_y)."""
    carrier, outcomes = history.carrier, history.outcomes[chosen]
    if carrier.carry == "keep":
        return outcomes
    here, there = predictions[:, None], history.predictions[chosen]
    if carrier.carry == "stretch":
        ratio = (outcomes / there).clamp(-_LARGEST_RATIO, _LARGEST_RATIO)
        return here * (1 + carrier.shrink * (ratio - 1))
    residuals = carrier.shrink * (outcomes - there)
    if carrier.carry == "scaled":
        if scales is None or history.scales is None:
            raise RuntimeError("scaled scenarios need features")
        residuals = residuals / history.scales[chosen] * scales[:, None]
    return here + residuals


def sample_rows(history: History, predictions: Tensor, count: int, own: Tensor | None) -> Tensor:
    """Sample rows (B, count) of the history systematically, in its order."""
    places = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    if history.carrier.bandwidth is None and own is None:
        return (places * len(history)).long().expand(len(predictions), -1)
    if history.carrier.bandwidth is not None and own is None:
        scaled = predictions / history.spread, history.predictions / history.spread
        return sample_near(*scaled, history.carrier.bandwidth, count)
    share = row_weights(history, predictions, own).cumsum(dim=1)
    return torch.searchsorted(share, places * share[:, -1:]).clamp_max(len(history) - 1)
