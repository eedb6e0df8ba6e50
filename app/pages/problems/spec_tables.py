"""Tables of a problem's parameters, from the specification of any kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.pages.problems.notation import share
from app.pages.render import number, percent

Spec = Mapping[str, Any]
# Rows and columns shown; the specification has all.
ROWS, COLUMNS = 40, 14

# Labels of fields; others are shown without underscores.
WORDS = {
    "name": "name",
    "underage_cost": "underage cost",
    "overage_cost": "overage cost",
    "price": "price",
    "unit_cost": "unit cost",
    "salvage_value": "salvage value",
    "shortage_penalty": "shortage penalty",
    "minimum_order": "minimum order",
    "maximum_order": "maximum order",
    "maximum_demand": "maximum demand",
    "stock": "on hand",
    "integer": "whole numbers",
    "pack_size": "pack size",
    "minimum_service_level": "minimum service level",
    "minimum": "at least",
    "maximum": "at most",
    "cost": "costs",
    "order_cost": "order cost",
    "emergency_cost": "emergency cost",
    "start": "from",
    "end": "to",
    "value": "worth",
    "weights": "takes",
    "opening_cost": "opening cost",
    "capacity": "capacity",
    "shortage_cost": "shortage cost",
    "uses": "uses",
    "blend_of": "blended of",
    "unlimited_demand": "unlimited demand",
    "holding_cost": "holding cost",
    "available": "available",
    "minimum_output": "minimum output",
    "maximum_output": "maximum output",
    "fixed_cost": "cost per hour",
    "startup_cost": "startup cost",
    "minimum_up": "minimum hours up",
    "minimum_down": "minimum hours down",
    "ramp_up": "ramp up per hour",
    "ramp_down": "ramp down per hour",
    "initially_on": "initially on",
    "residual_variances": "residual variances",
}
# Labels of facts about the whole problem.
FACTS = {
    "sense": "objective",
    "minimum_service_level": "minimum share of total demand met",
    "source": "from",
    "target": "to",
    "directed": "directed edges",
    "shares": "fractional items",
    "maximum_open": "maximum open",
    "shortage_cost": "shortage cost per unit",
    "hours": "hours",
    "shedding_cost": "shedding cost per unit",
    "curtailment_cost": "curtailment cost per unit",
    "target_return": "target return",
    "target_on": "target applies to",
    "confidence": "confidence",
    "infeasible": "if no portfolio reaches it",
    "budget": "budget",
    "fully_invested": "fully invested",
    "risk_aversion": "risk aversion",
    "turnover_cost": "turnover cost per unit",
    "maximum_turnover": "maximum turnover",
    "maximum_long": "maximum long positions",
    "maximum_short": "maximum short positions",
    "estimate": "covariance estimate",
    "covariance_source": "covariance source",
    "relative_gap": "relative gap",
    "absolute_gap": "absolute gap",
}
TITLES = {
    "items": "Items",
    "decisions": "Decided now",
    "recourse": "Recourse, decided once outcomes are known",
    "outcomes": "Uncertain outcomes",
    "sources": "Sources",
    "destinations": "Destinations",
    "edges": "Edges",
    "agents": "Agents",
    "tasks": "Tasks",
    "facilities": "Facilities",
    "customers": "Customers",
    "products": "Products",
    "resources": "Resources",
    "ingredients": "Ingredients",
    "units": "Units",
    "assets": "Assets",
    "groups": "Groups",
    "demand": "Demand by hour",
    "capacities": "Capacities",
    "forbidden": "Forbidden pairs",
    "costs": "Costs of pairs",
    "current": "Current positions",
    "transport_costs": "Transport cost per unit",
    "covariance": "Covariance of returns",
}
# Shown in the model or as facts.
_ELSEWHERE = ("kind", "rows", "decision_rows", "factors", "nodes")
# Fields that default to the outcome column of the owner's name.
_OWN_COLUMN = {"edges": "cost", "items": "value", "customers": "demand", "products": "demand"}
_LISTS = ("destinations", "agents", "tasks", "demand")
_CHOICES = {
    "minimize": "minimum cost",
    "maximize": "maximum value",
    "best_effort": "best effort, with a reason",
    "error": "no decision",
    "tail": "mean of the worst cases",
    "mean": "mean of all cases",
}
_SHARES = ("minimum_service_level", "confidence")


@dataclass(frozen=True)
class SpecTableView:
    """A table with a title; ``more`` is the number of rows left out."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    more: int = 0


def facts_of(spec: Spec) -> list[tuple[str, str]]:
    """Return facts about the whole problem."""
    result = []
    for name, words in FACTS.items():
        value = spec.get(name)
        if value is None or value == 0 or (value is False and name != "directed"):
            continue
        result.append((words, share(value) if name in _SHARES else _cell(value)))
    for name, title in TITLES.items():
        value = spec.get(name)
        if isinstance(value, list) and value and not isinstance(value[0], list) and name in _LISTS:
            result.append((title, _cell(value)))
    factors = spec.get("factors")
    if factors:
        count = len(factors["loadings"][0])
        result.append(("covariance", f"by {count} factor{'' if count == 1 else 's'} and residual variances"))
    return result


def tables_of(spec: Spec) -> list[SpecTableView]:
    """Return the parts of a problem as tables."""
    result = []
    for name, value in spec.items():
        if name in _ELSEWHERE or not value or name in FACTS or name in _LISTS:
            continue
        title = TITLES.get(name, name.replace("_", " "))
        if isinstance(value, list) and isinstance(value[0], dict):
            result.append(_parts(name, title, value, spec["kind"], spec.get("sense") == "maximize"))
        elif isinstance(value, list) and isinstance(value[0], list):
            result.append(_matrix(name, title, value, spec))
        elif isinstance(value, dict):
            result.append(_mapping(title, value))
    return result


def _parts(name: str, title: str, parts: Sequence[Spec], kind: str, brings: bool) -> SpecTableView:
    fields = [field for field in parts[0] if any(part.get(field) for part in parts) or field == "name"]
    own = _OWN_COLUMN.get(name) if kind != "newsvendor" else None
    if own is not None and own in parts[0] and own not in fields:
        fields.append(own)
    rows = [[_field(field, part.get(field), own) for field in fields] for part in parts[:ROWS]]
    heads = [WORDS.get(field, field.replace("_", " ")) for field in fields]
    if brings:
        heads = ["brings" if field == "cost" else head for field, head in zip(fields, heads, strict=True)]
    if kind == "newsvendor":
        heads.append("target service")
        for row, part in zip(rows, parts, strict=False):
            row.append(_covered(part))
    return SpecTableView(title, heads, rows, max(0, len(parts) - ROWS))


def _covered(item: Spec) -> str:
    """Return the share of cases in which the best order of an item alone meets demand: u/(u + o)."""
    short, over = item.get("underage_cost"), item.get("overage_cost")
    if item.get("price") is not None and item.get("unit_cost") is not None:
        short = item["price"] - item["unit_cost"] + (item.get("shortage_penalty") or 0)
        over = item["unit_cost"] - (item.get("salvage_value") or 0)
    return "–" if not short or not over else percent(short / (short + over))


def _field(name: str, value: Any, own: str | None) -> str:
    if name == own and value is None:
        return "own column"
    if value is None:
        return "no limit" if name.startswith(("minimum", "maximum")) or name in ("available", "copies") else "–"
    if name in _SHARES:
        return share(value) if value else "–"
    if name == own and isinstance(value, str):
        return f"column {value}"
    return _cell(value)


def _cell(value: Any) -> str:
    """Format any value of a specification."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "–"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, list):
        return ", ".join(_cell(one) for one in value[:COLUMNS]) + (" …" if len(value) > COLUMNS else "")
    if isinstance(value, dict):
        return _of_mapping(value)
    return _CHOICES.get(value, str(value))


def _of_mapping(value: Spec) -> str:
    """Format ``4 + 0.5 × rain`` for a number that depends on outcomes, ``kg 4, litres 6`` for others."""
    if "outcomes" in value and isinstance(value["outcomes"], dict):
        terms = [(value["constant"], "")] if value.get("constant") else []
        terms += [(factor, name) for name, factor in value["outcomes"].items()]
        return _summed(terms)
    if set(value) <= {"minimum", "maximum"}:
        sides = [f"≥ {number(value['minimum'])}"] if value.get("minimum") is not None else []
        sides += [f"≤ {number(value['maximum'])}"] if value.get("maximum") is not None else []
        return " and ".join(sides)
    return ", ".join(f"{name} {_cell(one)}" for name, one in list(value.items())[:COLUMNS])


def _summed(terms: Sequence[tuple[float, str]]) -> str:
    written = ""
    for factor, name in terms:
        size = number(abs(factor)) if not name else name if abs(factor) == 1 else f"{number(abs(factor))} × {name}"
        sign = (" − " if factor < 0 else " + ") if written else ("−" if factor < 0 else "")
        written += sign + size
    return written or "0"


def _mapping(title: str, value: Spec) -> SpecTableView:
    rows = [[str(name), _cell(one)] for name, one in list(value.items())[:ROWS]]
    return SpecTableView(title, ["name", "value"], rows, max(0, len(value) - ROWS))


def _matrix(name: str, title: str, rows: Sequence[Sequence[Any]], spec: Spec) -> SpecTableView:
    """Return a matrix with the names of its rows and columns."""
    sides = {
        "transport_costs": ("sources" if "sources" in spec else "facilities", "destinations"),
        "covariance": ("assets", "assets"),
    }.get(name)
    if sides is None:
        return SpecTableView(title, ["pair"], [[_cell(row)] for row in rows[:ROWS]], max(0, len(rows) - ROWS))
    down = _names(spec[sides[0]])
    along = _names(spec[sides[1] if sides[1] in spec else "customers"])
    cut = len(along) > COLUMNS
    heads = ["from \\ to" if name == "transport_costs" else "", *along[:COLUMNS], *(["…"] if cut else [])]
    shown = [
        [at, *(number(value, 3) for value in row[:COLUMNS]), *(["…"] if cut else [])]
        for at, row in zip(down[:ROWS], rows, strict=False)
    ]
    return SpecTableView(title, heads, shown, max(0, len(rows) - ROWS))


def _names(parts: Sequence[Any]) -> list[str]:
    return [part if isinstance(part, str) else part["name"] for part in parts]
