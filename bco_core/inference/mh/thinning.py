"""Few draws that stand for all: the particles of a posterior that was sampled by chains."""

from __future__ import annotations

import torch
from torch import Tensor

from bco_core.predictors.base import Predictor
from bco_core.support_points import support_points

_PROBES = 10


def thin(predictor: Predictor, kept: Tensor, contexts: Tensor, count: int, how: str) -> Tensor:
    """Which of the draws (k, C, d), numbered along both axes, to decide from: at regular intervals, or support points.

    Support points are sought in the space of predictions at up to ten contexts.
    """
    steps, chains, _ = kept.shape
    draws = kept.flatten(0, 1)
    count = min(count, len(draws))
    if how == "regular":
        # Every chain gives the same share, at regular intervals, in an order that mixes chains.
        places = ((torch.arange(count) // chains + 0.5) * steps * chains / count).long().clamp_max(steps - 1)
        return places * chains + torch.arange(count) % chains
    return support_points(probed(predictor, draws, contexts), count)


def probed(predictor: Predictor, draws: Tensor, contexts: Tensor) -> Tensor:
    """Standardised predictions (N, probes·d_y) of draws (N, d) at up to ten contexts of the history."""
    probes = contexts[torch.linspace(0, len(contexts) - 1, min(_PROBES, len(contexts))).long()]
    return (predictor.predict(draws, probes) / predictor.outcomes.scale).flatten(1)
