"""Ridge regression whose penalty is chosen by exact leave-one-out error."""

from __future__ import annotations

import torch
from torch import Tensor

PENALTIES = 10.0 ** torch.linspace(-3, 1, 17, dtype=torch.float64)


def ridge(contexts: Tensor, outcomes: Tensor, penalties: Tensor = PENALTIES) -> Tensor:
    """Return slopes and then the intercept, (d_x + 1, d_y), of outcomes (n, d_y) on contexts (n, d_x).

    Each outcome gets the penalty of least leave-one-out error, which is computed exactly.
    """
    count = len(contexts)
    context_mean, outcome_mean = contexts.mean(0), outcomes.mean(0)
    centred = outcomes - outcome_mean
    u, singular, vt = torch.linalg.svd(contexts - context_mean, full_matrices=False)
    shrink = singular**2 / (singular**2 + count * penalties[:, None])
    projected = u.T @ centred
    fitted = torch.einsum("nk,pk,ky->pny", u, shrink, projected)
    leverage = shrink @ (u**2).T + 1 / count
    error = ((centred - fitted) / (1 - leverage.clamp_max(1 - 1e-9))[:, :, None]).square().mean(dim=1)
    best = shrink[error.argmin(dim=0)].T
    positive = singular > 1e-10 * singular[:1]
    inverse = torch.where(positive, 1 / singular.clamp_min(1e-300), torch.zeros_like(singular))
    slopes = vt.T @ (best * inverse[:, None] * projected)
    return torch.cat([slopes, (outcome_mean - context_mean @ slopes)[None]])
