"""Any linear model with recourse: costs, technology, recourse and limits may all depend on outcomes.

    c(z; y) = c(y)'z + Q(z, y),    Q(z, y) = min q(y)'x   s.t.   T(y) z + W(y) x (sense) h(y),   l ≤ x ≤ u,

in whole numbers where the model says so. Over scenarios cutting planes decide where they can
(:mod:`bco_core.problems.linear.fixed_recourse`); else it is one sparse program, which HiGHS solves
(:mod:`bco_core.problems.linear.scenarios`), and its risk is recomputed from recourse costs
(:mod:`bco_core.problems.linear.recourse`). A point decision is a program of its own and may jump as predictions move,
so learning works on the squared error of predictions, and decisions are hedged over scenarios.

An outcome is taken to lie within its stated bounds: beyond them it counts as the bound.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bco_core import deadline
from bco_core.problems.base import EXPECTATION, Breach, Prescription, Price, Problem, Risk, Status
from bco_core.problems.linear import first_stage
from bco_core.problems.linear.extensive import NO_TIME, Solution, judged, risk_of, solved
from bco_core.problems.linear.fixed_recourse import FixedRecourse
from bco_core.problems.linear.model import Model
from bco_core.problems.linear.recourse import Later
from bco_core.problems.linear.scenarios import OneByOne, Stages, program_over, whole_in
from bco_core.problems.linear.validate_general import examine, has_decision
from bco_core.problems.second_stage import SecondStagePlan
from bco_core.problems.surrogate import SQUARED_ERROR, Hindsight
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array
from bco_core.status import HIGHS

# Numbers of one program over scenarios; of more scenarios than fit some are left out.
MOST_NUMBERS = 10_000_000
# Numbers of a program from which on solving it counts as long work.
_LONG = 4_000
# Prices below this share of the largest unit cost are rounding.
_SMALL = 1e-9
# What of a time limit may be kept for pricing decisions whose recourse takes a search, found by pricing so many pairs.
_PRICING_SHARE, _PRICED = 0.6, 3


@dataclass(frozen=True)
class GeneralLinear(Problem):
    """The model in its two stages. ``relaxation`` forgets that anything must be a whole number."""

    stages: Stages
    recourse: Later

    @classmethod
    def of(cls, model: Model) -> Self:
        """Of a settled model; InvalidInput where no decision keeps the rows, or none is the best."""
        problem = cls._of(model)
        examine(problem.stages, problem.recourse)
        return problem

    @classmethod
    def _of(cls, model: Model) -> Self:
        stages = Stages.of(model)
        return cls(stages, Later(stages.later, FixedRecourse.of(model)))

    @property
    def model(self) -> Model:
        """The model with the rows of decisions alone."""
        return self.stages.first

    @property
    def outcome_dim(self) -> int:
        return len(self.model.outcome_names)

    @property
    def decision_dim(self) -> int:
        return len(self.model.decision_names)

    @property
    def decides_slowly(self) -> bool:
        return True

    @property
    def relaxation(self) -> Self:
        if not self._whole:
            return self
        return self._relaxed

    @cached_property
    def _relaxed(self) -> Self:
        model = self.stages.model
        nothing, none_later = np.zeros_like(model.integer), np.zeros_like(model.recourse_integer)
        return self._of(replace(model, integer=nothing, recourse_integer=none_later))

    @property
    def _whole(self) -> bool:
        return bool(self.model.integer.any() or self.model.recourse_integer.any())

    @property
    def counted_within(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.model.lowest), torch.from_numpy(self.model.highest)

    def fixed(self, decision: Tensor) -> Self:
        """The problem in which the entries of a decision (d_z,) that are not NaN are decided already.

        They need not keep their own bounds. InvalidInput if no decision that has them keeps the rows.
        """
        problem = self._of(first_stage.fixed(self.stages.model, decision.double().numpy()))
        has_decision(problem.model)
        return problem

    def breaches(self, decision: Tensor) -> list[Breach]:
        return first_stage.broken_rules(self.model, decision.double().numpy())

    def within(self, decisions: Tensor) -> Tensor:
        flat = decisions.double().reshape(-1, self.decision_dim).numpy()
        return torch.from_numpy(first_stage.kept(self.model, flat)).view(decisions.shape[:-1])

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return self.within(decisions) & self.cost(decisions, outcomes).isfinite()

    def decide(self, outcomes: Tensor) -> Tensor:
        """argmin over z of c(z; ŷ), whole numbers relaxed; NaN where ŷ is, or leaves no best decision."""
        first, later = self.stages.first, self.stages.later
        flat = self._clipped(outcomes).detach().reshape(-1, self.outcome_dim).numpy()
        known = np.isfinite(flat).all(axis=1)
        found = np.full((len(flat), self.decision_dim), np.nan)
        each = OneByOne.of_stages(self.stages)
        certain_limits = np.tile(first.limits.constant, (int(known.sum()), 1))
        limits = np.concatenate([certain_limits, later.limits.at(flat[known])], axis=1)
        for k, answer in zip(np.flatnonzero(known), each.solve(flat[known], limits), strict=True):
            if answer.status is Status.OPTIMAL:
                found[k] = np.clip(answer.values[: self.decision_dim], first.lower, first.upper) + 0.0
        return torch.from_numpy(found).view(*outcomes.shape[:-1], self.decision_dim)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """c(y)'z + Q(z, y); infinite where there is no recourse, NaN where a number is missing.

        It has derivatives where the recourse has a fast path.
        """
        if self.recourse.quick is not None and (decisions.requires_grad or outcomes.requires_grad):
            return self.recourse.quick.cost(decisions, self._clipped(outcomes))
        shape = torch.broadcast_shapes(decisions.shape[:-1], outcomes.shape[:-1])
        y = self._clipped(outcomes).detach().expand(*shape, -1).reshape(-1, self.outcome_dim).numpy()
        z = decisions.detach().double().expand(*shape, -1).reshape(-1, self.decision_dim).numpy()
        return torch.from_numpy(self._costs(z, y)).view(shape)

    def _costs(self, decisions: Array, outcomes: Array) -> Array:
        """Of decisions (n, d_z) under outcomes (n, d_y), which lie within their bounds: (n,)."""
        known = np.isfinite(decisions).all(axis=1) & np.isfinite(outcomes).all(axis=1)
        z, y, cost = decisions[known], outcomes[known], self.model.cost
        costs = np.full(len(outcomes), np.nan)
        now = z @ cost.constant + ((z @ cost.by_outcome) * y).sum(axis=1)
        costs[known] = now + self.recourse.plans(z, y)[0]
        return costs

    # What learning works on.

    @property
    def loss(self) -> str:
        return SQUARED_ERROR

    def hindsight(self, outcomes: Tensor) -> Hindsight:
        """How much each outcome varies, for errors of all of them to count alike."""
        spread = self._clipped(outcomes).reshape(-1, self.outcome_dim).var(dim=0, correction=0).clamp_min(1e-12)
        return Hindsight((1 / spread).expand(outcomes.shape), torch.zeros(outcomes.shape[:-1], dtype=torch.float64))

    def surrogate(self, predictions: Tensor, outcomes: Tensor, hindsight: Hindsight | None = None) -> Tensor:
        """Squared errors in units of the outcomes' variances."""
        known = self.hindsight(outcomes) if hindsight is None else hindsight
        return ((self._clipped(predictions) - self._clipped(outcomes)).square() * known.slopes).sum(-1)

    def loss_and_slope(self, predictions: Array, outcomes: Array, hindsight: Hindsight) -> tuple[Array, Array]:
        """A prediction beyond the outcomes' bounds counts as the bound, and does not matter further out."""
        low, high = self.model.lowest, self.model.highest
        errors, units = predictions.clip(low, high) - outcomes.clip(low, high), hindsight.slopes.numpy()
        inside = (predictions >= low) & (predictions <= high)
        return (np.square(errors) * units).sum(axis=1), np.where(inside, 2 * errors * units, 0.0)

    # Decisions over scenarios.

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        until = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds
        atoms = self._clipped(outcomes).detach().numpy()
        if time_limit_seconds is not None and until is not None and self.model.recourse_integer.any():
            until -= min(_PRICING_SHARE * time_limit_seconds, self._pricing_seconds(atoms))
        shares = weights.double().expand(atoms.shape[:2]).numpy()
        each: list[Solution] = []
        with deadline.alarm(time_limit_seconds) as rung:
            for number, (own, share) in enumerate(zip(atoms, shares, strict=True)):
                deadline.check()
                left = len(atoms) - number
                turn = None if until is None else until - max(until - time.monotonic(), 0.0) * (1 - 1 / left)
                own, share = own[share > 0], share[share > 0]
                found = self._cut(own, share, risk, rung)
                each.append(found or self._prescribe_one(own, share, risk, turn))
        return Prescription(
            torch.from_numpy(np.stack([one.decision for one in each])),
            torch.tensor([one.objective for one in each], dtype=torch.float64),
            [one.status for one in each],
            tuple(one.reason for one in each),
            tuple(one.solver for one in each),
            torch.tensor([one.gap for one in each], dtype=torch.float64),
            torch.tensor([one.bound for one in each], dtype=torch.float64),
        )

    def _pricing_seconds(self, atoms: Array) -> float:
        """About how long it will take to price the decisions that are found, and as many beside them."""
        began, some = time.monotonic(), atoms[0, :_PRICED]
        decision = np.clip(0.0, self.model.lower, self.model.upper)
        self._costs(np.tile(decision, (len(some), 1)), some)
        return 2 * (time.monotonic() - began) / len(some) * len(atoms) * len(atoms[0])

    def _cut(self, atoms: Array, weights: Array, risk: Risk, rung: deadline.Flag) -> Solution | None:
        quick, fixed = self.recourse.quick, self._fixed_cost(atoms, weights)
        return None if quick is None else quick.minimize(atoms, weights, risk, self.model.gap, fixed, rung)

    def _prescribe_one(self, atoms: Array, weights: Array, risk: Risk, until: float | None) -> Solution:
        """By HiGHS over all scenarios, or as many as fit one program."""
        fit = max(1, MOST_NUMBERS // max(self.stages.numbers, 1))
        if len(atoms) <= fit:
            return self._searched(atoms, weights, risk, until)
        # Evenly by weight, as many as fit.
        taken = np.searchsorted(np.cumsum(weights), (np.arange(fit) + 0.5) / fit).clip(max=len(atoms) - 1)
        found = self._searched(atoms[taken], np.full(fit, 1 / fit), risk, until)
        reason = f"{len(atoms)} scenarios are too many for one program of this size: decided over {fit} of them"
        status = Status.BEST_EFFORT if found.status is Status.OPTIMAL else found.status
        return replace(found, status=status, reason=reason, bound=np.nan, gap=np.nan)

    def _searched(self, atoms: Array, weights: Array, risk: Risk, until: float | None) -> Solution:
        stages, dim = self.stages, self.decision_dim
        (deadline.before_long_work if self._whole or len(atoms) * stages.numbers >= _LONG else deadline.check)()
        if until is not None and time.monotonic() >= until:
            return Solution(np.full(dim, np.nan), np.nan, Status.TIME_LIMIT, NO_TIME, HIGHS)
        program = program_over(stages, atoms, weights, risk)
        whole = whole_in(stages, program, len(atoms))
        # HiGHS takes small numbers for zero: where all costs are small, it sees them in units of the largest.
        unit = min(float(np.abs(program.cost).max(initial=0)), 1.0) or 1.0
        fixed = self._fixed_cost(atoms, weights)
        gap = replace(self.model.gap, absolute=self.model.gap.absolute / unit)
        found = solved(replace(program, cost=program.cost / unit), whole, fixed / unit, until, gap)
        found = replace(
            found, decision=found.decision[:dim], objective=found.objective * unit, bound=found.bound * unit
        )
        if np.isfinite(found.decision).all():
            decision = np.clip(found.decision, stages.first.lower, stages.first.upper)
            # A search in whole numbers has found recourse that keeps the rows, too; what it costs may be told.
            if not self.model.recourse_integer.any():
                costs = self._costs(np.tile(decision, (len(atoms), 1)), atoms)
                found = replace(found, objective=risk_of(costs, weights, risk)) if np.isfinite(costs).all() else found
            found = replace(found, decision=decision + 0.0)
        return judged(found, fixed, self.model.gap)

    def _fixed_cost(self, atoms: Array, weights: Array) -> float:
        """What every decision and recourse cost on average, whatever they are."""
        first, later = self.stages.first, self.stages.later
        mean = (weights @ atoms)[None]
        now = first.cost.at(mean)[0] @ np.clip(0.0, first.lower, first.upper)
        return float(now + later.recourse_cost.at(mean)[0] @ np.clip(0.0, later.recourse_lower, later.recourse_upper))

    # What else there is to say of a decision.

    def facts(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
        if not self.model.maximize:
            return {}
        return {"expected_value": -float(self.cost(decision, outcomes) @ weights.double())}

    @property
    def recourse_names(self) -> tuple[str, ...]:
        return self.model.recourse_names

    @property
    def row_names(self) -> tuple[str, ...]:
        return self.stages.later.row_names

    def recourse_plan(self, decision: Tensor, outcomes: Tensor) -> SecondStagePlan:
        later, y = self.stages.later, self._clipped(outcomes).detach().numpy()
        z = np.tile(decision.double().numpy(), (len(y), 1))
        costs, amounts = self.recourse.plans(z, y)
        sums = later.technology.times(y, z) + later.recourse.times(y, amounts)
        slack = np.where(later.senses < 0, -1.0, 1.0) * (sums - later.limits.at(y))
        costs = np.where(np.isfinite(costs), costs, np.nan)
        numbers = (amounts, costs, np.maximum(slack, 0.0), later.recourse_cost.at(y))
        return SecondStagePlan(*map(torch.from_numpy, numbers))

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """By the duals of the program over all scenarios; none where recourse must be in whole numbers."""
        stages, first = self.stages, self.stages.first
        atoms, shares = self._clipped(outcomes).detach().numpy(), weights.double().numpy()
        if stages.later.recourse_integer.any() or len(atoms) * stages.numbers > MOST_NUMBERS:
            return []
        (deadline.before_long_work if len(atoms) * stages.numbers >= _LONG else deadline.check)()
        program = program_over(stages, atoms, shares, EXPECTATION)
        held = program.held(decision.double().numpy(), whole_in(stages, program, len(atoms)))
        largest = float(np.abs(held.cost).max(initial=0)) or 1.0
        answer = highs.run(highs.model_of(held.cost / largest, *held.rows_and_bounds[1:]))
        if answer.status is not Status.OPTIMAL:
            return []
        alone = len(first.senses)
        worth = np.zeros(int(max([-1, *first.rows_at, *stages.later.rows_at])) + 1)
        np.add.at(worth, first.rows_at, np.abs(answer.duals[:alone]))
        np.add.at(worth, stages.later.rows_at, np.abs(answer.duals[alone:].reshape(len(atoms), -1).sum(axis=0)))
        found = [Price(("rows", int(row)), float(worth[row]) * largest) for row in np.flatnonzero(worth > _SMALL)]
        reduced = (held.cost / largest - held.matrix.T @ answer.duals)[: self.decision_dim]
        for index in np.flatnonzero((np.abs(reduced) > _SMALL) & ~first.integer).tolist():
            side = "minimum" if reduced[index] > 0 else "maximum"
            # A bound of zero below is no rule to give way.
            if side == "maximum" or first.lower[index]:
                found.append(Price(("decisions", index, side), abs(float(reduced[index])) * largest))
        return found

    def _clipped(self, outcomes: Tensor) -> Tensor:
        return outcomes.double().clamp(*self.counted_within)
