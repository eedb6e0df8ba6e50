"""The cost of recourse in a linear model, for many pairs of a decision and an outcome.

    c(y)'z + Q(z, y),    Q(z, y) = min q(y)'x   s.t.   W x (senses) h(y) − T(y) z,   l ≤ x ≤ u

:class:`FixedRecourse` is the fast path for models with a certain recourse matrix W, continuous recourse and few rows,
however uncertain all else is: thousands of recourse values at once come from :mod:`bco_core.solvers.random_recourse`,
decisions over scenarios from :mod:`bco_core.solvers.cuts`, both only if they are certified. Everything else goes
to HiGHS, one pair after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from bco_core import deadlines
from bco_core.problems.base import EXPECTATION, Risk, Status
from bco_core.problems.linear.affine import Matrix, Vector
from bco_core.problems.linear.model import LARGEST_FORM, LinearModel, form_size
from bco_core.problems.linear.program import REASONS, Solution, risk_of, with_gap
from bco_core.problems.linear.stages import ProgramSequence
from bco_core.solvers import cuts, highs
from bco_core.solvers.dual_simplex import OPTIMAL, Index
from bco_core.solvers.linear_form import Array, LinearProgram
from bco_core.solvers.random_recourse import RandomRecourse, RecourseSolutions
from bco_core.status import CUTS, Gap

_VALUES = {Status.INFEASIBLE: np.inf, Status.UNBOUNDED: -np.inf}
# Numbers of right-hand sides and costs in one batch.
_NUMBERS_AT_ONCE = 5_000_000
# Answers of integer recourse to remember, and the most pairs of one.
_REMEMBERED, _REMEMBERED_ROWS = 8, 10_000
# The most recourse variables and decisions of dense kernels.
_MOST_RECOURSE, _MOST_DECISIONS = 2_000, 200
# The most numbers that cutting planes keep: a B⁻¹ and a technology matrix for every scenario.
_LARGEST_CUTS = 20_000_000
# Tolerance of rows, relative to their terms.
_TOLERANCE = 1e-9
# Gap of the decision for the mean outcome, from which the search starts.
_START_GAP = 1e-3


@dataclass(frozen=True)
class RecourseSolver:
    """Solver for the rows with recourse; ``fast`` is the fast path where it serves the model."""

    model: LinearModel
    fast: FixedRecourse | None
    recent: dict[tuple[bytes, bytes], tuple[Array, Array]] = field(default_factory=dict, compare=False, repr=False)

    def plans(self, decisions: Array, outcomes: Array) -> tuple[Array, Array]:
        """Return costs (n,) and amounts (n, d_x) of the cheapest recourse for decisions (n, d_z) and outcomes (n, d_y).

        ∞ and NaN where there is none, −∞ where the cost falls without limit. One request asks for the same costs
        several times, so integer searches are remembered.
        """
        if not self.model.recourse_integer.any():
            return self._plans(decisions, outcomes)
        key = decisions.tobytes(), outcomes.tobytes()
        plans = self.recent.get(key)
        if plans is None:
            plans = self._plans(decisions, outcomes)
            if len(outcomes) <= _REMEMBERED_ROWS:
                while len(self.recent) >= _REMEMBERED:
                    self.recent.pop(next(iter(self.recent), key), None)
                self.recent[key] = plans
        return plans[0].copy(), plans[1].copy()

    def _plans(self, decisions: Array, outcomes: Array) -> tuple[Array, Array]:
        model = self.model
        values = np.zeros(len(outcomes))
        amounts = np.full((len(outcomes), len(model.recourse_lower)), np.nan)
        if not amounts.shape[1]:
            return values, amounts
        size = max(1, _NUMBERS_AT_ONCE // (amounts.shape[1] + len(model.senses) + 1))
        for start in range(0, len(outcomes), size):
            part = slice(start, start + size)
            values[part], amounts[part] = self._solve(decisions[part], outcomes[part])
        # Rounding must not carry an amount past its bounds, nor the sign of a zero.
        return values, np.clip(amounts, model.recourse_lower, model.recourse_upper) + 0.0

    def _solve(self, decisions: Array, outcomes: Array) -> tuple[Array, Array]:
        model = self.model
        if self.fast is not None:
            solved = self.fast.solve(decisions, outcomes)
            return solved.value, np.where((solved.status == OPTIMAL)[:, None], solved.primal, np.nan)
        limits = model.limits.at(outcomes) - model.technology.times(outcomes, decisions)
        programs = ProgramSequence(
            model.recourse,
            model.recourse_cost,
            model.senses,
            model.recourse_lower,
            model.recourse_upper,
            model.recourse_integer,
        )
        values, amounts = np.full(len(outcomes), np.nan), np.full((len(outcomes), len(model.recourse_lower)), np.nan)
        for k, answer in enumerate(programs.solve(outcomes, limits)):
            values[k] = _VALUES.get(answer.status, answer.objective)
            if answer.status is Status.OPTIMAL:
                amounts[k] = answer.values
        return values, amounts


@dataclass(frozen=True)
class FixedRecourse:
    """The rows that depend on recourse or outcomes, as functions of the outcome; the others are ``rows`` (r, d) z ≥
    ``least``, bounds included, and ``anywhere`` (d,) is a decision that satisfies them."""

    cost_of: Vector
    recourse_cost: Vector
    technology: Matrix
    limits: Vector
    recourse: RandomRecourse
    rows: Array
    least: Array
    lower: Array
    upper: Array
    anywhere: Array
    whole: bool

    @staticmethod
    def of(model: LinearModel) -> FixedRecourse | None:
        """Return None where outcomes change the recourse matrix, recourse is integer, no decision satisfies the certain
        rows, or the model is too large."""
        second = np.flatnonzero(model.second_stage | model.uncertain_rows)
        size = form_size(model.senses[second], model.recourse_lower, model.recourse_upper)
        fits = 0 < size <= LARGEST_FORM and 0 < len(model.recourse_names) <= _MOST_RECOURSE
        fits = fits and len(model.decision_names) <= _MOST_DECISIONS
        if not fits or not model.recourse.certain or model.recourse_integer.any():
            return None
        rows, least = _inequalities(model, np.setdiff1d(np.arange(len(model.senses)), second))
        dim = len(model.lower)
        free, matrix = np.full(dim, np.inf), sparse.csr_array(rows)
        corner = highs.run(highs.model_of(np.zeros(dim), matrix, least, np.full(len(rows), np.inf), -free, free))
        if corner.status is not Status.OPTIMAL:
            return None
        program = LinearProgram(
            model.recourse_cost.constant,
            model.recourse.constant[second].toarray(),
            model.senses[second],
            model.recourse_lower,
            model.recourse_upper,
        )
        return FixedRecourse(
            model.cost,
            model.recourse_cost,
            model.technology.rows(second),
            Vector(model.limits.constant[second], model.limits.by_outcome[second]),
            RandomRecourse.of(program),
            rows,
            least,
            model.lower,
            model.upper,
            np.clip(corner.values, model.lower, model.upper),
            bool(model.integer.any()),
        )

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Return c(y)'z + Q(z, y) for decisions (..., d_z) and outcomes (..., d_y), with derivatives by both.

        ∞ where there is no recourse, −∞ where its cost falls without limit, NaN where either argument is.
        """
        shape = np.broadcast_shapes(decisions.shape[:-1], outcomes.shape[:-1])
        return _cost(decisions.double().expand(*shape, -1), outcomes.double().expand(*shape, -1), self)

    def solve(self, decisions: Array, outcomes: Array) -> RecourseSolutions:
        """Solve the recourse for pairs of decisions (n, d_z) and outcomes (n, d_y); duals are by the rows' limits."""
        certain, rows, columns = self._certain_technology
        by_outcome = self.limits.by_outcome.toarray().T
        limits = self.limits.constant + outcomes @ by_outcome - decisions @ certain
        size = (
            np.abs(self.limits.constant) + np.abs(outcomes) @ np.abs(by_outcome) + np.abs(decisions) @ np.abs(certain)
        )
        if len(rows):
            taken = self.technology.entries(outcomes) * decisions[:, columns]
            np.subtract.at(limits.T, rows, taken.T)
            np.add.at(size.T, rows, np.abs(taken).T)
        return self.recourse.solve(self.recourse_cost.at(outcomes), limits, size)

    def minimize(
        self, atoms: Array, weights: Array, risk: Risk, gap: Gap, fixed: float, alarm: deadlines.Flag
    ) -> Solution | None:
        """Minimise over outcomes (K, d_y) by cutting planes; None unless they provably closed the gap or were stopped.

        ``fixed`` is the cost that no decision can avoid.
        """
        atoms, weights = atoms[weights > 0], weights[weights > 0]
        size = len(self.recourse.form.matrix)
        if self.whole or len(atoms) * size * (size + len(self.lower)) > _LARGEST_CUTS:
            return None
        # Start from the decision for the mean outcome, which need not be exact, nor exist.
        mean = self._cut((weights @ atoms)[None], np.ones(1), self.anywhere, EXPECTATION, _START_GAP, fixed, alarm)
        begin = mean.decision if mean.outcome == cuts.CONVERGED else self.anywhere
        minimum = self._cut(atoms, weights, begin, risk, min(cuts.GAP, gap.relative / 2), fixed, alarm)
        # Rounding must not carry a decision past its bounds.
        z = np.clip(minimum.decision, self.lower, self.upper)
        if minimum.outcome not in (cuts.CONVERGED, cuts.STOPPED):
            return None
        proven = self.certified_risk(z, atoms, weights, risk)
        if proven is None:
            return None
        if minimum.outcome == cuts.STOPPED:
            deadlines.check()
            return Solution(z, proven, Status.TIME_LIMIT, REASONS[Status.TIME_LIMIT], CUTS)
        if not gap.closes(proven, minimum.bound, fixed):
            return None
        return with_gap(Solution(z, proven, Status.OPTIMAL, "", CUTS, minimum.bound), fixed, gap)

    def _cut(
        self, atoms: Array, weights: Array, begin: Array, risk: Risk, gap: float, fixed: float, alarm: deadlines.Flag
    ) -> cuts.CutSolution:
        return cuts.minimize_random(
            self.recourse,
            cuts.RecourseScenarios(
                self.recourse_cost.at(atoms),
                self.limits.at(atoms),
                self._technology(atoms),
                self.cost_of.at(atoms),
                weights,
            ),
            cuts.FirstStage(np.zeros(len(begin)), self.rows, self.least, begin, fixed),
            cuts.RiskOf(risk.cvar_weight, risk.cvar_level),
            gap,
            alarm,
        )

    def certified_risk(self, decision: Array, atoms: Array, weights: Array, risk: Risk) -> float | None:
        """Return the risk of a decision (d_z,) by certified recourse in every scenario; None where there is none."""
        scale = np.abs(self.rows) @ np.abs(decision) + np.abs(self.least)
        if not (self.rows @ decision >= self.least - _TOLERANCE * scale).all():
            return None
        solved = self.solve(np.broadcast_to(decision, (len(atoms), len(decision))), atoms)
        if not solved.certified.all() or solved.status.any():
            return None
        return risk_of(solved.value + self.cost_of.at(atoms) @ decision, weights, risk)

    @cached_property
    def _certain_technology(self) -> tuple[Array, Index, Index]:
        """T' (d_z, m) with zeros where it is uncertain, and the rows and columns where it is."""
        matrix: Array = self.technology.constant.toarray().T
        rows, columns = self.technology.places.T
        matrix[columns, rows] = 0.0
        return matrix, rows, columns

    def _technology(self, atoms: Array) -> Array:
        """T for every outcome, (K, m, d_z), or once where it is certain."""
        constant: Array = self.technology.constant.toarray()
        if self.technology.certain:
            return constant[None]
        whole = np.repeat(constant[None], len(atoms), axis=0)
        rows, columns = self.technology.places.T
        whole[:, rows, columns] = self.technology.entries(atoms)
        return whole


def _inequalities(model: LinearModel, first: Index) -> tuple[Array, Array]:
    """Return the rules for decisions alone as rows z ≥ limits, bounds included."""
    matrix, senses, right = (
        model.technology.constant[first].toarray(),
        model.senses[first],
        model.limits.constant[first],
    )
    low, high, identity = np.isfinite(model.lower), np.isfinite(model.upper), np.eye(len(model.lower))
    rows = np.concatenate([matrix[senses >= 0], -matrix[senses <= 0], identity[low], -identity[high]])
    limits = np.concatenate([right[senses >= 0], -right[senses <= 0], model.lower[low], -model.upper[high]])
    return np.ascontiguousarray(rows), limits


class _Cost(torch.autograd.Function):
    """Decisions (..., d_z) and outcomes (..., d_y) → cost (...), with its exact derivatives almost everywhere."""

    @staticmethod
    def forward(ctx: Any, decisions: Tensor, outcomes: Tensor, stages: FixedRecourse) -> Tensor:
        z = decisions.detach().reshape(-1, decisions.shape[-1]).numpy()
        y = outcomes.detach().reshape(-1, outcomes.shape[-1]).numpy()
        known = np.isfinite(z).all(axis=1) & np.isfinite(y).all(axis=1)
        z, y = np.where(known[:, None], z, 0.0), np.where(known[:, None], y, 0.0)
        solved = stages.solve(z, y)
        cost = stages.cost_of.at(y)
        value = np.where(known, solved.value + (cost * z).sum(axis=1), np.nan)
        if any(ctx.needs_input_grad):
            technology = stages.technology
            rows, columns = technology.places.T
            moved = solved.dual[:, rows] * z[:, columns]
            by_decision = cost - solved.dual @ technology.constant
            np.subtract.at(by_decision.T, columns, (solved.dual[:, rows] * (technology.by_outcome @ y.T).T).T)
            by_outcome = (
                z @ stages.cost_of.by_outcome
                + solved.primal @ stages.recourse_cost.by_outcome
                + solved.dual @ stages.limits.by_outcome
                - moved @ technology.by_outcome
            )
            ctx.save_for_backward(torch.from_numpy(by_decision), torch.from_numpy(by_outcome))
        return torch.from_numpy(value).view(decisions.shape[:-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        by_decision, by_outcome = ctx.saved_tensors
        shape = gradients[0].shape
        flat = gradients[0].reshape(-1, 1)
        return (flat * by_decision).view(*shape, -1), (flat * by_outcome).view(*shape, -1), None


_cost: Callable[[Tensor, Tensor, FixedRecourse], Tensor] = _Cost.apply
