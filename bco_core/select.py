"""Selection by out-of-fold decision cost: a candidate replaces the default only for a clear gain.

Candidates are compared row by row with the default (the first). One replaces it if its paired gain exceeds one standard
error, and the largest such gain wins. The plain minimum of a cross-validated cost would overfit noise.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from bco_core.estimates import estimate, paired_difference
from bco_core.problems.base import DecisionProblem
from bco_core.scenarios import Scenarios

# Rows of a report, such as the candidates of a selection with their costs.
Table = list[dict[str, Any]]

_HALF = 0.5
_STACK_WEIGHTS = torch.linspace(0, 1, 11, dtype=torch.float64)


@dataclass(frozen=True)
class Selection:
    """The number of the chosen candidate, and the table of all candidates for reports."""

    best: int
    table: Table


def select(costs: list[Tensor], labels: Table, errors: float = 1.0) -> Selection:
    """Choose among candidates with per-row costs (m,); the first is the default, and ``labels`` describe them.

    A gain is clear if it exceeds ``errors`` standard errors.
    """
    gains = [paired_difference(values, costs[0]) for values in costs]
    clear = [index for index, gain in enumerate(gains) if gain.mean < -errors * gain.standard_error]
    chosen = min(clear, key=lambda index: gains[index].mean, default=0)
    table = [
        label | {"cost": asdict(estimate(values)), "against_default": asdict(gain), "chosen": index == chosen}
        for index, (label, values, gain) in enumerate(zip(labels, costs, gains, strict=True))
    ]
    return Selection(chosen, table)


@dataclass(frozen=True)
class ShareCosts:
    """Costs (shares, m) of the averaged decisions of two candidates at each share of the second, row by row.

    Where rows belong to several ``stretches`` (m,) of time, a smaller share of the second candidate is chosen only if
    it was better in each of the last two, and never below one half: the second gains most from a longer history.
    """

    costs: Tensor
    stretches: Tensor | None = None

    def best(self, rows: Tensor | slice = slice(None)) -> float:
        """Return the share of least mean cost over some of the rows."""
        means = self.costs[:, rows].mean(dim=1)
        if self.stretches is not None:
            late = self.stretches[rows] >= self.stretches[rows].unique()[-2:][0]
            means = torch.where(self._clear(rows), self.costs[:, rows][:, late].mean(dim=1), torch.inf)
        return _STACK_WEIGHTS[int(means.argmin())].item()

    def _clear(self, rows: Tensor | slice) -> Tensor:
        """Return which shares (shares,) are clearly better than the second candidate alone, or are that candidate."""
        if self.stretches is None:
            raise RuntimeError("rows have no stretches")
        of = self.stretches[rows].unique(return_inverse=True)[1]
        gains = self.costs[:, rows] - self.costs[-1:, rows]
        each = torch.zeros(len(gains), int(of.max()) + 1, dtype=torch.float64).index_add_(1, of, gains) / of.bincount()
        clear: Tensor = (each[:, -2:].amax(dim=1) < 0) & (_STACK_WEIGHTS >= _HALF)
        clear[-1] = True
        return clear

    def table(self) -> Table:
        means = self.costs.mean(dim=1).tolist()
        return [{"share": share, "cost": cost} for share, cost in zip(_STACK_WEIGHTS.tolist(), means, strict=True)]


def share_costs(
    problem: DecisionProblem,
    first: Scenarios,
    second: Scenarios,
    outcomes: Tensor,
    stretches: Tensor | None = None,
) -> ShareCosts:
    """Return the costs of mixing two candidates at every share, on outcomes (m, d_y)."""
    each = [torch.einsum("bkz,k->bz", problem.decide(s.outcomes), s.weights) for s in (first, second)]
    costs = [problem.cost(torch.lerp(each[0], each[1], share), outcomes) for share in _STACK_WEIGHTS]
    return ShareCosts(torch.stack(costs), stretches)
