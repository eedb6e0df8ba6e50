"""Linear models with a certain recourse matrix and recourse in fractions, however uncertain all else is: the fast path.

    c(y)'z + Q(z, y),    Q(z, y) = min q(y)'x   s.t.   W x (senses) h(y) − T(y) z,   l ≤ x ≤ u

Thousands of recourse values at once come from :mod:`bco_core.solvers.random_recourse`, decisions over scenarios from
:mod:`bco_core.solvers.cuts`. Both are certified here or not given: what is left goes to HiGHS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from bco_core import deadline
from bco_core.problems.base import EXPECTATION, Risk, Status
from bco_core.problems.linear.affine import Matrix, Vector
from bco_core.problems.linear.description import LARGEST_FORM
from bco_core.problems.linear.extensive import REASONS, Solution, judged, risk_of
from bco_core.problems.linear.model import Model
from bco_core.solvers import cuts, highs
from bco_core.solvers.dual_simplex import Index
from bco_core.solvers.linear_form import EQUAL, Array, LinearProgram
from bco_core.solvers.random_recourse import RandomRecourse, RecourseSolutions
from bco_core.status import CUTS, Gap

# The most recourse variables and decisions: kernels keep dense matrices.
_MOST_RECOURSE, _MOST_DECISIONS = 2_000, 200
# The most numbers that cutting planes keep: a B⁻¹ and a technology matrix for every scenario.
_LARGEST_CUTS = 20_000_000
# How nearly a decision must keep the rows, relative to the terms of each.
_KEPT = 1e-9
# How near the decision for the mean outcome is, to begin with.
_NEAR = 1e-3


@dataclass(frozen=True)
class FixedRecourse:
    """The rows in which recourse or outcomes take part, by the outcome; the others are ``rows`` (r, d) z ≥ ``least``,
    bounds among them, and ``anywhere`` (d,) is a decision that keeps them."""

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
    def of(model: Model) -> FixedRecourse | None:
        """None where outcomes change the recourse matrix, recourse is whole, no decision keeps the certain rows,
        or the model is too large."""
        second = np.flatnonzero(model.later | model.uncertain_rows)
        boxed = int((np.isfinite(model.recourse_lower) & np.isfinite(model.recourse_upper)).sum())
        size = len(second) + int((model.senses[second] == EQUAL).sum()) + boxed
        fits = 0 < size <= LARGEST_FORM and 0 < len(model.recourse_names) <= _MOST_RECOURSE
        fits = fits and len(model.decision_names) <= _MOST_DECISIONS
        if not fits or not model.recourse.certain or model.recourse_integer.any():
            return None
        rows, least = _inequalities(model, np.setdiff1d(np.arange(len(model.senses)), second))
        dim = len(model.lower)
        free, matrix = np.full(dim, np.inf), sparse.csr_array(rows)
        kept = highs.run(highs.model_of(np.zeros(dim), matrix, least, np.full(len(rows), np.inf), -free, free))
        if kept.status is not Status.OPTIMAL:
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
            np.clip(kept.values, model.lower, model.upper),
            bool(model.integer.any()),
        )

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """c(y)'z + Q(z, y) for decisions (..., d_z) and outcomes (..., d_y), with derivatives by both; infinite where
        there is no recourse, minus infinity where its cost falls without limit, NaN where either is."""
        shape = np.broadcast_shapes(decisions.shape[:-1], outcomes.shape[:-1])
        return _cost(decisions.double().expand(*shape, -1), outcomes.double().expand(*shape, -1), self)

    def solve(self, decisions: Array, outcomes: Array) -> RecourseSolutions:
        """The recourse for pairs of decisions (n, d_z) and outcomes (n, d_y); duals are by the rows' limits."""
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
        self, atoms: Array, weights: Array, risk: Risk, gap: Gap, fixed: float, rung: deadline.Flag
    ) -> Solution | None:
        """The cutting planes' decision over outcomes (K, d_y), if they closed the gap, which is proven here, or had to
        stop. ``fixed`` is what no decision changes."""
        atoms, weights = atoms[weights > 0], weights[weights > 0]
        size = len(self.recourse.form.matrix)
        if self.whole or len(atoms) * size * (size + len(self.lower)) > _LARGEST_CUTS:
            return None
        # To begin with, the decision for the mean outcome: it need not be exact, nor exist.
        mean = self._cut((weights @ atoms)[None], np.ones(1), self.anywhere, EXPECTATION, _NEAR, fixed, rung)
        begin = mean.decision if mean.ended == cuts.CONVERGED else self.anywhere
        found = self._cut(atoms, weights, begin, risk, min(cuts.GAP, gap.relative / 2), fixed, rung)
        # Rounding must not carry a decision past its bounds.
        z = np.clip(found.decision, self.lower, self.upper)
        if found.ended not in (cuts.CONVERGED, cuts.STOPPED):
            return None
        proven = self.certified_risk(z, atoms, weights, risk)
        if proven is None:
            return None
        if found.ended == cuts.STOPPED:
            deadline.check()
            return Solution(z, proven, Status.TIME_LIMIT, REASONS[Status.TIME_LIMIT], CUTS)
        if not gap.closes(proven, found.bound, fixed):
            return None
        return judged(Solution(z, proven, Status.OPTIMAL, "", CUTS, found.bound), fixed, gap)

    def _cut(
        self, atoms: Array, weights: Array, begin: Array, risk: Risk, gap: float, fixed: float, rung: deadline.Flag
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
            rung,
        )

    def certified_risk(self, decision: Array, atoms: Array, weights: Array, risk: Risk) -> float | None:
        """The risk of a decision (d_z,) by certified recourse in every scenario; None where there is none."""
        scale = np.abs(self.rows) @ np.abs(decision) + np.abs(self.least)
        if not (self.rows @ decision >= self.least - _KEPT * scale).all():
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


def _inequalities(model: Model, first: Index) -> tuple[Array, Array]:
    """The rules for decisions alone as rows z ≥ limits, bounds among them."""
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
