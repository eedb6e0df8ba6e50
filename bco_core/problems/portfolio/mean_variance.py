"""Portfolios that weigh variance against return: least ½γ z'Σz − y'z.

The cost is linear in the outcome, so the best decision over scenarios is the one for their mean, and its gradient by
the prediction is known wherever no position sits exactly at a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Prescription, Problem, Risk, Status
from bco_core.problems.portfolio.positions import TOLERANCE, Portfolios, number
from bco_core.status import DENSE, GAP

_OPEN = "the solvers could not prove this portfolio best; the gap says how much less another may cost"


@dataclass(frozen=True)
class MeanVariancePortfolio(Problem):
    """Least ½γ z'Σz − y'z, with risk aversion γ."""

    portfolios: Portfolios
    risk_aversion: float

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> MeanVariancePortfolio:
        aversion = number(spec, "risk_aversion", 1.0)
        if aversion <= 0:
            raise InvalidInput("the risk aversion must be a positive number", ("risk_aversion",))
        for name in ("maximum_long", "maximum_short"):
            if spec.get(name) is not None:
                raise InvalidInput(f"a mean-variance portfolio keeps no {name}: bound the assets instead", (name,))
        return MeanVariancePortfolio(Portfolios.from_spec(spec), aversion)

    @property
    def outcome_dim(self) -> int:
        return self.portfolios.count

    def decide(self, outcomes: Tensor) -> Tensor:
        decisions: Tensor = _MeanVariance.apply(outcomes, self)  # type: ignore[no-untyped-call]
        return decisions

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return 0.5 * self.risk_aversion * self.portfolios.variance(decisions) - (decisions * outcomes).sum(-1)

    def within(self, decisions: Tensor) -> Tensor:
        return self.portfolios.hold(decisions)

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit: float | None = None
    ) -> Prescription:
        if risk.cvar_weight:
            raise InvalidInput("the mean-variance portfolio prescribes for expected cost only", ("risk",))
        weights = weights.expand(outcomes.shape[:2]).to(outcomes)
        rows = torch.einsum("bky,bk->by", outcomes, weights).detach().double().numpy() / self.risk_aversion
        decisions, dense = self.portfolios.mean_variance(rows)
        found = self.optimal(torch.from_numpy(decisions), outcomes, weights)
        above, size = self.portfolios.gaps(decisions, rows)
        costs = found.objective.tolist()
        bounds = [cost - self.risk_aversion * gap for cost, gap in zip(costs, above.tolist(), strict=True)]
        # What decides is small beside the terms that it is the sum of: the gap is judged by these.
        closed = [
            gap <= GAP.relative * terms or GAP.closes(cost, bound, 0.0)
            for gap, terms, cost, bound in zip(above, size, costs, bounds, strict=True)
        ]
        return replace(
            found,
            status=[Status.OPTIMAL if one else Status.BEST_EFFORT for one in closed],
            reasons=() if all(closed) else tuple("" if one else _OPEN for one in closed),
            solvers=tuple(DENSE if one else "" for one in dense) if any(dense) else (),
            gaps=torch.tensor([GAP.share(*one, 0.0) for one in zip(costs, bounds, strict=True)], dtype=torch.float64),
            bounds=torch.tensor(bounds, dtype=torch.float64),
        )

    def solve(self, outcomes: Tensor) -> Tensor:
        rows = outcomes.detach().double().reshape(-1, self.outcome_dim).numpy() / self.risk_aversion
        return torch.from_numpy(self.portfolios.mean_variance(rows)[0]).view(outcomes.shape)

    def pull_back(self, decisions: Tensor, gradient: Tensor) -> Tensor:
        """∂L/∂y (..., m) from ∂L/∂z (..., m) at the solution.

        Where positions are strictly between their bounds, z moves by P dy/γ with P the inverse of Σ on those positions,
        projected to a constant sum where the budget is used up. P is symmetric.
        """
        factors, room = self.portfolios.factors, TOLERANCE * max(1.0, self.portfolios.budget)
        scale = torch.from_numpy(1 / factors.deviations)
        lower, upper = self.portfolios.lower, self.portfolios.upper
        free = ((decisions > lower + room * 1e-3) & (decisions < upper - room * 1e-3)).double()
        tight = (decisions.sum(-1, keepdim=True) >= self.portfolios.budget - room).double()
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
        gradients: Tensor = moved * scale / self.risk_aversion
        return gradients


class _MeanVariance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outcomes: Tensor, problem: MeanVariancePortfolio) -> Tensor:
        decisions = problem.solve(outcomes)
        ctx.save_for_backward(decisions)
        ctx.problem = problem
        return decisions

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (decisions,) = ctx.saved_tensors
        problem: MeanVariancePortfolio = ctx.problem
        return problem.pull_back(decisions, gradients[0]), None
