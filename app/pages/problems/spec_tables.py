"""The numbers of a problem as tables in words, made from its specification, whatever its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.pages.problems.notation import share
from app.pages.render import number, percent

Spec = Mapping[str, Any]
# Rows and columns that are shown; the specification has all of them.
ROWS, COLUMNS = 40, 14

# What fields of parts are called. What is not here is written as it is, without underscores.
WORDS = {
    "name": "name",
    "underage_cost": "each too few costs",
    "overage_cost": "each too many costs",
    "price": "sells for",
    "unit_cost": "a unit costs",
    "salvage_value": "left over, brings",
    "shortage_penalty": "each short, besides",
    "minimum_order": "order at least",
    "maximum_order": "order at most",
    "maximum_demand": "demand at most",
    "stock": "on hand",
    "integer": "whole numbers",
    "pack_size": "in packs of",
    "minimum_service_level": "demand met in",
    "minimum": "at least",
    "maximum": "at most",
    "cost": "costs",
    "order_cost": "ordered, a unit costs",
    "emergency_cost": "in an emergency",
    "start": "from",
    "end": "to",
    "value": "worth",
    "weights": "takes",
    "opening_cost": "opening costs",
    "capacity": "can ship",
    "shortage_cost": "each short costs",
    "uses": "uses",
    "blend_of": "blended of",
    "unlimited_demand": "all is sold",
    "holding_cost": "each left over costs",
    "available": "there is",
    "minimum_output": "gives at least",
    "maximum_output": "gives at most",
    "fixed_cost": "an hour costs",
    "startup_cost": "a start costs",
    "minimum_up": "hours up at least",
    "minimum_down": "hours down at least",
    "ramp_up": "grows an hour by",
    "ramp_down": "falls an hour by",
    "initially_on": "runs already",
    "residual_variances": "residual variances",
}
# What is said of the whole problem.
FACTS = {
    "sense": "what is sought",
    "minimum_service_level": "of all demand, expected to be met at least",
    "source": "from",
    "target": "to",
    "directed": "edges lead one way only",
    "shares": "shares of items can be taken",
    "maximum_open": "may be opened",
    "shortage_cost": "each unit not served costs",
    "hours": "hours",
    "shedding_cost": "each unit of demand not met costs",
    "curtailment_cost": "each unit too much costs",
    "target_return": "the return to be reached",
    "target_on": "reached by",
    "confidence": "in how much of what may happen",
    "infeasible": "where no portfolio reaches it",
    "budget": "budget",
    "fully_invested": "all of the budget is invested",
    "risk_aversion": "risk aversion",
    "turnover_cost": "each unit bought or sold costs",
    "maximum_turnover": "bought and sold at most",
    "maximum_long": "long positions at most",
    "maximum_short": "short positions at most",
    "estimate": "the covariance is estimated by",
    "covariance_source": "where the covariance is from",
    "relative_gap": "good enough within a share of",
    "absolute_gap": "good enough within",
}
TITLES = {
    "items": "Items",
    "decisions": "Decided now",
    "recourse": "Decided later, once outcomes are known",
    "outcomes": "Not known yet",
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
    "forbidden": "Pairs that cannot be",
    "costs": "Costs of pairs",
    "current": "Held now",
    "transport_costs": "A unit on its way costs",
    "covariance": "Covariance of returns",
}
# Rules stand in the model; how risk is given is told apart.
_ELSEWHERE = ("kind", "rows", "decision_rows", "factors", "nodes")
# Fields whose absence means an outcome column of the owner's own name.
_OWN_COLUMN = {"edges": "cost", "items": "value", "customers": "demand", "products": "demand"}
_LISTS = ("destinations", "agents", "tasks", "demand")
_CHOICES = {
    "minimize": "the least cost",
    "maximize": "the largest value",
    "best_effort": "the best there is, and a reason",
    "error": "no decision",
    "tail": "the mean of the worst cases",
    "mean": "the mean of all cases",
}
_SHARES = ("minimum_service_level", "confidence")


@dataclass(frozen=True)
class SpecTableView:
    """Numbers with a title: heads, rows of texts, and how many rows were left out."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    more: int = 0


def facts_of(spec: Spec) -> list[tuple[str, str]]:
    """What is said of the problem as a whole, in words."""
    found = []
    for name, words in FACTS.items():
        value = spec.get(name)
        if value is None or value == 0 or (value is False and name != "directed"):
            continue
        found.append((words, share(value) if name in _SHARES else _cell(value)))
    for name, title in TITLES.items():
        value = spec.get(name)
        if isinstance(value, list) and value and not isinstance(value[0], list) and name in _LISTS:
            found.append((title, _cell(value)))
    factors = spec.get("factors")
    if factors:
        count = len(factors["loadings"][0])
        found.append(("the covariance", f"by {count} factor{'' if count == 1 else 's'} and residual variances"))
    return found


def tables_of(spec: Spec) -> list[SpecTableView]:
    """The parts of a problem as tables."""
    found = []
    for name, value in spec.items():
        if name in _ELSEWHERE or not value or name in FACTS or name in _LISTS:
            continue
        title = TITLES.get(name, name.replace("_", " "))
        if isinstance(value, list) and isinstance(value[0], dict):
            found.append(_parts(name, title, value, spec["kind"], spec.get("sense") == "maximize"))
        elif isinstance(value, list) and isinstance(value[0], list):
            found.append(_matrix(name, title, value, spec))
        elif isinstance(value, dict):
            found.append(_mapping(title, value))
    return found


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
        heads.append("covers demand in")
        for row, part in zip(rows, parts, strict=False):
            row.append(_covered(part))
    return SpecTableView(title, heads, rows, max(0, len(parts) - ROWS))


def _covered(item: Spec) -> str:
    """In which share of cases the best order of an item by itself meets demand: u/(u + o)."""
    short, over = item.get("underage_cost"), item.get("overage_cost")
    if item.get("price") is not None and item.get("unit_cost") is not None:
        short = item["price"] - item["unit_cost"] + (item.get("shortage_penalty") or 0)
        over = item["unit_cost"] - (item.get("salvage_value") or 0)
    return "–" if not short or not over else percent(short / (short + over))


def _field(name: str, value: Any, own: str | None) -> str:
    if name == own and value is None:
        return "its own column"
    if value is None:
        return "no limit" if name.startswith(("minimum", "maximum")) or name in ("available", "copies") else "–"
    if name in _SHARES:
        return share(value) if value else "–"
    if name == own and isinstance(value, str):
        return f"column {value}"
    return _cell(value)


def _cell(value: Any) -> str:
    """Any value of a specification as words."""
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
    """``4 + 0.5 × rain`` for a number that depends on outcomes; ``kg 4, litres 6`` for others."""
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
    """A matrix with the names of what its rows and columns are about."""
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
