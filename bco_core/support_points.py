"""A few draws that stand for many: support points (Mak and Joseph, 2018), chosen among the draws themselves.

They minimise the energy distance between the chosen points and all N of them,

    (2/KN) Σ_k Σ_n ‖x_k − x_n‖ − (1/K²) Σ_k Σ_l ‖x_k − x_l‖ − (1/N²) Σ_n Σ_m ‖x_n − x_m‖,

first greedily, one point at a time, then by exchanging points as long as that helps. What the points are like is the
caller's choice: for draws of θ, their predictions, which decisions depend on.
"""

from __future__ import annotations

import torch
from torch import Tensor

_PASSES = 10


def support_points(features: Tensor, count: int) -> Tensor:
    """``count`` of the N points (N, f), as indices in the order in which each adds most to those before it."""
    distances = torch.cdist(features.double(), features.double())
    count = min(count, len(features))
    chosen = _exchanged(distances, _greedy(distances, torch.arange(len(features)), count))
    # In greedy order among themselves, any first part of them is spread out too.
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


def _exchanged(distances: Tensor, chosen: Tensor) -> Tensor:
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
