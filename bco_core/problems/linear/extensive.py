"""Two-stage problems as one linear program: for a single outcome, and for all scenarios, which HiGHS then solves."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from bco_core.problems.base import Risk, Status
from bco_core.problems.linear.description import Description
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array, LinearProgram
from bco_core.status import HIGHS

REASONS = {
    Status.OPTIMAL: "",
    Status.INFEASIBLE: "no decision leaves every scenario with a recourse that keeps the rows and bounds",
    Status.UNBOUNDED: "the cost can fall without limit over these scenarios",
    Status.TIME_LIMIT: "the time limit came before the best decision was proven; this is the best one found, if any",
}


@dataclass(frozen=True)
class Solution:
    """One decision (d_z,) over scenarios, its risk, how the solve ended and what found it."""

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


def extensive(data: Description, atoms: Array, weights: Array, risk: Risk, until: float | None) -> Solution:
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
    return Solution(decision, answer.objective, answer.status, REASONS[answer.status], HIGHS)
