"""Decisions that a planner gives: what they break of a two-stage problem, and what is left to decide beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bco_core.problems.base import Breach
from bco_core.problems.linear.description import Description
from bco_core.solvers.linear_form import Array

# How nearly a decision must keep a rule, beside the size of what the rule compares.
_ROOM = 1e-6


def fixed_description(data: Description, decision: Array) -> Description:
    """The problem in which the entries of a decision (d_z,) that are not NaN are decided already, whatever they are."""
    known = ~np.isnan(decision)
    lower, upper = (np.where(known, decision, bound) for bound in (data.first.lower, data.first.upper))
    return replace(data, first=replace(data.first, lower=lower, upper=upper), integer=data.integer & ~known)


def broken_rules(data: Description, decision: Array) -> list[Breach]:
    """The bounds, whole numbers and decision rows that a decision (d_z,) does not keep."""
    found: list[Breach] = []
    part, least, most = data.bounds_at
    room = _ROOM * (1 + np.abs(decision))
    for index, (name, value) in enumerate(zip(data.decision_names, decision.tolist(), strict=True)):
        low, high = float(data.first.lower[index]), float(data.first.upper[index])
        if value < low - room[index]:
            sentence = f"{name} is {value:.6g}, {low - value:.6g} below its least, {low:.6g}"
            found.append(Breach((part, index, least), low - value, sentence))
        if value > high + room[index]:
            sentence = f"{name} is {value:.6g}, {value - high:.6g} above its most, {high:.6g}"
            found.append(Breach((part, index, most), value - high, sentence))
        if data.integer[index] and abs(value - round(value)) > room[index]:
            sentence = f"{name} is {value:.6g} and only whole numbers will do"
            found.append(Breach((part, index, "integer"), abs(value - round(value)), sentence))
    sums, edges = data.first.matrix @ decision, _ROOM * (1 + np.abs(data.limits))
    for index, sense in enumerate(data.first.senses.tolist()):
        over, limit = float(sums[index] - data.limits[index]), float(data.limits[index])
        # A rule of sense ≥ can only be short, one of sense ≤ only over.
        if (over < -edges[index] and sense >= 0) or (over > edges[index] and sense <= 0):
            side = "below" if over < 0 else "above"
            name = data.limit_names[index]
            sentence = f"'{name}' comes to {sums[index]:.6g}, {abs(over):.6g} {side} its limit, {limit:.6g}"
            found.append(Breach(data.limits_at[index], abs(over), sentence))
    return found
