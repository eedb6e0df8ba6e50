"""Portfolios that weigh variance against return: least ½γ z'Σz − y'z, and what turnover costs.

The cost is linear in the outcome, so the best decision over scenarios is the one for their mean, and its gradient by
the prediction is known wherever no position sits exactly at a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bco_core.batch_kernels import mean_of_atoms
from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Breach, DecisionProblem, Prescription, Price, Risk, Status
from bco_core.problems.portfolio.facts import facts_of
from bco_core.problems.portfolio.gradient import pulled_back
from bco_core.problems.portfolio.positions import Portfolios
from bco_core.problems.portfolio.prices import prices_of
from bco_core.problems.portfolio.reading import number
from bco_core.status import GAP

_OPEN = "the solvers could not prove this portfolio best; the gap says how much less another may cost"


@dataclass(frozen=True)
class MeanVariancePortfolio(DecisionProblem):
    """Least ½γ z'Σz − y'z + κ Σ |z − current|, with risk aversion γ and turnover cost κ."""

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
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit: float | None = None
    ) -> Prescription:
        if risk.cvar_weight:
            raise InvalidInput("the mean-variance portfolio prescribes for expected cost only", ("risk",))
        mean = _mean(outcomes, weights)
        rows = mean.numpy()
        decisions, solvers = self.portfolios.mean_variance(rows, self.risk_aversion, exact=True)
        # The cost is linear in the outcome.
        found = self.optimal(torch.from_numpy(decisions), mean[:, None], torch.ones(1, dtype=torch.float64))
        above, size = self.portfolios.gaps(decisions, rows, self.risk_aversion)
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
            solvers=tuple(solvers) if any(solvers) else (),
            gaps=torch.tensor([GAP.share(*one, 0.0) for one in zip(costs, bounds, strict=True)], dtype=torch.float64),
            bounds=torch.tensor(bounds, dtype=torch.float64),
        )

    def breaches(self, decision: Tensor) -> list[Breach]:
        return self.portfolios.rules.breaches(decision.numpy())

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """By how much the least cost over the scenarios would fall for one more unit of each binding rule."""
        found = self.prescribe(outcomes[None].double(), weights)
        best, mean = found.decisions[0].numpy(), (weights.double() @ outcomes.double()).numpy()
        if found.status[0] != Status.OPTIMAL:
            return []
        gradient = self.risk_aversion * (self.portfolios.covariance.numpy() @ best) - mean
        return prices_of(self.portfolios.rules, gradient, best, [], self.portfolios.rules.turnover_cost)

    def facts(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
        return facts_of(self.portfolios, decision, outcomes, weights)

    def solve(self, outcomes: Tensor) -> Tensor:
        rows = outcomes.detach().double().reshape(-1, self.outcome_dim).numpy()
        return torch.from_numpy(self.portfolios.mean_variance(rows, self.risk_aversion)[0]).view(outcomes.shape)

    def pull_back(self, decisions: Tensor, gradient: Tensor) -> Tensor:
        """∂L/∂y (..., m) from ∂L/∂z (..., m) at the solution."""
        return pulled_back(self.portfolios, decisions, gradient) / self.risk_aversion


def _mean(outcomes: Tensor, weights: Tensor) -> Tensor:
    """Σ_k w_bk y_bk: outcomes (B, K, m), weights (B, K) or (K,) → (B, m)."""
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
