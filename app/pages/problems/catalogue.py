"""The kinds of problem with title, description and a working example."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ProblemKindView:
    """A kind of problem; ``linear`` ones can be exported as MPS."""

    name: str
    title: str
    sentence: str
    such_as: str
    example: dict[str, Any]
    linear: bool = True
    # what the outcomes are
    unknown: str = "outcomes"

    @property
    def text(self) -> str:
        """The example as formatted JSON."""
        return pretty_json(self.example)


def pretty_json(value: Any, indent: str = "") -> str:
    """Format JSON for reading and editing: short lists and objects stay on one line."""
    short = json.dumps(value, ensure_ascii=False)
    if len(short) + len(indent) <= 78 or not isinstance(value, dict | list) or not value:
        return short
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name, ensure_ascii=False)}: {pretty_json(one, inner)}" for name, one in value.items()]
        return "{\n" + ",\n".join(inner + part for part in parts) + "\n" + indent + "}"
    return "[\n" + ",\n".join(inner + pretty_json(one, inner) for one in value) + "\n" + indent + "]"


_ASSETS = [{"name": "shares", "maximum": 0.6}, {"name": "bonds"}, {"name": "gold"}]

KINDS: dict[str, ProblemKindView] = {
    kind.name: kind
    for kind in (
        ProblemKindView(
            "newsvendor",
            "Order before demand is known",
            "Choose order quantities when shortages and leftovers both cost money.",
            "croissants and loaves for tomorrow",
            {
                "kind": "newsvendor",
                "items": [
                    {
                        "name": "croissants",
                        "price": 2.6,
                        "unit_cost": 0.8,
                        "salvage_value": 0.2,
                        "pack_size": 12,
                        "stock": 9,
                    },
                    {
                        "name": "loaves",
                        "price": 4.1,
                        "unit_cost": 1.7,
                        "salvage_value": 0.5,
                        "integer": True,
                        "minimum_service_level": 0.8,
                    },
                ],
                "decision_rows": [
                    {"name": "oven", "coefficients": {"croissants": 1, "loaves": 2.5}, "sense": "<=", "limit": 360}
                ],
            },
            linear=False,
            unknown="demand",
        ),
        ProblemKindView(
            "shipment",
            "Order to depots, ship later",
            "Order to each depot now; ship to destinations once demand is known.",
            "heating oil in two depots for three regions",
            {
                "kind": "shipment",
                "sources": [
                    {"name": "north", "order_cost": 5, "emergency_cost": 40, "maximum_order": 200},
                    {"name": "south", "order_cost": 6, "emergency_cost": 30},
                ],
                "destinations": ["city", "valley", "coast"],
                "transport_costs": [[1, 2, 6], [4, 3, 1]],
            },
        ),
        ProblemKindView(
            "facility_location",
            "Open facilities",
            "Choose facilities to open now; serve customers once demand is known.",
            "three depots that could serve three regions",
            {
                "kind": "facility_location",
                "facilities": [
                    {"name": "north", "opening_cost": 260, "capacity": 130},
                    {"name": "south", "opening_cost": 180, "capacity": 90},
                    {"name": "harbour", "opening_cost": 90, "capacity": 50},
                ],
                "customers": [{"name": "city"}, {"name": "valley"}, {"name": "coast", "shortage_cost": 15}],
                "transport_costs": [[1, 2, 5], [3, 2, 4], [None, 6, 1]],
                "shortage_cost": 12,
            },
        ),
        ProblemKindView(
            "production",
            "Produce and blend",
            "Choose production quantities; sell once demand and prices are known.",
            "two fuels blended of three ingredients",
            {
                "kind": "production",
                "products": [
                    {
                        "name": "regular",
                        "blend_of": ["light", "heavy"],
                        "qualities": {"octane": {"minimum": 87}},
                        "uses": {"hours": 0.5},
                        "price": 34,
                        "shortage_cost": 3,
                    },
                    {
                        "name": "premium",
                        "blend_of": ["light", "heavy", "additive"],
                        "qualities": {"octane": {"minimum": 93}},
                        "uses": {"hours": 0.8},
                        "price": 42,
                        "holding_cost": 1,
                    },
                ],
                "resources": [{"name": "hours", "available": 70}],
                "ingredients": [
                    {"name": "light", "unit_cost": 24, "available": 80, "qualities": {"octane": 92}},
                    {"name": "heavy", "unit_cost": 16, "qualities": {"octane": 82}},
                    {"name": "additive", "unit_cost": 40, "available": 6, "qualities": {"octane": 115}},
                ],
            },
        ),
        ProblemKindView(
            "assignment",
            "Assign tasks",
            "Assign every task to an agent when costs are uncertain.",
            "two craftsmen, a roof and a wall",
            {"kind": "assignment", "agents": ["ann", "bob"], "tasks": ["roof", "wall"]},
            unknown="costs",
        ),
        ProblemKindView(
            "shortest_path",
            "Shortest path",
            "Find the cheapest route through a network with uncertain costs.",
            "from home to the office, over the bridge or through the tunnel",
            {
                "kind": "shortest_path",
                "source": "home",
                "target": "office",
                "edges": [
                    {"start": "home", "end": "bridge"},
                    {"start": "bridge", "end": "office"},
                    {"start": "home", "end": "tunnel"},
                    {"start": "tunnel", "end": "office"},
                    {"start": "bridge", "end": "tunnel", "cost": 3},
                ],
            },
            unknown="costs",
        ),
        ProblemKindView(
            "knapsack",
            "Knapsack",
            "Select the most valuable items within capacities when values are uncertain.",
            "goods for a market stall",
            {
                "kind": "knapsack",
                "items": [
                    {"name": "lamps", "weights": {"kg": 4, "litres": 6}, "copies": 3},
                    {"name": "ice boxes", "weights": {"kg": 6, "litres": 20}, "copies": 2},
                    {"name": "books", "weights": {"kg": 3, "litres": 2}, "copies": None},
                ],
                "capacities": {"kg": 20, "litres": 50},
            },
            unknown="values",
        ),
        ProblemKindView(
            "unit_commitment",
            "Schedule power units",
            "Commit units to hours now; dispatch them once demand is known.",
            "coal and gas over four hours",
            {
                "kind": "unit_commitment",
                "hours": 4,
                "units": [
                    {
                        "name": "coal",
                        "minimum_output": 30,
                        "maximum_output": 80,
                        "unit_cost": 20,
                        "startup_cost": 400,
                        "minimum_up": 3,
                        "ramp_up": 30,
                        "ramp_down": 30,
                    },
                    {
                        "name": "gas",
                        "minimum_output": 10,
                        "maximum_output": 60,
                        "unit_cost": 45,
                        "fixed_cost": 50,
                        "startup_cost": 60,
                    },
                ],
                "shedding_cost": 500,
                "curtailment_cost": 5,
            },
        ),
        ProblemKindView(
            "mean_variance_portfolio",
            "Portfolio: risk against return",
            "Choose positions that trade off risk against return.",
            "shares, bonds and gold",
            {"kind": "mean_variance_portfolio", "risk_aversion": 20, "assets": _ASSETS},
            linear=False,
            unknown="returns",
        ),
        ProblemKindView(
            "return_constrained_portfolio",
            "Portfolio: target return",
            "Minimise risk while the return reaches a target even in bad cases.",
            "a pension fund that must return 3 %",
            {
                "kind": "return_constrained_portfolio",
                "target_return": 0.03,
                "confidence": 0.9,
                "assets": _ASSETS,
            },
            linear=False,
            unknown="returns",
        ),
        ProblemKindView(
            "two_stage_linear",
            "Two-stage linear model",
            "Decide now, correct later at minimum cost; limits depend on outcomes.",
            "steel ordered now, with express orders and scrap after",
            {
                "kind": "two_stage_linear",
                "decisions": [{"name": "order", "cost": 5, "maximum": 400}],
                "outcomes": [{"name": "demand", "minimum": 0}],
                "recourse": [{"name": "express", "cost": 30}, {"name": "scrap", "cost": 1}],
                "rows": [
                    {
                        "name": "balance",
                        "recourse": {"express": 1, "scrap": -1},
                        "decisions": {"order": 1},
                        "sense": "=",
                        "outcomes": {"demand": 1},
                    }
                ],
            },
        ),
        ProblemKindView(
            "linear",
            "Any linear model",
            "Linear or mixed-integer; every cost, coefficient and limit may depend on outcomes.",
            "wheat and beets with uncertain yields and prices",
            {
                "kind": "linear",
                "sense": "maximize",
                "decisions": [
                    {"name": "wheat", "cost": -150, "integer": True},
                    {"name": "beets", "cost": -260, "integer": True},
                ],
                "recourse": [
                    {"name": "wheat sold", "cost": {"outcomes": {"wheat price": 1}}},
                    {"name": "beets sold", "cost": 36},
                    {"name": "wheat bought", "cost": {"constant": 20, "outcomes": {"wheat price": -1.3}}},
                ],
                "outcomes": [
                    {"name": "wheat yield", "minimum": 0, "maximum": 6},
                    {"name": "beet yield", "minimum": 0, "maximum": 40},
                    {"name": "wheat price", "minimum": 100, "maximum": 300},
                ],
                "rows": [
                    {"name": "land", "decisions": {"wheat": 1, "beets": 1}, "sense": "<=", "limit": 500},
                    {
                        "name": "wheat",
                        "decisions": {"wheat": {"outcomes": {"wheat yield": 1}}},
                        "recourse": {"wheat bought": 1, "wheat sold": -1},
                        "sense": ">=",
                        "limit": 200,
                    },
                    {
                        "name": "beets",
                        "decisions": {"beets": {"outcomes": {"beet yield": -1}}},
                        "recourse": {"beets sold": 1},
                        "sense": "<=",
                        "limit": 0,
                    },
                ],
            },
        ),
    )
}
