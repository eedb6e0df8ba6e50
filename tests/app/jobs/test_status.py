"""GET /v1/status: version, workers, jobs and queue."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import JobRow, WorkerRow
from app.jobs import heartbeat
from app.keys import service as keys
from tests.support.journey import check_json, create_job, learn


def test_status_has_the_version_and_the_state_of_the_log(client: TestClient, settings: Callable[..., None]) -> None:
    status = check_json(client.get("/v1/status"))
    assert status["version"] == version("bco-service")
    assert status["log_prescriptions"] is True
    settings(log_prescriptions=False)
    assert check_json(client.get("/v1/status"))["log_prescriptions"] is False


def test_status_counts_jobs_of_the_workspace_and_the_whole_queue(client: TestClient) -> None:
    before = check_json(client.get("/v1/status"))
    waiting, running, elsewhere = (create_job(client)["id"] for _ in range(3))
    with transaction() as session:
        session.execute(sa.update(JobRow).where(JobRow.id == running).values(state="running"))
        session.execute(sa.update(JobRow).where(JobRow.id == elsewhere).values(workspace="other"))
    status = check_json(client.get("/v1/status"))
    assert status["jobs_queued"] == before["jobs_queued"] + 1
    assert status["jobs_running"] == before["jobs_running"] + 1
    assert status["queue_depth"] == before["queue_depth"] + 2
    with transaction() as session:
        session.execute(sa.update(JobRow).where(JobRow.id.in_([running, elsewhere])).values(state="cancelled"))
    assert learn(client, waiting)["state"] == "succeeded"
    after = check_json(client.get("/v1/status"))
    assert (after["jobs_queued"], after["jobs_running"]) == (before["jobs_queued"], before["jobs_running"])


def test_status_counts_live_workers_and_keeps_dead_ones(client: TestClient) -> None:
    before = check_json(client.get("/v1/status"))["workers"]
    born = heartbeat._born(os.getpid())
    with transaction() as session:
        heartbeat.beat(session, "alive")
        gone = {"machine": heartbeat.machine(), "pid": os.getpid(), "born": f"{born}0", "beat_at": 0}
        session.execute(sa.insert(WorkerRow).values(id="gone", **gone))
    assert check_json(client.get("/v1/status"))["workers"] == before + 1
    with transaction() as session:
        assert set(session.scalars(sa.select(WorkerRow.id))) >= {"alive", "gone"}
        session.execute(sa.delete(WorkerRow).where(WorkerRow.id.in_(["alive", "gone"])))


@pytest.mark.parametrize("scope", ["read", "train"])
def test_status_needs_the_read_scope(client: TestClient, scope: str) -> None:
    _, key = keys.create("a reader", "default", [scope], None)
    client.app.state.lookups._entries.clear()  # type: ignore[attr-defined]
    answer = client.get("/v1/status", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == (200 if scope == "read" else 403)
