"""Fair queue: workspaces share the workers in turn, parts are bounded, and they end with their job."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from datetime import timedelta

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.base import DEFAULT_WORKSPACE, now
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobPartRow, JobRow, PosteriorRow, ProblemRow
from app.demo import as_csv
from app.http.errors import TooManyError
from app.jobs import create as create_module
from app.jobs import parts, queue, recovery, service
from app.jobs.kinds import KINDS
from app.jobs.kinds import prescribe as batches
from app.jobs.kinds.base import JobDraft, JobPart
from tests.support.journey import (
    CONTEXTS,
    QUICK,
    Json,
    check_json,
    counts,
    create_dataset,
    create_job,
    create_problem,
    learn_posterior,
)

# This module depends on the database's own SQL.
pytestmark = pytest.mark.both_databases

OTHER = "other"


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    return {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client)


@pytest.fixture(autouse=True)
def _empty_queue(client: TestClient) -> Iterator[None]:
    yield
    with transaction() as session:
        for job_id in session.scalars(sa.select(JobRow.id).where(JobRow.state.in_(("queued", "running")))).all():
            service.finish(session, job_id, "cancelled")


def queue_job(ids: Json, workspace: str = DEFAULT_WORKSPACE, seconds: float = 10.0, parts: int = 0) -> JobRow:
    """Queue a job with an estimated duration; it is never computed."""
    made = [JobPart(1, b"part")] * parts
    kind = KINDS["prescribe" if parts else "learn"]
    spec = {"seed": 1}
    draft = JobDraft("job", ids["problem_id"], spec, dataset_id=ids["dataset_id"], estimate_seconds=seconds, parts=made)
    return create_module.create(workspace, kind, draft)


def workspace_order(*jobs: JobRow) -> list[str]:
    """Return the workspaces of queued jobs in the order workers take them."""
    queued = {w.workflow_id: w for w in queue.client().list_queued_workflows(queue_name=queue.COMPUTING)}
    order = sorted(jobs, key=lambda job: (queued[job.run_id].priority, queued[job.run_id].created_at))
    return [job.workspace for job in order]


# turns


def test_workspaces_take_turns_however_many_jobs_one_has_queued(client: TestClient, ids: Json) -> None:
    many = [queue_job(ids) for _ in range(6)]
    late = [queue_job(ids, OTHER) for _ in range(2)]
    assert OTHER in workspace_order(*many, *late)[:2]
    assert workspace_order(*many, *late)[:4].count(OTHER) == 2


def test_turns_are_shared_by_estimated_seconds_and_weights(
    client: TestClient, ids: Json, settings: Callable[..., None]
) -> None:
    settings(workspace_weights="other=3")
    jobs = [queue_job(ids) for _ in range(8)] + [queue_job(ids, OTHER) for _ in range(8)]
    assert workspace_order(*jobs)[:8].count(OTHER) == 6
    long, short = [queue_job(ids, "long", 100) for _ in range(3)], [queue_job(ids, "short", 25) for _ in range(12)]
    assert workspace_order(*long, *short)[:10].count("short") == 8


def test_a_new_workspace_goes_before_one_that_has_run_jobs(client: TestClient, ids: Json) -> None:
    for _ in range(3):
        job = queue_job(ids)
        attempt = service.start(job.id)
        assert attempt is not None
        service.succeed(job.id, attempt)
    waiting = [queue_job(ids) for _ in range(3)]
    assert workspace_order(*waiting, queue_job(ids, OTHER))[0] == OTHER


def test_parts_of_two_workspaces_alternate(client: TestClient, ids: Json) -> None:
    jobs = [queue_job(ids, workspace, parts=40) for workspace in (DEFAULT_WORKSPACE, OTHER)]
    for job in jobs:
        attempt = service.start(job.id)
        assert attempt is not None
        assert parts.offer(job.id, attempt)
    queued = queue.client().list_queued_workflows(queue_name=queue.PARTS)
    first = sorted(queued, key=lambda workflow: (workflow.priority, workflow.created_at))[:20]
    assert sum(workflow.workflow_id.startswith(jobs[1].id) for workflow in first) in (9, 10)


# limits


def test_a_workspace_has_a_limited_share_of_the_queue(
    client: TestClient, ids: Json, settings: Callable[..., None]
) -> None:
    settings(max_workspace_queued_jobs=2)
    queue_job(ids), queue_job(ids)
    response = client.post("/v1/jobs", json=ids)
    assert response.status_code == 429
    assert "BCO_MAX_WORKSPACE_QUEUED_JOBS" in response.json()["detail"]
    assert int(response.headers["Retry-After"]) > 0
    assert queue_job(ids, OTHER).state == "queued"


def test_jobs_above_the_running_limit_wait_until_one_ends(
    client: TestClient, ids: Json, settings: Callable[..., None]
) -> None:
    settings(max_workspace_running_jobs=1)
    first, second, other = queue_job(ids), queue_job(ids), queue_job(ids, OTHER)

    def queued() -> set[str]:
        return {workflow.workflow_id for workflow in queue.client().list_queued_workflows(queue_name=queue.COMPUTING)}

    assert {first.id, other.id} <= queued()
    assert second.id not in queued()
    recovery.requeue_lost()
    assert second.id not in queued()
    check_json(client.post(f"/v1/jobs/{first.id}/cancel"), 202)
    assert second.id in queued()


def test_a_workspace_has_a_daily_limit_of_running_time(
    client: TestClient, ids: Json, settings: Callable[..., None]
) -> None:
    job = queue_job(ids, "busy")
    attempt = service.start(job.id)
    assert attempt is not None
    with transaction() as session:
        session.get_one(JobRow, job.id).started_at = now() - timedelta(hours=2)
    settings(max_workspace_seconds_a_day=7000)
    with pytest.raises(TooManyError, match="BCO_MAX_WORKSPACE_SECONDS_A_DAY"):
        queue_job(ids, "busy")
    assert queue_job(ids, OTHER).state == "queued"


# estimated duration


def test_a_job_shows_its_estimated_duration(client: TestClient, ids: Json) -> None:
    chains = {"method": "mh", "chains": 64, "steps": 1_000_000, "burn_in": 60}
    long = create_job(client, **ids, inference=chains)
    short = create_job(client, **ids)
    assert long["estimate_seconds"] > 3600 > 60 > short["estimate_seconds"] > 0
    assert check_json(client.get(f"/v1/jobs/{long['id']}"))["estimate_seconds"] == long["estimate_seconds"]


def test_a_slow_job_of_few_rows_waits_for_short_ones_and_so_does_its_rerun(client: TestClient, ids: Json) -> None:
    chains = {"method": "mh", "chains": 64, "steps": 1_000_000, "burn_in": 60}
    long = service.get(DEFAULT_WORKSPACE, create_job(client, **ids, inference=chains)["id"])
    short = service.get(DEFAULT_WORKSPACE, create_job(client, **ids)["id"])
    assert short.turn < long.turn
    service.cancel(DEFAULT_WORKSPACE, long.id)
    again = service.retry(DEFAULT_WORKSPACE, long.id)
    assert (again.estimate_seconds, short.turn < again.turn) == (long.estimate_seconds, True)


# parts


def send(client: TestClient, posterior: Json, contexts: list[Json], **form: str) -> Json:
    path = f"/v1/posteriors/{posterior['id']}/batch-prescriptions/upload"
    return check_json(client.post(path, data=form, files={"file": ("contexts", as_csv(contexts).encode())}), 202)


def test_a_batch_has_a_bounded_number_of_parts(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_NUMBERS_AT_ONCE", 1)
    monkeypatch.setattr(batches, "MOST_PARTS", 7)
    job = send(client, posterior, CONTEXTS)
    with transaction() as session:
        rows = session.scalars(sa.select(JobPartRow.work).where(JobPartRow.job_id == job["id"])).all()
    assert sum(rows) == len(CONTEXTS)
    assert len(rows) <= 7


def test_a_part_of_many_contexts_decides_as_single_contexts_do(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS["prescribe"]
    job = service.get(DEFAULT_WORKSPACE, send(client, posterior, CONTEXTS)["id"])
    given, data = kind.read(job), parts.read(job.id, 0)
    assert data is not None
    seen: list[float] = []

    def decisions() -> list[float]:
        seen.clear()
        result = kind.work(given, data, lambda share, _: seen.append(share), lambda _: None)
        loaves: list[float] = pq.read_table(io.BytesIO(result)).column("decision.loaves").to_pylist()
        return loaves

    at_once = decisions()
    assert len(seen) == 1
    monkeypatch.setattr(batches, "_NUMBERS_AT_ONCE", 1)
    assert decisions() == pytest.approx(at_once)
    assert len(seen) == len(CONTEXTS)


def test_parts_are_stored_and_queued_a_few_at_a_time(
    client: TestClient, ids: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    add = create_module.add_parts
    monkeypatch.setattr(
        create_module,
        "add_parts",
        lambda session, job, made, first: (sizes.append(len(made)), add(session, job, made, first)),
    )
    job = queue_job(ids, parts=20)
    assert sizes == [8, 8, 4]
    with transaction() as session:
        found = session.scalars(sa.select(JobPartRow.seq).where(JobPartRow.job_id == job.id).order_by(JobPartRow.seq))
        assert list(found) == list(range(20))


def test_a_job_whose_parts_cannot_be_stored_is_not_stored(client: TestClient, ids: Json) -> None:
    def raise_after_first_parts() -> Iterator[JobPart]:
        for _ in range(20):
            yield JobPart(1, b"part")
        raise OSError("no room")

    before = counts()
    draft = JobDraft("job", ids["problem_id"], {}, dataset_id=ids["dataset_id"], parts=raise_after_first_parts())
    with pytest.raises(OSError, match="no room"):
        create_module.create(DEFAULT_WORKSPACE, KINDS["prescribe"], draft)
    assert counts() == before


def test_parts_of_a_cancelled_job_leave_the_queue_at_once(client: TestClient, ids: Json) -> None:
    job, other = queue_job(ids, parts=20), queue_job(ids, OTHER, parts=2)
    for each in (job, other):
        attempt = service.start(each.id)
        assert attempt is not None
        assert parts.offer(each.id, attempt)
    check_json(client.post(f"/v1/jobs/{job.id}/cancel"), 202)
    left = [workflow.workflow_id for workflow in queue.client().list_queued_workflows(queue_name=queue.PARTS)]
    assert sorted(left) == [f"{other.id}.part0", f"{other.id}.part1"]


# lists


@pytest.mark.parametrize("path", ["jobs", "problems", "posteriors", "datasets"])
def test_lists_omit_large_fields(client: TestClient, ids: Json, posterior: Json, path: str) -> None:
    create_job(client, **ids, inference=QUICK)
    large = ["x" * 1_000_000]
    row, column = {
        "jobs": (JobRow, "spec"),
        "problems": (ProblemRow, "spec"),
        "posteriors": (PosteriorRow, "description"),
        "datasets": (DatasetRow, "columns"),
    }[path]
    with transaction() as session:
        newest = session.scalars(sa.select(row).order_by(row.id.desc()).limit(1)).one()
        value = getattr(newest, column)
        setattr(newest, column, value | {"large": large} if isinstance(value, dict) else value + large)
    try:
        response = client.get(f"/v1/{path}")
        assert check_json(response)["items"][0]["id"] == newest.id
        assert len(response.content) < 100_000
    finally:
        with transaction() as session:
            setattr(session.get_one(row, newest.id), column, value)
