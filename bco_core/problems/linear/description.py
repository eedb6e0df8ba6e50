"""A planner's two-stage problem by names, and the matrices it stands for.

``{"decisions": [{"name", "cost", "minimum", "maximum", "integer"}],
   "decision_rows": [{"name", "coefficients": {decision: a}, "sense", "limit"}],
   "outcomes": [{"name", "minimum", "maximum"}],
   "recourse": [{"name", "cost", "minimum", "maximum"}],
   "rows": [{"name", "recourse": {x: w}, "decisions": {z: t}, "sense", "constant", "outcomes": {y: h}}]}``

where a row reads  Σ w x + Σ t z  (sense)  constant + Σ h y.  Decisions and recourse are at least zero unless they say
otherwise, and a null bound is no bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bco_core.errors import InvalidInput
from bco_core.solvers.linear_form import EQUAL, LEAST, MOST, Array, LinearProgram

SENSES = {">=": LEAST, "=": EQUAL, "<=": MOST}
# Every row of the recourse, twice if it is an equality, and every variable with two bounds.
LARGEST_FORM = 200

Where = tuple[str | int, ...]


@dataclass(frozen=True)
class Description:
    """First stage with its ``limits``; recourse with limits ``constant + by_outcome y − by_decision z``.

    ``integer`` marks decisions that must be whole numbers; ``lowest`` and ``highest`` bound the outcomes.
    ``limit_names`` are what the decision rows are called, ``limits_at`` where they stand in the specification, and
    ``bounds_at`` where a decision's bounds do: the list of decisions, and what the least and the largest are called.
    ``rows_at`` and ``recourse_at`` are where rows and recourse variables stand, () for those that a planner has not
    written.
    """

    first: LinearProgram
    limits: Array
    integer: NDArray[np.bool_]
    recourse: LinearProgram
    constant: Array
    by_outcome: Array
    by_decision: Array
    lowest: Array
    highest: Array
    decision_names: tuple[str, ...]
    outcome_names: tuple[str, ...]
    row_names: tuple[str, ...]
    limit_names: tuple[str, ...] = ()
    limits_at: tuple[Where, ...] = ()
    bounds_at: tuple[str, str, str] = ("decisions", "minimum", "maximum")
    recourse_names: tuple[str, ...] = ()
    rows_at: tuple[Where, ...] = ()
    recourse_at: tuple[Where, ...] = ()


def describe(spec: dict[str, Any]) -> Description:
    """The matrices of a specification by names; what does not fit is refused with its place in the specification."""
    decisions, outcomes = _parts(spec, "decisions"), _parts(spec, "outcomes")
    recourse, rows, first_rows = _parts(spec, "recourse"), _parts(spec, "rows"), spec.get("decision_rows") or []
    z, y, x = (
        _places(part, name) for part, name in ((decisions, "decisions"), (outcomes, "outcomes"), (recourse, "recourse"))
    )
    first = LinearProgram(
        _numbers(decisions, "decisions", "cost", 0.0),
        _matrix(first_rows, "decision_rows", "coefficients", z),
        _senses(first_rows, "decision_rows"),
        *_bounds(decisions, "decisions", 0.0),
    )
    later = LinearProgram(
        _numbers(recourse, "recourse", "cost", 0.0),
        _matrix(rows, "rows", "recourse", x),
        _senses(rows, "rows"),
        *_bounds(recourse, "recourse", 0.0),
    )
    boxed = int((np.isfinite(later.lower) & np.isfinite(later.upper)).sum())
    if len(rows) + int((later.senses == EQUAL).sum()) + boxed > LARGEST_FORM:
        raise InvalidInput(
            "the recourse is too large: its rows (equalities count twice) and its variables with an upper bound may be "
            f"{LARGEST_FORM} together",
            ("rows",),
        )
    lowest, highest = _bounds(outcomes, "outcomes", -math.inf)
    return Description(
        first,
        _numbers(first_rows, "decision_rows", "limit", None),
        np.array([bool(decision.get("integer")) for decision in decisions]),
        later,
        _numbers(rows, "rows", "constant", 0.0),
        _matrix(rows, "rows", "outcomes", y),
        _matrix(rows, "rows", "decisions", z),
        lowest,
        highest,
        tuple(z),
        tuple(y),
        _row_names(rows),
        _row_names(first_rows),
        tuple(("decision_rows", index) for index in range(len(first_rows))),
        recourse_names=tuple(x),
        rows_at=tuple(("rows", index) for index in range(len(rows))),
        recourse_at=tuple(("recourse", index) for index in range(len(recourse))),
    )


def describe_shipment(spec: dict[str, Any]) -> Description:
    """Order to sources now; once demand is known ship from them, and order more at once where that is not enough.

    ``{"sources": [{"name", "order_cost", "emergency_cost", "maximum_order"}], "destinations": [name],
       "transport_costs": [[cost to each destination] of each source]}``
    """
    sources, destinations = _parts(spec, "sources"), spec.get("destinations") or []
    names = list(_places(sources, "sources"))
    costs = spec.get("transport_costs") or []
    for name in ("order_cost", "emergency_cost"):
        _numbers(sources, "sources", name, None)
    if not destinations or len(set(destinations)) < len(destinations):
        raise InvalidInput("destinations need names, all different", ("destinations",))
    if len(costs) != len(names) or any(len(row) != len(destinations) for row in costs):
        raise InvalidInput(
            f"transport_costs must have a row for each of the {len(names)} sources and in it a cost for each of the "
            f"{len(destinations)} destinations",
            ("transport_costs",),
        )
    for i, row in enumerate(costs):
        for j, cost in enumerate(row):
            _number(cost, ("transport_costs", i, j))
    # Recourse is numbered, since names of sources and destinations put together need not be different.
    extra = [{"name": f"emergency {i}", "cost": source.get("emergency_cost")} for i, source in enumerate(sources)]
    routes = [
        {"name": f"route {i} {j}", "cost": costs[i][j]} for i in range(len(names)) for j in range(len(destinations))
    ]
    meet = [
        {
            "name": f"demand of {destination}",
            "recourse": {f"route {i} {j}": 1.0 for i in range(len(names))},
            "sense": ">=",
            "outcomes": {destination: 1.0},
        }
        for j, destination in enumerate(destinations)
    ]
    send = [
        {
            "name": f"supply of {name}",
            "recourse": {f"route {i} {j}": 1.0 for j in range(len(destinations))} | {f"emergency {i}": -1.0},
            "decisions": {name: -1.0},
            "sense": "<=",
        }
        for i, name in enumerate(names)
    ]
    described = describe(
        {
            "decisions": [
                {"name": name, "cost": source.get("order_cost"), "maximum": source.get("maximum_order")}
                for name, source in zip(names, sources, strict=True)
            ],
            "outcomes": [{"name": destination, "minimum": 0.0} for destination in destinations],
            "recourse": extra + routes,
            "rows": meet + send,
        }
    )
    spoken = [f"emergency {name}" for name in names]
    spoken += [f"{name} to {destination}" for name in names for destination in destinations]
    return replace(
        described,
        bounds_at=("sources", "minimum_order", "maximum_order"),
        recourse_names=tuple(spoken) if len(set(spoken)) == len(spoken) else described.recourse_names,
        rows_at=(*(("destinations", j) for j in range(len(destinations))), *((),) * len(names)),
        recourse_at=((),) * len(spoken),
    )


def _row_names(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(row.get("name") or f"row {index + 1}" for index, row in enumerate(rows))


def _parts(spec: dict[str, Any], name: str) -> list[dict[str, Any]]:
    parts = spec.get(name) or []
    if not parts:
        raise InvalidInput(f"{name} must not be empty", (name,))
    return list(parts)


def _places(parts: Sequence[dict[str, Any]], name: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for index, part in enumerate(parts):
        label = part.get("name")
        if not label or label in places:
            raise InvalidInput("names must be given and all different", (name, index, "name"))
        places[label] = index
    return places


def _number(value: Any, where: Where) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidInput("a finite number is needed here", where)
    return float(value)


def _numbers(parts: Sequence[dict[str, Any]], name: str, field: str, default: float | None) -> Array:
    values = [default if part.get(field) is None else part[field] for part in parts]
    return np.array([_number(value, (name, index, field)) for index, value in enumerate(values)], dtype=np.float64)


def _bounds(parts: Sequence[dict[str, Any]], name: str, lowest: float) -> tuple[Array, Array]:
    """Bounds, where an absent minimum is ``lowest`` and a null one is no bound."""
    lower, upper = np.full(len(parts), -np.inf), np.full(len(parts), np.inf)
    for index, part in enumerate(parts):
        low, high = part.get("minimum", lowest), part.get("maximum")
        if low is not None and low != -math.inf:
            lower[index] = _number(low, (name, index, "minimum"))
        if high is not None:
            upper[index] = _number(high, (name, index, "maximum"))
        if lower[index] > upper[index]:
            raise InvalidInput("the minimum is above the maximum", (name, index, "minimum"))
    return lower, upper


def _senses(rows: Sequence[dict[str, Any]], name: str) -> NDArray[np.int64]:
    for index, row in enumerate(rows):
        if row.get("sense") not in SENSES:
            raise InvalidInput("the sense must be one of <=, >= and =", (name, index, "sense"))
    return np.array([SENSES[row["sense"]] for row in rows], dtype=np.int64)


def _matrix(rows: Sequence[dict[str, Any]], name: str, field: str, places: dict[str, int]) -> Array:
    matrix = np.zeros((len(rows), len(places)))
    for index, row in enumerate(rows):
        for label, value in (row.get(field) or {}).items():
            where = (name, index, field, label)
            if label not in places:
                raise InvalidInput("there is nothing of this name to refer to", where)
            matrix[index, places[label]] = _number(value, where)
    return matrix
