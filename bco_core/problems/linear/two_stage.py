"""Two-stage linear problems with recourse: decide z now, see y, then mend with x at least cost.

    c(z; y) = c'z + Q(z, y),    Q(z, y) = min q'x   s.t.   W x + T z (sense) h + H y,   l ≤ x ≤ u,

over z with A z (sense) b and bounds. The uncertain outcome enters on right-hand sides only, so both Q and the point
decision π(ŷ) = argmin_z c(z; ŷ) are linear programs of which only the right-hand side changes: each has its own
:class:`~bco_core.solvers.basis_pool.BasisPool`. Over scenarios, :mod:`bco_core.solvers.cuts` minimises expectation,
CVaR or a mix; whole-number decisions, and whatever the cuts leave open, go to HiGHS as one large program. Whatever
found a decision, its risk is computed anew by certified recourse, and ``optimal`` says that a proven lower bound is
within the problem's :class:`~bco_core.status.Gap` of it.

An outcome is taken to lie within its stated bounds: beyond them it counts as the bound.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bco_core import deadline
from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Breach, Prescription, Price, Problem, Risk, Status
from bco_core.problems.linear.autograd import RightHandSide, decided, recourse_value
from bco_core.problems.linear.description import Description, describe, describe_shipment
from bco_core.problems.linear.extensive import (
    REASONS,
    Solution,
    cost_unit,
    extensive,
    fixed_cost,
    fixed_first_cost,
    is_long,
    judged,
    reading_seconds,
    risk_of,
    together,
)
from bco_core.problems.linear.fixed_decision import broken_rules, fixed_description
from bco_core.problems.linear.two_stage_report import plan, prices
from bco_core.problems.linear.validate_two_stage import check_recourse
from bco_core.problems.second_stage import SecondStagePlan
from bco_core.solvers import cuts, highs
from bco_core.solvers.basis_pool import BasisPool
from bco_core.solvers.dual_simplex import TOLERANCE
from bco_core.solvers.linear_form import Array, linear_form
from bco_core.status import CUTS, GAP, HIGHS, Gap

# How long a new problem is searched for a case that no recourse can mend; a prescription says when it meets one.
CHECK_SECONDS = 5.0
_NO_TIME = "there was no time to hedge: this is the decision for the mean outcome"
# What a large search gives of its time to the decision for the mean outcome.
_MEAN_SHARE = 0.15
# How nearly a decision must keep the rows, relative to the terms of each.
_KEPT = 1e-9
# Scenarios × (rows of the recourse)² beyond which cutting planes would keep too many bases in memory.
_LARGEST_CUTS = 20_000_000


@dataclass(frozen=True)
class TwoStageLinear(Problem):
    """The problem's numbers and the two pools. ``relaxation`` forgets that decisions must be whole numbers.

    ``gap`` is what ``optimal`` may leave open.
    """

    data: Description
    recourse: BasisPool
    point: BasisPool
    recourse_rhs: RightHandSide
    point_rhs: RightHandSide
    gap: Gap = GAP

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> Self:
        """Build from a specification by names, the form in which the API takes it, and perhaps ``relative_gap`` and
        ``absolute_gap``."""
        problem = cls.of(describe(spec))
        return replace(problem, gap=Gap(*(_gap(spec, name, default) for name, default in asdict(problem.gap).items())))

    @classmethod
    def from_shipment(cls, spec: dict[str, Any]) -> Self:
        """Build from a shipment specification: sources, destinations and what it costs between them."""
        return cls.of(describe_shipment(spec))

    @classmethod
    def of(cls, data: Description) -> Self:
        if highs.solve_program(data.first, data.limits).status is Status.INFEASIBLE:
            raise InvalidInput("no decision satisfies all decision rows and bounds", data.limits_at[0][:1])
        try:
            recourse = BasisPool.of(linear_form(data.recourse))
        except InvalidInput as unbounded:
            raise InvalidInput(f"recourse: {unbounded}", ("recourse",)) from unbounded
        problem = cls._around(data, recourse)
        check_recourse(data, time.monotonic() + CHECK_SECONDS)
        return problem

    @classmethod
    def _around(cls, data: Description, recourse: BasisPool) -> Self:
        """The problem whose recourse has this pool."""
        form = linear_form(together(data))
        watched = np.flatnonzero((form.by_column[: len(data.first.cost)] != 0).any(axis=0))
        try:
            point = BasisPool.of(form, watched)
        except InvalidInput as unbounded:
            raise InvalidInput(f"decisions and recourse together: {unbounded}", ("decisions",)) from unbounded
        later = recourse.form.by_limit
        recourse_rhs = RightHandSide.of(
            *recourse.form.rhs(data.constant), later @ data.by_outcome, later @ data.by_decision
        )
        later = point.form.by_limit[:, len(data.limits) :]
        constant, size = point.form.rhs(np.concatenate([data.limits, data.constant]))
        point_rhs = RightHandSide.of(constant, size, later @ data.by_outcome, np.zeros((len(constant), 0)))
        # An absolute gap must be small beside costs that are small themselves.
        gap = replace(GAP, absolute=GAP.absolute * cost_unit(data))
        return cls(data, recourse, point, recourse_rhs, point_rhs, gap)

    @property
    def outcome_dim(self) -> int:
        return len(self.data.outcome_names)

    @property
    def decision_dim(self) -> int:
        return len(self.data.first.cost)

    @property
    def relaxation(self) -> Self:
        if not self.data.integer.any():
            return self
        return replace(self, data=replace(self.data, integer=np.zeros_like(self.data.integer)))

    def fixed(self, decision: Tensor) -> Self:
        """The problem in which the entries of a decision (d_z,) that are not NaN are decided already.

        They need not keep their own bounds. InvalidInput if no decision that has them keeps the decision rows.
        """
        data = fixed_description(self.data, decision.double().numpy())
        if highs.solve_program(data.first, data.limits).status is Status.INFEASIBLE:
            raise InvalidInput("no decision satisfies all decision rows and bounds", data.limits_at[0][:1])
        return replace(self._around(data, self.recourse), gap=self.gap)

    def breaches(self, decision: Tensor) -> list[Breach]:
        return broken_rules(self.data, decision.double().numpy())

    def decide(self, outcomes: Tensor) -> Tensor:
        """argmin over z of c(z; ŷ), whole-number decisions relaxed; NaN where ŷ is, or leaves no recourse."""
        return decided(self._clipped(outcomes), self.point, self.point_rhs, self.bounds)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """c'z + Q(z, y); infinite where there is no recourse."""
        shape = np.broadcast_shapes(decisions.shape[:-1], outcomes.shape[:-1])
        outcomes = self._clipped(outcomes)
        decisions, outcomes = decisions.expand(*shape, -1), outcomes.expand(*shape, -1)
        first = decisions.double() @ torch.from_numpy(self.data.first.cost)
        return first + recourse_value(decisions.double(), outcomes, self.recourse, self.recourse_rhs)

    def feasible(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        first, slack = self.data.first, 1e-6
        gap = decisions.double() @ torch.from_numpy(first.matrix).T - torch.from_numpy(self.data.limits)
        room = slack * (1 + torch.from_numpy(np.abs(self.data.limits)))
        senses = torch.from_numpy(first.senses)
        keeps = ((gap >= -room) | (senses < 0)) & ((gap <= room) | (senses > 0))
        lower, upper = torch.from_numpy(first.lower), torch.from_numpy(first.upper)
        edge = slack * (1 + decisions.abs())
        within = (decisions >= lower - edge) & (decisions <= upper + edge)
        whole = ((decisions - decisions.round()).abs() <= edge) | ~torch.from_numpy(self.data.integer)
        with torch.no_grad():
            return keeps.all(-1) & (within & whole).all(-1) & self.cost(decisions, outcomes).isfinite()

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        until = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds
        atoms = self._clipped(outcomes).detach().double().numpy()
        shares = weights.double().expand(atoms.shape[:2]).numpy()
        begin = self.decide(
            torch.einsum("bky,bk->by", torch.from_numpy(atoms), torch.from_numpy(shares.copy()))
        ).numpy()
        each: list[Solution] = []
        with deadline.alarm(time_limit_seconds) as rung:
            for one in zip(atoms, shares, begin, strict=True):
                deadline.check()
                each.append(self._prescribe_one(*one, risk, _share(until, len(atoms) - len(each)), rung))
        return Prescription(
            torch.from_numpy(np.stack([one.decision for one in each])),
            torch.tensor([one.objective for one in each], dtype=torch.float64),
            [one.status for one in each],
            tuple(one.reason for one in each),
            tuple(one.solver for one in each),
            torch.tensor([one.gap for one in each], dtype=torch.float64),
            torch.tensor([one.bound for one in each], dtype=torch.float64),
        )

    def _prescribe_one(
        self, atoms: Array, weights: Array, begin: Array, risk: Risk, until: float | None, rung: deadline.Flag
    ) -> Solution:
        rows = len(self.recourse.form.matrix)
        atoms, weights = atoms[weights > 0], weights[weights > 0]
        if not self.data.integer.any() and len(atoms) * rows**2 <= _LARGEST_CUTS and np.isfinite(begin).all():
            found = self._cut(atoms, weights, begin, risk, rung)
            if found is not None:
                return found
        if until is None or not self.data.integer.any() or not is_long(self.data, len(atoms)):
            return self._searched(atoms, weights, risk, until)
        # A large search may end without any decision, so one is found before.
        deadline.before_long_work()
        left = until - time.monotonic()
        simple = self._for_mean(atoms, weights, risk, until - (1 - _MEAN_SHARE) * left)
        if until - time.monotonic() < reading_seconds(self.data, len(atoms)):
            return simple
        found = self._searched(atoms, weights, risk, until)
        return simple if found.status is Status.TIME_LIMIT and not np.isfinite(found.decision).all() else found

    def _for_mean(self, atoms: Array, weights: Array, risk: Risk, until: float) -> Solution:
        """The decision for the mean outcome, as what is left when there is no time for more."""
        found = extensive(self.data, (weights @ atoms)[None], np.ones(1), EXPECTATION, until, self.gap)
        objective = self._certified_risk(found.decision, atoms, weights, risk)
        reason = _NO_TIME if np.isfinite(found.decision).all() else REASONS[Status.TIME_LIMIT]
        return Solution(found.decision, np.nan if objective is None else objective, Status.TIME_LIMIT, reason, HIGHS)

    def _searched(self, atoms: Array, weights: Array, risk: Risk, until: float | None) -> Solution:
        """The answer of HiGHS over all scenarios, judged by certified recourse."""
        found = extensive(self.data, atoms, weights, risk, until, self.gap)
        objective = self._certified_risk(found.decision, atoms, weights, risk)
        if objective is None or found.status not in (Status.OPTIMAL, Status.TIME_LIMIT):
            return found
        return judged(replace(found, objective=objective), self.fixed_cost, self.gap)

    def _certified_risk(self, decision: Array, atoms: Array, weights: Array, risk: Risk) -> float | None:
        """The risk of a decision (d_z,) by certified recourse in every scenario; None where there is none."""
        if not np.isfinite(decision).all():
            return None
        rows, limits = self.inequalities
        if (rows @ decision < limits - _KEPT * (np.abs(rows) @ np.abs(decision) + np.abs(limits))).any():
            return None
        z = torch.from_numpy(decision).expand(len(atoms), -1)
        solved = self.recourse.solve(*self.recourse_rhs.at(torch.from_numpy(atoms), z))
        if not solved.certified.all() or solved.status.any():
            return None
        first = float(self.data.first.cost @ decision)
        return first + self.recourse.form.base_cost + risk_of(solved.value, weights, risk)

    @cached_property
    def fixed_cost(self) -> float:
        """What every decision costs, whatever it is; gaps are judged without it."""
        return fixed_cost(self.data)

    def _cut(self, atoms: Array, weights: Array, begin: Array, risk: Risk, rung: deadline.Flag) -> Solution | None:
        """The cutting planes' answer, if they closed the gap, which is proven here, or had to stop."""
        form, bases, data = self.recourse.form, self.recourse.bases, self.data
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
            cuts.FirstStage(data.first.cost, rows, limits, begin, fixed_first_cost(data)),
            cuts.RiskOf(risk.cvar_weight, risk.cvar_level),
            min(cuts.GAP, self.gap.relative / 2),
            TOLERANCE,
            rung,
        )
        # Rounding must not carry a decision past its bounds.
        z = np.clip(z, data.first.lower, data.first.upper)
        if ended == cuts.CONVERGED:
            proven = self._certified_risk(z, atoms, weights, risk)
            if proven is None or not self.gap.closes(proven, bound + form.base_cost, self.fixed_cost):
                return None
            return judged(
                Solution(z, proven, Status.OPTIMAL, "", CUTS, bound + form.base_cost), self.fixed_cost, self.gap
            )
        if ended != cuts.STOPPED:
            return None
        deadline.check()
        if np.isfinite(objective):
            proven = self._certified_risk(z, atoms, weights, risk)
            objective = objective + form.base_cost if proven is None else proven
            return Solution(z, objective, Status.TIME_LIMIT, REASONS[Status.TIME_LIMIT], CUTS)
        return Solution(begin, np.nan, Status.TIME_LIMIT, _NO_TIME, CUTS)

    @cached_property
    def bounds(self) -> Tensor:
        """Least and largest decisions, (2, d_z)."""
        return torch.from_numpy(np.stack([self.data.first.lower, self.data.first.upper]))

    @cached_property
    def inequalities(self) -> tuple[Array, Array]:
        """Z as rows z ≥ limits, bounds among them."""
        first, right = self.data.first, self.data.limits
        at_least, at_most = first.senses >= 0, first.senses <= 0
        low, high = np.isfinite(first.lower), np.isfinite(first.upper)
        identity = np.eye(len(first.cost))
        rows = np.concatenate([first.matrix[at_least], -first.matrix[at_most], identity[low], -identity[high]])
        limits = np.concatenate([right[at_least], -right[at_most], first.lower[low], -first.upper[high]])
        return np.ascontiguousarray(rows), limits

    @property
    def counted_within(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.data.lowest), torch.from_numpy(self.data.highest)

    @property
    def recourse_names(self) -> tuple[str, ...]:
        return self.data.recourse_names

    @property
    def row_names(self) -> tuple[str, ...]:
        return self.data.row_names

    def recourse_plan(self, decision: Tensor, outcomes: Tensor) -> SecondStagePlan:
        return plan(self.data, self.recourse, self.recourse_rhs, decision.double(), self._clipped(outcomes))

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        return prices(self.data, decision.double().numpy(), self._clipped(outcomes).numpy(), weights.double().numpy())

    def _clipped(self, outcomes: Tensor) -> Tensor:
        return outcomes.double().clamp(*self.counted_within)


def _gap(spec: dict[str, Any], name: str, default: float) -> float:
    value = spec.get(f"{name}_gap")
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidInput("a gap is a number that is not negative, such as 1e-6", (f"{name}_gap",))
    return float(value)


def _share(until: float | None, contexts: int) -> float | None:
    """When the first of so many contexts must be decided, for each to have its share of the time that is left."""
    return None if until is None else until - max(until - time.monotonic(), 0.0) * (1 - 1 / contexts)
