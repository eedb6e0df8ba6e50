"""Batched quantiles and CVaR of weighted atoms: atoms are sorted once, and each statistic is read off the result."""

from __future__ import annotations

import torch
from torch import Tensor

from bco_core.batch_kernels import sum_of_rows


def sort_atoms(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return values (..., K) in increasing order and the cumulative share of weight, (..., K), ending at one."""
    ordered, order = values.sort(dim=-1)
    if weights.ndim == 1 and bool((weights == weights[0]).all()):
        # Equal weights need no gathering, and this is the common case.
        count = len(weights)
        return ordered, torch.arange(1, count + 1, dtype=values.dtype).div_(count).expand_as(ordered)
    cumulated = weights.expand_as(values).gather(-1, order).cumsum(-1)
    return ordered, cumulated / cumulated[..., -1:]


def sorted_quantile(ordered: Tensor, share: Tensor, levels: Tensor) -> Tensor:
    """Return the smallest value whose share reaches each level: atoms (..., K), levels (..., m) → (..., m)."""
    wanted = levels.expand(*ordered.shape[:-1], levels.shape[-1]) * (1 - 1e-12)
    place = torch.searchsorted(share.contiguous(), wanted.contiguous())
    return ordered.gather(-1, place.clamp_max(ordered.shape[-1] - 1))


def sorted_cvar(ordered: Tensor, share: Tensor, level: float) -> Tensor:
    """Return the mean of the worst (1 − level) of the weight: atoms (..., K) → (...)."""
    before = torch.cat([torch.zeros_like(share[..., :1]), share[..., :-1]], dim=-1)
    taken = (share.clamp_min(level) - before.clamp_min(level)).clamp_min(0)
    return sum_of_rows(ordered * taken) / (1 - level)


def weighted_quantile(values: Tensor, weights: Tensor, levels: Tensor) -> Tensor:
    """Return quantiles (B, m), each column at its own level: values (B, K, m), weights (K,) or (B, K), levels (m,)."""
    columns = values.transpose(1, 2).contiguous()
    ordered, share = sort_atoms(columns, weights if weights.ndim == 1 else weights[:, None])
    return sorted_quantile(ordered, share, levels[:, None]).squeeze(-1)
