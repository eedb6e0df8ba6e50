"""The two linear programs of a two-stage problem as torch functions with exact derivatives almost everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bco_core.solvers.basis_pool import BasisPool
from bco_core.solvers.linear_form import Array


@dataclass(frozen=True)
class RightHandSide:
    """A program's right-hand side (m,) as an affine function of the outcome and, taking off, of the decision.

    ``size`` (m,) is how large the terms are that ``constant`` is the sum of.
    """

    constant: Tensor
    size: Tensor
    by_outcome: Tensor
    by_decision: Tensor

    @staticmethod
    def of(*parts: Array) -> RightHandSide:
        return RightHandSide(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))

    def at(self, outcomes: Tensor, decisions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """For outcomes (n, d_y) and decisions (n, d_z), zero if there are none: (n, m) and the size of its terms."""
        rhs = torch.addmm(self.constant, outcomes, self.by_outcome.T)
        size = torch.addmm(self.size, outcomes.abs(), self.by_outcome.T.abs())
        if decisions is not None:
            rhs.addmm_(decisions, self.by_decision.T, alpha=-1)
            size.addmm_(decisions.abs(), self.by_decision.T.abs())
        return rhs, size


def _known(rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows (n, d) with zeros for those that are not all numbers, and which these are, if any."""
    if rows.isfinite().all():
        return rows, None
    missing = ~rows.isfinite().all(dim=1)
    return rows.masked_fill(missing[:, None], 0.0), missing


class _Decide(torch.autograd.Function):
    """Outcomes (..., d_y) → decisions (..., d_z), with ∂z/∂y = (B⁻¹H)_z."""

    @staticmethod
    def forward(ctx: Any, outcomes: Tensor, pool: BasisPool, right: RightHandSide, bounds: Tensor) -> Tensor:
        dim = bounds.shape[1]
        flat = outcomes.detach().reshape(-1, outcomes.shape[-1])
        known, missing = _known(flat)
        wanted = bool(ctx.needs_input_grad[0])
        solved = pool.solve(*right.at(known), jacobian=wanted)
        back = torch.from_numpy(pool.form.by_column[:dim][:, pool.watched])
        if wanted:
            ctx.save_for_backward(back, torch.from_numpy(solved.jacobian), right.by_outcome)
        decisions = torch.from_numpy(pool.form.offset[:dim]) + torch.from_numpy(solved.primal) @ back.T
        # Rounding must not carry a decision past its bounds.
        decisions = decisions.clamp(*bounds)
        if missing is not None:
            decisions[missing] = torch.nan
        return decisions.view(*outcomes.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        back, jacobian, by_outcome = ctx.saved_tensors
        flat = gradients[0].reshape(len(jacobian), -1)
        by_rhs = torch.bmm((flat @ back)[:, None], jacobian)[:, 0]
        return (by_rhs @ by_outcome).view(*gradients[0].shape[:-1], -1), None, None, None


class _Recourse(torch.autograd.Function):
    """Decisions (..., d_z) and outcomes (..., d_y) → Q (...), with ∂Q/∂z = −T'π and ∂Q/∂y = H'π."""

    @staticmethod
    def forward(ctx: Any, decisions: Tensor, outcomes: Tensor, pool: BasisPool, right: RightHandSide) -> Tensor:
        z = decisions.detach().reshape(-1, decisions.shape[-1])
        y = outcomes.detach().reshape(-1, outcomes.shape[-1])
        (z, no_decision), (y, no_outcome) = _known(z), _known(y)
        solved = pool.solve(*right.at(y, z))
        if any(ctx.needs_input_grad):
            dual = torch.from_numpy(solved.dual)
            ctx.save_for_backward(-dual @ right.by_decision, dual @ right.by_outcome)
        value = torch.from_numpy(solved.value) + pool.form.base_cost
        for missing in (no_decision, no_outcome):
            if missing is not None:
                value[missing] = torch.nan
        return value.view(decisions.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        by_decision, by_outcome = ctx.saved_tensors
        shape = gradients[0].shape
        flat = gradients[0].reshape(-1, 1)
        return (flat * by_decision).view(*shape, -1), (flat * by_outcome).view(*shape, -1), None, None


# (outcomes (..., d_y), pool, right-hand side, bounds (2, d_z)) → decisions (..., d_z), NaN where the outcome is.
decided: Callable[[Tensor, BasisPool, RightHandSide, Tensor], Tensor] = _Decide.apply
# (decisions (..., d_z), outcomes (..., d_y), pool, right-hand side) → recourse values (...), ∞ where there is none.
recourse_value: Callable[[Tensor, Tensor, BasisPool, RightHandSide], Tensor] = _Recourse.apply
