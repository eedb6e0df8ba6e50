"""How the mean-variance portfolio moves with the returns: the derivative of a QP over its active set.

Where positions are strictly between their bounds, z moves by P dy/γ with P the inverse of Σ on those positions,
projected to where the rules that bind stay kept. P is symmetric. At a position that turnover keeps where it is, z does
not move at all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bco_core.problems.portfolio.positions import Portfolios
from bco_core.problems.portfolio.rules import TOLERANCE

# Numbers in one batch of systems, and how near to a bound a position or a sum counts as at it: daqp is this exact.
_NUMBERS = 4_000_000
_NEAR = 1e-6


def pulled_back(portfolios: Portfolios, decisions: Tensor, gradient: Tensor) -> Tensor:
    """P ∂L/∂z (..., m) at decisions (..., m) of the problem with γ = 1."""
    if not portfolios.rules.lifts:
        return _by_factors(portfolios, decisions, gradient)
    count = portfolios.count
    flat, moved = decisions.reshape(-1, count), gradient.reshape(-1, count).double()
    size = max(1, _NUMBERS // (count + 2 + len(portfolios.rules.groups)) ** 2)
    parts = [_by_rows(portfolios, *one) for one in zip(flat.split(size), moved.split(size), strict=True)]
    return torch.cat(parts).view(decisions.shape)


def _by_factors(portfolios: Portfolios, decisions: Tensor, gradient: Tensor) -> Tensor:
    """Under bounds and a budget: a system as large as there are factors."""
    rules, factors = portfolios.rules, portfolios.factors
    room = TOLERANCE * max(1.0, rules.budget)
    scale = torch.from_numpy(1 / factors.deviations)
    lower, upper = portfolios.lower, portfolios.upper
    free = ((decisions > lower + room * 1e-3) & (decisions < upper - room * 1e-3)).double()
    tight = (decisions.sum(-1, keepdim=True) >= rules.budget - room).double()
    columns = torch.cat([scale[None], torch.from_numpy(factors.loadings.T) * scale])
    used = torch.cat([tight, torch.ones(*tight.shape[:-1], len(columns) - 1, dtype=torch.float64)], dim=-1)
    masked = columns * free[..., None, :] * used[..., None]
    system = masked @ columns.T * used[..., None, :]
    diagonal = torch.ones(len(columns), dtype=torch.float64)
    diagonal[0] = 1e-30
    system = system + torch.diag_embed(diagonal.where(used > 0, 1.0))
    # A used-up budget with no position left to move pins nothing: its own row is then zero.
    system[..., 0, 0] = torch.where(system[..., 0, 0] < 1e-20, 1.0, system[..., 0, 0])
    right = gradient * scale
    multipliers = torch.linalg.solve(system, (masked @ right[..., None]))
    moved = (right - (multipliers.transpose(-1, -2) @ (columns * used[..., None])).squeeze(-2)) * free
    pulled: Tensor = moved * scale
    return pulled


def _by_rows(portfolios: Portfolios, decisions: Tensor, gradient: Tensor) -> Tensor:
    """Under any rules: P is the limit of (Σ_F + R'R/ε)⁻¹ over free positions F and binding rows R, as a KKT system."""
    rules, near = portfolios.rules, _NEAR * portfolios.rules.budget
    free = (decisions > portfolios.lower + near) & (decisions < portfolios.upper - near)
    total = decisions.sum(-1)
    rows = [torch.ones_like(decisions)]
    binds = [torch.ones_like(total, dtype=torch.bool) if rules.full else total > rules.budget - near]
    for group in rules.groups:
        members = torch.from_numpy(group.members)
        value = (decisions * members).sum(-1)
        rows.append(members.expand_as(decisions))
        binds.append((value > group.maximum - near) | (value < group.minimum + near))
    if rules.current is not None:
        current = torch.from_numpy(rules.current)
        spent = portfolios.turnover(decisions)
        limit = rules.maximum_turnover
        bound = torch.zeros_like(total, dtype=torch.bool) if limit is None else spent > limit - near
        # Where moving costs, a position that has not moved stays where it is.
        stays = ((decisions - current).abs() <= near) & (bound[:, None] | (rules.turnover_cost > 0))
        free = free & ~stays
        rows.append((decisions - current).sign())
        binds.append(bound)
    mask = free.double()
    matrix = torch.stack(rows, dim=1) * mask[:, None] * torch.stack(binds, dim=1).double()[..., None]
    unit = float(portfolios.covariance.diagonal().mean())
    sigma = portfolios.covariance / unit
    upper = sigma * mask[:, :, None] * mask[:, None, :] + torch.diag_embed(1 - mask)
    count, extra = matrix.shape[2], matrix.shape[1]
    # Rows that say the same as others, or nothing, must not make the system singular.
    corner = -1e-12 * torch.eye(extra, dtype=torch.float64)
    corner = corner - torch.diag_embed((matrix.abs().sum(-1) == 0).double())
    system = torch.cat([torch.cat([upper, matrix.transpose(1, 2)], dim=2), torch.cat([matrix, corner], dim=2)], dim=1)
    right = torch.cat([gradient * mask, torch.zeros(len(mask), extra, dtype=torch.float64)], dim=1)
    solved = torch.linalg.solve(system, right[..., None]).squeeze(-1)[:, :count]
    pulled: Tensor = solved * mask / unit
    return pulled
