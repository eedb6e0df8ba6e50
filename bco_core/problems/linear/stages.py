"""A linear model split into its two stages, as one sparse program over scenarios or one program per outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core import deadlines
from bco_core.problems.base import Risk
from bco_core.problems.linear.affine import Matrix, Vector, above, beside, stacked
from bco_core.problems.linear.model import LinearModel
from bco_core.problems.linear.program import SparseProgram
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array, LinearProgram


@dataclass(frozen=True)
class StagedModel:
    """A model with robust rows, split in two: ``first`` has the certain rows that bind decisions alone, ``second``
    those with recourse."""

    model: LinearModel
    first: LinearModel
    second: LinearModel

    @staticmethod
    def of(model: LinearModel) -> StagedModel:
        second = model.with_rows(np.flatnonzero(model.second_stage))
        first = model.with_rows(np.flatnonzero(~model.second_stage))
        return StagedModel(model, first, second)

    @cached_property
    def matrix(self) -> Matrix:
        """The matrix of the second stage over decisions and recourse together."""
        return beside(self.second.technology, self.second.recourse)

    @property
    def entries_per_scenario(self) -> int:
        """Number of matrix entries that every scenario adds to a program."""
        return len(self.matrix.constant.data)

    # Dense programs, for kernels that take small models in which outcomes change limits alone.

    @cached_property
    def first_program(self) -> LinearProgram:
        """The first stage; its limits are those of ``first``."""
        first = self.first
        return LinearProgram(
            first.cost.constant, first.technology.constant.toarray(), first.senses, first.lower, first.upper
        )

    @cached_property
    def recourse_program(self) -> LinearProgram:
        """The recourse; its limits are those of ``second`` less ``by_decision`` z."""
        second = self.second
        return LinearProgram(
            second.recourse_cost.constant,
            second.recourse.constant.toarray(),
            second.senses,
            second.recourse_lower,
            second.recourse_upper,
        )

    @cached_property
    def by_decision(self) -> Array:
        """The technology matrix (rows, d_z) of the second stage."""
        dense: Array = self.second.technology.constant.toarray()
        return dense

    @cached_property
    def by_outcome(self) -> Array:
        """The derivative (rows, d_y) of the second stage's limits by the outcome."""
        dense: Array = self.second.limits.by_outcome.toarray()
        return dense

    def combined_program(self) -> LinearProgram:
        """Return both stages as one program in (z, x) for one outcome, whose limits are those of first and second."""
        first, recourse = self.first_program, self.recourse_program
        top = np.concatenate([first.matrix, np.zeros((len(first.matrix), len(recourse.cost)))], axis=1)
        bottom = np.concatenate([self.by_decision, recourse.matrix], axis=1)
        return LinearProgram(
            np.concatenate([first.cost, recourse.cost]),
            np.concatenate([top, bottom]),
            np.concatenate([first.senses, recourse.senses]),
            np.concatenate([first.lower, recourse.lower]),
            np.concatenate([first.upper, recourse.upper]),
        )


def program_over(
    stages: StagedModel,
    atoms: Array,
    weights: Array,
    risk: Risk,
    first_cost: Array | None = None,
    limits: Array | None = None,
) -> SparseProgram:
    """Return the program over atoms (K, d_y) with weights (K,): variables z, then x_k for every scenario.

    For CVaR, η and the excesses follow. ``first_cost`` (d_z,) and the second stage's ``limits`` (K, rows) are evaluated
    at the atoms unless the caller has them.
    """
    first, second, count = stages.first, stages.second, len(atoms)
    dim, wide = len(first.lower), len(second.recourse_lower)
    costs, recourse_costs = second.cost.at(atoms), second.recourse_cost.at(atoms)
    shares = weights * (1 - risk.cvar_weight)
    width = dim + count * wide
    blocks = [_padded(first.technology.constant, width), _repeated(stages.matrix, atoms, dim, wide)]
    cost = [shares @ costs if first_cost is None else first_cost, (shares[:, None] * recourse_costs).ravel()]
    lower, upper = (
        [first.lower, np.tile(second.recourse_lower, count)],
        [first.upper, np.tile(second.recourse_upper, count)],
    )
    senses = [first.senses, np.tile(second.senses, count)]
    right = [first.limits.constant, (second.limits.at(atoms) if limits is None else limits).ravel()]
    if risk.cvar_weight:
        # w·CVaR = w·(η + Σ_k p_k v_k/(1 − α)) with v_k ≥ c'z + q'x_k − η, v ≥ 0.
        tail = sparse.hstack([sparse.csr_array(np.ones((count, 1))), sparse.eye_array(count)])
        columns = dim + np.arange(count * wide)
        own = sparse.csr_array((-recourse_costs.ravel(), columns, np.arange(count + 1) * wide), shape=(count, width))
        rows = sparse.csr_array(own + _padded(sparse.csr_array(-costs), width))
        rules = sparse.vstack(blocks)
        nothing = sparse.csr_array((rules.shape[0], 1 + count))
        blocks = [sparse.hstack([rules, nothing]), sparse.hstack([rows, tail])]
        cost += [np.array([risk.cvar_weight]), risk.cvar_weight * weights / (1 - risk.cvar_level)]
        lower += [np.array([-np.inf]), np.zeros(count)]
        upper += [np.full(1 + count, np.inf)]
        senses.append(np.ones(count, dtype=np.int64))
        right.append(np.zeros(count))
    matrix = sparse.csr_array(sparse.vstack(blocks, format="csr"))
    each, sides, bounds, least, most = (np.concatenate(one) for one in (cost, senses, right, lower, upper))
    return SparseProgram(each, matrix, sides, bounds, least, most)


def integer_columns(stages: StagedModel, program: SparseProgram, scenarios: int) -> NDArray[np.bool_]:
    """Mark the variables of a program over this number of scenarios that must be integers."""
    marked = np.concatenate([stages.first.integer, np.tile(stages.second.recourse_integer, scenarios)])
    return np.pad(marked, (0, len(program.cost) - len(marked)))


def _padded(matrix: sparse.csr_array, width: int) -> sparse.csr_array:
    return sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], width))


def _repeated(matrix: Matrix, atoms: Array, dim: int, wide: int) -> sparse.csr_array:
    """Return the rows of all scenarios: the first ``dim`` columns are shared, each scenario has ``wide`` of its own."""
    count, constant = len(atoms), matrix.constant
    rows, entries = constant.shape[0], len(constant.data)
    data = np.tile(constant.data, (count, 1))
    data[:, matrix.at_entry] = matrix.entries(atoms)
    own = np.where(constant.indices >= dim, wide, 0).astype(np.int64)
    columns = constant.indices.astype(np.int64) + np.arange(count)[:, None] * own
    starts = (constant.indptr[:-1].astype(np.int64) + np.arange(count)[:, None] * entries).ravel()
    starts = np.append(starts, count * entries)
    return sparse.csr_array((data.ravel(), columns.ravel(), starts), shape=(count * rows, dim + count * wide))


@dataclass(frozen=True)
class ProgramSequence:
    """Programs of one sparsity pattern, one per outcome; HiGHS starts each from the basis of the one before."""

    matrix: Matrix
    cost: Vector
    senses: NDArray[np.int64]
    lower: Array
    upper: Array
    integer: NDArray[np.bool_]

    @staticmethod
    def of_stages(stages: StagedModel) -> ProgramSequence:
        """Join decisions and recourse for one outcome, integrality relaxed; limits are those of first, then second."""
        first, second = stages.first, stages.second
        return ProgramSequence(
            above(first.technology, stages.matrix),
            stacked(first.cost, second.recourse_cost),
            np.concatenate([first.senses, second.senses]),
            np.concatenate([first.lower, second.recourse_lower]),
            np.concatenate([first.upper, second.recourse_upper]),
            np.zeros(len(first.lower) + len(second.recourse_lower), dtype=bool),
        )

    def solve(self, outcomes: Array, limits: Array) -> Iterator[highs.HighsAnswer]:
        """Solve for outcomes (n, d_y) with limits (n, rows)."""
        costs, entries = self.cost.at(outcomes), self.matrix.entries(outcomes)
        least = np.where(self.senses >= 0, limits, -np.inf)
        most = np.where(self.senses <= 0, limits, np.inf)
        rows, columns = (np.arange(size, dtype=np.int32) for size in self.matrix.constant.shape)
        solver: highspy.Highs | None = None
        for k in range(len(outcomes)):
            deadlines.check()
            if solver is None or not self.matrix.certain:
                basis = None if solver is None or self.integer.any() else solver.getBasis()
                solver = highs.model_of(
                    costs[k],
                    self.matrix.with_entries(entries[k]),
                    least[k],
                    most[k],
                    self.lower,
                    self.upper,
                    self.integer,
                )
                if basis is not None and basis.valid:
                    solver.setBasis(basis)
            else:
                solver.changeColsCost(len(columns), columns, costs[k])
                solver.changeRowsBounds(len(rows), rows, least[k], most[k])  # type: ignore[attr-defined]
            yield highs.run(solver)
