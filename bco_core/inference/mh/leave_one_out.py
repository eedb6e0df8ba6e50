"""Leave-one-out predictions of a posterior, by importance weights on its draws.

The Gibbs posterior is a product over rows, ρ_n ∝ ρ_0 Π_i exp(−λ c_i(θ)) with λ = λn/n, so the one without row i has
weights ∝ exp(λ c_i(θ_k)) on the draws θ_k. Weights are truncated at √K times their mean (Ionides, 2008), so that a few
draws that fit a row badly do not dominate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bco_core.gibbs import GibbsTarget
from bco_core.scenarios import Scenarios

_ATOMS = 50


@dataclass(frozen=True)
class LeaveOneOut:
    """Leave-one-out scenarios of some rows, their mean predictions (H, d_y), and the smallest effective sample size of
    any row's weights."""

    scenarios: Scenarios
    predictions: Tensor
    effective: float


def leave_one_out(target: GibbsTarget, rows: Tensor, draws: Tensor, inverse_temperature: float) -> LeaveOneOut:
    """Predict rows (H,) of the sample from draws (K, d) of the posterior of all rows, each row without itself."""
    held_out, count = target.rows(rows), len(draws)
    predictions = target.predictor.predict_encoded(draws, held_out.encoded(draws.dtype))
    costs = target.problem.cost(target.problem.decide(predictions), held_out.sample.outcomes) / target.cost_scale
    weight = inverse_temperature / len(target.sample) * costs
    share = (weight - weight.amax(dim=0)).exp()
    share = share.minimum(math.sqrt(count) * share.mean(dim=0))
    share = (share / share.sum(dim=0)).T
    mean = torch.einsum("hk,khy->hy", share, predictions)
    places = (torch.arange(_ATOMS, dtype=torch.float64) + 0.5) / _ATOMS
    chosen = torch.searchsorted(share.cumsum(dim=1), places.expand(len(rows), -1).contiguous()).clamp_max(count - 1)
    atoms = predictions.transpose(0, 1).gather(1, chosen[..., None].expand(-1, -1, predictions.shape[2]))
    effective = (1 / share.square().sum(dim=1)).min().item()
    return LeaveOneOut(Scenarios.equal(atoms, mean), mean, effective)
