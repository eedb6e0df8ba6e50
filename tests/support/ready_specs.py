"""One small problem of every ready-made kind, and a history for each."""

from __future__ import annotations

import numpy as np

from tests.support.journey import Json

SPECS: dict[str, Json] = {
    "shortest_path": {
        "kind": "shortest_path",
        "source": "home",
        "target": "office",
        "edges": [
            {"start": "home", "end": "bridge"},
            {"start": "home", "end": "tunnel"},
            {"start": "bridge", "end": "office"},
            {"start": "tunnel", "end": "office", "cost": 12},
            {"start": "bridge", "end": "tunnel", "cost": {"constant": 1, "outcomes": {"home to bridge": 0.1}}},
        ],
    },
    "assignment": {
        "kind": "assignment",
        "agents": ["ann", "bob"],
        "tasks": ["roof", "wall"],
        "costs": {"bob": {"wall": 6.5}},
        "capacities": {"ann": 2},
    },
    "knapsack": {
        "kind": "knapsack",
        "items": [
            {"name": "lamps", "weights": {"kg": 4, "litres": 2}},
            {"name": "rugs", "weights": {"kg": 7, "litres": 9}},
            {"name": "books", "weights": {"kg": 3}, "copies": 3},
        ],
        "capacities": {"kg": 13, "litres": 10},
    },
    "facility_location": {
        "kind": "facility_location",
        "facilities": [
            {"name": "north", "opening_cost": 30, "capacity": 12},
            {"name": "south", "opening_cost": 20, "capacity": 9, "unit_cost": 0.5},
        ],
        "customers": [{"name": "city"}, {"name": "coast", "shortage_cost": 9}],
        "transport_costs": [[1, 3], [2, None]],
        "shortage_cost": 8,
    },
    "production": {
        "kind": "production",
        "products": [
            {"name": "bread", "unit_cost": 1, "uses": {"hours": 0.5}, "price": 4, "holding_cost": 0.2},
            {
                "name": "mix",
                "blend_of": ["oats", "nuts"],
                "qualities": {"protein": {"minimum": 12}},
                "price": 7,
                "shortage_cost": 1,
            },
        ],
        "resources": [{"name": "hours", "available": 8}],
        "ingredients": [
            {"name": "oats", "unit_cost": 1, "qualities": {"protein": 10}},
            {"name": "nuts", "unit_cost": 5, "available": 4, "qualities": {"protein": 20}},
        ],
    },
    "unit_commitment": {
        "kind": "unit_commitment",
        "hours": 2,
        "units": [
            {"name": "coal", "minimum_output": 3, "maximum_output": 8, "unit_cost": 2, "startup_cost": 5},
            {"name": "gas", "maximum_output": 6, "unit_cost": 4, "fixed_cost": 1, "ramp_up": 2, "ramp_down": 2},
        ],
        "shedding_cost": 40,
        "curtailment_cost": 1,
    },
}


def history(outcomes: list[str], count: int = 60) -> list[Json]:
    """Draw days on which rain and noise move every outcome."""
    random = np.random.default_rng(5)
    rows = []
    for rain in random.uniform(0, 5, count):
        noise = random.gamma(2, 1, len(outcomes))
        levels = 4 + np.arange(len(outcomes)) + rain * np.cos(np.arange(len(outcomes)))
        rows.append({"rain": float(rain)} | dict(zip(outcomes, np.maximum(levels + noise, 0).tolist(), strict=True)))
    return rows
