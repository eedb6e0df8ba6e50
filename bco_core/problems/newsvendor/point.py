"""The best orders for a point prediction: differentiable almost everywhere.

What is wanted is the prediction less the stock, within the order bounds. Where one row forbids that, orders give way in
the order of what a unit of the row costs them, each as far as its bound. That order does not depend on the prediction,
so the answer is a formula of sums and clamps. Several rows are a linear program of which only the right-hand side
changes, and the bases of :class:`~bco_core.problems.linear.two_stage.TwoStageLinear` decide.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bco_core.problems.linear.model import SENSES
from bco_core.problems.linear.two_stage import TwoStageLinear
from bco_core.problems.newsvendor.description import Rows
from bco_core.solvers.linear_form import Array


def kept_row(
    wanted: Tensor, low: Tensor, high: Tensor, underage: Tensor, overage: Tensor, uses: Tensor, limit: float
) -> Tensor:
    """Orders (..., d) of least cost with Σ uses·order ≤ limit, where ``wanted`` (..., d) costs least without it."""
    excess = ((wanted * uses).sum(-1, keepdim=True) - limit).clamp_min(0)
    order = torch.where(uses > 0, underage, overage).div(uses.abs()).argsort(stable=True)
    order = order[(uses != 0)[order]]
    # An order that uses the row shrinks, one that makes room grows.
    shrinks, use = (uses > 0)[order], uses.abs()[order]
    now = wanted[..., order]
    room = torch.where(shrinks, now - low[order], high[order] - now) * use
    before = torch.cat([torch.zeros_like(excess), room.cumsum(-1)[..., :-1]], dim=-1)
    given = torch.minimum((excess - before).clamp_min(0), room) / use
    moved = torch.where(shrinks, now - given, now + given)
    # A bound that is reached is reached exactly.
    moved = torch.where(excess - before >= room, torch.where(shrinks, low[order], high[order]), moved)
    found = wanted.clone()
    found[..., order] = torch.where(excess > 0, moved, now)
    return found


def kept_either_way(wanted: Tensor, low: Tensor, high: Tensor, underage: Tensor, overage: Tensor, rows: Rows) -> Tensor:
    """The same for the only one of the rows, whatever its sense."""
    uses, limit, sense = torch.from_numpy(rows.matrix[0]), float(rows.limits[0]), int(rows.senses[0])
    if sense <= 0:
        wanted = kept_row(wanted, low, high, underage, overage, uses, limit)
    if sense >= 0:
        wanted = kept_row(wanted, low, high, underage, overage, -uses, -limit)
    return wanted


def several_rows(low: Array, high: Array, underage: Array, overage: Array, stock: Array, rows: Rows) -> TwoStageLinear:
    """A two-stage problem with the same best decisions: c(z; y) = Σ o z + (u + o)·short, short ≥ y − stock − z.

    Its cost differs from the newsvendor's by Σ o (stock − y), in which decisions have no say.
    """
    signs = {number: sign for sign, number in SENSES.items()}
    names = [str(index) for index in range(len(low))]
    return TwoStageLinear.from_spec(
        {
            "decisions": [
                {
                    "name": name,
                    "cost": overage[j],
                    "minimum": low[j] if np.isfinite(low[j]) else None,
                    "maximum": high[j] if np.isfinite(high[j]) else None,
                }
                for j, name in enumerate(names)
            ],
            "decision_rows": [
                {
                    "coefficients": {names[j]: row[j] for j in np.flatnonzero(row)},
                    "sense": signs[int(sense)],
                    "limit": limit,
                }
                for row, sense, limit in zip(rows.matrix, rows.senses, rows.limits, strict=True)
            ],
            "outcomes": [{"name": name} for name in names],
            "recourse": [{"name": name, "cost": underage[j] + overage[j]} for j, name in enumerate(names)],
            "rows": [
                {
                    "recourse": {name: 1.0},
                    "decisions": {name: 1.0},
                    "sense": ">=",
                    "constant": -stock[j],
                    "outcomes": {name: 1.0},
                }
                for j, name in enumerate(names)
            ],
        }
    )
