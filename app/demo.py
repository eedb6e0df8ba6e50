"""The demonstration's bakery: its problem, its history and the job that learns from it.

The command line and the home page load the same one, and the docs page uses its objects in examples.
"""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np

from app.problems.schemas import NewProblem

WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
DAYS, HELD_OUT = 1100, 220
# Name of all objects of the demonstration.
DEMO_NAME = "bakery"

MORNINGS: list[dict[str, Any]] = [
    {"weekday": "SAT", "temperature": 21.5, "rain": 0.0, "promotion": True, "holiday": False},
    {"weekday": "MON", "temperature": 4.0, "rain": 6.5, "promotion": False, "holiday": False},
    {"weekday": "SUN", "temperature": 27.0, "rain": 0.0, "promotion": False, "holiday": True},
]


def bakery_rows(days: int = DAYS, seed: int = 2024) -> list[dict[str, Any]]:
    """Return days at a bakery: demand by weekday, weather and promotion, with a spread that grows with demand."""
    rng = np.random.default_rng(seed)
    rows = []
    for day in range(days):
        weekday = WEEKDAYS[day % 7]
        weekend = weekday in ("SAT", "SUN")
        temperature = round(float(12 + 10 * np.sin(2 * np.pi * (day - 110) / 365) + rng.normal(0, 4)), 1)
        rain = round(float(rng.gamma(0.6, 6.0) if rng.random() < 0.4 else 0.0), 1)
        promotion, holiday = bool(rng.random() < 0.2), bool(rng.random() < 0.04)
        mood = 1 - 0.015 * min(rain, 20) - 0.0006 * (temperature - 18) ** 2 + 0.25 * holiday
        croissants = (62 + 48 * weekend) * mood * (1.45 if promotion and weekend else 1.2 if promotion else 1.0)
        loaves = (85 - 18 * (weekday == "SUN")) * (1 - 0.008 * (temperature - 12)) * (1 + 0.3 * holiday)
        spread = 1 + 0.8 * promotion + 0.5 * weekend
        rows.append(
            {
                "weekday": weekday,
                "temperature": temperature,
                "rain": rain,
                "promotion": promotion,
                "holiday": holiday,
                "croissants": max(0, round(croissants + rng.normal(0, 0.12 * croissants * spread))),
                "loaves": max(0, round(loaves + rng.standard_t(4) * 0.09 * loaves * spread)),
            }
        )
    return rows


def as_csv(rows: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: int(value) if isinstance(value, bool) else value for name, value in row.items()} for row in rows
    )
    return out.getvalue()


def example_problem() -> dict[str, Any]:
    """Return the bakery's problem, the one that the docs page shows."""
    config: Any = NewProblem.model_config["json_schema_extra"]
    problem: dict[str, Any] = config["examples"][0]
    return problem


def split_history() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the days to learn from, and later days for validation."""
    rows = bakery_rows()
    return rows[:-HELD_OUT], rows[-HELD_OUT:]


def new_dataset(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the request that creates the bakery's data set."""
    outcomes = [item["name"] for item in example_problem()["spec"]["items"]]
    return {"name": DEMO_NAME, "outcomes": outcomes, "rows": rows}


def new_job(problem_id: str, dataset_id: str) -> dict[str, Any]:
    """Return the request that learns from it."""
    return {"name": DEMO_NAME, "problem_id": problem_id, "dataset_id": dataset_id, "seed": 7}
