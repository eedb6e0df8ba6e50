"""What is done in the second stage of a two-stage problem, and what its rules cost.

Plans come from the certified bases that costs come from, so that they add up to them. Where several plans cost the
least, this is one of them. Prices are the duals of the program over all scenarios: by how much its least cost would
fall for one more unit of room in a rule. At a kink, where more room is worth less than less room would cost, the price
lies between the two. Whole numbers are held at the decision's, since a search over them has no duals.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bco_core import deadline
from bco_core.problems.base import EXPECTATION, Price, Status
from bco_core.problems.linear.autograd import RightHandSide
from bco_core.problems.linear.description import Description, Where
from bco_core.problems.linear.extensive import cost_unit, is_long, program_of
from bco_core.problems.second_stage import SecondStagePlan
from bco_core.solvers import highs
from bco_core.solvers.basis_pool import BasisPool
from bco_core.solvers.dual_simplex import OPTIMAL
from bco_core.solvers.linear_form import Array, LinearProgram

# Prices below this share of the largest unit cost are rounding.
_SMALL = 1e-9


def plan(
    data: Description, pool: BasisPool, right: RightHandSide, decision: Tensor, outcomes: Tensor
) -> SecondStagePlan:
    """The recourse after a decision (d_z,) for outcomes (K, d_y), which lie within their bounds."""
    form, recourse = pool.form, data.recourse
    watching = BasisPool(form, np.arange(form.matrix.shape[1]), pool.bases)
    solved = watching.solve(*right.at(outcomes, decision.expand(len(outcomes), -1)))
    amounts = form.offset + solved.primal @ form.by_column.T
    # Rounding must not carry an amount past its bounds, nor the sign of a zero.
    amounts = np.clip(amounts, recourse.lower, recourse.upper) + 0.0
    amounts[solved.status != OPTIMAL] = np.nan
    limits = data.constant + outcomes.numpy() @ data.by_outcome.T - data.by_decision @ decision.numpy()
    slack = np.where(recourse.senses < 0, -1.0, 1.0) * (amounts @ recourse.matrix.T - limits)
    numbers = (amounts, amounts @ recourse.cost, np.maximum(slack, 0.0), recourse.cost)
    return SecondStagePlan(*map(torch.from_numpy, numbers))


def prices(data: Description, decision: Array, atoms: Array, weights: Array) -> list[Price]:
    """The rules that cost something over atoms (K, d_y) with weights (K,), in the order of the specification.

    A bound of zero below is no rule to give way.
    """
    (deadline.before_long_work if is_long(data, len(atoms)) else deadline.check)()
    first, recourse, count = data.first, data.recourse, len(atoms)
    program = program_of(data, atoms, weights, EXPECTATION)
    whole = np.zeros(len(program.cost), dtype=bool)
    whole[: len(decision)] = data.integer
    cost, matrix, least, most, lower, upper = program.held(decision, whole).rows_and_bounds
    unit = cost_unit(data)
    answer = highs.run(highs.model_of(cost / unit, matrix, least, most, lower, upper))
    if answer.status is not Status.OPTIMAL:
        return []
    duals = answer.duals * unit
    reduced = cost - matrix.T @ duals
    rows, bounds = len(data.limits), len(first.cost)
    by_row = duals[rows:].reshape(count, -1).sum(axis=0)
    by_amount = reduced[bounds:].reshape(count, -1)
    places, least_at, most_at = data.bounds_at
    found: list[tuple[Where, float]] = [(place, abs(dual)) for place, dual in zip(data.limits_at, duals, strict=False)]
    found += [(place, abs(dual)) for place, dual in zip(data.rows_at, by_row, strict=True)]
    each: list[tuple[Where, int, float, LinearProgram, str, str]] = [
        ((places, j), j, reduced[j], first, least_at, most_at) for j in np.flatnonzero(~data.integer).tolist()
    ]
    below, above = by_amount.clip(min=0).sum(axis=0), by_amount.clip(max=0).sum(axis=0)
    for j, place in enumerate(data.recourse_at):
        each += [(place, j, worth, recourse, "minimum", "maximum") for worth in (below[j], above[j])]
    for place, j, worth, of, low, high in each:
        if worth > 0 and of.lower[j]:
            found.append(((*place, low), float(worth)))
        if worth < 0:
            found.append(((*place, high), -float(worth)))
    largest = float(np.abs(np.concatenate([first.cost, recourse.cost])).max())
    return [Price(where, float(value)) for where, value in found if len(where) > 1 and value > _SMALL * largest]
