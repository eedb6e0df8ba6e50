"""The bakery's posterior, which the planner benches query."""

from __future__ import annotations

import httpx

from app.demo import bakery_rows, example_problem
from benchmarks.bench.serving import train


def learn_posterior(client: httpx.Client) -> str:
    """Learn the posterior in two epochs and return its id."""
    outcomes = [item["name"] for item in example_problem()["spec"]["items"]]
    problem = client.post("/v1/problems", json=example_problem()).json()
    body = {"name": "bench", "outcomes": outcomes, "rows": bakery_rows()}
    dataset = client.post("/v1/datasets", json=body).json()
    request = {"problem_id": problem["id"], "dataset_id": dataset["id"], "inference": {"epochs": 2}}
    return train(client, request)[1]
