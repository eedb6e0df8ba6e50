"""Thinning: a few particles that represent all draws of the chains, at regular intervals or as support points.

Support points (Mak and Joseph, 2018), chosen among the draws themselves, minimise the energy distance between the
chosen K points and all N,

    (2/KN) Σ_k Σ_n ‖x_k − x_n‖ − (1/K²) Σ_k Σ_l ‖x_k − x_l‖ − (1/N²) Σ_n Σ_m ‖x_n − x_m‖,

first greedily, one point at a time, then by exchanges as long as these improve it. The points of draws of θ are their
predictions, which decisions depend on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bco_core.predictors.base import Predictor

_PROBES = 10
_PASSES = 10


def thin(predictor: Predictor, chain_draws: Tensor, contexts: Tensor, count: int, how: str) -> Tensor:
    """Return the numbers of ``count`` of the draws (k, C, d), flattened: at regular intervals, or support points.

    Support points are chosen by predictions at up to ten contexts.
    """
    steps, chains, _ = chain_draws.shape
    draws = chain_draws.flatten(0, 1)
    count = min(count, len(draws))
    if how == "regular":
        # Every chain contributes the same share, at regular intervals, in an order that mixes chains.
        places = ((torch.arange(count) // chains + 0.5) * steps * chains / count).long().clamp_max(steps - 1)
        return places * chains + torch.arange(count) % chains
    return support_points(probe_predictions(predictor, draws, contexts), count)


def probe_predictions(predictor: Predictor, draws: Tensor, contexts: Tensor) -> Tensor:
    """Return standardised predictions (N, probes·d_y) of draws (N, d) at up to ten contexts of the history."""
    probes = contexts[torch.linspace(0, len(contexts) - 1, min(_PROBES, len(contexts))).long()]
    return (predictor.predict(draws, probes) / predictor.outcomes.scale).flatten(1)


def support_points(features: Tensor, count: int) -> Tensor:
    """Return ``count`` of the N points (N, f) as indices, each adding most to those before it."""
    distances = torch.cdist(features.double(), features.double())
    count = min(count, len(features))
    chosen = _exchange(distances, _greedy(distances, torch.arange(len(features)), count))
    # In greedy order, every prefix of the points is spread out too.
    return _greedy(distances, chosen, count)


def _greedy(distances: Tensor, candidates: Tensor, count: int) -> Tensor:
    far, near = distances[candidates].mean(dim=1), torch.zeros(len(candidates), dtype=distances.dtype)
    open_, chosen = torch.ones(len(candidates), dtype=torch.bool), []
    total, inside = 0.0, 0.0
    for size in range(1, count + 1):
        energy = 2 * (total + far) / size - (inside + 2 * near) / size**2
        pick = int(energy.masked_fill(~open_, torch.inf).argmin())
        total += far[pick].item()
        inside += 2 * near[pick].item()
        near += distances[candidates, candidates[pick]]
        open_[pick] = False
        chosen.append(pick)
    return candidates[torch.tensor(chosen)]


def _exchange(distances: Tensor, chosen: Tensor) -> Tensor:
    """Replace one point after another by the best of those left out, until no exchange helps."""
    chosen, size = chosen.clone(), len(chosen)
    far, near = distances.mean(dim=1), distances[:, chosen].sum(dim=1)
    for _ in range(_PASSES):
        changed = False
        for place in range(size):
            old = int(chosen[place])
            others = near - distances[:, old]
            energy = 2 * far / size - 2 * others / size**2
            taken = chosen[chosen != old]
            energy[taken] = torch.inf
            new = int(energy.argmin())
            if energy[new] < energy[old] - 1e-12 * energy[old].abs():
                chosen[place], near, changed = new, others + distances[:, new], True
        if not changed:
            break
    return chosen
