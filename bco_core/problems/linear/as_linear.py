"""Two-stage problems written as any linear model is: kind ``linear``."""

from __future__ import annotations

from typing import Any

from bco_core.problems.linear.description import Description, describe, describe_shipment
from bco_core.solvers.linear_form import EQUAL, LEAST, MOST, Array

_SENSES = {LEAST: ">=", EQUAL: "=", MOST: "<="}


def linear_of_two_stage(spec: dict[str, Any]) -> dict[str, Any]:
    """A specification of kind ``two_stage_linear`` as one of kind ``linear``."""
    return _linear(describe(spec)) | {name: spec.get(name) for name in ("relative_gap", "absolute_gap")}


def linear_of_shipment(spec: dict[str, Any]) -> dict[str, Any]:
    """A specification of kind ``shipment`` as one of kind ``linear``."""
    return _linear(describe_shipment(spec))


def _linear(data: Description) -> dict[str, Any]:
    z, x, y = data.decision_names, data.recourse_names, data.outcome_names
    first, later = data.first, data.recourse
    alone = [
        {"name": name, "decisions": _named(z, row), "recourse": {}, "sense": _SENSES[sense], "limit": limit}
        for name, row, sense, limit in zip(
            data.limit_names, first.matrix, first.senses.tolist(), data.limits.tolist(), strict=True
        )
    ]
    mended = [
        {
            "name": name,
            "decisions": _named(z, data.by_decision[index]),
            "recourse": _named(x, later.matrix[index]),
            "sense": _SENSES[int(later.senses[index])],
            "limit": _number(float(data.constant[index]), _named(y, data.by_outcome[index])),
        }
        for index, name in enumerate(data.row_names)
    ]
    rows = alone + mended
    # Rules for decisions and rows with recourse may share names, which rows of one list may not.
    shared = len({row["name"] for row in rows}) < len(rows)
    named = [row | {"name": None if shared else row["name"]} for row in rows]
    return {
        "kind": "linear",
        "sense": "minimize",
        "decisions": _variables(z, first.cost, first.lower, first.upper, data.integer.tolist()),
        "recourse": _variables(x, later.cost, later.lower, later.upper, [False] * len(x)),
        "outcomes": [
            {"name": name, "minimum": _bound(low), "maximum": _bound(high)}
            for name, low, high in zip(y, data.lowest.tolist(), data.highest.tolist(), strict=True)
        ],
        "rows": named,
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


def _named(names: tuple[str, ...], row: Array) -> dict[str, float]:
    return {name: value for name, value in zip(names, row.tolist(), strict=True) if value}


def _number(constant: float, outcomes: dict[str, float]) -> float | dict[str, Any]:
    return {"constant": constant, "outcomes": outcomes} if outcomes else constant


def _bound(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
