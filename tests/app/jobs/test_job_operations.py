"""Job lists and filters, job logs, reruns and limits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from starlette.testclient import TestClient

from app.db.base import DEFAULT_WORKSPACE
from app.db.engine import transaction
from app.db.tables import JobRow
from app.jobs import compute, queue, recovery, service
from tests.support.journey import QUICK, Json, check_json, counts, create_dataset, create_job, create_problem, learn


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    return {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}


def list_ids(client: TestClient, **only: str) -> list[str]:
    return [job["id"] for job in check_json(client.get("/v1/jobs", params={"limit": 200, **only}))["items"]]


def log_of(client: TestClient, job_id: str) -> list[str]:
    return [line["text"] for line in check_json(client.get(f"/v1/jobs/{job_id}/log"))["lines"]]


def fail_job(client: TestClient, ids: Json) -> str:
    job_id: str = create_job(client, **ids)["id"]
    attempt = service.start(job_id)
    assert attempt is not None
    service.fail(job_id, attempt, "no luck")
    return job_id


# lists


def test_jobs_can_be_listed_by_state_kind_problem_and_data_set(client: TestClient) -> None:
    first, second = create_job(client), create_job(client)
    assert list_ids(client, problem_id=first["problem_id"]) == [first["id"]]
    assert list_ids(client, dataset_id=second["dataset_id"]) == [second["id"]]
    assert list_ids(client, problem_id=first["problem_id"], dataset_id=second["dataset_id"]) == []
    service.cancel(DEFAULT_WORKSPACE, first["id"])
    assert first["id"] in list_ids(client, state="cancelled")
    assert first["id"] not in list_ids(client, state="queued")
    assert second["id"] in list_ids(client, state="queued", kind="learn")
    assert list_ids(client, kind="prescribe") == []


def test_jobs_can_be_filtered_by_creation_time(client: TestClient, ids: Json) -> None:
    jobs = [create_job(client, **ids) for _ in range(3)]
    moment = datetime.fromisoformat(jobs[1]["created_at"])
    elsewhere = (moment + timedelta(hours=5)).replace(tzinfo=None).isoformat() + "+05:00"
    for text in (moment.isoformat(), elsewhere, moment.replace(tzinfo=None).isoformat()):
        after, before = list_ids(client, created_after=text), list_ids(client, created_before=text)
        assert [job["id"] in after for job in jobs] == [False, True, True]
        assert [job["id"] in before for job in jobs] == [True, False, False]
    span = list_ids(client, created_after=jobs[0]["created_at"], created_before=jobs[2]["created_at"])
    assert span == [jobs[1]["id"], jobs[0]["id"]]


def test_filtered_lists_are_paginated(client: TestClient, ids: Json) -> None:
    dataset = create_dataset(client)["id"]
    made = [create_job(client, **ids | {"dataset_id": dataset})["id"] for _ in range(3)]
    first = check_json(client.get("/v1/jobs", params={"dataset_id": dataset, "limit": 2}))
    rest = check_json(
        client.get("/v1/jobs", params={"dataset_id": dataset, "limit": 2, "cursor": first["next_cursor"]})
    )
    assert [job["id"] for job in first["items"] + rest["items"]] == made[::-1]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize("wrong", [{"state": "tired"}, {"kind": "dance"}, {"created_after": "yesterday"}])
def test_an_invalid_filter_is_refused_with_a_pointer(client: TestClient, wrong: Json) -> None:
    response = client.get("/v1/jobs", params=wrong)
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == f"#/query/{next(iter(wrong))}"


def test_impossible_ids_match_no_jobs(client: TestClient) -> None:
    for text in ("\x00", "prob_", "'; drop table jobs"):
        assert list_ids(client, problem_id=text) == []


# logs


def test_a_job_log_lists_events_in_order(client: TestClient, ids: Json) -> None:
    job = learn(client, create_job(client, **ids)["id"])
    lines = check_json(client.get(f"/v1/jobs/{job['id']}/log"))["lines"]
    texts = [line["text"] for line in lines]
    assert texts[:2] == ["accepted", "started"]
    assert texts[-1] == "succeeded"
    assert any("learning from 60 rows" in text for text in texts)
    assert [line["seq"] for line in lines] == sorted({line["seq"] for line in lines})
    times = [datetime.fromisoformat(line["at"]) for line in lines]
    assert times == sorted(times)


def test_a_job_log_gives_the_reason_of_failure_and_hand_backs(client: TestClient, ids: Json) -> None:
    job_id = create_job(client, **ids)["id"]
    attempt = service.start(job_id)
    assert attempt is not None
    service.hand_back(job_id, attempt)
    attempt = service.start(job_id)
    assert attempt == 1
    service.fail(job_id, attempt, "no luck")
    service.fail(job_id, attempt, "no luck again")
    assert log_of(client, job_id) == [
        "accepted",
        "started",
        "handed back by its worker, which stops",
        "started",
        "failed: no luck",
    ]


def test_log_lines_become_rarer_as_a_job_runs_longer(
    client: TestClient, ids: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(compute.time, "monotonic", lambda: clock[0])
    lines: list[str | None] = []
    monkeypatch.setattr(service, "report", lambda *arguments: lines.append(arguments[4]) or True)
    progress = compute._reporter("job_1", 1)
    for second in range(36_000):
        clock[0] = float(second)
        progress(second / 36_000, "learning")
    written = [index for index, line in enumerate(lines) if line is not None]
    assert len(lines) == 36_000
    assert 300 < len(written) < 500
    assert written[:50] == list(range(50))
    assert written[-1] - written[-2] > 600


def test_a_missing_job_has_no_log_and_deleting_a_job_deletes_its_log(client: TestClient, ids: Json) -> None:
    assert client.get("/v1/jobs/job_nowhere/log").status_code == 404
    job_id = fail_job(client, ids)
    before = counts()["job_log"]
    assert client.delete(f"/v1/jobs/{job_id}").status_code == 204
    assert before - counts()["job_log"] == 3


# reruns


def test_a_failed_job_can_be_rerun_and_succeed(client: TestClient, ids: Json) -> None:
    job_id = fail_job(client, ids)
    job = check_json(client.post(f"/v1/jobs/{job_id}/retry"), 202)
    assert (job["state"], job["error"], job["progress"], job["finished_at"]) == ("queued", None, 0.0, None)
    assert job["attempts"] == 1
    assert queue.client().list_queued_workflows(workflow_ids=[f"{job_id}.2"])
    job = learn(client, job_id)
    assert (job["state"], job["attempts"]) == ("succeeded", 2)
    assert "asked to run again" in log_of(client, job_id)


def test_a_cancelled_job_can_be_rerun(client: TestClient, ids: Json) -> None:
    job_id = create_job(client, **ids)["id"]
    for run in (2, 3):
        service.cancel(DEFAULT_WORKSPACE, job_id)
        assert service.retry(DEFAULT_WORKSPACE, job_id).state == "queued"
        (queued,) = queue.client().list_queued_workflows(workflow_id_prefix=job_id)
        assert queued.workflow_id == f"{job_id}.{run}"
    assert learn(client, job_id)["state"] == "succeeded"


def test_a_rerun_job_has_all_its_attempts(client: TestClient, ids: Json) -> None:
    job_id = create_job(client, **ids)["id"]
    while service.start(job_id) is not None:
        pass
    assert service.get(DEFAULT_WORKSPACE, job_id).state == "failed"
    service.retry(DEFAULT_WORKSPACE, job_id)
    attempts = [service.start(job_id) for _ in range(4)]
    assert attempts == [5, 6, 7, None]
    assert "3 times" in (service.get(DEFAULT_WORKSPACE, job_id).error or "")


def test_only_failed_and_cancelled_jobs_can_be_rerun(client: TestClient, ids: Json) -> None:
    waiting, running = create_job(client, **ids)["id"], create_job(client, **ids)["id"]
    service.start(running)
    done = learn(client, create_job(client, **ids)["id"])["id"]
    before = counts()
    for job_id, word in ((waiting, "queued"), (running, "running"), (done, "succeeded")):
        response = client.post(f"/v1/jobs/{job_id}/retry")
        assert response.status_code == 409
        assert word in response.json()["detail"]
    assert client.post("/v1/jobs/job_nowhere/retry").status_code == 404
    assert counts() == before


def test_a_late_result_of_an_earlier_run_is_ignored(client: TestClient, ids: Json) -> None:
    job_id = create_job(client, **ids)["id"]
    late = service.start(job_id)
    assert late == 1
    service.cancel(DEFAULT_WORKSPACE, job_id)
    service.retry(DEFAULT_WORKSPACE, job_id)
    assert service.start(job_id) == 2
    assert not service.report(job_id, late, 0.9, "still here")
    service.fail(job_id, late, "too late")
    assert service.get(DEFAULT_WORKSPACE, job_id).state == "running"


# jobs lost by the workflow engine


def test_a_job_that_the_engine_calls_finished_is_requeued_once(client: TestClient, ids: Json) -> None:
    job_id, untouched = create_job(client, **ids)["id"], create_job(client, **ids)["id"]
    service.start(job_id)
    queue.client().cancel_workflow(job_id)
    recovery.requeue_lost()
    recovery.requeue_lost()
    with transaction() as session:
        row = session.get_one(JobRow, job_id)
        assert (row.state, row.run_id, row.attempts, row.attempts_allowed) == ("queued", f"{job_id}.2", 1, 3)
        assert session.get_one(JobRow, untouched).run_id == untouched
    assert len(queue.client().list_queued_workflows(workflow_id_prefix=job_id)) == 1


def test_finished_jobs_are_not_requeued(client: TestClient, ids: Json) -> None:
    job_id = fail_job(client, ids)
    queue.client().cancel_workflow(job_id)
    before = service.get(DEFAULT_WORKSPACE, job_id).revision
    recovery.requeue_lost()
    assert (service.get(DEFAULT_WORKSPACE, job_id).state, service.get(DEFAULT_WORKSPACE, job_id).revision) == (
        "failed",
        before,
    )


# limits


def test_a_full_queue_returns_503_with_retry_after(
    client: TestClient, ids: Json, settings: Callable[..., None]
) -> None:
    ended = fail_job(client, ids)
    waiting = len(list_ids(client, state="queued"))
    settings(max_queued_jobs=waiting + 1)
    job = create_job(client, **ids)
    before = counts()
    response = client.post("/v1/jobs", json=ids)
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    assert "BCO_MAX_QUEUED_JOBS" in response.json()["detail"]
    assert client.post(f"/v1/jobs/{ended}/retry").status_code == 503
    assert counts() == before
    service.cancel(DEFAULT_WORKSPACE, job["id"])
    create_job(client, **ids)


LARGE: Json = {"predictor": {"kind": "mlp"}, "inference": QUICK | {"members": 20, "epochs": 100_000}}


def test_small_jobs_run_before_large_ones_of_the_same_queue(client: TestClient, ids: Json) -> None:
    large = create_job(client, **ids, **LARGE)["id"]
    small = create_job(client, **ids)["id"]
    found = {w.workflow_id: w.priority for w in queue.client().list_queued_workflows(workflow_ids=[large, small])}
    assert found[small] < found[large]


def priority(run_id: str) -> int:
    (queued,) = queue.client().list_queued_workflows(workflow_ids=[run_id])
    assert queued.priority is not None
    return queued.priority


def test_chains_are_ranked_by_their_steps_not_by_epochs(client: TestClient, ids: Json) -> None:
    chains, network = {"method": "mh", "chains": 2, "steps": 120, "burn_in": 60}, {"kind": "mlp", "hidden": [128]}
    long = create_job(client, **ids, predictor=network, inference=chains | {"chains": 64, "steps": 1_000_000})["id"]
    short = create_job(client, **ids, predictor=network, inference=chains)["id"]
    assert priority(short) < priority(long)


@pytest.mark.parametrize("again", ["retry", "lost"])
def test_a_requeued_large_job_does_not_overtake_small_ones(client: TestClient, ids: Json, again: str) -> None:
    large = create_job(client, **ids, **LARGE)["id"]
    small = create_job(client, **ids)["id"]
    if again == "retry":
        service.cancel(DEFAULT_WORKSPACE, large)
        check_json(client.post(f"/v1/jobs/{large}/retry"), 202)
    else:
        queue.client().cancel_workflow(large)
        recovery.requeue_lost()
    assert priority(small) < priority(f"{large}.2")


def test_a_job_stores_its_time_limit_capped_by_the_service(
    client: TestClient, ids: Json, settings: Callable[..., None]
) -> None:
    assert service.time_limit_seconds(create_job(client, **ids)["id"]) == service.LEAST_SECONDS
    long = create_job(client, **ids, inference=QUICK | {"members": 20, "epochs": 100_000})
    assert service.time_limit_seconds(long["id"]) == pytest.approx(service.TIME_LIMIT_FACTOR * long["estimate_seconds"])
    job = create_job(client, **ids, time_limit_seconds=12.5)
    assert job["spec"]["time_limit_seconds"] == 12.5
    assert service.time_limit_seconds(job["id"]) == 12.5
    settings(max_job_seconds=10)
    assert service.time_limit_seconds(job["id"]) == 10
    for seconds, words in ((11, "BCO_MAX_JOB_SECONDS"), (0, "greater than 0"), (-1, "greater than 0")):
        response = client.post("/v1/jobs", json=ids | {"time_limit_seconds": seconds})
        assert response.status_code == 422
        assert response.json()["errors"][0]["pointer"] == "#/time_limit_seconds"
        assert words in response.json()["detail"]
