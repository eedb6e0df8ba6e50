"""The steps of the journey, small enough to be taken in every test."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from httpx import Response
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import Base
from app.demo import bakery_rows, example_problem
from app.jobs import compute, service

Json = dict[str, Any]

ROWS = bakery_rows(60)
OUTCOMES = ["croissants", "loaves"]
CONTEXTS = [{name: value for name, value in row.items() if name not in OUTCOMES} for row in ROWS]
QUICK: Json = {"method": "vi", "members": 2, "epochs": 2, "particles": 40}


def answered(response: Response, status: int = 200) -> Json:
    assert response.status_code == status, response.text
    answer: Json = response.json()
    return answer


def create_problem(client: TestClient, **changes: Any) -> Json:
    return answered(client.post("/v1/problems", json=example_problem() | changes), 201)


def create_dataset(client: TestClient, **changes: Any) -> Json:
    body = {"name": "days", "outcomes": OUTCOMES, "rows": ROWS} | changes
    return answered(client.post("/v1/datasets", json=body), 201)


def upload(client: TestClient, content: bytes, **form: str) -> Response:
    fields = {"name": "uploaded", "outcomes": "demand"} | form
    return client.post("/v1/datasets/upload", data=fields, files={"file": ("history", content)})


def create_job(client: TestClient, **changes: Any) -> Json:
    """A queued job that takes a fraction of a second once it runs."""
    body = {"predictor": {"kind": "linear"}, "posterior": QUICK} | changes
    if "problem_id" not in body:
        body["problem_id"] = create_problem(client)["id"]
    if "dataset_id" not in body:
        body["dataset_id"] = create_dataset(client)["id"]
    return answered(client.post("/v1/jobs", json=body), 202)


def learn(client: TestClient, job_id: str) -> Json:
    """Run a queued job in this process, as a worker's child would, and read how it ended."""
    attempt = service.start(job_id)
    assert attempt is not None
    compute.run(job_id, attempt)
    return answered(client.get(f"/v1/jobs/{job_id}"))


def learned(client: TestClient, **changes: Any) -> Json:
    """The posterior of a job made from beginning to end."""
    job = learn(client, create_job(client, **changes)["id"])
    assert job["state"] == "succeeded", job["error"]
    return answered(client.get(f"/v1/posteriors/{job['posterior_id']}"))


def prescribe(client: TestClient, posterior_id: str, **changes: Any) -> Json:
    body = {"contexts": CONTEXTS[:1]} | changes
    return answered(client.post(f"/v1/posteriors/{posterior_id}/prescribe", json=body))


def pages(client: TestClient, path: str, limit: int) -> list[list[Json]]:
    """Every page of a list, by following its cursors."""
    found: list[list[Json]] = []
    query: Json = {"limit": limit}
    while True:
        answer = answered(client.get(path, params=query))
        found.append(answer["items"])
        if answer["next_cursor"] is None:
            return found
        query["cursor"] = answer["next_cursor"]


def counts() -> dict[str, int]:
    """How many rows each table has, the job queue's among them."""
    with transaction() as session:
        schema = None if session.get_bind().dialect.name == "sqlite" else "dbos"
        tables = [*Base.metadata.sorted_tables, sa.table("workflow_status", schema=schema)]
        count = {table.name: sa.select(sa.func.count()).select_from(table).scalar_subquery() for table in tables}
        found = session.execute(sa.select(*(query.label(name) for name, query in count.items()))).one()
        return dict(found._mapping)
