"""API calls of the user journey, small enough for every test: problem, dataset, job, posterior, prescription."""

from __future__ import annotations

import random
import re
from typing import Any

import sqlalchemy as sa
from httpx import Client, Response
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import Base, DatasetRow, JobRow, ProblemRow
from app.demo import bakery_rows, example_problem
from app.jobs import compute, service
from app.jobs.kinds.base import Store
from app.jobs.kinds.learn import store_posterior
from bco_core.posterior import Posterior
from tests.support.polling import wait_until

Json = dict[str, Any]

ROWS = bakery_rows(60)
OUTCOMES = ["croissants", "loaves"]
CONTEXTS = [{name: value for name, value in row.items() if name not in OUTCOMES} for row in ROWS]
QUICK: Json = {"method": "vi", "members": 2, "epochs": 2, "particles": 40}
ASSETS = ["shares", "bonds", "gold"]
FUND: Json = {
    "kind": "return_constrained_portfolio",
    "assets": [{"name": name} for name in ASSETS],
    "covariance": [[0.0004, 0.0001, 0.0], [0.0001, 0.0003, 0.0], [0.0, 0.0, 0.0005]],
    "target_return": 0.05,
}


def check_json(response: Response, status: int = 200) -> Json:
    """Check the status of a response and return its JSON."""
    assert response.status_code == status, response.text
    answer: Json = response.json()
    return answer


def create_problem(client: TestClient, **changes: Any) -> Json:
    return check_json(client.post("/v1/problems", json=example_problem() | changes), 201)


def create_dataset(client: TestClient, **changes: Any) -> Json:
    body = {"name": "days", "outcomes": OUTCOMES, "rows": ROWS} | changes
    return check_json(client.post("/v1/datasets", json=body), 201)


def upload(client: TestClient, content: bytes, **form: str) -> Response:
    fields = {"name": "uploaded", "outcomes": "demand"} | form
    return client.post("/v1/datasets/upload", data=fields, files={"file": ("history", content)})


def create_job(client: TestClient, **changes: Any) -> Json:
    """Queue a job that runs in a fraction of a second."""
    body = {"predictor": {"kind": "linear"}, "inference": QUICK} | changes
    if "problem_id" not in body:
        body["problem_id"] = create_problem(client)["id"]
    if "dataset_id" not in body:
        body["dataset_id"] = create_dataset(client)["id"]
    return check_json(client.post("/v1/jobs", json=body), 202)


def learn(client: TestClient, job_id: str) -> Json:
    """Run a queued job in this process, as a worker's child does, and return it."""
    attempt = service.start(job_id)
    assert attempt is not None
    compute.run(job_id, attempt)
    return check_json(client.get(f"/v1/jobs/{job_id}"))


def store_function_for(job_id: str, result: tuple[Posterior, Json]) -> Store:
    """Return the function that stores a posterior and its diagnostics as the job's result."""
    with transaction() as session:
        job = session.get_one(JobRow, job_id)
        problem = session.get_one(ProblemRow, job.problem_id)
        dataset = session.get_one(DatasetRow, job.dataset_id)
    return store_posterior(job, problem, dataset, *result)


def learn_posterior(client: TestClient, **changes: Any) -> Json:
    """Run a job from start to finish and return its posterior."""
    job = learn(client, create_job(client, **changes)["id"])
    assert job["state"] == "succeeded", job["error"]
    return check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))


def prescribe(client: TestClient, posterior_id: str, **changes: Any) -> Json:
    """Return the answer without its id, which differs in every call."""
    address, body = f"/v1/posteriors/{posterior_id}/prescribe", {"contexts": CONTEXTS[:1]} | changes
    response = client.post(address, json=body)
    if response.status_code == 503 and "solver processes are starting" in response.text:
        # A busy machine sends even quick calls to the solver processes.
        await_solvers(client)
        response = client.post(address, json=body)
    answer = check_json(response)
    del answer["id"]
    return answer


def without_id(content: bytes) -> bytes:
    """Remove the id from the start of an answer."""
    return re.sub(rb'^\{"id":("\w+"|null),', b"{", content)


def await_solvers(client: TestClient) -> None:
    """Start the solver processes of an application in this process. The very first start compiles kernels."""
    wait_until("the solver processes have started", lambda: client.app.state.solvers.start().ready)  # type: ignore[attr-defined]


def pages(client: TestClient, path: str, limit: int) -> list[list[Json]]:
    """Follow a list's cursors and return all its pages."""
    found: list[list[Json]] = []
    query: Json = {"limit": limit}
    while True:
        answer = check_json(client.get(path, params=query))
        found.append(answer["items"])
        if answer["next_cursor"] is None:
            return found
        query["cursor"] = answer["next_cursor"]


def counts() -> dict[str, int]:
    """Count the rows of every table, including the job queue. The log is left out because it is written
    asynchronously."""
    with transaction() as session:
        schema = None if session.get_bind().dialect.name == "sqlite" else "dbos"
        tables = [*Base.metadata.sorted_tables, sa.table("workflow_status", schema=schema)]
        count = {table.name: sa.select(sa.func.count()).select_from(table).scalar_subquery() for table in tables}
        del count["prescriptions"]
        found = session.execute(sa.select(*(query.label(name) for name, query in count.items()))).one()
        return dict(found._mapping)


def months(count: int = 60) -> list[Json]:
    """Returns of three assets that depend on the column ``mood``."""
    generator = random.Random(1)
    rows = []
    for _ in range(count):
        mood = generator.gauss(0, 1)
        row: Json = {"mood": mood, "rates": generator.gauss(0, 1)}
        for index, name in enumerate(ASSETS):
            row[name] = 0.1 + 0.02 * mood * (index - 1) + generator.gauss(0, 0.01)
        rows.append(row)
    return rows


def prepare_fund(client: Client) -> Json:
    """Create a portfolio problem and its history, as a Metropolis–Hastings job needs."""
    problem = check_json(client.post("/v1/problems", json={"name": "fund", "spec": FUND}), 201)
    body = {"name": "months", "outcomes": ASSETS, "rows": months()}
    return {"problem_id": problem["id"], "dataset_id": check_json(client.post("/v1/datasets", json=body), 201)["id"]}
