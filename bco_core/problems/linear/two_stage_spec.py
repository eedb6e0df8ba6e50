"""Specifications of kinds ``two_stage_linear`` and ``shipment``: read as linear models, written as kind ``linear``.

``{"decisions": [{"name", "cost", "minimum", "maximum", "integer"}],
   "decision_rows": [{"name", "coefficients": {decision: a}, "sense", "limit"}],
   "outcomes": [{"name", "minimum", "maximum"}],
   "recourse": [{"name", "cost", "minimum", "maximum"}],
   "rows": [{"name", "recourse": {x: w}, "decisions": {z: t}, "sense", "constant", "outcomes": {y: h}}]}``

where a row reads  Σ w x + Σ t z  (sense)  constant + Σ h y.  Decisions and recourse are at least zero unless they say
otherwise, and a null bound is no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from bco_core.errors import InvalidInput
from bco_core.problems.linear.affine import Matrix, Vector, matrix_of
from bco_core.problems.linear.model import (
    LARGEST_FORM,
    SENSES,
    LinearModel,
    form_size,
    index_names,
    read_bounds,
    read_gap,
    read_number,
    read_senses,
    row_names,
)
from bco_core.solvers.linear_form import Array

_SIGNS = {number: sign for sign, number in SENSES.items()}


def read_two_stage(spec: dict[str, Any]) -> LinearModel:
    """Read a specification of kind ``two_stage_linear``; InvalidInput names the place of what is wrong.

    The model's rows are the decision rows, then the rows with recourse.
    """
    decisions, outcomes = _parts(spec, "decisions"), _parts(spec, "outcomes")
    recourse, rows, decision_rows = _parts(spec, "recourse"), _parts(spec, "rows"), spec.get("decision_rows") or []
    z, y, x = (
        index_names(part, name)
        for part, name in ((decisions, "decisions"), (outcomes, "outcomes"), (recourse, "recourse"))
    )
    cost = _numbers(decisions, "decisions", "cost", 0.0)
    first_matrix = _matrix(decision_rows, "decision_rows", "coefficients", z)
    first_senses = read_senses(decision_rows, "decision_rows")
    lower, upper = read_bounds(decisions, "decisions", 0.0)
    recourse_cost = _numbers(recourse, "recourse", "cost", 0.0)
    recourse_matrix = _matrix(rows, "rows", "recourse", x)
    senses = read_senses(rows, "rows")
    recourse_lower, recourse_upper = read_bounds(recourse, "recourse", 0.0)
    if form_size(senses, recourse_lower, recourse_upper) > LARGEST_FORM:
        raise InvalidInput(
            "the recourse is too large: its rows (equalities count twice) and its variables with an upper bound may be "
            f"{LARGEST_FORM} together",
            ("rows",),
        )
    lowest, highest = read_bounds(outcomes, "outcomes", None)
    limits = _numbers(decision_rows, "decision_rows", "limit", None)
    constant = _numbers(rows, "rows", "constant", 0.0)
    by_outcome = _matrix(rows, "rows", "outcomes", y)
    by_decision = _matrix(rows, "rows", "decisions", z)
    alone = len(decision_rows)
    costs = _certain_vector(cost, len(y)), _certain_vector(recourse_cost, len(y))
    return LinearModel(
        *costs,
        _certain_matrix(np.concatenate([first_matrix, by_decision]), len(y)),
        _certain_matrix(np.concatenate([np.zeros((alone, len(x))), recourse_matrix]), len(y)),
        np.concatenate([first_senses, senses]),
        Vector(
            np.concatenate([limits, constant]),
            sparse.csr_array(np.concatenate([np.zeros((alone, len(y))), by_outcome])),
        ),
        np.arange(alone + len(rows)) >= alone,
        lower,
        upper,
        np.array([bool(decision.get("integer")) for decision in decisions]),
        recourse_lower,
        recourse_upper,
        np.zeros(len(x), dtype=bool),
        lowest,
        highest,
        tuple(z),
        tuple(x),
        tuple(y),
        row_names(decision_rows) + row_names(rows),
        (
            *(("decision_rows", index) for index in range(alone)),
            *(("rows", index) for index in range(len(rows))),
        ),
        tuple(("recourse", index) for index in range(len(recourse))),
        gap=read_gap(spec, *costs),
    )


def read_shipment(spec: dict[str, Any]) -> LinearModel:
    """Read a shipment: order to sources now; once demand is known ship from them, and rush in what is still missing.

    ``{"sources": [{"name", "order_cost", "emergency_cost", "maximum_order"}], "destinations": [name],
       "transport_costs": [[cost to each destination] of each source]}``
    """
    sources, destinations = _parts(spec, "sources"), spec.get("destinations") or []
    names = list(index_names(sources, "sources"))
    costs = spec.get("transport_costs") or []
    for name in ("order_cost", "emergency_cost"):
        _numbers(sources, "sources", name, None)
    if not destinations or len(set(destinations)) < len(destinations):
        raise InvalidInput("destinations need unique names", ("destinations",))
    if len(costs) != len(names) or any(len(row) != len(destinations) for row in costs):
        raise InvalidInput(
            f"transport_costs must have a row for each of the {len(names)} sources and in it a cost for each of the "
            f"{len(destinations)} destinations",
            ("transport_costs",),
        )
    for i, row in enumerate(costs):
        for j, cost in enumerate(row):
            read_number(cost, ("transport_costs", i, j))
    # Recourse is numbered here: joined names of sources and destinations need not be unique.
    emergencies = [{"name": f"emergency {i}", "cost": source["emergency_cost"]} for i, source in enumerate(sources)]
    routes = [
        {"name": f"route {i} {j}", "cost": costs[i][j]} for i in range(len(names)) for j in range(len(destinations))
    ]
    demand = [
        {
            "name": f"demand of {destination}",
            "recourse": {f"route {i} {j}": 1.0 for i in range(len(names))},
            "sense": ">=",
            "outcomes": {destination: 1.0},
        }
        for j, destination in enumerate(destinations)
    ]
    supply = [
        {
            "name": f"supply of {name}",
            "recourse": {f"route {i} {j}": 1.0 for j in range(len(destinations))} | {f"emergency {i}": -1.0},
            "decisions": {name: -1.0},
            "sense": "<=",
        }
        for i, name in enumerate(names)
    ]
    model = read_two_stage(
        {
            "decisions": [
                {"name": name, "cost": source["order_cost"], "maximum": source.get("maximum_order")}
                for name, source in zip(names, sources, strict=True)
            ],
            "outcomes": [{"name": destination, "minimum": 0.0} for destination in destinations],
            "recourse": emergencies + routes,
            "rows": demand + supply,
        }
    )
    joined = [f"emergency {name}" for name in names]
    joined += [f"{name} to {destination}" for name in names for destination in destinations]
    return replace(
        model,
        recourse_names=tuple(joined) if len(set(joined)) == len(joined) else model.recourse_names,
        rows_at=(*(("destinations", j) for j in range(len(destinations))), *((),) * len(names)),
        recourse_at=((),) * len(joined),
        bounds_at=("sources", "minimum_order", "maximum_order"),
    )


def two_stage_as_linear(spec: dict[str, Any]) -> dict[str, Any]:
    """Write a specification of kind ``two_stage_linear`` as one of kind ``linear``."""
    return _as_linear(read_two_stage(spec)) | {name: spec.get(name) for name in ("relative_gap", "absolute_gap")}


def shipment_as_linear(spec: dict[str, Any]) -> dict[str, Any]:
    """Write a specification of kind ``shipment`` as one of kind ``linear``."""
    return _as_linear(read_shipment(spec))


def _as_linear(model: LinearModel) -> dict[str, Any]:
    z, x, y = model.decision_names, model.recourse_names, model.outcome_names
    # Decision rows and rows with recourse may share names, which rows of one list may not.
    unique = len(set(model.row_names)) == len(model.row_names)
    rows = [
        {
            "name": model.row_names[index] if unique else None,
            "decisions": _by_name(z, model.technology.constant, index),
            "recourse": _by_name(x, model.recourse.constant, index),
            "sense": _SIGNS[int(model.senses[index])],
            "limit": _limit(float(model.limits.constant[index]), _by_name(y, model.limits.by_outcome, index)),
        }
        for index in range(len(model.senses))
    ]
    return {
        "kind": "linear",
        "sense": "minimize",
        "decisions": _variables(z, model.cost.constant, model.lower, model.upper, model.integer.tolist()),
        "recourse": _variables(
            x, model.recourse_cost.constant, model.recourse_lower, model.recourse_upper, [False] * len(x)
        ),
        "outcomes": [
            {"name": name, "minimum": _bound(low), "maximum": _bound(high)}
            for name, low, high in zip(y, model.lowest.tolist(), model.highest.tolist(), strict=True)
        ],
        "rows": rows,
    }


def _variables(
    names: tuple[str, ...], cost: Array, lower: Array, upper: Array, integer: list[bool]
) -> list[dict[str, Any]]:
    return [
        {"name": name, "cost": each, "minimum": _bound(low), "maximum": _bound(high), "integer": whole}
        for name, each, low, high, whole in zip(
            names, cost.tolist(), lower.tolist(), upper.tolist(), integer, strict=True
        )
    ]


def _by_name(names: tuple[str, ...], matrix: sparse.csr_array, row: int) -> dict[str, float]:
    """Return the entries of a matrix's row, in the order of its columns."""
    part = slice(matrix.indptr[row], matrix.indptr[row + 1])
    return {
        names[column]: value
        for column, value in zip(matrix.indices[part].tolist(), matrix.data[part].tolist(), strict=True)
    }


def _limit(constant: float, outcomes: dict[str, float]) -> float | dict[str, Any]:
    return {"constant": constant, "outcomes": outcomes} if outcomes else constant


def _bound(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _certain_vector(constant: Array, outcomes: int) -> Vector:
    return Vector(constant, sparse.csr_array((len(constant), outcomes)))


def _certain_matrix(dense: Array, outcomes: int) -> Matrix:
    return matrix_of(sparse.csr_array(dense), np.empty((0, 2), dtype=np.int64), sparse.csr_array((0, outcomes)))


def _parts(spec: dict[str, Any], name: str) -> list[dict[str, Any]]:
    parts = spec.get(name) or []
    if not parts:
        raise InvalidInput(f"{name} must not be empty", (name,))
    return list(parts)


def _numbers(parts: Sequence[dict[str, Any]], name: str, field: str, default: float | None) -> Array:
    values = [default if part.get(field) is None else part[field] for part in parts]
    return np.array([read_number(value, (name, index, field)) for index, value in enumerate(values)], dtype=np.float64)


def _matrix(rows: Sequence[dict[str, Any]], name: str, field: str, places: dict[str, int]) -> Array:
    """Read the coefficients of rows by name, (rows, names)."""
    matrix = np.zeros((len(rows), len(places)))
    for index, row in enumerate(rows):
        for label, value in (row.get(field) or {}).items():
            where = (name, index, field, label)
            if label not in places:
                raise InvalidInput("no part of the problem has this name", where)
            matrix[index, places[label]] = read_number(value, where)
    return matrix
