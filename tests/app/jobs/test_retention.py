"""Retention: old data is deleted in small steps and its disk space is released."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient
from typer.testing import CliRunner

from app.commands import cli
from app.db.base import now
from app.db.engine import get_engine, transaction
from app.db.tables import AnswerRow, JobLogRow, JobPartRow, JobRow
from app.demo import as_csv
from app.jobs import compute, parts, queue, retention, service
from tests.support.journey import CONTEXTS, Json, check_json, create_job, learn, learn_posterior

OLD = timedelta(days=400)


def end_job(client: TestClient, age: timedelta) -> Json:
    """Create a job with one part that was cancelled `age` ago, in the engine too."""
    job = create_job(client)
    service.cancel("default", job["id"])
    with transaction() as session:
        session.get_one(JobRow, job["id"]).finished_at = now() - age
        session.add(JobPartRow(job_id=job["id"], seq=0, work=1, sha256="x", data=b"x"))
        schema = None if session.get_bind().dialect.name == "sqlite" else "dbos"
        runs = sa.table("workflow_status", sa.column("workflow_uuid"), sa.column("updated_at"), schema=schema)
        moment = int(1000 * (now() - age).timestamp())
        session.execute(sa.update(runs).where(runs.c.workflow_uuid == job["id"]).values(updated_at=moment))
    return job


def remaining(job: Json) -> tuple[bool, bool, bool]:
    """Return whether the job's log, part and run still exist."""
    with transaction() as session:
        log = session.scalar(sa.select(sa.func.count()).where(JobLogRow.job_id == job["id"]))
        part = session.get(JobPartRow, (job["id"], 0))
    return bool(log), part is not None, bool(queue.client().list_workflows(workflow_ids=[job["id"]]))


def test_old_job_data_is_pruned_and_recent_data_stays(client: TestClient, settings: Callable[..., None]) -> None:
    settings(keep_log_days=90, keep_parts_days=90, keep_runs_days=90)
    old, lately, waiting = end_job(client, OLD), end_job(client, timedelta(days=1)), create_job(client)
    retention.prune()
    assert remaining(old) == (False, False, False)
    assert remaining(lately) == (True, True, True)
    assert remaining(waiting) == (True, False, True)
    assert check_json(client.get(f"/v1/jobs/{old['id']}"))["state"] == "cancelled"


def test_a_pruned_run_is_deleted_from_all_tables_of_the_engine(
    client: TestClient, settings: Callable[..., None]
) -> None:
    settings(keep_runs_days=90)
    job = end_job(client, OLD)
    schema = None if get_engine().dialect.name == "sqlite" else "dbos"
    names = [name for name in sa.inspect(get_engine()).get_table_names(schema) if name != "dbos_migrations"]

    def mentions() -> set[str]:
        """Return the engine's tables that have a row of the run."""
        found = set()
        with get_engine().connect() as connection:
            for name in names:
                table = sa.Table(name, sa.MetaData(), schema=schema, autoload_with=connection)
                if (column := table.c.get("workflow_uuid")) is not None:
                    query = sa.select(sa.func.count()).select_from(table).where(column == job["id"])
                    found |= {name} if connection.scalar(query) else set()
        return found

    assert mentions() >= {"workflow_status", "workflow_input"}
    retention.prune()
    assert mentions() == set()


def test_zero_days_means_forever(client: TestClient, settings: Callable[..., None]) -> None:
    settings(keep_log_days=0, keep_parts_days=0, keep_runs_days=0)
    old = end_job(client, OLD)
    retention.prune()
    assert remaining(old) == (True, True, True)


def test_old_idempotency_keys_and_unfinished_jobs_are_pruned(client: TestClient) -> None:
    job = create_job(client)
    with transaction() as session:
        for name in ("old", "new"):
            created = now() - (OLD if name == "old" else timedelta())
            session.add(
                AnswerRow(
                    workspace="w", path="/", key=name, body_sha256="", claim="", location=None, created_at=created
                )
            )
        row = session.get_one(JobRow, job["id"])
        row.admission, row.created_at = "making", now() - OLD
    retention.prune()
    with transaction() as session:
        assert session.scalars(sa.select(AnswerRow.key).where(AnswerRow.workspace == "w")).all() == ["new"]
        assert session.get(JobRow, job["id"]) is None


def test_a_pruned_result_is_reported_as_gone(
    client: TestClient, settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    posterior = learn_posterior(client)
    path = f"/v1/posteriors/{posterior['id']}/batch-prescriptions/upload"
    file = {"file": ("contexts", as_csv(CONTEXTS[:3]).encode())}
    job_id = check_json(client.post(path, files=file), 202)["id"]
    assert parts.start(job_id, 0)
    compute.run_part(job_id, 0)
    assert learn(client, job_id)["state"] == "succeeded"
    with transaction() as session:
        session.get_one(JobRow, job_id).finished_at = now() - OLD
    settings(keep_parts_days=1)
    retention.prune()
    response = client.get(f"/v1/jobs/{job_id}/result")
    assert response.status_code == 409
    assert "BCO_KEEP_PARTS_DAYS" in response.json()["detail"]


def test_pruning_shrinks_a_sqlite_file(client: TestClient, settings: Callable[..., None]) -> None:
    if get_engine().dialect.name != "sqlite":
        pytest.skip("PostgreSQL sees to that by itself")
    settings(keep_parts_days=1)
    job = end_job(client, OLD)
    with transaction() as session:
        session.get_one(JobPartRow, (job["id"], 0)).data = bytes(20_000_000)

    def size() -> int:
        with get_engine().connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(str(get_engine().url.database)).stat().st_size

    before = size()
    retention.prune()
    assert size() < before - 15_000_000


def test_the_prune_command_lists_what_it_removed(client: TestClient, settings: Callable[..., None]) -> None:
    settings(keep_log_days=90)
    end_job(client, OLD)
    result = CliRunner().invoke(cli.app, ["prune"])
    assert result.exit_code == 0, result.output
    assert "2 log lines" in result.output
