"""Database outages: missing, full or locked for a while; no process needs a restart and no job is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db import outage
from app.db.engine import get_engine
from app.db.migrate import migrate
from app.jobs import compute, service
from app.main import create_app
from app.settings import get_settings
from tests.support.in_process import service_on
from tests.support.journey import Json, check_json, counts, create_dataset, create_job, create_problem, learn

# the API in this process, on SQLite


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with service_on(f"sqlite:///{tmp_path / 'bco.db'}"):
        migrate(get_settings().sqlalchemy_url)
        with TestClient(create_app(), raise_server_exceptions=False) as running:
            yield running


@contextmanager
def with_pragmas(*pragmas: str) -> Iterator[None]:
    """Apply pragmas to every connection that is opened inside the block."""

    def configure(connection: Any, record: object) -> None:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")

    get_engine().dispose()
    sa.event.listen(get_engine(), "connect", configure)
    try:
        yield
    finally:
        sa.event.remove(get_engine(), "connect", configure)
        get_engine().dispose()


# A limit below the present size of the database, which therefore cannot grow.
FULL_DISK = "max_page_count=1"


def check_unavailable(response: httpx.Response) -> Json:
    problem = check_json(response, 503)
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["Retry-After"]) > 0
    assert problem["type"] == "urn:bco:error:unavailable"
    return problem


def test_a_full_disk_answers_503_and_loses_nothing(
    client: TestClient,
) -> None:
    problem, dataset = create_problem(client), create_dataset(client)
    before = counts()
    rows = [{"x": index, "croissants": index, "loaves": index} for index in range(20_000)]
    body = {"name": "big", "outcomes": ["croissants", "loaves"], "rows": rows}
    with with_pragmas(FULL_DISK):
        assert "is full" in check_unavailable(client.post("/v1/datasets", json=body))["detail"]
        for _ in range(3):
            # The service stays unready for as long as the disk is full, even without further writes.
            assert client.get("/readyz").status_code == 503
        assert check_json(client.get("/v1/problems"))["items"][0]["id"] == problem["id"]
    assert counts() == before
    assert client.get("/readyz").status_code == 200
    assert check_json(client.post("/v1/datasets", json=body), 201)["rows"] == 20_000
    job = create_job(client, problem_id=problem["id"], dataset_id=dataset["id"])
    assert learn(client, job["id"])["state"] == "succeeded"


def test_a_job_waits_for_disk_space_to_store_its_result(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"kind": "mlp", "hidden": [64, 64]}
    job = create_job(client, predictor=large, inference={"method": "vi", "members": 20, "epochs": 2, "particles": 40})
    attempt = service.start(job["id"])
    assert attempt is not None
    computing = threading.Thread(target=compute.run, args=(job["id"], attempt))
    refused = threading.Event()
    original = outage.in_words
    monkeypatch.setattr(outage, "in_words", lambda error: (refused.set(), original(error))[1])
    with with_pragmas(FULL_DISK):
        computing.start()
        assert refused.wait(60)
        assert computing.is_alive()
        assert check_json(client.get(f"/v1/jobs/{job['id']}"))["state"] == "running"
    computing.join(60)
    assert check_json(client.get(f"/v1/jobs/{job['id']}"))["state"] == "succeeded"
    assert counts()["posteriors"] == 1


@pytest.mark.slow
def test_a_locked_database_can_be_read_and_writes_get_503(client: TestClient) -> None:
    problem = create_problem(client)
    holder = sa.create_engine(get_settings().sqlalchemy_url, isolation_level="AUTOCOMMIT")
    with with_pragmas("busy_timeout=50"), holder.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        response = client.post("/v1/problems", json={"name": problem["name"], "spec": problem["spec"]})
        assert "busy" in check_unavailable(response)["detail"]
        assert client.get(f"/v1/problems/{problem['id']}").status_code == 200
        assert client.get("/readyz").status_code == 200
        connection.exec_driver_sql("ROLLBACK")
    holder.dispose()
    assert client.post("/v1/problems", json={"name": "again", "spec": problem["spec"]}).status_code == 201


def test_a_missing_database_answers_503() -> None:
    with service_on("postgresql://nobody@/nowhere?host=/nonexistent"):
        client = TestClient(create_app(), raise_server_exceptions=False)
        assert "does not answer" in check_unavailable(client.get("/v1/jobs"))["detail"]
        assert "does not answer" in check_unavailable(client.delete("/v1/jobs/job_" + "0" * 26))["detail"]
        assert "bco migrate" in check_unavailable(client.get("/readyz"))["detail"]


def test_errors_that_are_not_outages_are_not_retried() -> None:
    calls = []

    def wrong() -> None:
        calls.append(1)
        raise sa.exc.ProgrammingError("SELECT", {}, Exception("no such column"))

    with pytest.raises(sa.exc.ProgrammingError):
        outage.insist(wrong)
    assert len(calls) == 1
    assert not outage.is_outage(sa.exc.OperationalError("SELECT", {}, Exception("no such table: jobs")))


def test_a_stopping_worker_does_not_wait_for_the_database() -> None:
    stop = threading.Event()

    def gone() -> None:
        stop.set()
        raise sa.exc.OperationalError("SELECT", {}, Exception("connection refused"))

    with pytest.raises(sa.exc.OperationalError):
        outage.insist(gone, stop)
