"""Any linear model with recourse: costs, technology, recourse and limits may all depend on outcomes.

    c(z; y) = c(y)'z + Q(z, y),    Q(z, y) = min q(y)'x   s.t.   T(y) z + W(y) x (sense) h(y),   l ≤ x ≤ u,

in integers where the model says so. Over scenarios, cutting planes decide where they can
(:mod:`bco_core.problems.linear.recourse`); else HiGHS solves one sparse program
(:mod:`bco_core.problems.linear.stages`), and the risk is recomputed from recourse costs. A point decision is a program
of its own and may jump as predictions move, so learning works on the squared error of predictions, and decisions are
hedged over scenarios.

An outcome beyond its stated bounds counts as the bound.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.problems.base import EXPECTATION, Prescription, Price, Risk, SecondStagePlan, Status
from bco_core.problems.linear.first_stage import LinearProblem, fix_entries
from bco_core.problems.linear.model import LinearModel, Where
from bco_core.problems.linear.program import (
    NO_TIME,
    Solution,
    minimize_program,
    risk_of,
    time_share,
    to_prescription,
    with_gap,
)
from bco_core.problems.linear.recourse import FixedRecourse, RecourseSolver
from bco_core.problems.linear.stages import ProgramSequence, StagedModel, integer_columns, program_over
from bco_core.problems.linear.validate import check_first_stage, check_general
from bco_core.problems.surrogate import SQUARED_ERROR, Hindsight
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array
from bco_core.status import HIGHS

# Matrix entries of one program over scenarios; scenarios that do not fit are left out.
MOST_NUMBERS = 10_000_000
# Matrix entries from which solving a program counts as long work.
_LONG = 4_000
# Prices below this share of the largest unit cost are rounding.
_SMALL = 1e-9
# Share of a time limit reserved for evaluating decisions with integer recourse, and the pairs timed to estimate it.
_PRICING_SHARE, _PRICED = 0.6, 3


@dataclass(frozen=True)
class GeneralLinear(LinearProblem):
    """The two stages of a model and its recourse. ``relaxation`` drops all integrality."""

    stages: StagedModel
    recourse: RecourseSolver

    @classmethod
    def of(cls, model: LinearModel) -> Self:
        """Build from a model with robust rows; InvalidInput where no decision is feasible, or none is optimal."""
        problem = cls._of(model)
        check_general(problem.stages, problem.recourse)
        return problem

    @classmethod
    def _of(cls, model: LinearModel) -> Self:
        stages = StagedModel.of(model)
        return cls(stages, RecourseSolver(stages.second, FixedRecourse.of(model)))

    @property
    def first_model(self) -> LinearModel:
        return self.stages.first

    @property
    def decides_slowly(self) -> bool:
        return True

    @property
    def relaxation(self) -> Self:
        return self._relaxed if self._has_integers else self

    @cached_property
    def _relaxed(self) -> Self:
        model = self.stages.model
        none, no_recourse = np.zeros_like(model.integer), np.zeros_like(model.recourse_integer)
        return self._of(replace(model, integer=none, recourse_integer=no_recourse))

    @property
    def _has_integers(self) -> bool:
        return bool(self.stages.model.integer.any() or self.stages.model.recourse_integer.any())

    def fixed(self, decision: Tensor) -> Self:
        problem = self._of(fix_entries(self.stages.model, decision.double().numpy()))
        check_first_stage(problem.first_model)
        return problem

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        return self.within(decisions) & self.cost(decisions, outcomes).isfinite()

    def decide(self, outcomes: Tensor) -> Tensor:
        """Return argmin over z of c(z; ŷ), integrality relaxed; NaN where ŷ is, or leaves no optimum."""
        first, second = self.stages.first, self.stages.second
        flat = self.clip(outcomes).detach().reshape(-1, self.outcome_dim).numpy()
        known = np.isfinite(flat).all(axis=1)
        decisions = np.full((len(flat), self.decision_dim), np.nan)
        programs = ProgramSequence.of_stages(self.stages)
        certain_limits = np.tile(first.limits.constant, (int(known.sum()), 1))
        limits = np.concatenate([certain_limits, second.limits.at(flat[known])], axis=1)
        for k, answer in zip(np.flatnonzero(known), programs.solve(flat[known], limits), strict=True):
            if answer.status is Status.OPTIMAL:
                decisions[k] = np.clip(answer.values[: self.decision_dim], first.lower, first.upper) + 0.0
        return torch.from_numpy(decisions).view(*outcomes.shape[:-1], self.decision_dim)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Return c(y)'z + Q(z, y); infinite where there is no recourse, NaN where a number is missing.

        It is differentiable where the recourse has a fast path.
        """
        if self.recourse.fast is not None and (decisions.requires_grad or outcomes.requires_grad):
            return self.recourse.fast.cost(decisions, self.clip(outcomes))
        shape = torch.broadcast_shapes(decisions.shape[:-1], outcomes.shape[:-1])
        y = self.clip(outcomes).detach().expand(*shape, -1).reshape(-1, self.outcome_dim).numpy()
        z = decisions.detach().double().expand(*shape, -1).reshape(-1, self.decision_dim).numpy()
        return torch.from_numpy(self._costs(z, y)).view(shape)

    def _costs(self, decisions: Array, outcomes: Array) -> Array:
        """Return the costs (n,) of decisions (n, d_z) under outcomes (n, d_y) that lie within their bounds."""
        known = np.isfinite(decisions).all(axis=1) & np.isfinite(outcomes).all(axis=1)
        z, y, cost = decisions[known], outcomes[known], self.stages.model.cost
        costs = np.full(len(outcomes), np.nan)
        now = z @ cost.constant + ((z @ cost.by_outcome) * y).sum(axis=1)
        costs[known] = now + self.recourse.plans(z, y)[0]
        return costs

    # Learning works on squared errors.

    @property
    def loss(self) -> str:
        return SQUARED_ERROR

    def hindsight(self, outcomes: Tensor) -> Hindsight:
        """Return each outcome's precision, so that errors of all outcomes weigh alike."""
        spread = self.clip(outcomes).reshape(-1, self.outcome_dim).var(dim=0, correction=0).clamp_min(1e-12)
        return Hindsight((1 / spread).expand(outcomes.shape), torch.zeros(outcomes.shape[:-1], dtype=torch.float64))

    def surrogate(self, predictions: Tensor, outcomes: Tensor, hindsight: Hindsight | None = None) -> Tensor:
        """Return squared errors in units of the outcomes' variances."""
        known = self.hindsight(outcomes) if hindsight is None else hindsight
        return ((self.clip(predictions) - self.clip(outcomes)).square() * known.slopes).sum(-1)

    def loss_and_slope(self, predictions: Array, outcomes: Array, hindsight: Hindsight) -> tuple[Array, Array]:
        """A prediction beyond the outcomes' bounds counts as the bound, with slope zero."""
        low, high = self.stages.model.lowest, self.stages.model.highest
        errors, units = predictions.clip(low, high) - outcomes.clip(low, high), hindsight.slopes.numpy()
        inside = (predictions >= low) & (predictions <= high)
        return (np.square(errors) * units).sum(axis=1), np.where(inside, 2 * errors * units, 0.0)

    # Decisions over scenarios.

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        deadline = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds
        atoms = self.clip(outcomes).detach().numpy()
        if time_limit_seconds is not None and deadline is not None and self.stages.model.recourse_integer.any():
            deadline -= min(_PRICING_SHARE * time_limit_seconds, self._pricing_seconds(atoms))
        shares = weights.double().expand(atoms.shape[:2]).numpy()
        solutions: list[Solution] = []
        with deadlines.alarm(time_limit_seconds) as alarm:
            for number, (own, share) in enumerate(zip(atoms, shares, strict=True)):
                deadlines.check()
                turn = time_share(deadline, len(atoms) - number)
                own, share = own[share > 0], share[share > 0]
                solution = self._cut(own, share, risk, alarm)
                solutions.append(solution or self._prescribe_one(own, share, risk, turn))
        return to_prescription(solutions)

    def _pricing_seconds(self, atoms: Array) -> float:
        """Estimate the seconds that it takes to evaluate the decisions and as many alternatives."""
        began, some = time.monotonic(), atoms[0, :_PRICED]
        decision = np.clip(0.0, self.stages.model.lower, self.stages.model.upper)
        self._costs(np.tile(decision, (len(some), 1)), some)
        return 2 * (time.monotonic() - began) / len(some) * len(atoms) * len(atoms[0])

    def _cut(self, atoms: Array, weights: Array, risk: Risk, alarm: deadlines.Flag) -> Solution | None:
        fast, fixed = self.recourse.fast, self._fixed_cost(atoms, weights)
        return None if fast is None else fast.minimize(atoms, weights, risk, self.stages.model.gap, fixed, alarm)

    def _prescribe_one(self, atoms: Array, weights: Array, risk: Risk, deadline: float | None) -> Solution:
        """Solve by HiGHS over all scenarios, or as many as fit one program."""
        fit = max(1, MOST_NUMBERS // max(self.stages.entries_per_scenario, 1))
        if len(atoms) <= fit:
            return self._search(atoms, weights, risk, deadline)
        # Take as many as fit, evenly by weight.
        taken = np.searchsorted(np.cumsum(weights), (np.arange(fit) + 0.5) / fit).clip(max=len(atoms) - 1)
        solution = self._search(atoms[taken], np.full(fit, 1 / fit), risk, deadline)
        reason = f"{len(atoms)} scenarios are too many for one program of this size: decided over {fit} of them"
        status = Status.BEST_EFFORT if solution.status is Status.OPTIMAL else solution.status
        return replace(solution, status=status, reason=reason, bound=np.nan, gap=np.nan)

    def _search(self, atoms: Array, weights: Array, risk: Risk, deadline: float | None) -> Solution:
        stages, dim = self.stages, self.decision_dim
        (
            deadlines.before_long_work
            if self._has_integers or len(atoms) * stages.entries_per_scenario >= _LONG
            else deadlines.check
        )()
        if deadline is not None and time.monotonic() >= deadline:
            return Solution(np.full(dim, np.nan), np.nan, Status.TIME_LIMIT, NO_TIME, HIGHS)
        program = program_over(stages, atoms, weights, risk)
        integer = integer_columns(stages, program, len(atoms))
        # HiGHS rounds small numbers to zero: where all costs are small, they are measured in units of the largest.
        unit = min(float(np.abs(program.cost).max(initial=0)), 1.0) or 1.0
        fixed = self._fixed_cost(atoms, weights)
        gap = replace(self.stages.model.gap, absolute=self.stages.model.gap.absolute / unit)
        solution = minimize_program(replace(program, cost=program.cost / unit), integer, fixed / unit, deadline, gap)
        solution = replace(
            solution,
            decision=solution.decision[:dim],
            objective=solution.objective * unit,
            bound=solution.bound * unit,
        )
        if np.isfinite(solution.decision).all():
            decision = np.clip(solution.decision, stages.first.lower, stages.first.upper)
            # With integer recourse the search's own objective stands: its recourse is feasible, too.
            if not self.stages.model.recourse_integer.any():
                costs = self._costs(np.tile(decision, (len(atoms), 1)), atoms)
                if np.isfinite(costs).all():
                    solution = replace(solution, objective=risk_of(costs, weights, risk))
            solution = replace(solution, decision=decision + 0.0)
        return with_gap(solution, fixed, self.stages.model.gap)

    def _fixed_cost(self, atoms: Array, weights: Array) -> float:
        """Return the mean cost that no decision and recourse can avoid."""
        first, second = self.stages.first, self.stages.second
        mean = (weights @ atoms)[None]
        now = first.cost.at(mean)[0] @ np.clip(0.0, first.lower, first.upper)
        return float(
            now + second.recourse_cost.at(mean)[0] @ np.clip(0.0, second.recourse_lower, second.recourse_upper)
        )

    # The second stage, and prices.

    @property
    def recourse_names(self) -> tuple[str, ...]:
        return self.stages.model.recourse_names

    @property
    def row_names(self) -> tuple[str, ...]:
        return self.stages.second.row_names

    def recourse_plan(self, decision: Tensor, outcomes: Tensor) -> SecondStagePlan:
        second, y = self.stages.second, self.clip(outcomes).detach().numpy()
        z = np.tile(decision.double().numpy(), (len(y), 1))
        costs, amounts = self.recourse.plans(z, y)
        sums = second.technology.times(y, z) + second.recourse.times(y, amounts)
        slack = np.where(second.senses < 0, -1.0, 1.0) * (sums - second.limits.at(y))
        costs = np.where(np.isfinite(costs), costs, np.nan)
        numbers = (amounts, costs, np.maximum(slack, 0.0), second.recourse_cost.at(y))
        return SecondStagePlan(*map(torch.from_numpy, numbers))

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """Return the duals of the program over all scenarios; none where recourse is integer."""
        stages, first = self.stages, self.stages.first
        atoms, shares = self.clip(outcomes).detach().numpy(), weights.double().numpy()
        if stages.second.recourse_integer.any() or len(atoms) * stages.entries_per_scenario > MOST_NUMBERS:
            return []
        (deadlines.before_long_work if len(atoms) * stages.entries_per_scenario >= _LONG else deadlines.check)()
        program = program_over(stages, atoms, shares, EXPECTATION)
        held = program.with_fixed_decision(decision.double().numpy(), integer_columns(stages, program, len(atoms)))
        largest = float(np.abs(held.cost).max(initial=0)) or 1.0
        answer = highs.run(highs.model_of(held.cost / largest, *held.rows_and_bounds[1:]))
        if answer.status is not Status.OPTIMAL:
            return []
        alone = len(first.senses)
        duals = [*np.abs(answer.duals[:alone]), *np.abs(answer.duals[alone:].reshape(len(atoms), -1).sum(axis=0))]
        # A row that was repeated for several outcomes has the price of all its copies.
        worth: dict[Where, float] = {}
        for place, dual in zip(first.rows_at + stages.second.rows_at, duals, strict=True):
            worth[place] = worth.get(place, 0.0) + float(dual)
        prices = [Price(place, worth[place] * largest) for place in sorted(worth) if worth[place] > _SMALL]
        reduced = (held.cost / largest - held.matrix.T @ answer.duals)[: self.decision_dim]
        for index in np.flatnonzero((np.abs(reduced) > _SMALL) & ~first.integer).tolist():
            side = "minimum" if reduced[index] > 0 else "maximum"
            # A lower bound of zero is not a rule that could be relaxed.
            if side == "maximum" or first.lower[index]:
                prices.append(Price(("decisions", index, side), abs(float(reduced[index])) * largest))
        return prices
