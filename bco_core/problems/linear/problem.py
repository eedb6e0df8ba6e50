"""Two-stage linear problems with recourse: decide z now, see y, then mend with x at least cost.

    c(z; y) = c'z + Q(z, y),    Q(z, y) = min q'x   s.t.   W x + T z (sense) h + H y,   l ≤ x ≤ u,

over z with A z (sense) b and bounds. The uncertain outcome enters on right-hand sides only, so both Q and the point
decision π(ŷ) = argmin_z c(z; ŷ) are linear programs of which only the right-hand side changes: each has its own
:class:`~bco_core.solvers.basis_pool.BasisPool`. Over scenarios, :mod:`bco_core.solvers.cuts` minimises expectation,
CVaR or a mix; whole-number decisions, and whatever the cuts leave open, go to HiGHS as one large program.

An outcome is taken to lie within its stated bounds: beyond them it counts as the bound.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Prescription, Risk, Status
from bco_core.problems.linear.check import check_recourse
from bco_core.problems.linear.description import Description, describe, describe_shipment
from bco_core.solvers import cuts, highs
from bco_core.solvers.basis_pool import TOLERANCE, BasisPool
from bco_core.solvers.linear_form import Array, LinearProgram, linear_form

Flag = np.ndarray[Any, np.dtype[np.bool_]]

CUTS, HIGHS = "cutting planes", "HiGHS"
# Scenarios × (rows of the recourse)² beyond which cutting planes would keep too many bases in memory.
_LARGEST_CUTS = 20_000_000


@dataclass(frozen=True)
class TwoStageLinear:
    """The problem's numbers and the two pools. ``relaxation`` forgets that decisions must be whole numbers."""

    data: Description
    recourse: BasisPool
    point: BasisPool
    recourse_rhs: RightHandSide
    point_rhs: RightHandSide

    @staticmethod
    def from_spec(spec: dict[str, Any]) -> TwoStageLinear:
        """Build from a specification by names, the form in which the API takes it."""
        return TwoStageLinear.of(describe(spec))

    @staticmethod
    def from_shipment(spec: dict[str, Any]) -> TwoStageLinear:
        """Build from a shipment specification: sources, destinations and what it costs between them."""
        return TwoStageLinear.of(describe_shipment(spec))

    @staticmethod
    def of(data: Description) -> TwoStageLinear:
        if highs.solve_program(data.first, data.limits).status is Status.INFEASIBLE:
            raise InvalidInput("no decision satisfies all decision rows and bounds", ("decision_rows",))
        try:
            recourse = BasisPool.of(linear_form(data.recourse))
        except InvalidInput as unbounded:
            raise InvalidInput(f"recourse: {unbounded}", ("recourse",)) from unbounded
        form = linear_form(together(data))
        watched = np.flatnonzero((form.by_column[: len(data.first.cost)] != 0).any(axis=0))
        try:
            point = BasisPool.of(form, watched)
        except InvalidInput as unbounded:
            raise InvalidInput(f"decisions and recourse together: {unbounded}", ("decisions",)) from unbounded
        check_recourse(data)
        later = recourse.form.by_limit
        recourse_rhs = RightHandSide.of(
            *recourse.form.rhs(data.constant), later @ data.by_outcome, later @ data.by_decision
        )
        later = point.form.by_limit[:, len(data.limits) :]
        constant, size = point.form.rhs(np.concatenate([data.limits, data.constant]))
        point_rhs = RightHandSide.of(constant, size, later @ data.by_outcome, np.zeros((len(constant), 0)))
        return TwoStageLinear(data, recourse, point, recourse_rhs, point_rhs)

    @property
    def outcome_dim(self) -> int:
        return len(self.data.outcome_names)

    @property
    def decision_dim(self) -> int:
        return len(self.data.first.cost)

    @property
    def differentiable(self) -> bool:
        return True

    @property
    def cost_bound(self) -> float | None:
        return None

    @property
    def relaxation(self) -> TwoStageLinear:
        if not self.data.integer.any():
            return self
        return replace(self, data=replace(self.data, integer=np.zeros_like(self.data.integer)))

    def decide(self, outcomes: Tensor) -> Tensor:
        """argmin over z of c(z; ŷ), whole-number decisions relaxed; NaN where ŷ is, or leaves no recourse."""
        return _decide(self._within(outcomes), self)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """c'z + Q(z, y); infinite where there is no recourse."""
        shape = np.broadcast_shapes(decisions.shape[:-1], outcomes.shape[:-1])
        outcomes = self._within(outcomes)
        decisions, outcomes = decisions.expand(*shape, -1), outcomes.expand(*shape, -1)
        first = decisions.double() @ torch.from_numpy(self.data.first.cost)
        return first + _recourse(decisions.double(), outcomes, self)

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
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit: float | None = None
    ) -> Prescription:
        until = None if time_limit is None else time.monotonic() + time_limit
        atoms = self._within(outcomes).detach().double().numpy()
        shares = weights.double().expand(atoms.shape[:2]).numpy()
        begin = self.decide(
            torch.einsum("bky,bk->by", torch.from_numpy(atoms), torch.from_numpy(shares.copy()))
        ).numpy()
        with _alarm(time_limit) as rung:
            each = [self._prescribe_one(*one, risk, until, rung) for one in zip(atoms, shares, begin, strict=True)]
        return Prescription(
            torch.from_numpy(np.stack([one.decision for one in each])),
            torch.tensor([one.objective for one in each], dtype=torch.float64),
            [one.status for one in each],
            tuple(one.reason for one in each),
            tuple(one.solver for one in each),
        )

    def _prescribe_one(
        self, atoms: Array, weights: Array, begin: Array, risk: Risk, until: float | None, rung: Flag
    ) -> _Solution:
        rows = len(self.recourse.form.matrix)
        atoms, weights = atoms[weights > 0], weights[weights > 0]
        if not self.data.integer.any() and len(atoms) * rows**2 <= _LARGEST_CUTS and np.isfinite(begin).all():
            found = self._cut(atoms, weights, begin, risk, rung)
            if found is not None:
                return found
        return extensive(self.data, atoms, weights, risk, until)

    def _cut(self, atoms: Array, weights: Array, begin: Array, risk: Risk, rung: Flag) -> _Solution | None:
        """The cutting planes' answer, if they closed the gap or had to stop."""
        form, bases, data = self.recourse.form, self.recourse.bases, self.data
        right = self.recourse_rhs
        (base, size), slope = right.at(torch.from_numpy(atoms)), right.by_decision
        start = bases.closest(base - slope @ torch.from_numpy(begin))
        rows, limits = self.inequalities
        z, objective, _, ended, _ = cuts.minimize(
            base.numpy(),
            size.numpy(),
            slope.numpy(),
            np.ascontiguousarray(weights),
            risk.cvar_weight,
            risk.cvar_level,
            start.numpy(),
            bases.columns,
            bases.inverse,
            bases.reduced,
            form.matrix,
            form.cost,
            data.first.cost,
            rows,
            limits,
            begin,
            cuts.GAP,
            TOLERANCE,
            rung,
        )
        # Rounding must not carry a decision past its bounds.
        z = np.clip(z, data.first.lower, data.first.upper)
        if ended == cuts.CONVERGED:
            return _Solution(z, objective + form.base_cost, Status.OPTIMAL, "", CUTS)
        if ended != cuts.STOPPED:
            return None
        if np.isfinite(objective):
            return _Solution(z, objective + form.base_cost, Status.TIME_LIMIT, _REASONS[Status.TIME_LIMIT], CUTS)
        return _Solution(begin, np.nan, Status.TIME_LIMIT, _NO_TIME, CUTS)

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

    def _within(self, outcomes: Tensor) -> Tensor:
        return outcomes.double().clamp(torch.from_numpy(self.data.lowest), torch.from_numpy(self.data.highest))


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


@dataclass(frozen=True)
class _Solution:
    decision: Array
    objective: float
    status: Status
    reason: str
    solver: str


def together(data: Description) -> LinearProgram:
    """First stage and recourse as one program in (z, x), whose limits are those of the first stage, then h + H y."""
    first, recourse = data.first, data.recourse
    top = np.concatenate([first.matrix, np.zeros((len(first.matrix), len(recourse.cost)))], axis=1)
    bottom = np.concatenate([data.by_decision, recourse.matrix], axis=1)
    return LinearProgram(
        np.concatenate([first.cost, recourse.cost]),
        np.concatenate([top, bottom]),
        np.concatenate([first.senses, recourse.senses]),
        np.concatenate([first.lower, recourse.lower]),
        np.concatenate([first.upper, recourse.upper]),
    )


def extensive(data: Description, atoms: Array, weights: Array, risk: Risk, until: float | None) -> _Solution:
    """All scenarios as one program in HiGHS: variables z, then x_k for every scenario; for CVaR also η and excesses."""
    count = len(weights)
    first, recourse = data.first, data.recourse
    shares = weights * (1 - risk.cvar_weight)
    dim = len(first.cost)
    limits = data.constant + atoms @ data.by_outcome.T
    blocks = [
        [sparse.csr_array(first.matrix), None],
        [sparse.csr_array(np.tile(data.by_decision, (count, 1))), sparse.block_diag([recourse.matrix] * count)],
    ]
    cost = [first.cost * (1 - risk.cvar_weight), *(share * recourse.cost for share in shares)]
    lower, upper = [first.lower, np.tile(recourse.lower, count)], [first.upper, np.tile(recourse.upper, count)]
    senses = np.concatenate([first.senses, np.tile(recourse.senses, count)])
    right = np.concatenate([data.limits, limits.ravel()])
    if risk.cvar_weight:
        # w·CVaR = w·(η + Σ_k p_k v_k/(1 − α)) with v_k ≥ c'z + q'x_k − η, v ≥ 0.
        tail = sparse.hstack([sparse.csr_array(np.ones((count, 1))), sparse.eye_array(count)])
        spent = sparse.block_diag([-recourse.cost[None]] * count)
        blocks = [
            [blocks[0][0], None, None],
            [*blocks[1], None],
            [sparse.csr_array(np.tile(-first.cost, (count, 1))), spent, tail],
        ]
        cost += [np.array([risk.cvar_weight]), risk.cvar_weight * weights / (1 - risk.cvar_level)]
        lower += [np.array([-np.inf]), np.zeros(count)]
        upper += [np.full(1 + count, np.inf)]
        senses, right = (
            np.concatenate([senses, np.ones(count, dtype=np.int64)]),
            np.concatenate([right, np.zeros(count)]),
        )
    matrix = sparse.csr_array(sparse.block_array(blocks))
    whole = np.zeros(matrix.shape[1], dtype=bool)
    whole[:dim] = data.integer
    model = highs.model_of(
        np.concatenate(cost),
        matrix,
        np.where(senses >= 0, right, -np.inf),
        np.where(senses <= 0, right, np.inf),
        np.concatenate(lower),
        np.concatenate(upper),
        whole,
    )
    answer = highs.run(model, None if until is None else until - time.monotonic())
    decision = np.full(dim, np.nan)
    if len(answer.values):
        decision = np.where(data.integer, np.round(answer.values[:dim]), answer.values[:dim])
    return _Solution(decision, answer.objective, answer.status, _REASONS[answer.status], HIGHS)


_REASONS = {
    Status.OPTIMAL: "",
    Status.INFEASIBLE: "no decision leaves every scenario with a recourse that keeps the rows and bounds",
    Status.UNBOUNDED: "the cost can fall without limit over these scenarios",
    Status.TIME_LIMIT: "the time limit came before the best decision was proven; this is the best one found, if any",
}


_NO_TIME = "there was no time to hedge: this is the decision for the mean outcome"


@contextmanager
def _alarm(seconds: float | None) -> Iterator[Flag]:
    """A flag that is raised after so many seconds, for a kernel to look at."""
    rung: Flag = np.array([seconds is not None and seconds <= 0])
    timer = threading.Timer(seconds or 0.0, rung.fill, (True,))
    if seconds is not None and seconds > 0:
        timer.start()
    try:
        yield rung
    finally:
        timer.cancel()


def _known(rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Rows (n, d) with zeros for those that are not all numbers, and which these are, if any."""
    if rows.isfinite().all():
        return rows, None
    missing = ~rows.isfinite().all(dim=1)
    return rows.masked_fill(missing[:, None], 0.0), missing


class _Decide(torch.autograd.Function):
    """Outcomes (..., d_y) → decisions (..., d_z), with ∂z/∂y = (B⁻¹H)_z."""

    @staticmethod
    def forward(ctx: Any, outcomes: Tensor, problem: TwoStageLinear) -> Tensor:
        first, pool, dim = problem.data.first, problem.point, problem.decision_dim
        flat = outcomes.detach().reshape(-1, outcomes.shape[-1])
        known, missing = _known(flat)
        wanted = bool(ctx.needs_input_grad[0])
        solved = pool.solve(*problem.point_rhs.at(known), jacobian=wanted)
        back = torch.from_numpy(pool.form.by_column[:dim][:, pool.watched])
        if wanted:
            ctx.save_for_backward(back, torch.from_numpy(solved.jacobian), problem.point_rhs.by_outcome)
        decisions = torch.from_numpy(pool.form.offset[:dim]) + torch.from_numpy(solved.primal) @ back.T
        # Rounding must not carry a decision past its bounds.
        decisions = decisions.clamp(torch.from_numpy(first.lower), torch.from_numpy(first.upper))
        if missing is not None:
            decisions[missing] = torch.nan
        return decisions.view(*outcomes.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        back, jacobian, by_outcome = ctx.saved_tensors
        flat = gradients[0].reshape(len(jacobian), -1)
        by_rhs = torch.bmm((flat @ back)[:, None], jacobian)[:, 0]
        return (by_rhs @ by_outcome).view(*gradients[0].shape[:-1], -1), None


class _Recourse(torch.autograd.Function):
    """Decisions (..., d_z) and outcomes (..., d_y) → Q (...), with ∂Q/∂z = −T'π and ∂Q/∂y = H'π."""

    @staticmethod
    def forward(ctx: Any, decisions: Tensor, outcomes: Tensor, problem: TwoStageLinear) -> Tensor:
        pool, right = problem.recourse, problem.recourse_rhs
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
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        by_decision, by_outcome = ctx.saved_tensors
        shape = gradients[0].shape
        flat = gradients[0].reshape(-1, 1)
        return (flat * by_decision).view(*shape, -1), (flat * by_outcome).view(*shape, -1), None


_decide: Callable[..., Tensor] = _Decide.apply
_recourse: Callable[..., Tensor] = _Recourse.apply
