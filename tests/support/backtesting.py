"""A small history of two shops, and backtests on it that take seconds."""

from __future__ import annotations

from datetime import date, timedelta
from random import Random
from typing import Any

from starlette.testclient import TestClient

from tests.support.journey import QUICK, Json, check_json, create_dataset, learn

SPEC: Json = {"kind": "newsvendor", "items": [{"name": "sold", "underage_cost": 3.0, "overage_cost": 1.0}]}
OURS: Json = {"name": "quick", "predictor": {"kind": "linear"}, "inference": QUICK | {"epochs": 30}}


def days(count: int = 90, shops: tuple[str, ...] = ("north", "south"), stock: float = 60.0) -> list[Json]:
    """Sales that depend on weekday and promotion. The recorded action is a constant stock, missing on some days."""
    generator, rows = Random(1), []
    for number in range(count):
        day = date(2024, 1, 1) + timedelta(number)
        for shop in shops:
            promotion = int(generator.random() < 0.3)
            base = 40 + 25 * (day.weekday() == 5) + 30 * promotion + 5 * (shop == "south")
            row: Json = {
                "day": str(day),
                "shop": shop,
                "promotion": promotion,
                "sold": round(base + generator.gauss(0, 4)),
            }
            rows.append(row | {"stocked": None if number % 11 == 3 else stock})
    return rows


def create_shop(client: TestClient, rows: list[Json] | None = None, **changes: Any) -> Json:
    roles: Json = {"outcomes": ["sold"], "time": "day", "series": ["shop"], "lead": 2, "decisions": ["stocked"]}
    dataset = create_dataset(client, rows=days() if rows is None else rows, **(roles | changes))
    problem = check_json(client.post("/v1/problems", json={"name": "shop", "spec": SPEC}), 201)
    return {"problem_id": problem["id"], "dataset_id": dataset["id"]}


def backtest_body(ids: Json, **changes: Any) -> Json:
    body = {"kind": "backtest", "ours": [OURS], "baselines": ["constant", "season", "regression"], "splits": 3}
    return ids | body | {"actual_decision": {"sold": "stocked"}} | changes


def run_backtest(client: TestClient, body: Json) -> Json:
    job = learn(client, check_json(client.post("/v1/jobs", json=body), 202)["id"])
    assert job["state"] == "succeeded", job["error"]
    return job
