"""Linear models whose costs alone are uncertain: min c(y)'z over certain rows and bounds, c affine in the outcomes.

The cost of a decision is affine in the outcome, so its expectation is its cost for the mean outcome: hedging against
expected cost is deciding for the mean. Point decisions come from one polyhedron and many costs, which is what
:class:`~bco_core.solvers.primal_simplex.Oracle` is for. They jump from vertex to vertex as predictions move, so
learning works on a surrogate (:mod:`bco_core.problems.linear.spo_plus`). Integer decisions, and CVaR, go to HiGHS.

An outcome beyond its stated bounds counts as the bound.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from bco_core import deadlines
from bco_core.errors import InvalidInput
from bco_core.problems.base import EXPECTATION, Prescription, Price, Risk, Status
from bco_core.problems.linear.first_stage import LinearProblem, fix_entries, is_bounded, program_at, row_prices
from bco_core.problems.linear.model import LinearModel
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
from bco_core.problems.linear.spo_plus import loss_and_slope, spo_plus
from bco_core.problems.surrogate import Hindsight
from bco_core.solvers.linear_form import Array
from bco_core.solvers.primal_simplex import OPTIMAL, UNBOUNDED, Oracle
from bco_core.status import HIGHS, SIMPLEX

# Numbers of decisions in one batch.
_NUMBERS_AT_ONCE = 20_000_000
_UNPROVEN = "the solver found this decision, and there is no proof that it is the best"
_FAILED = "the solver found no decision for these costs"
_POOL_SIZE = 64
# Scenarios × outcomes from which a program over them counts as long work.
_LONG = 4_000


class IncumbentPool:
    """The last integer decisions that searches found; a later search starts from the cheapest for its costs."""

    def __init__(self) -> None:
        self._decisions: deque[Array] = deque(maxlen=_POOL_SIZE)
        self._lock = threading.Lock()

    def add(self, decision: Array) -> None:
        with self._lock:
            if not any(np.array_equal(decision, one) for one in self._decisions):
                self._decisions.append(decision)

    def best(self, cost: Array) -> Array | None:
        """Return the cheapest decision (d_z,) at a cost (d_z,), if there is any."""
        with self._lock:
            decisions = list(self._decisions)
        return min(decisions, key=lambda one: float(cost @ one), default=None)


class IntegerSearch:
    """Searches by HiGHS, for integers and for CVaR: one context after the other, each with a share of the time."""

    def __init__(
        self, model: LinearModel, incumbents: IncumbentPool, time_limit_seconds: float | None, contexts: int
    ) -> None:
        self._model, self._incumbents, self._left = model, incumbents, contexts
        self._deadline = None if time_limit_seconds is None else time.monotonic() + time_limit_seconds

    def at(self, outcome: Array) -> Solution:
        """Return the optimal decision for one outcome (d_y,)."""
        cost = self._model.cost.at(outcome[None])[0]
        solution = self._solve(program_at(self._model, cost), cost, True)
        return self._with_risk(solution, cost, float(cost @ solution.decision))

    def over(self, atoms: Array, weights: Array, risk: Risk) -> Solution:
        """Return the decision of least risk over outcomes (K, d_y) with weights (K,)."""
        mean = self._model.cost.at((weights @ atoms)[None])[0]
        long = bool(self._model.integer.any()) or atoms.size >= _LONG
        solution = self._solve(_cvar_program(self._model, atoms, weights, risk, mean), mean, long)
        slopes = self._model.cost.by_outcome.T @ solution.decision
        costs = float(self._model.cost.constant @ solution.decision) + atoms @ slopes
        return self._with_risk(solution, mean, risk_of(costs, weights, risk))

    def _solve(self, program: SparseProgram, mean: Array, long: bool) -> Solution:
        """Return the optimal decision; where all costs are small, HiGHS gets them in units of the largest."""
        (deadlines.before_long_work if long else deadlines.check)()
        dim, deadline = len(mean), self._turn()
        if deadline is not None and time.monotonic() >= deadline:
            return Solution(np.full(dim, np.nan), np.nan, Status.TIME_LIMIT, NO_TIME, HIGHS)
        integer = np.zeros(len(program.cost), dtype=bool)
        integer[:dim] = self._model.integer
        unit = min(float(np.abs(program.cost).max(initial=0)), 1.0) or 1.0
        gap = replace(self._model.gap, absolute=self._model.gap.absolute / unit)
        start = self._incumbents.best(mean) if integer.any() and len(program.cost) == dim else None
        scaled = replace(program, cost=program.cost / unit)
        solution = minimize_program(scaled, integer, self._fixed(mean) / unit, deadline, gap, start)
        if integer.any() and np.isfinite(solution.decision).all():
            self._incumbents.add(solution.decision[:dim])
        return replace(
            solution,
            decision=solution.decision[:dim],
            objective=solution.objective * unit,
            bound=solution.bound * unit,
        )

    def _with_risk(self, solution: Solution, mean: Array, objective: float) -> Solution:
        """Return the solution with its recomputed risk and its gap."""
        return with_gap(replace(solution, objective=objective), self._fixed(mean), self._model.gap)

    def _fixed(self, mean: Array) -> float:
        """Return the mean cost that no decision can avoid."""
        return float(mean @ np.clip(0.0, self._model.lower, self._model.upper))

    def _turn(self) -> float | None:
        """Return when the next context must be decided."""
        contexts, self._left = max(self._left, 1), self._left - 1
        return time_share(self._deadline, contexts)


def _cvar_program(model: LinearModel, atoms: Array, weights: Array, risk: Risk, mean: Array) -> SparseProgram:
    """Return the program min (1 − w)·c̄'z + w·(η + Σ_k p_k v_k/(1 − α)) with v_k ≥ c(y_k)'z − η, v ≥ 0.

    Variables are z, t = ∂c'z and s = c(0)'z, η, v: scenarios then have as many numbers as there are outcomes.
    """
    count, outcomes = atoms.shape
    rows, cost = model.technology.constant.shape[0], model.cost
    one = sparse.csr_array(np.ones((count, 1)))
    blocks = [
        [model.technology.constant, sparse.csr_array((rows, outcomes)), None, None, None],
        [cost.by_outcome.T, -sparse.eye_array(outcomes), None, None, None],
        [sparse.csr_array(cost.constant[None]), None, -sparse.eye_array(1), None, None],
        [None, sparse.csr_array(-atoms), -one, one, sparse.eye_array(count)],
    ]
    tail = risk.cvar_weight
    return SparseProgram(
        np.concatenate([(1 - tail) * mean, np.zeros(outcomes + 1), [tail], tail * weights / (1 - risk.cvar_level)]),
        sparse.csr_array(sparse.block_array(blocks, format="csr")),
        np.concatenate([model.senses, np.zeros(outcomes + 1, dtype=np.int64), np.ones(count, dtype=np.int64)]),
        np.concatenate([model.limits.constant, np.zeros(outcomes + 1 + count)]),
        np.concatenate([model.lower, np.full(outcomes + 2, -np.inf), np.zeros(count)]),
        np.concatenate([model.upper, np.full(outcomes + 2 + count, np.inf)]),
    )


@dataclass(frozen=True)
class UncertainCostLinear(LinearProblem):
    """A model and the oracle of its rows. ``relaxation`` drops the integrality of decisions."""

    model: LinearModel
    oracle: Oracle
    incumbents: IncumbentPool = field(default_factory=IncumbentPool)

    @staticmethod
    def of(model: LinearModel) -> UncertainCostLinear:
        """Build from a model; InvalidInput if no decision satisfies the rows, or the cost never has a minimum."""
        problem = UncertainCostLinear(model, _oracle(model))
        if not is_bounded(model):
            raise InvalidInput(
                "the cost can fall without limit whatever the outcome: a decision needs a bound or a row",
                ("decisions",),
            )
        return problem

    @property
    def first_model(self) -> LinearModel:
        return self.model

    @property
    def relaxation(self) -> Self:
        if not self.model.integer.any():
            return self
        return replace(self, model=replace(self.model, integer=np.zeros_like(self.model.integer)))

    @property
    def loss(self) -> str:
        return "spo_plus"

    def fixed(self, decision: Tensor) -> UncertainCostLinear:
        model = fix_entries(self.model, decision.double().numpy())
        return UncertainCostLinear(model, _oracle(model))

    def decide(self, outcomes: Tensor) -> Tensor:
        """Return argmin over z of c(ŷ)'z, integrality relaxed; NaN where ŷ is, or lets the cost fall without limit.

        Its derivative is zero almost everywhere.
        """
        flat = self.clip(outcomes).detach().reshape(-1, self.outcome_dim).numpy()
        decisions = [self.oracle.solve(self.model.cost.at(part)).values for part in self._parts(flat)]
        return torch.from_numpy(np.concatenate(decisions)).view(*outcomes.shape[:-1], self.decision_dim)

    def cost(self, decisions: Tensor, outcomes: Tensor) -> Tensor:
        """Return c(y)'z as c(0)'z + (∂c'z)'y, which needs no table of costs."""
        decisions = decisions.double()
        return decisions @ self._constant + ((decisions @ self._by_outcome) * self.clip(outcomes)).sum(-1)

    def hindsight(self, outcomes: Tensor) -> Hindsight:
        flat = self.clip(outcomes).reshape(-1, self.outcome_dim)
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
        """Return SPO+ of predictions clipped, as for decisions, to the outcomes' bounds."""
        known = self.hindsight(outcomes) if hindsight is None else hindsight
        return spo_plus(self.clip(predictions), self.clip(outcomes), known, self._best)

    def loss_and_slope(self, predictions: Array, outcomes: Array, hindsight: Hindsight) -> tuple[Array, Array]:
        if not self._bounded:
            return loss_and_slope(predictions, outcomes, hindsight, self._best)
        low, high = self.model.lowest, self.model.highest
        losses, slope = loss_and_slope(predictions.clip(low, high), outcomes.clip(low, high), hindsight, self._best)
        return losses, np.where((predictions >= low) & (predictions <= high), slope, 0.0)

    def _best(self, outcomes: Array) -> tuple[Array, Array]:
        """Return ∂c'z (n, d_y) and the cost at y = 0 (n,) of optimal decisions for outcomes (n, d_y)."""
        slopes, levels = [], []
        for part in self._parts(outcomes):
            best = self.oracle.solve(self.model.cost.at(part)).values
            slopes.append(best @ self.model.cost.by_outcome)
            levels.append(best @ self.model.cost.constant)
        return np.concatenate(slopes), np.concatenate(levels)

    def prescribe(
        self, outcomes: Tensor, weights: Tensor, risk: Risk = EXPECTATION, time_limit_seconds: float | None = None
    ) -> Prescription:
        atoms = self.clip(outcomes).detach()
        shares = weights.double().expand(atoms.shape[:2])
        mean = torch.einsum("bky,bk->by", atoms, shares).numpy()
        if risk.cvar_weight:
            search = IntegerSearch(self.model, self.incumbents, time_limit_seconds, len(atoms))
            pairs = zip(atoms.numpy(), shares.numpy(), strict=True)
            solutions = [search.over(one[share > 0], share[share > 0], risk) for one, share in pairs]
        else:
            solutions = [one for part in self._parts(mean) for one in self._certified(part)]
            # Many relaxations, such as a path's, have an integral optimum; the others need a search.
            left = [index for index, one in enumerate(solutions) if not self._solves(one)]
            search = IntegerSearch(self.model, self.incumbents, time_limit_seconds, len(left))
            for index in left:
                solutions[index] = search.at(mean[index])
        return to_prescription(solutions)

    def _certified(self, outcomes: Array) -> list[Solution]:
        """Return the oracle's solutions for outcomes (n, d_y): optimal where proven."""
        deadlines.check()
        solved = self.oracle.solve(self.model.cost.at(outcomes))
        return [
            _solution(*one)
            for one in zip(solved.values, solved.objective, solved.status.tolist(), solved.certified, strict=True)
        ]

    def _solves(self, solution: Solution) -> bool:
        """Return whether a solution of the relaxation solves the problem: proven, and integral where it must be."""
        values = solution.decision[self.model.integer]
        return not len(values) or (solution.status is Status.OPTIMAL and np.array_equal(values, np.round(values)))

    def prices(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> list[Price]:
        mean = (weights.double() @ self.clip(outcomes)).numpy()
        return row_prices(self.model, decision.double().numpy(), self.model.cost.at(mean[None])[0])

    @cached_property
    def _constant(self) -> Tensor:
        return torch.from_numpy(self.model.cost.constant)

    @cached_property
    def _by_outcome(self) -> Tensor:
        return torch.from_numpy(self.model.cost.by_outcome.toarray())

    @cached_property
    def _bounded(self) -> bool:
        return bool(np.isfinite(self.model.lowest).any() or np.isfinite(self.model.highest).any())

    def clip(self, outcomes: Tensor) -> Tensor:
        return outcomes.double().clamp(*self.counted_within) if self._bounded else outcomes.double()

    def _parts(self, rows: Array) -> list[Array]:
        """Split rows (n, d_y) into at least one part, each small enough for its decisions to fit into memory."""
        size = max(1, _NUMBERS_AT_ONCE // self.decision_dim)
        return [rows[first : first + size] for first in range(0, max(len(rows), 1), size)]


def _oracle(model: LinearModel) -> Oracle:
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
