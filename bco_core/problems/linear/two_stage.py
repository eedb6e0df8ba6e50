"""Two-stage linear problems whose limits alone are uncertain: decide z now, observe y, then adapt with x at least cost.

    c(z; y) = c'z + Q(z, y),    Q(z, y) = min q'x   s.t.   W x + T z (sense) h + H y,   l ≤ x ≤ u,

over z with A z (sense) b and bounds. Both Q and the point decision π(ŷ) = argmin_z c(z; ŷ) are linear programs of which
only the right-hand side changes: each has its own :class:`~bco_core.solvers.basis_pool.BasisPool`. Over scenarios,
:mod:`bco_core.solvers.cuts` minimises expectation, CVaR or a mix; integer decisions, and whatever the cuts leave open,
go to HiGHS as one large program. The risk of every decision is recomputed by certified recourse, and ``optimal`` means
that a proven lower bound is within the problem's :class:`~bco_core.status.Gap` of it.

Second-stage plans come from the same certified bases as costs, so that they add up to them; where several plans cost
the least, one of them is given. Prices are the duals of the program over all scenarios: the decrease of its minimum
per unit by which a rule is relaxed. At a kink, where relaxing gains less than tightening costs, the price lies between
the two. Integers are held at the decision's, since a search over them has no duals.

An outcome beyond its stated bounds counts as the bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bco_core import deadlines
from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Breach, Prescription, Price, Risk, SecondStagePlan, Status
from bco_core.problems.linear.affine import Vector
from bco_core.problems.linear.first_stage import LinearProblem, broken_rules, fix_entries
from bco_core.problems.linear.model import LinearModel, Where, cost_unit
from bco_core.problems.linear.program import (
    NO_TIME,
    REASONS,
    Solution,
    SparseProgram,
    minimize_program,
    risk_of,
    time_share,
    to_prescription,
    with_gap,
)
from bco_core.problems.linear.stages import StagedModel, integer_columns, program_over
from bco_core.problems.linear.two_stage_spec import read_shipment, read_two_stage
from bco_core.problems.linear.validate import CHECK_SECONDS, check_recourse
from bco_core.solvers import cuts, highs
from bco_core.solvers.basis_pool import BasisPool
from bco_core.solvers.dual_simplex import OPTIMAL, TOLERANCE
from bco_core.solvers.linear_form import Array, linear_form
from bco_core.status import CUTS, GAP, HIGHS, Gap


@dataclass(frozen=True)
class RightHandSide:
    """A program's right-hand side (m,): an affine function of the outcome minus a linear one of the decision.

    ``size`` (m,) is the magnitude of the terms of ``constant``.
    """

    constant: Tensor
    size: Tensor
    by_outcome: Tensor
    by_decision: Tensor

    @staticmethod
    def of(*parts: Array) -> RightHandSide:
        return RightHandSide(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))

    def at(self, outcomes: Tensor, decisions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Evaluate at outcomes (n, d_y) and decisions (n, d_z), zero by default: (n, m) and the size of its terms."""
        rhs = torch.addmm(self.constant, outcomes, self.by_outcome.T)
        size = torch.addmm(self.size, outcomes.abs(), self.by_outcome.T.abs())
        if decisions is not None:
            rhs.addmm_(decisions, self.by_decision.T, alpha=-1)
            size.addmm_(decisions.abs(), self.by_decision.T.abs())
        return rhs, size


def _fill_missing_rows(rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return rows (n, d) with zeros in place of rows that are not finite, and a mask of these, None without any."""
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
        known, missing = _fill_missing_rows(flat)
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
        (z, no_decision), (y, no_outcome) = _fill_missing_rows(z), _fill_missing_rows(y)
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


_MEAN_DECISION = "time limit reached before hedging: this is the decision for the mean outcome"
# Share of the time of a long search that goes to the decision for the mean outcome.
_MEAN_SHARE = 0.15
# Tolerance of rows, relative to their terms.
_TOLERANCE = 1e-9
# Scenarios × (rows of the recourse)² beyond which cutting planes would keep too many bases in memory.
_LARGEST_CUTS = 20_000_000
# Rows of a program over scenarios from which solving it counts as long work.
_LONG = 1_000
# Seconds that HiGHS takes to read each number of the matrix before it searches.
_READING_SECONDS = 3e-6
# Prices below this share of the largest unit cost are rounding.
_SMALL = 1e-9


@dataclass(frozen=True)
class TwoStageLinear(LinearProblem):
    """The two stages of a model and the pools of bases. ``relaxation`` drops the integrality of decisions."""

    stages: StagedModel
    recourse: BasisPool
    point: BasisPool
    recourse_rhs: RightHandSide
    point_rhs: RightHandSide

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> Self:
        """Build from a specification of kind ``two_stage_linear``."""
        return cls.of(read_two_stage(spec))

    @classmethod
    def from_shipment(cls, spec: dict[str, Any]) -> Self:
        """Build from a specification of kind ``shipment``."""
        return cls.of(read_shipment(spec))

    @classmethod
    def of(cls, model: LinearModel) -> Self:
        """Build from a model in which outcomes change the limits of rows with recourse alone.

        InvalidInput if no decision satisfies the rows, the cost has no minimum, or some case has no recourse.
        """
        stages = StagedModel.of(model)
        _check_first_stage(stages)
        try:
            recourse = BasisPool.of(linear_form(stages.recourse_program))
        except InvalidInput as unbounded:
            raise InvalidInput(f"recourse: {unbounded}", ("recourse",)) from unbounded
        problem = cls._with_pool(stages, recourse)
        check_recourse(stages, time.monotonic() + CHECK_SECONDS)
        return problem

    @classmethod
    def _with_pool(cls, stages: StagedModel, recourse: BasisPool) -> Self:
        """Build the problem whose recourse has this pool."""
        form = linear_form(stages.combined_program())
        watched = np.flatnonzero((form.by_column[: len(stages.first.lower)] != 0).any(axis=0))
        try:
            point = BasisPool.of(form, watched)
        except InvalidInput as unbounded:
            raise InvalidInput(f"decisions and recourse together: {unbounded}", ("decisions",)) from unbounded
        limits, constant = stages.first.limits.constant, stages.second.limits.constant
        by_limit = recourse.form.by_limit
        recourse_rhs = RightHandSide.of(
            *recourse.form.rhs(constant), by_limit @ stages.by_outcome, by_limit @ stages.by_decision
        )
        by_limit = point.form.by_limit[:, len(limits) :]
        constant, size = point.form.rhs(np.concatenate([limits, constant]))
        point_rhs = RightHandSide.of(constant, size, by_limit @ stages.by_outcome, np.zeros((len(constant), 0)))
        return cls(stages, recourse, point, recourse_rhs, point_rhs)

    @property
    def first_model(self) -> LinearModel:
        return self.stages.first

    @property
    def gap(self) -> Gap:
        """The gap within which a decision is ``optimal``."""
        return self.stages.model.gap

    @property
    def relaxation(self) -> Self:
        return self._relaxed if self._has_integers else self

    @cached_property
    def _relaxed(self) -> Self:
        model = self.stages.model
        return replace(self, stages=StagedModel.of(replace(model, integer=np.zeros_like(model.integer))))

    @property
    def _has_integers(self) -> bool:
        return bool(self.stages.first.integer.any())

    def fixed(self, decision: Tensor) -> Self:
        stages = StagedModel.of(fix_entries(self.stages.model, decision.double().numpy()))
        _check_first_stage(stages)
        return self._with_pool(stages, self.recourse)

    def breaches(self, decision: Tensor) -> list[Breach]:
        values = decision.double().numpy()
        return broken_rules(self.first_model, values, self.stages.first_program.matrix @ values)

    def decide(self, outcomes: Tensor) -> Tensor:
        """Return argmin over z of c(z; ŷ), integrality relaxed; NaN where ŷ is, or leaves no recourse."""
        return decided(self.clip(outcomes), self.point, self.point_rhs, self.bounds)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Return c'z + Q(z, y); infinite where there is no recourse."""
        shape = np.broadcast_shapes(decisions.shape[:-1], outcomes.shape[:-1])
        outcomes = self.clip(outcomes)
        decisions, outcomes = decisions.expand(*shape, -1), outcomes.expand(*shape, -1)
        first = decisions.double() @ torch.from_numpy(self.stages.first.cost.constant)
        return first + recourse_value(decisions.double(), outcomes, self.recourse, self.recourse_rhs)

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        with torch.no_grad():
            return self.within(decisions) & self.cost(decisions, outcomes).isfinite()

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        deadline = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds
        atoms = self.clip(outcomes).detach().numpy()
        shares = weights.double().expand(atoms.shape[:2]).numpy()
        begin = self.decide(
            torch.einsum("bky,bk->by", torch.from_numpy(atoms), torch.from_numpy(shares.copy()))
        ).numpy()
        solutions: list[Solution] = []
        with deadlines.alarm(time_limit_seconds) as alarm:
            for one in zip(atoms, shares, begin, strict=True):
                deadlines.check()
                turn = time_share(deadline, len(atoms) - len(solutions))
                solutions.append(self._prescribe_one(*one, risk, turn, alarm))
        return to_prescription(solutions)

    def _prescribe_one(
        self, atoms: Array, weights: Array, begin: Array, risk: Risk, deadline: float | None, alarm: deadlines.Flag
    ) -> Solution:
        rows = len(self.recourse.form.matrix)
        atoms, weights = atoms[weights > 0], weights[weights > 0]
        if not self._has_integers and len(atoms) * rows**2 <= _LARGEST_CUTS and np.isfinite(begin).all():
            solution = self._cut(atoms, weights, begin, risk, alarm)
            if solution is not None:
                return solution
        if deadline is None or not self._has_integers or not _is_long(self.stages, len(atoms)):
            return self._search(atoms, weights, risk, deadline)
        # A long search may end without any decision, so secure one first.
        deadlines.before_long_work()
        left = deadline - time.monotonic()
        mean_solution = self._for_mean(atoms, weights, risk, deadline - (1 - _MEAN_SHARE) * left)
        if deadline - time.monotonic() < _reading_seconds(self.stages, len(atoms)):
            return mean_solution
        solution = self._search(atoms, weights, risk, deadline)
        cut_off = solution.status is Status.TIME_LIMIT and not np.isfinite(solution.decision).all()
        return mean_solution if cut_off else solution

    def _for_mean(self, atoms: Array, weights: Array, risk: Risk, deadline: float) -> Solution:
        """Return the decision for the mean outcome, the fallback when time runs out."""
        solution = solve_extensive(self.stages, (weights @ atoms)[None], np.ones(1), EXPECTATION, deadline, self.gap)
        objective = self._certified_risk(solution.decision, atoms, weights, risk)
        reason = _MEAN_DECISION if np.isfinite(solution.decision).all() else REASONS[Status.TIME_LIMIT]
        objective = np.nan if objective is None else objective
        return Solution(solution.decision, objective, Status.TIME_LIMIT, reason, HIGHS)

    def _search(self, atoms: Array, weights: Array, risk: Risk, deadline: float | None) -> Solution:
        """Solve by HiGHS over all scenarios; recompute the risk by certified recourse."""
        solution = solve_extensive(self.stages, atoms, weights, risk, deadline, self.gap)
        objective = self._certified_risk(solution.decision, atoms, weights, risk)
        if objective is None or solution.status not in (Status.OPTIMAL, Status.TIME_LIMIT):
            return solution
        return with_gap(replace(solution, objective=objective), self.fixed_cost, self.gap)

    def _certified_risk(self, decision: Array, atoms: Array, weights: Array, risk: Risk) -> float | None:
        """Return the risk of a decision (d_z,) by certified recourse in every scenario; None where there is none."""
        if not np.isfinite(decision).all():
            return None
        rows, limits = self.inequalities
        if (rows @ decision < limits - _TOLERANCE * (np.abs(rows) @ np.abs(decision) + np.abs(limits))).any():
            return None
        z = torch.from_numpy(decision).expand(len(atoms), -1)
        solved = self.recourse.solve(*self.recourse_rhs.at(torch.from_numpy(atoms), z))
        if not solved.certified.all() or solved.status.any():
            return None
        first = float(self.stages.first.cost.constant @ decision)
        return first + self.recourse.form.base_cost + risk_of(solved.value, weights, risk)

    @cached_property
    def fixed_cost(self) -> float:
        """The cost that no decision can avoid; gaps are measured without it."""
        return fixed_cost(self.stages)

    def _cut(self, atoms: Array, weights: Array, begin: Array, risk: Risk, alarm: deadlines.Flag) -> Solution | None:
        """Minimise by cutting planes; None unless they provably closed the gap or were stopped."""
        form, bases, first = self.recourse.form, self.recourse.bases, self.stages.first
        right = self.recourse_rhs
        (base, size), slope = right.at(torch.from_numpy(atoms)), right.by_decision
        start = bases.closest(base - slope @ torch.from_numpy(begin))
        rows, limits = self.inequalities
        z, objective, bound, ended, _ = cuts.minimize(
            cuts.SharedScenarios(
                base.numpy(), size.numpy(), slope.numpy(), form.cost, form.least_cost, np.ascontiguousarray(weights)
            ),
            form.matrix,
            bases.tableaus(start.numpy()),
            cuts.FirstStage(first.cost.constant, rows, limits, begin, _fixed_first_cost(self.stages)),
            cuts.RiskOf(risk.cvar_weight, risk.cvar_level),
            min(cuts.GAP, self.gap.relative / 2),
            TOLERANCE,
            alarm,
        )
        # Rounding must not carry a decision past its bounds.
        z = np.clip(z, first.lower, first.upper)
        if ended == cuts.CONVERGED:
            proven = self._certified_risk(z, atoms, weights, risk)
            if proven is None or not self.gap.closes(proven, bound + form.base_cost, self.fixed_cost):
                return None
            return with_gap(
                Solution(z, proven, Status.OPTIMAL, "", CUTS, bound + form.base_cost), self.fixed_cost, self.gap
            )
        if ended != cuts.STOPPED:
            return None
        deadlines.check()
        if np.isfinite(objective):
            proven = self._certified_risk(z, atoms, weights, risk)
            objective = objective + form.base_cost if proven is None else proven
            return Solution(z, objective, Status.TIME_LIMIT, REASONS[Status.TIME_LIMIT], CUTS)
        return Solution(begin, np.nan, Status.TIME_LIMIT, _MEAN_DECISION, CUTS)

    @cached_property
    def bounds(self) -> Tensor:
        """Lower and upper bounds of decisions, (2, d_z)."""
        return torch.from_numpy(np.stack([self.stages.first.lower, self.stages.first.upper]))

    @cached_property
    def inequalities(self) -> tuple[Array, Array]:
        """The feasible decisions as rows z ≥ limits, bounds included."""
        first, right = self.stages.first_program, self.stages.first.limits.constant
        at_least, at_most = first.senses >= 0, first.senses <= 0
        low, high = np.isfinite(first.lower), np.isfinite(first.upper)
        identity = np.eye(len(first.cost))
        rows = np.concatenate([first.matrix[at_least], -first.matrix[at_most], identity[low], -identity[high]])
        limits = np.concatenate([right[at_least], -right[at_most], first.lower[low], -first.upper[high]])
        return np.ascontiguousarray(rows), limits

    @property
    def recourse_names(self) -> tuple[str, ...]:
        return self.stages.second.recourse_names

    @property
    def row_names(self) -> tuple[str, ...]:
        return self.stages.second.row_names

    def recourse_plan(self, decision: Tensor, outcomes: Tensor) -> SecondStagePlan:
        form, program, stages = self.recourse.form, self.stages.recourse_program, self.stages
        decision, outcomes = decision.double(), self.clip(outcomes)
        pool = BasisPool(form, np.arange(form.matrix.shape[1]), self.recourse.bases)
        solved = pool.solve(*self.recourse_rhs.at(outcomes, decision.expand(len(outcomes), -1)))
        amounts = form.offset + solved.primal @ form.by_column.T
        # Rounding must not carry an amount past its bounds, nor the sign of a zero.
        amounts = np.clip(amounts, program.lower, program.upper) + 0.0
        amounts[solved.status != OPTIMAL] = np.nan
        limits = _second_limits(stages, outcomes.numpy()) - stages.by_decision @ decision.numpy()
        slack = np.where(program.senses < 0, -1.0, 1.0) * (amounts @ program.matrix.T - limits)
        numbers = (amounts, amounts @ program.cost, np.maximum(slack, 0.0), program.cost)
        return SecondStagePlan(*map(torch.from_numpy, numbers))

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        """Price the rules in the order of the specification; a lower bound of zero is not one that could be relaxed."""
        stages, model = self.stages, self.stages.model
        atoms, count = self.clip(outcomes).numpy(), len(outcomes)
        (deadlines.before_long_work if _is_long(stages, count) else deadlines.check)()
        program = extensive_program(stages, atoms, weights.double().numpy(), EXPECTATION)
        held = program.with_fixed_decision(decision.double().numpy(), integer_columns(stages, program, count))
        cost, matrix, least, most, lower, upper = held.rows_and_bounds
        unit = cost_unit(model.cost, model.recourse_cost)
        answer = highs.run(highs.model_of(cost / unit, matrix, least, most, lower, upper))
        if answer.status is not Status.OPTIMAL:
            return []
        duals = answer.duals * unit
        reduced = cost - matrix.T @ duals
        first, recourse = stages.first_program, stages.recourse_program
        rows, dim = len(first.senses), len(first.cost)
        by_row = duals[rows:].reshape(count, -1).sum(axis=0)
        by_amount = reduced[dim:].reshape(count, -1)
        part, *sides = model.bounds_at
        worth: list[tuple[Where, float]] = [
            (place, abs(dual)) for place, dual in zip(stages.first.rows_at, duals, strict=False)
        ]
        worth += [(place, abs(dual)) for place, dual in zip(stages.second.rows_at, by_row, strict=True)]
        for j in np.flatnonzero(~model.integer).tolist():
            worth += _bound_prices((part, j), reduced[j], first.lower[j], *sides)
        below, above = by_amount.clip(min=0).sum(axis=0), by_amount.clip(max=0).sum(axis=0)
        for j, place in enumerate(model.recourse_at):
            for value in (below[j], above[j]):
                worth += _bound_prices(place, value, recourse.lower[j], "minimum", "maximum")
        largest = float(np.abs(np.concatenate([first.cost, recourse.cost])).max())
        return [Price(where, float(value)) for where, value in worth if len(where) > 1 and value > _SMALL * largest]


def _bound_prices(place: Where, reduced: float, lower: float, least: str, most: str) -> list[tuple[Where, float]]:
    """Return the price of the bound that a reduced cost belongs to."""
    if reduced > 0 and lower:
        return [((*place, least), float(reduced))]
    return [((*place, most), -float(reduced))] if reduced < 0 else []


def _check_first_stage(stages: StagedModel) -> None:
    first = stages.first
    if highs.solve_program(stages.first_program, first.limits.constant).status is Status.INFEASIBLE:
        raise InvalidInput("no decision satisfies all decision rows and bounds", first.rows_at[0][:1])


def _fixed_first_cost(stages: StagedModel) -> float:
    """Return the cost of decisions at the values nearest to zero that bounds, and rows of one decision, allow.

    A distant bound forces nothing, and must not make a gap look small.
    """
    first = stages.first_program
    lower, upper = first.lower.copy(), first.upper.copy()
    for row, sense, limit in zip(first.matrix, first.senses, stages.first.limits.constant, strict=True):
        columns = np.flatnonzero(row)
        if len(columns) == 1:
            at, value = columns[0], limit / row[columns[0]]
            side = sense * np.sign(row[at])
            lower[at] = max(lower[at], value) if side >= 0 else lower[at]
            upper[at] = min(upper[at], value) if side <= 0 else upper[at]
    return float(first.cost @ np.clip(0.0, lower, upper))


def fixed_cost(stages: StagedModel) -> float:
    """Return the cost that no decision can avoid."""
    recourse = stages.recourse_program
    return _fixed_first_cost(stages) + float(recourse.cost @ np.clip(0.0, recourse.lower, recourse.upper))


def _second_limits(stages: StagedModel, atoms: Array) -> Array:
    """Return the limits (K, rows) of the second stage for atoms (K, d_y)."""
    limits: Array = stages.second.limits.constant + atoms @ stages.by_outcome.T
    return limits


def _is_long(stages: StagedModel, scenarios: int) -> bool:
    """Return whether the program over this number of scenarios takes more than some milliseconds."""
    return scenarios * len(stages.second.senses) >= _LONG


def _reading_seconds(stages: StagedModel, scenarios: int) -> float:
    """Estimate the seconds that it takes to write the program over scenarios and to read it."""
    return float(scenarios * stages.entries_per_scenario * _READING_SECONDS)


def extensive_program(stages: StagedModel, atoms: Array, weights: Array, risk: Risk) -> SparseProgram:
    """Return the program over all scenarios: atoms (K, d_y), weights (K,)."""
    first_cost = stages.first.cost.constant * (1 - risk.cvar_weight)
    return program_over(stages, atoms, weights, risk, first_cost, _second_limits(stages, atoms))


def solve_extensive(
    stages: StagedModel, atoms: Array, weights: Array, risk: Risk, deadline: float | None, gap: Gap = GAP
) -> Solution:
    """Solve the program over all scenarios by HiGHS.

    HiGHS rounds small numbers to zero: where all costs are small, they are measured in units of the largest.
    """
    (deadlines.before_long_work if _is_long(stages, len(atoms)) else deadlines.check)()
    dim = len(stages.first.lower)
    if deadline is not None and time.monotonic() >= deadline:
        return Solution(np.full(dim, np.nan), np.nan, Status.TIME_LIMIT, NO_TIME, HIGHS)
    unit = cost_unit(stages.model.cost, stages.model.recourse_cost)
    scaled = _in_cost_units(stages, unit)
    program = extensive_program(scaled, atoms, weights, risk)
    integer = integer_columns(scaled, program, len(atoms))
    scaled_gap = replace(gap, absolute=gap.absolute / unit)
    solution = minimize_program(program, integer, fixed_cost(scaled), deadline, scaled_gap)
    solution = replace(
        solution,
        decision=solution.decision[:dim],
        objective=solution.objective * unit,
        bound=solution.bound * unit,
    )
    return with_gap(solution, fixed_cost(stages), gap)


def _in_cost_units(stages: StagedModel, unit: float) -> StagedModel:
    """Return the stages with all costs divided by a unit."""
    if unit == 1:
        return stages
    model = stages.model
    cost, recourse_cost = (Vector(each.constant / unit, each.by_outcome) for each in (model.cost, model.recourse_cost))
    return StagedModel.of(replace(model, cost=cost, recourse_cost=recourse_cost))
