"""The first stage of a linear model, certain rows that bind decisions alone: feasibility, breaches, prices."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from bco_core import deadlines
from bco_core.problems.base import Breach, DecisionProblem, Price, Status
from bco_core.problems.linear.model import LinearModel
from bco_core.problems.linear.program import SparseProgram
from bco_core.solvers import highs
from bco_core.solvers.linear_form import Array

# Tolerance of a rule, relative to the size of what it compares.
_ROOM = 1e-6
# Prices below this share of the largest unit cost are rounding.
_SMALL = 1e-9
# Rows of a program from which on solving it counts as long work.
_LONG = 2_000


class LinearProblem(DecisionProblem):
    """A problem whose decisions satisfy the certain rows, bounds and integrality rules of a linear model."""

    @property
    @abstractmethod
    def first_model(self) -> LinearModel:
        """The model with only the rows that bind decisions alone."""

    @property
    def outcome_dim(self) -> int:
        return len(self.first_model.outcome_names)

    @property
    def decision_dim(self) -> int:
        return len(self.first_model.decision_names)

    @property
    def counted_within(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.first_model.lowest), torch.from_numpy(self.first_model.highest)

    def breaches(self, decision: Tensor) -> list[Breach]:
        values = decision.double().numpy()
        return broken_rules(self.first_model, values, self.first_model.technology.constant @ values)

    def within(self, decisions: Tensor) -> Tensor:
        flat = decisions.detach().double().reshape(-1, self.decision_dim).numpy()
        return torch.from_numpy(is_feasible(self.first_model, flat)).view(decisions.shape[:-1])

    @property
    def has_facts(self) -> bool:
        return self.first_model.maximize

    def facts(self, decision: Tensor, outcomes: Tensor, weights: Tensor) -> dict[str, Any]:
        if not self.has_facts:
            return {}
        return {"expected_value": -float(self.cost(decision, outcomes) @ weights.double())}

    def clip(self, outcomes: Tensor) -> Tensor:
        """Return outcomes (..., d_y) moved to the nearest of their bounds."""
        return outcomes.double().clamp(*self.counted_within)


def program_at(model: LinearModel, cost: Array) -> SparseProgram:
    """Return the program of the rows and bounds with a cost (d_z,)."""
    return SparseProgram(cost, model.technology.constant, model.senses, model.limits.constant, model.lower, model.upper)


def fix_entries(model: LinearModel, decision: Array) -> LinearModel:
    """Return the model with the entries of a decision (d_z,) that are not NaN fixed, even outside their bounds."""
    known = ~np.isnan(decision)
    lower, upper = (np.where(known, decision, bound) for bound in (model.lower, model.upper))
    return replace(model, lower=lower, upper=upper, integer=model.integer & ~known)


def is_feasible(model: LinearModel, decisions: Array) -> NDArray[np.bool_]:
    """Return whether decisions (n, d_z) satisfy rows, bounds and integrality, (n,)."""
    limits = model.limits.constant
    over = (model.technology.constant @ decisions.T).T - limits
    room, edge = _ROOM * (1 + np.abs(limits)), _ROOM * (1 + np.abs(decisions))
    rows = ((over >= -room) | (model.senses < 0)) & ((over <= room) | (model.senses > 0))
    bounds = (decisions >= model.lower - edge) & (decisions <= model.upper + edge)
    whole = (np.abs(decisions - np.round(decisions)) <= edge) | ~model.integer
    feasible: NDArray[np.bool_] = rows.all(axis=1) & (bounds & whole).all(axis=1)
    return feasible


def broken_rules(model: LinearModel, decision: Array, sums: Array) -> list[Breach]:
    """Return the bounds, integrality rules and rows that a decision (d_z,) breaks; ``sums`` (m,) are the rows' sums."""
    breaches: list[Breach] = []
    room = _ROOM * (1 + np.abs(decision))
    below, above = model.lower - decision, decision - model.upper
    odd = np.abs(decision - np.round(decision))
    part, least, most = model.bounds_at
    for index in np.flatnonzero((below > room) | (above > room) | (model.integer & (odd > room))).tolist():
        name, value = model.decision_names[index], decision[index]
        if below[index] > room[index]:
            sentence = f"{name} is {value:.6g}, {below[index]:.6g} below its minimum of {model.lower[index]:.6g}"
            breaches.append(Breach((part, index, least), float(below[index]), sentence))
        if above[index] > room[index]:
            sentence = f"{name} is {value:.6g}, {above[index]:.6g} above its maximum of {model.upper[index]:.6g}"
            breaches.append(Breach((part, index, most), float(above[index]), sentence))
        if model.integer[index] and odd[index] > room[index]:
            sentence = f"{name} is {value:.6g} and must be an integer"
            breaches.append(Breach((part, index, "integer"), float(odd[index]), sentence))
    limits = model.limits.constant
    over, edges = sums - limits, _ROOM * (1 + np.abs(limits))
    short, long = (over < -edges) & (model.senses >= 0), (over > edges) & (model.senses <= 0)
    for index in np.flatnonzero(short | long).tolist():
        side = "below" if over[index] < 0 else "above"
        sentence = (
            f"'{model.row_names[index]}' is {sums[index]:.6g}, {abs(over[index]):.6g} {side} its limit, "
            f"{limits[index]:.6g}"
        )
        breaches.append(Breach(model.rows_at[index], float(abs(over[index])), sentence))
    return breaches


def row_prices(model: LinearModel, decision: Array, cost: Array) -> list[Price]:
    """Return the price of each binding rule for a cost (d_z,), from the duals with a decision's (d_z,) integers held.

    A lower bound of zero is not a rule that could be relaxed.
    """
    (deadlines.before_long_work if len(model.senses) >= _LONG else deadlines.check)()
    largest = float(np.abs(cost).max(initial=0)) or 1.0
    held = program_at(model, cost / largest).with_fixed_decision(decision, model.integer)
    answer = highs.run(highs.model_of(*held.rows_and_bounds))
    if answer.status is not Status.OPTIMAL:
        return []
    reduced = held.cost - held.matrix.T @ answer.duals
    prices = [
        Price(model.rows_at[row], abs(float(dual)) * largest)
        for row, dual in enumerate(answer.duals)
        if abs(dual) > _SMALL
    ]
    for index in np.flatnonzero((np.abs(reduced) > _SMALL) & ~model.integer).tolist():
        worth = float(reduced[index])
        if worth > 0 and model.lower[index]:
            prices.append(Price(("decisions", index, "minimum"), worth * largest))
        if worth < 0:
            prices.append(Price(("decisions", index, "maximum"), -worth * largest))
    return prices


def is_bounded(model: LinearModel) -> bool:
    """Return whether the cost has a minimum over the rows and bounds for some outcome within its bounds.

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
