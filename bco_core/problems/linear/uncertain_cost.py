"""Linear models whose costs alone are uncertain: min c(y)'z over certain rows and bounds, c affine in the outcomes.

The cost of a decision is affine in the outcome, so its expectation is its cost for the mean outcome: hedging against
expected cost is deciding for the mean. Point decisions come from one polyhedron and many costs, which is what
:class:`~bco_core.solvers.primal_simplex.Oracle` is for. They jump from vertex to vertex as predictions move, so
learning works on a surrogate (:mod:`bco_core.problems.linear.spo_plus`). Whole numbers, and CVaR, go to HiGHS.

An outcome is taken to lie within its stated bounds: beyond them it counts as the bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bco_core import deadline
from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Breach, Prescription, Price, Problem, Risk, Status
from bco_core.problems.linear import first_stage
from bco_core.problems.linear.extensive import REASONS, Solution
from bco_core.problems.linear.model import Model
from bco_core.problems.linear.search import Known, Search
from bco_core.problems.linear.spo_plus import loss_and_slope, spo_plus
from bco_core.problems.surrogate import Hindsight
from bco_core.solvers.linear_form import Array
from bco_core.solvers.primal_simplex import OPTIMAL, UNBOUNDED, Oracle
from bco_core.status import SIMPLEX

# Numbers of decisions that are worked on at once.
_NUMBERS_AT_ONCE = 20_000_000
_UNPROVEN = "the solver found this decision, and there is no proof that it is the best"
_FAILED = "the solver found no decision for these costs"


@dataclass(frozen=True)
class UncertainObjective(Problem):
    """The model and its oracle. ``relaxation`` forgets that decisions must be whole numbers; ``known`` keeps decisions
    in whole numbers that searches have found, for later ones to begin with."""

    model: Model
    oracle: Oracle
    known: Known = field(default_factory=Known)

    @staticmethod
    def of(model: Model) -> UncertainObjective:
        """InvalidInput if no decision keeps the rows, or no outcome leaves the cost a least value."""
        problem = UncertainObjective(model, _oracle(model))
        if not first_stage.is_bounded(model):
            raise InvalidInput(
                "the cost can fall without limit whatever the outcome: a decision needs a bound or a row",
                ("decisions",),
            )
        return problem

    @property
    def outcome_dim(self) -> int:
        return len(self.model.outcome_names)

    @property
    def decision_dim(self) -> int:
        return len(self.model.decision_names)

    @property
    def relaxation(self) -> Self:
        if not self.model.integer.any():
            return self
        return replace(self, model=replace(self.model, integer=np.zeros_like(self.model.integer)))

    @property
    def loss(self) -> str:
        return "spo_plus"

    def fixed(self, decision: Tensor) -> UncertainObjective:
        """The problem in which the entries of a decision (d_z,) that are not NaN are decided already.

        They need not keep their own bounds. InvalidInput if no decision that has them keeps the rows.
        """
        model = first_stage.fixed(self.model, decision.double().numpy())
        return UncertainObjective(model, _oracle(model))

    def breaches(self, decision: Tensor) -> list[Breach]:
        return first_stage.broken_rules(self.model, decision.double().numpy())

    def within(self, decisions: Tensor) -> Tensor:
        flat = decisions.double().reshape(-1, self.decision_dim).numpy()
        return torch.from_numpy(first_stage.kept(self.model, flat)).view(decisions.shape[:-1])

    def decide(self, outcomes: Tensor) -> Tensor:
        """argmin over z of c(ŷ)'z, whole-number decisions relaxed; NaN where ŷ is, or lets the cost fall without limit.

        Its derivative is zero almost everywhere.
        """
        flat = self._clipped(outcomes).detach().reshape(-1, self.outcome_dim).numpy()
        found = [self.oracle.solve(self.model.cost.at(part)).values for part in self._parts(flat)]
        return torch.from_numpy(np.concatenate(found)).view(*outcomes.shape[:-1], self.decision_dim)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """c(y)'z = c(0)'z + (∂c'z)'y, so that no table of costs is needed."""
        decisions = decisions.double()
        return decisions @ self._constant + ((decisions @ self._by_outcome) * self._clipped(outcomes)).sum(-1)

    def hindsight(self, outcomes: Tensor) -> Hindsight:
        flat = self._clipped(outcomes).reshape(-1, self.outcome_dim)
        slopes, levels = self._best(flat.numpy())
        missing = np.isnan(levels)
        if missing.any():
            row = int(missing.argmax())
            raise InvalidInput(
                f"the cost can fall without limit for the outcomes of row {row}: there is no best decision to learn "
                "from; give decisions bounds that hold them",
                ("sample",),
            )
        return Hindsight(
            torch.from_numpy(slopes).view(outcomes.shape), torch.from_numpy(levels).view(outcomes.shape[:-1])
        )

    def surrogate(self, predictions: Tensor, outcomes: Tensor, hindsight: Hindsight | None = None) -> Tensor:
        """SPO+, of predictions that count as decisions count them: within the outcomes' bounds."""
        known = self.hindsight(outcomes) if hindsight is None else hindsight
        return spo_plus(self._clipped(predictions), self._clipped(outcomes), known, self._best)

    def loss_and_slope(self, predictions: Array, outcomes: Array, hindsight: Hindsight) -> tuple[Array, Array]:
        if not self._bounded:
            return loss_and_slope(predictions, outcomes, hindsight, self._best)
        low, high = self.model.lowest, self.model.highest
        losses, slope = loss_and_slope(predictions.clip(low, high), outcomes.clip(low, high), hindsight, self._best)
        return losses, np.where((predictions >= low) & (predictions <= high), slope, 0.0)

    def _best(self, outcomes: Array) -> tuple[Array, Array]:
        """Of best decisions for outcomes (n, d_y), as they are: ∂c'z, and the cost at none."""
        slopes, levels = [], []
        for part in self._parts(outcomes):
            best = self.oracle.solve(self.model.cost.at(part)).values
            slopes.append(best @ self.model.cost.by_outcome)
            levels.append(best @ self.model.cost.constant)
        return np.concatenate(slopes), np.concatenate(levels)

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        atoms = self._clipped(outcomes).detach()
        shares = weights.double().expand(atoms.shape[:2])
        mean = torch.einsum("bky,bk->by", atoms, shares).numpy()
        if risk.cvar_weight:
            search = Search(self.model, self.known, time_limit_seconds, len(atoms))
            pairs = zip(atoms.numpy(), shares.numpy(), strict=True)
            each = [search.over(one[share > 0], share[share > 0], risk) for one, share in pairs]
        else:
            each = [one for part in self._parts(mean) for one in self._certified(part)]
            # Many a relaxation, such as a path's, is best in whole numbers by itself; others are searched.
            left = [index for index, one in enumerate(each) if not self._whole(one)]
            search = Search(self.model, self.known, time_limit_seconds, len(left))
            for index in left:
                each[index] = search.at(mean[index])
        return Prescription(
            torch.from_numpy(np.stack([one.decision for one in each])),
            torch.tensor([one.objective for one in each], dtype=torch.float64),
            [one.status for one in each],
            tuple(one.reason for one in each),
            tuple(one.solver for one in each),
            torch.tensor([one.gap for one in each], dtype=torch.float64),
            torch.tensor([one.bound for one in each], dtype=torch.float64),
        )

    def _certified(self, outcomes: Array) -> list[Solution]:
        """The oracle's answers for outcomes (n, d_y): optimal where there is a proof."""
        deadline.check()
        solved = self.oracle.solve(self.model.cost.at(outcomes))
        return [
            _solution(*one)
            for one in zip(solved.values, solved.objective, solved.status.tolist(), solved.certified, strict=True)
        ]

    def _whole(self, found: Solution) -> bool:
        """Whether a decision of the relaxation is one of the problem: proven, and exactly whole where it must be."""
        whole = found.decision[self.model.integer]
        return not len(whole) or (found.status is Status.OPTIMAL and np.array_equal(whole, np.round(whole)))

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        mean = (weights.double() @ self._clipped(outcomes)).numpy()
        return first_stage.prices(self.model, decision.double().numpy(), self.model.cost.at(mean[None])[0])

    def facts(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
        if not self.model.maximize:
            return {}
        return {"expected_value": -float(self.cost(decision, outcomes) @ weights.double())}

    @property
    def counted_within(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.model.lowest), torch.from_numpy(self.model.highest)

    @cached_property
    def _constant(self) -> Tensor:
        return torch.from_numpy(self.model.cost.constant)

    @cached_property
    def _by_outcome(self) -> Tensor:
        return torch.from_numpy(self.model.cost.by_outcome.toarray())

    @cached_property
    def _bounded(self) -> bool:
        return bool(np.isfinite(self.model.lowest).any() or np.isfinite(self.model.highest).any())

    def _clipped(self, outcomes: Tensor) -> Tensor:
        return outcomes.double().clamp(*self.counted_within) if self._bounded else outcomes.double()

    def _parts(self, rows: Array) -> list[Array]:
        """Rows (n, d_y) in pieces whose decisions fit into memory; at least one piece."""
        size = max(1, _NUMBERS_AT_ONCE // self.decision_dim)
        return [rows[first : first + size] for first in range(0, max(len(rows), 1), size)]


def _oracle(model: Model) -> Oracle:
    try:
        return Oracle.over(model.technology.constant, model.senses, model.limits.constant, model.lower, model.upper)
    except InvalidInput as empty:
        raise InvalidInput(str(empty), ("rows",)) from empty


def _solution(decision: Array, objective: float, status: int, proven: bool) -> Solution:
    if status == UNBOUNDED:
        return Solution(decision, objective, Status.UNBOUNDED, REASONS[Status.UNBOUNDED], SIMPLEX)
    if status == OPTIMAL and proven:
        return Solution(decision, objective, Status.OPTIMAL, "", SIMPLEX, objective, 0.0)
    return Solution(decision, objective, Status.BEST_EFFORT, _UNPROVEN if status == OPTIMAL else _FAILED, SIMPLEX)
