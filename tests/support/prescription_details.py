"""Prescriptions with every detail that ``include`` offers, and a reader for their scenarios."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.testclient import TestClient

from tests.support.journey import Json, await_solvers, check_json, create_dataset, learn_posterior, prescribe

ALL = ["scenarios", "outcomes", "recourse", "sensitivity", "neighbours"]
STORES: Json = {
    "kind": "two_stage_linear",
    "decisions": [{"name": "near", "cost": 2, "maximum": 12}, {"name": "far", "cost": 1}],
    "decision_rows": [{"name": "budget", "coefficients": {"near": 2, "far": 1}, "sense": "<=", "limit": 30}],
    "outcomes": [{"name": "port", "minimum": 0}, {"name": "mill", "minimum": 0}],
    "recourse": [{"name": "lost port", "cost": 9}, {"name": "lost mill", "cost": 7}],
    "rows": [
        {"name": "serve port", "recourse": {"lost port": 1}, "decisions": {"near": 1}, "sense": ">=",
         "outcomes": {"port": 1}},
        {"recourse": {"lost mill": 1}, "decisions": {"far": 1}, "sense": ">=", "outcomes": {"mill": 1}},
    ],
}  # fmt: skip
RNG = np.random.default_rng(0)
DAYS = [
    {"rain": float(rain), "port": float(10 + rain + RNG.gamma(2, 2)), "mill": float(20 - rain + RNG.gamma(2, 2))}
    for rain in RNG.uniform(0, 5, 60)
]


def learn_from_spec(client: TestClient, spec: Json, outcomes: list[str], rows: list[Json], **changes: Any) -> Json:
    """Create a problem and a dataset, run a job and return its posterior."""
    problem = check_json(client.post("/v1/problems", json={"name": "planner", "spec": spec}), 201)
    dataset = create_dataset(client, outcomes=outcomes, rows=rows)
    return learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"], **changes)


def prescribe_with_details(client: TestClient, posterior: Json, context: Json, **changes: Any) -> Json:
    """Prescribe for one context with all details, also where the call goes to a solver process."""
    await_solvers(client)
    body = {"scenarios": 20, "include": ALL} | changes
    found: Json = prescribe(client, posterior["id"], contexts=[context], **body)["prescriptions"][0]
    return found


def atoms(found: Json) -> list[tuple[float, dict[str, float], float]]:
    """Weight, outcomes and reported cost of each scenario."""
    scenarios = found["scenarios"]
    outcomes = [
        dict(zip(scenarios["outcomes"], row, strict=True)) for row in zip(*scenarios["outcomes"].values(), strict=True)
    ]
    return list(zip(scenarios["weights"], outcomes, scenarios["costs"], strict=True))
