"""Reference solver for linear models: one SciPy program over all scenarios, built from the specification by names.

It shares no code with the core's reader, so it checks compiled problems independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

Spec = dict[str, Any]
Outcome = dict[str, float]


class Answer(NamedTuple):
    """The best value, in the model's own sense, and the best decisions."""

    value: float
    decision: dict[str, float]


def clip_outcome(spec: Spec, outcome: Outcome) -> Outcome:
    """Clip an outcome to the model's bounds."""
    found = {}
    for entry in spec["outcomes"]:
        low, high = entry.get("minimum"), entry.get("maximum")
        value = outcome[entry["name"]]
        value = value if low is None else max(value, low)
        found[entry["name"]] = value if high is None else min(value, high)
    return found


def value_at(number: Any, outcome: Outcome) -> float:
    """Evaluate a number that may depend on the outcome."""
    if isinstance(number, dict):
        terms = number.get("outcomes", {})
        return float(number.get("constant", 0.0) + sum(factor * outcome[name] for name, factor in terms.items()))
    return float(number)


def solve(spec: Spec, outcomes: Sequence[Outcome], relaxed: bool = False) -> Answer | None:
    """Return the decisions that are best on average over equally likely outcomes; None if infeasible."""
    decisions, later = spec["decisions"], spec.get("recourse", [])
    share, sign = 1 / len(outcomes), -1.0 if spec.get("sense") == "maximize" else 1.0
    scenarios = [clip_outcome(spec, outcome) for outcome in outcomes]
    place: dict[tuple[int, str], int] = {}
    cost, low, high, whole = [], [], [], []

    def variable(scenario: int, entry: Spec, weight: float) -> None:
        place[scenario, entry["name"]] = len(cost)
        cost.append(sign * weight)
        low.append(-np.inf if entry.get("minimum", 0.0) is None else entry.get("minimum", 0.0))
        high.append(np.inf if entry.get("maximum") is None else entry["maximum"])
        whole.append(int(entry.get("integer", False) and not relaxed))

    for entry in decisions:
        variable(-1, entry, sum(share * value_at(entry.get("cost", 0.0), outcome) for outcome in scenarios))
    for number, outcome in enumerate(scenarios):
        for entry in later:
            variable(number, entry, share * value_at(entry.get("cost", 0.0), outcome))
    rows = [(number, outcome, row) for number, outcome in enumerate(scenarios) for row in spec["rows"]]
    matrix = lil_array((len(rows), len(cost)))
    lowest, highest = np.full(len(rows), -np.inf), np.full(len(rows), np.inf)
    for index, (number, outcome, row) in enumerate(rows):
        for name, factor in row.get("decisions", {}).items():
            matrix[index, place[-1, name]] += value_at(factor, outcome)
        for name, factor in row.get("recourse", {}).items():
            matrix[index, place[number, name]] += value_at(factor, outcome)
        limit = value_at(row["limit"], outcome)
        if row["sense"] in (">=", "="):
            lowest[index] = limit
        if row["sense"] in ("<=", "="):
            highest[index] = limit
    constraints = [LinearConstraint(matrix.tocsr(), lowest, highest)] if rows else []
    found = milp(
        np.array(cost), constraints=constraints, bounds=Bounds(low, high), integrality=whole, options={"mip_rel_gap": 0}
    )
    if found.x is None:
        assert found.status == 2, found.message
        return None
    values: NDArray[np.float64] = found.x
    return Answer(sign * found.fun, {entry["name"]: float(values[place[-1, entry["name"]]]) for entry in decisions})


def draw_outcomes(
    spec: Spec, count: int, random: np.random.Generator, low: float = 0.0, high: float = 10.0
) -> list[Outcome]:
    """Draw ``count`` outcomes."""
    names = [entry["name"] for entry in spec["outcomes"]]
    return [dict(zip(names, random.uniform(low, high, len(names)).tolist(), strict=True)) for _ in range(count)]
