"""The certain rows of a linear model, in which decisions alone take part: what keeps or breaks them, what they cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bco_core import deadline
from bco_core.problems.base import Breach, Price, Status
from bco_core.problems.linear.extensive import Program
from bco_core.problems.linear.model import Model
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array

# How nearly a decision must keep a rule, beside the size of what the rule compares.
_ROOM = 1e-6
# Prices below this share of the largest unit cost are rounding.
_SMALL = 1e-9
# Rows of a program from which on solving it counts as long work.
_LONG = 2_000


def program_at(model: Model, cost: Array) -> Program:
    """The rows and bounds with a cost (d_z,)."""
    return Program(cost, model.technology.constant, model.senses, model.limits.constant, model.lower, model.upper)


def fixed(model: Model, decision: Array) -> Model:
    """The model in which the entries of a decision (d_z,) that are not NaN are decided already, whatever they are."""
    known = ~np.isnan(decision)
    lower, upper = (np.where(known, decision, bound) for bound in (model.lower, model.upper))
    return replace(model, lower=lower, upper=upper, integer=model.integer & ~known)


def kept(model: Model, decisions: Array) -> NDArray[np.bool_]:
    """Whether decisions (n, d_z) keep rows, bounds and whole numbers, (n,)."""
    limits = model.limits.constant
    over = (model.technology.constant @ decisions.T).T - limits
    room, edge = _ROOM * (1 + np.abs(limits)), _ROOM * (1 + np.abs(decisions))
    rows = ((over >= -room) | (model.senses < 0)) & ((over <= room) | (model.senses > 0))
    bounds = (decisions >= model.lower - edge) & (decisions <= model.upper + edge)
    whole = (np.abs(decisions - np.round(decisions)) <= edge) | ~model.integer
    found: NDArray[np.bool_] = rows.all(axis=1) & (bounds & whole).all(axis=1)
    return found


def broken_rules(model: Model, decision: Array) -> list[Breach]:
    """The bounds, whole numbers and rows that a decision (d_z,) does not keep."""
    found: list[Breach] = []
    room = _ROOM * (1 + np.abs(decision))
    below, above = model.lower - decision, decision - model.upper
    odd = np.abs(decision - np.round(decision))
    for index in np.flatnonzero((below > room) | (above > room) | (model.integer & (odd > room))).tolist():
        name, value = model.decision_names[index], decision[index]
        if below[index] > room[index]:
            sentence = f"{name} is {value:.6g}, {below[index]:.6g} below its least, {model.lower[index]:.6g}"
            found.append(Breach(("decisions", index, "minimum"), float(below[index]), sentence))
        if above[index] > room[index]:
            sentence = f"{name} is {value:.6g}, {above[index]:.6g} above its most, {model.upper[index]:.6g}"
            found.append(Breach(("decisions", index, "maximum"), float(above[index]), sentence))
        if model.integer[index] and odd[index] > room[index]:
            sentence = f"{name} is {value:.6g} and only whole numbers will do"
            found.append(Breach(("decisions", index, "integer"), float(odd[index]), sentence))
    limits = model.limits.constant
    sums = model.technology.constant @ decision
    over, edges = sums - limits, _ROOM * (1 + np.abs(limits))
    short, long = (over < -edges) & (model.senses >= 0), (over > edges) & (model.senses <= 0)
    for index in np.flatnonzero(short | long).tolist():
        side = "below" if over[index] < 0 else "above"
        sentence = (
            f"'{model.row_names[index]}' comes to {sums[index]:.6g}, {abs(over[index]):.6g} {side} its limit, "
            f"{limits[index]:.6g}"
        )
        found.append(Breach(("rows", int(model.rows_at[index])), float(abs(over[index])), sentence))
    return found


def prices(model: Model, decision: Array, cost: Array) -> list[Price]:
    """What one more unit of room is worth in each rule that binds, for a cost (d_z,), by the duals; whole numbers are
    held at the decision's (d_z,). A bound of zero below is no rule to give way."""
    (deadline.before_long_work if len(model.senses) >= _LONG else deadline.check)()
    largest = float(np.abs(cost).max(initial=0)) or 1.0
    held = program_at(model, cost / largest).held(decision, model.integer)
    answer = highs.run(highs.model_of(*held.rows_and_bounds))
    if answer.status is not Status.OPTIMAL:
        return []
    reduced = held.cost - held.matrix.T @ answer.duals
    found = [
        Price(("rows", int(model.rows_at[row])), abs(float(dual)) * largest)
        for row, dual in enumerate(answer.duals)
        if abs(dual) > _SMALL
    ]
    for index in np.flatnonzero((np.abs(reduced) > _SMALL) & ~model.integer).tolist():
        worth = float(reduced[index])
        if worth > 0 and model.lower[index]:
            found.append(Price(("decisions", index, "minimum"), worth * largest))
        if worth < 0:
            found.append(Price(("decisions", index, "maximum"), -worth * largest))
    return found


def is_bounded(model: Model) -> bool:
    """Whether some outcome within its bounds leaves the cost a least value over the rows and bounds.

    It does where the dual program has a solution: c(y) = A'π + λ − μ with signs as the rows' senses say, and λ, μ ≥ 0
    where there is a lower and an upper bound. Outcomes and duals together are one linear program.
    """
    low, high = np.isfinite(model.lower), np.isfinite(model.upper)
    if (low & high).all():
        return True
    identity = sparse.eye_array(len(model.lower), format="csr")
    matrix = sparse.csr_array(
        sparse.hstack(
            [model.technology.constant.T, identity[:, low], -identity[:, high], -model.cost.by_outcome], format="csr"
        )
    )
    duals, sides = len(model.senses), int(low.sum() + high.sum())
    lower = np.concatenate([np.where(model.senses > 0, 0.0, -np.inf), np.zeros(sides), model.lowest])
    upper = np.concatenate([np.where(model.senses < 0, 0.0, np.inf), np.full(sides, np.inf), model.highest])
    nothing, constant = np.zeros(duals + sides + len(model.lowest)), model.cost.constant
    answer = highs.run(highs.model_of(nothing, matrix, constant, constant, lower, upper))
    return answer.status is Status.OPTIMAL


def has_whole_numbers(model: Model) -> bool:
    """Whether some decision in whole numbers keeps rows and bounds; a corner that is whole already saves the search."""
    program = program_at(model, np.zeros(len(model.lower))).rows_and_bounds
    corner = highs.run(highs.model_of(*program))
    if corner.status is not Status.OPTIMAL or kept(model, corner.values[None])[0]:
        return corner.status is Status.OPTIMAL
    deadline.before_long_work()
    return highs.run(highs.model_of(*program, model.integer)).status is Status.OPTIMAL
