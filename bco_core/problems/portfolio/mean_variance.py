"""Portfolios that weigh variance against return: minimise ½γ z'Σz − y'z plus the cost of turnover.

The cost is linear in the outcome, so the best decision over scenarios is the decision for their mean.

The decision's gradient by the prediction is the derivative of a QP over its active set. Where positions lie strictly
between their bounds, z moves by P dy/γ with P the inverse of Σ on those positions, projected to where the binding rules
stay binding. P is symmetric. A position that the cost of turnover holds at its current value does not move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bco_core.batch_kernels import mean_of_atoms
from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Breach, DecisionProblem, Prescription, Price, Risk, Status
from bco_core.problems.portfolio.positions import Portfolios
from bco_core.problems.portfolio.report import facts_of, prices_of
from bco_core.problems.portfolio.rules import TOLERANCE, number
from bco_core.status import GAP

_OPEN = "the solvers could not prove this portfolio optimal; the gap bounds how much less another may cost"
# Entries of one batch of systems, and how close to a bound a position or a sum counts as being at it: daqp's accuracy.
_NUMBERS = 4_000_000
_NEAR = 1e-6


@dataclass(frozen=True)
class MeanVariancePortfolio(DecisionProblem):
    """Minimise ½γ z'Σz − y'z + κ Σ |z − current|, with risk aversion γ and turnover cost κ."""

    portfolios: Portfolios
    risk_aversion: float

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> MeanVariancePortfolio:
        aversion = number(spec, "risk_aversion", 1.0)
        if aversion <= 0:
            raise InvalidInput("the risk aversion must be a positive number", ("risk_aversion",))
        for name in ("maximum_long", "maximum_short"):
            if spec.get(name) is not None:
                raise InvalidInput(
                    f"a mean-variance portfolio does not support {name}: bound the assets instead", (name,)
                )
        return MeanVariancePortfolio(Portfolios.from_spec(spec), aversion)

    @property
    def outcome_dim(self) -> int:
        return self.portfolios.count

    @property
    def decides_slowly(self) -> bool:
        return self.portfolios.rules.lifts

    @property
    def decides_alone(self) -> bool:
        return True

    def decide(self, outcomes: Tensor) -> Tensor:
        decisions: Tensor = _MeanVariance.apply(outcomes, self)  # type: ignore[no-untyped-call]
        return decisions

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        risk = 0.5 * self.risk_aversion * self.portfolios.variance(decisions)
        cost: Tensor = risk - (decisions * outcomes).sum(-1)
        return cost + self.portfolios.charge(decisions) if self.portfolios.rules.turnover_cost else cost

    def within(self, decisions: Tensor) -> Tensor:
        return self.portfolios.hold(decisions)

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        if risk.cvar_weight:
            raise InvalidInput("the mean-variance portfolio prescribes for expected cost only", ("risk",))
        mean = _mean(outcomes, weights)
        rows = mean.numpy()
        decisions, solvers = self.portfolios.mean_variance(rows, self.risk_aversion, exact=True)
        # The cost is linear in the outcome.
        answer = self.optimal(torch.from_numpy(decisions), mean[:, None], torch.ones(1, dtype=torch.float64))
        above, size = self.portfolios.gaps(decisions, rows, self.risk_aversion)
        costs = answer.objective.tolist()
        bounds = [cost - self.risk_aversion * gap for cost, gap in zip(costs, above.tolist(), strict=True)]
        # The cost is small relative to its terms, so the gap is judged by the terms.
        closed = [
            gap <= GAP.relative * terms or GAP.closes(cost, bound, 0.0)
            for gap, terms, cost, bound in zip(above, size, costs, bounds, strict=True)
        ]
        return replace(
            answer,
            status=[Status.OPTIMAL if one else Status.BEST_EFFORT for one in closed],
            reasons=() if all(closed) else tuple("" if one else _OPEN for one in closed),
            solvers=tuple(solvers) if any(solvers) else (),
            gaps=torch.tensor([GAP.share(*one, 0.0) for one in zip(costs, bounds, strict=True)], dtype=torch.float64),
            bounds=torch.tensor(bounds, dtype=torch.float64),
        )

    def breaches(self, decision: Tensor) -> list[Breach]:
        return self.portfolios.rules.breaches(decision.numpy())

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """Return by how much the least cost over the scenarios falls for one more unit of each binding rule."""
        answer = self.prescribe(outcomes[None].double(), weights)
        best, mean = answer.decisions[0].numpy(), (weights.double() @ outcomes.double()).numpy()
        if answer.status[0] != Status.OPTIMAL:
            return []
        gradient = self.risk_aversion * (self.portfolios.covariance.numpy() @ best) - mean
        return prices_of(self.portfolios.rules, gradient, best, [], self.portfolios.rules.turnover_cost)

    def facts(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
        return facts_of(self.portfolios, decision, outcomes, weights)

    def solve(self, outcomes: Tensor) -> Tensor:
        rows = outcomes.detach().double().reshape(-1, self.outcome_dim).numpy()
        return torch.from_numpy(self.portfolios.mean_variance(rows, self.risk_aversion)[0]).view(outcomes.shape)

    def pull_back(self, decisions: Tensor, gradient: Tensor) -> Tensor:
        """Return ∂L/∂y (..., m) from ∂L/∂z (..., m) at the solution."""
        return pull_back(self.portfolios, decisions, gradient) / self.risk_aversion


def _mean(outcomes: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_k w_bk y_bk (B, m) of outcomes (B, K, m) with weights (B, K) or (K,)."""
    if weights.ndim == 1:
        return mean_of_atoms(outcomes, weights)
    return torch.cat([mean_of_atoms(one[None], own) for one, own in zip(outcomes, weights, strict=True)])


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


def pull_back(portfolios: Portfolios, decisions: Tensor, gradient: Tensor) -> Tensor:
    """Return P ∂L/∂z (..., m) at decisions (..., m) of the problem with γ = 1."""
    if not portfolios.rules.lifts:
        return _by_factors(portfolios, decisions, gradient)
    count = portfolios.count
    flat, moved = decisions.reshape(-1, count), gradient.reshape(-1, count).double()
    size = max(1, _NUMBERS // (count + 2 + len(portfolios.rules.groups)) ** 2)
    parts = [_by_rows(portfolios, *one) for one in zip(flat.split(size), moved.split(size), strict=True)]
    return torch.cat(parts).view(decisions.shape)


def _by_factors(portfolios: Portfolios, decisions: Tensor, gradient: Tensor) -> Tensor:
    """Solve under bounds and a budget, with a system of the size of the factors."""
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
    # If the budget binds and no position can move, its row is zero.
    system[..., 0, 0] = torch.where(system[..., 0, 0] < 1e-20, 1.0, system[..., 0, 0])
    right = gradient * scale
    multipliers = torch.linalg.solve(system, (masked @ right[..., None]))
    moved = (right - (multipliers.transpose(-1, -2) @ (columns * used[..., None])).squeeze(-2)) * free
    pulled: Tensor = moved * scale
    return pulled


def _by_rows(portfolios: Portfolios, decisions: Tensor, gradient: Tensor) -> Tensor:
    """Solve under any rules: P is the limit of (Σ_F + R'R/ε)⁻¹ over free positions F and binding rows R, as a KKT
    system."""
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
        # If turnover costs, a position at its current value stays there.
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
    # Redundant or empty rows must not make the system singular.
    corner = -1e-12 * torch.eye(extra, dtype=torch.float64)
    corner = corner - torch.diag_embed((matrix.abs().sum(-1) == 0).double())
    system = torch.cat([torch.cat([upper, matrix.transpose(1, 2)], dim=2), torch.cat([matrix, corner], dim=2)], dim=1)
    right = torch.cat([gradient * mask, torch.zeros(len(mask), extra, dtype=torch.float64)], dim=1)
    solved = torch.linalg.solve(system, right[..., None]).squeeze(-1)[:, :count]
    pulled: Tensor = solved * mask / unit
    return pulled
