"""A linear model over scenarios as one sparse program, and over one outcome after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core import deadline
from bco_core.problems.base import Risk
from bco_core.problems.linear.affine import Matrix, Vector, above, beside, stacked
from bco_core.problems.linear.extensive import Program
from bco_core.problems.linear.model import Model
from bco_core.problems.linear.robust_rows import only_rows
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array


@dataclass(frozen=True)
class Stages:
    """A settled model and its two parts: ``first`` has the certain rows of decisions alone, ``later`` those with
    recourse, whose matrix over decisions and recourse together is ``matrix``."""

    model: Model
    first: Model
    later: Model
    matrix: Matrix

    @staticmethod
    def of(model: Model) -> Stages:
        later = only_rows(model, np.flatnonzero(model.later))
        first = only_rows(model, np.flatnonzero(~model.later))
        return Stages(model, first, later, beside(later.technology, later.recourse))

    @property
    def numbers(self) -> int:
        """Entries of the matrix that every scenario has its own of."""
        return len(self.matrix.constant.data)


def program_over(stages: Stages, atoms: Array, weights: Array, risk: Risk) -> Program:
    """Variables z, then x_k for every scenario; for CVaR also η and excesses. Atoms (K, d_y), weights (K,)."""
    first, later, count = stages.first, stages.later, len(atoms)
    dim, wide = len(first.lower), len(later.recourse_lower)
    costs, spent = later.cost.at(atoms), later.recourse_cost.at(atoms)
    shares = weights * (1 - risk.cvar_weight)
    width = dim + count * wide
    blocks = [_padded(first.technology.constant, width), _repeated(stages.matrix, atoms, dim, wide)]
    cost = [shares @ costs, (shares[:, None] * spent).ravel()]
    lower, upper = (
        [first.lower, np.tile(later.recourse_lower, count)],
        [first.upper, np.tile(later.recourse_upper, count)],
    )
    senses = [first.senses, np.tile(later.senses, count)]
    limits = [first.limits.constant, later.limits.at(atoms).ravel()]
    if risk.cvar_weight:
        # w·CVaR = w·(η + Σ_k p_k v_k/(1 − α)) with v_k ≥ c'z + q'x_k − η, v ≥ 0.
        tail = sparse.hstack([sparse.csr_array(np.ones((count, 1))), sparse.eye_array(count)])
        columns = dim + np.arange(count * wide)
        own = sparse.csr_array((-spent.ravel(), columns, np.arange(count + 1) * wide), shape=(count, width))
        rows = sparse.csr_array(own + _padded(sparse.csr_array(-costs), width))
        rules = sparse.vstack(blocks)
        nothing = sparse.csr_array((rules.shape[0], 1 + count))
        blocks = [sparse.hstack([rules, nothing]), sparse.hstack([rows, tail])]
        cost += [np.array([risk.cvar_weight]), risk.cvar_weight * weights / (1 - risk.cvar_level)]
        lower += [np.array([-np.inf]), np.zeros(count)]
        upper += [np.full(1 + count, np.inf)]
        senses.append(np.ones(count, dtype=np.int64))
        limits.append(np.zeros(count))
    matrix = sparse.csr_array(sparse.vstack(blocks, format="csr"))
    parts = (np.concatenate(one) for one in (cost, senses, limits, lower, upper))
    each, sides, right, least, most = parts
    return Program(each, matrix, sides, right, least, most)


def whole_in(stages: Stages, program: Program, scenarios: int) -> NDArray[np.bool_]:
    """Which variables of a program over so many scenarios must be whole numbers."""
    marked = np.concatenate([stages.first.integer, np.tile(stages.later.recourse_integer, scenarios)])
    return np.pad(marked, (0, len(program.cost) - len(marked)))


def _padded(matrix: sparse.csr_array, width: int) -> sparse.csr_array:
    return sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=(matrix.shape[0], width))


def _repeated(matrix: Matrix, atoms: Array, dim: int, wide: int) -> sparse.csr_array:
    """The rows of all scenarios: the first ``dim`` columns are common, the next ``wide`` each scenario's own."""
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
class OneByOne:
    """Programs of one pattern whose numbers change from one outcome to the next, which HiGHS goes on from."""

    matrix: Matrix
    cost: Vector
    senses: NDArray[np.int64]
    lower: Array
    upper: Array
    integer: NDArray[np.bool_]

    @staticmethod
    def of_stages(stages: Stages) -> OneByOne:
        """Decisions and recourse together for one outcome, whole numbers relaxed; its limits are those of both."""
        first, later = stages.first, stages.later
        return OneByOne(
            above(first.technology, stages.matrix),
            stacked(first.cost, later.recourse_cost),
            np.concatenate([first.senses, later.senses]),
            np.concatenate([first.lower, later.recourse_lower]),
            np.concatenate([first.upper, later.recourse_upper]),
            np.zeros(len(first.lower) + len(later.recourse_lower), dtype=bool),
        )

    def solve(self, outcomes: Array, limits: Array) -> Iterator[highs.HighsAnswer]:
        """For outcomes (n, d_y) and the limits (n, rows) of each."""
        costs, entries = self.cost.at(outcomes), self.matrix.entries(outcomes)
        least = np.where(self.senses >= 0, limits, -np.inf)
        most = np.where(self.senses <= 0, limits, np.inf)
        rows, columns = (np.arange(size, dtype=np.int32) for size in self.matrix.constant.shape)
        solver: highspy.Highs | None = None
        for k in range(len(outcomes)):
            deadline.check()
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
