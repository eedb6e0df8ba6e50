"""One posterior of every kind that pages have to show."""

from __future__ import annotations

import random
from datetime import date, timedelta
from pathlib import Path

from starlette.testclient import TestClient

from app.posteriors import portable
from tests.support.journey import (
    ASSETS,
    FUND,
    QUICK,
    Json,
    check_json,
    create_dataset,
    create_problem,
    learn_posterior,
    months,
)

FEW_EPOCHS: Json = {"method": "auto", "members": 5, "epochs": 1}
CHAINS: Json = {"method": "mh", "chains": 2, "steps": 120, "burn_in": 60, "particles": 40}
SHOP: Json = {"kind": "newsvendor", "items": [{"name": "demand", "underage_cost": 3, "overage_cost": 1}]}
ROADS: Json = {
    "kind": "shortest_path",
    "source": "home",
    "target": "office",
    "edges": [{"start": "home", "end": "office", "name": name} for name in ("bridge", "tunnel")],
}
BOUNDED: Json = {
    "kind": "newsvendor",
    "items": [
        {"name": name, "underage_cost": 2, "overage_cost": 1, "maximum_order": 300, "maximum_demand": 400}
        for name in ("croissants", "loaves")
    ],
}
EXPRESS: Json = {
    "kind": "linear",
    "decisions": [{"name": "order", "cost": 5, "maximum": 100}],
    "recourse": [{"name": "express", "cost": {"constant": 8, "outcomes": {"fuel": 2}}}],
    "outcomes": [{"name": "demand", "minimum": 0, "maximum": 80}, {"name": "fuel", "minimum": 0, "maximum": 5}],
    "rows": [
        {
            "name": "demand",
            "decisions": {"order": 1},
            "recourse": {"express": 1},
            "sense": ">=",
            "limit": {"outcomes": {"demand": 1}},
        }
    ],
}
KINDS = (
    "mixture",
    "time",
    "chains",
    "feasibility",
    "surrogate",
    "squared error",
    "certified",
    "learned on",
    "imported",
)


def days(numbers: range) -> list[Json]:
    generator = random.Random(numbers.start)
    return [
        {
            "day": (date(2024, 1, 1) + timedelta(n)).isoformat(),
            "shop": shop,
            "demand": 100 + 30 * (n % 7 > 4) + generator.gauss(0, 4),
        }
        for n in numbers
        for shop in ("north", "south")
    ]


def drives() -> list[Json]:
    generator = random.Random(1)
    rows = []
    for _ in range(80):
        rain = generator.gauss(0, 1)
        rows.append(
            {"rain": rain, "bridge": 5 + rain + generator.gauss(0, 0.3), "tunnel": 5 - rain + generator.gauss(0, 0.3)}
        )
    return rows


def weeks() -> list[Json]:
    generator = random.Random(4)
    return [
        {"season": season, "demand": 40 + 12 * season + generator.gauss(0, 3), "fuel": 2.5 + generator.gauss(0, 0.5)}
        for season in (generator.gauss(0, 1) for _ in range(60))
    ]


def one_of_each(client: TestClient, folder: Path) -> dict[str, Json]:
    """Learn one posterior of each kind, as quickly as possible."""
    five = QUICK | {"members": 5, "epochs": 20}
    found = {
        "mixture": learn_posterior(client, name="mixture", predictor={"kind": "auto"}, inference=FEW_EPOCHS),
        "chains": learn_posterior(client, name="chains", inference=CHAINS),
    }
    history = create_dataset(
        client, name="days", outcomes=["demand"], time="day", series=["shop"], rows=days(range(120))
    )
    shop = create_problem(client, name="shop", spec=SHOP)
    found["time"] = learn_posterior(
        client, name="time", problem_id=shop["id"], dataset_id=history["id"], inference=five
    )
    fund = create_problem(client, name="fund", spec=FUND)
    returns = create_dataset(client, name="months", outcomes=ASSETS, rows=months())
    ids = {"problem_id": fund["id"], "dataset_id": returns["id"]}
    found["feasibility"] = learn_posterior(client, name="feasibility", inference=CHAINS, **ids)
    roads = create_problem(client, name="roads", spec=ROADS)
    drive = create_dataset(client, name="drives", outcomes=["bridge", "tunnel"], rows=drives())
    ids = {"problem_id": roads["id"], "dataset_id": drive["id"], "inference": {"particles": 40}}
    found["surrogate"] = learn_posterior(client, name="surrogate", **ids)
    express = create_problem(client, name="express", spec=EXPRESS)
    orders = create_dataset(client, name="orders", outcomes=["demand", "fuel"], rows=weeks())
    ids = {"problem_id": express["id"], "dataset_id": orders["id"], "inference": {"particles": 40}}
    found["squared error"] = learn_posterior(client, name="squared error", **ids)
    bounded = create_problem(client, name="bounded", spec=BOUNDED)
    found["certified"] = learn_posterior(
        client, name="certified", problem_id=bounded["id"], inference=five | {"certify": True}
    )
    check_json(client.post(f"/v1/datasets/{history['id']}/rows", json={"rows": days(range(120, 160))}), 201)
    before = {"posterior_id": found["time"]["id"], "as_prior": True, "forgetting": 0.25}
    body = {"problem_id": shop["id"], "dataset_id": history["id"], "from_posterior": before}
    found["learned on"] = learn_posterior(client, name="learned on", **body)
    found["imported"] = import_posterior(client, folder / "posterior.zip")
    return found


def import_posterior(client: TestClient, path: Path) -> Json:
    """Import a posterior from a file: its job and dataset are absent."""
    there = learn_posterior(client, name="imported")
    portable.export(there["id"], path)
    assert client.delete(f"/v1/posteriors/{there['id']}").status_code == 204
    assert portable.import_(path, "default")[1]
    return check_json(client.get(f"/v1/posteriors/{there['id']}"))
