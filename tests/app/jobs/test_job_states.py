"""A job ends exactly once, even if a cancel, a slow worker or a worker presumed dead comes later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.db.base import DEFAULT_WORKSPACE
from app.db.engine import transaction
from app.db.tables import PosteriorRow
from app.http.errors import ConflictError, NotFoundError
from app.ids import sibling_id
from app.jobs import compute, service
from app.jobs import create as create_module
from app.jobs.kinds.learn import LearningPlan
from app.posteriors import service as posteriors
from bco_core.posterior import Posterior
from tests.support.journey import (
    Json,
    check_json,
    counts,
    create_dataset,
    create_job,
    create_problem,
    learn_posterior,
    store_function_for,
)

# This module depends on the database's own SQL.
pytestmark = pytest.mark.both_databases


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    return {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}


@pytest.fixture(scope="module")
def result(client: TestClient, ids: Json) -> tuple[Posterior, Json]:
    """A learned posterior and its diagnostics, to store as another job's result."""
    made = learn_posterior(client, **ids)
    with transaction() as session:
        row = session.get_one(PosteriorRow, made["id"])
        return posteriors.load(session, row), row.diagnostics


@pytest.fixture
def queued(client: TestClient, ids: Json) -> str:
    job_id: str = create_job(client, **ids)["id"]
    return job_id


def store_result(job_id: str, attempt: int, result: tuple[Posterior, Json]) -> None:
    """Store a result from state read before the job started."""
    service.succeed(job_id, attempt, store_function_for(job_id, result))


def has_posterior(job_id: str) -> bool:
    with transaction() as session:
        return session.get(PosteriorRow, sibling_id(job_id, "post")) is not None


def start_job(job_id: str) -> int:
    attempt = service.start(job_id)
    assert attempt is not None
    return attempt


# normal course


def test_a_started_job_is_running_and_keeps_its_first_start_time(queued: str) -> None:
    assert start_job(queued) == 1
    first = service.get(DEFAULT_WORKSPACE, queued)
    assert (first.state, first.attempts, first.message) == ("running", 1, "starting")
    assert first.started_at is not None
    assert start_job(queued) == 2
    assert service.get(DEFAULT_WORKSPACE, queued).started_at == first.started_at


def test_readers_see_progress(client: TestClient, queued: str) -> None:
    attempt = start_job(queued)
    assert service.report(queued, attempt, 0.25, "epoch 5")
    job = check_json(client.get(f"/v1/jobs/{queued}"))
    assert (job["state"], job["progress"], job["message"]) == ("running", 0.25, "epoch 5")
    assert service.is_wanted(queued, attempt)


def test_a_stored_result_ends_the_job(queued: str, result: tuple[Posterior, Json]) -> None:
    attempt = start_job(queued)
    store_result(queued, attempt, result)
    job = service.get(DEFAULT_WORKSPACE, queued)
    assert (job.state, job.progress) == ("succeeded", 1.0)
    assert has_posterior(queued)
    assert not service.is_wanted(queued, attempt)
    assert service.start(queued) is None


def test_a_failed_job_keeps_its_error_and_progress(queued: str) -> None:
    attempt = start_job(queued)
    service.report(queued, attempt, 0.4, "epoch 9")
    service.fail(queued, attempt, "the rows were too strange")
    job = service.get(DEFAULT_WORKSPACE, queued)
    assert (job.state, job.error, job.progress) == ("failed", "the rows were too strange", 0.4)
    assert job.finished_at is not None
    assert service.start(queued) is None


# cancelling


def test_a_cancelled_queued_job_never_starts(queued: str) -> None:
    assert service.cancel(DEFAULT_WORKSPACE, queued).state == "cancelled"
    assert service.start(queued) is None
    job = service.get(DEFAULT_WORKSPACE, queued)
    assert (job.state, job.attempts, job.started_at) == ("cancelled", 0, None)


def test_a_cancelled_running_job_is_notified_and_stores_no_late_result(
    queued: str, result: tuple[Posterior, Json]
) -> None:
    attempt = start_job(queued)
    assert service.report(queued, attempt, 0.5, "half way")
    service.cancel(DEFAULT_WORKSPACE, queued)
    before = counts()
    assert not service.report(queued, attempt, 0.9, "nearly there")
    assert not service.is_wanted(queued, attempt)
    store_result(queued, attempt, result)
    service.fail(queued, attempt, "killed")
    job = service.get(DEFAULT_WORKSPACE, queued)
    assert (job.state, job.progress, job.message, job.error) == ("cancelled", 0.5, "cancelled", None)
    assert counts() == before


def test_a_cancelled_computation_stops_at_its_next_report(queued: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = start_job(queued)
    monkeypatch.setattr(compute, "REPORT_SECONDS", -1.0)
    seen: list[float] = []
    real = LearningPlan.join

    def join_and_cancel(learning: LearningPlan, results: Any, progress: Callable[..., None]) -> Any:
        def cancel_at_first_report(fraction: float, message: str) -> None:
            seen.append(fraction)
            if len(seen) == 1:
                service.cancel(DEFAULT_WORKSPACE, queued)
            progress(fraction, message)

        return real(learning, results, cancel_at_first_report)

    monkeypatch.setattr(LearningPlan, "join", join_and_cancel)
    compute.run(queued, attempt)
    assert len(seen) == 1
    assert service.get(DEFAULT_WORKSPACE, queued).state == "cancelled"
    assert not has_posterior(queued)


def test_a_finished_job_cannot_be_cancelled(queued: str, result: tuple[Posterior, Json]) -> None:
    store_result(queued, start_job(queued), result)
    with pytest.raises(ConflictError, match="already succeeded"):
        service.cancel(DEFAULT_WORKSPACE, queued)
    assert service.get(DEFAULT_WORKSPACE, queued).state == "succeeded"
    assert has_posterior(queued)


def test_cancelling_twice_has_the_effect_of_once(queued: str) -> None:
    first = service.cancel(DEFAULT_WORKSPACE, queued)
    again = service.cancel(DEFAULT_WORKSPACE, queued)
    assert (again.state, again.finished_at) == ("cancelled", first.finished_at)


# attempts


def test_the_result_of_a_superseded_attempt_is_refused(queued: str, result: tuple[Posterior, Json]) -> None:
    first, second = start_job(queued), start_job(queued)
    assert (first, second) == (1, 2)
    assert not service.is_wanted(queued, first)
    assert not service.report(queued, first, 0.9, "still here")
    before = counts()
    store_result(queued, first, result)
    service.fail(queued, first, "lost its database")
    assert counts() == before
    assert service.get(DEFAULT_WORKSPACE, queued).state == "running"
    store_result(queued, second, result)
    assert service.get(DEFAULT_WORKSPACE, queued).state == "succeeded"
    store_result(queued, first, result)
    store_result(queued, second, result)
    after = counts()
    assert after["posteriors"] - before["posteriors"] == 1


def test_a_job_whose_workers_keep_dying_fails(queued: str) -> None:
    for attempt in range(1, service.MAX_ATTEMPTS + 1):
        assert start_job(queued) == attempt
    assert service.MAX_ATTEMPTS == 3
    assert service.start(queued) is None
    job = service.get(DEFAULT_WORKSPACE, queued)
    assert job.state == "failed"
    assert "worker died 3 times" in (job.error or "")
    assert job.finished_at is not None
    assert service.start(queued) is None


def test_the_third_attempt_may_still_succeed(queued: str, result: tuple[Posterior, Json]) -> None:
    for _ in range(service.MAX_ATTEMPTS):
        attempt = start_job(queued)
    store_result(queued, attempt, result)
    assert service.get(DEFAULT_WORKSPACE, queued).state == "succeeded"


def test_operations_on_a_missing_job_change_nothing(client: TestClient) -> None:
    before = counts()
    assert service.start("job_nowhere") is None
    assert not service.report("job_nowhere", 1, 0.5, "lost")
    assert not service.is_wanted("job_nowhere", 1)
    service.fail("job_nowhere", 1, "lost")
    for act in (service.get, service.cancel, service.delete):
        with pytest.raises(NotFoundError):
            act(DEFAULT_WORKSPACE, "job_nowhere")
    assert counts() == before


# deleting


def test_only_a_finished_job_without_a_posterior_can_be_deleted(
    client: TestClient, ids: Json, result: tuple[Posterior, Json]
) -> None:
    waiting, running, failed, cancelled, succeeded = (create_job(client, **ids)["id"] for _ in range(5))
    start_job(running)
    service.fail(failed, start_job(failed), "no luck")
    service.cancel(DEFAULT_WORKSPACE, cancelled)
    store_result(succeeded, start_job(succeeded), result)
    for job_id, words in ((waiting, "queued"), (running, "running"), (succeeded, "posterior")):
        with pytest.raises(ConflictError, match=words):
            service.delete(DEFAULT_WORKSPACE, job_id)
    for job_id in (failed, cancelled):
        service.delete(DEFAULT_WORKSPACE, job_id)
        with pytest.raises(NotFoundError):
            service.get(DEFAULT_WORKSPACE, job_id)
    posteriors.delete(DEFAULT_WORKSPACE, sibling_id(succeeded, "post"))
    service.delete(DEFAULT_WORKSPACE, succeeded)


def test_a_job_deleted_during_its_computation_gets_no_result(
    client: TestClient, ids: Json, result: tuple[Posterior, Json]
) -> None:
    job_id = create_job(client, **ids)["id"]
    attempt = start_job(job_id)
    late = store_function_for(job_id, result)
    service.cancel(DEFAULT_WORKSPACE, job_id)
    service.delete(DEFAULT_WORKSPACE, job_id)
    before = counts()
    service.succeed(job_id, attempt, late)
    assert counts() == before


# concurrency


def run_concurrently(*acts: Callable[[], Any]) -> list[Any]:
    """Run each function in its own thread, all released together; return results and exceptions."""
    barrier = threading.Barrier(len(acts))

    def run(act: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return act()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


@pytest.mark.parametrize("again", range(5))
def test_eight_threads_cancelling_and_finishing_at_once_leave_exactly_one_outcome(
    queued: str, result: tuple[Posterior, Json], again: int
) -> None:
    attempt = start_job(queued)
    before = counts()

    def cancel() -> Any:
        return service.cancel(DEFAULT_WORKSPACE, queued).state

    def finish() -> Any:
        return store_result(queued, attempt, result)

    outcomes = run_concurrently(*[cancel, finish] * 4)
    state = service.get(DEFAULT_WORKSPACE, queued).state
    assert state in ("succeeded", "cancelled")
    assert has_posterior(queued) == (state == "succeeded")
    assert counts()["posteriors"] - before["posteriors"] == (state == "succeeded")
    for outcome in outcomes[::2]:
        if state == "cancelled":
            assert outcome == "cancelled"
        else:
            assert isinstance(outcome, ConflictError)
    assert outcomes[1::2] == [None] * 4


def test_eight_threads_finishing_and_failing_at_once_leave_exactly_one_outcome(
    queued: str, result: tuple[Posterior, Json]
) -> None:
    attempt = start_job(queued)
    outcomes = run_concurrently(
        *[lambda: store_result(queued, attempt, result), lambda: service.fail(queued, attempt, "no luck")] * 4,
    )
    job = service.get(DEFAULT_WORKSPACE, queued)
    assert outcomes == [None] * 8
    assert (job.state, job.error, has_posterior(queued)) in {
        ("succeeded", None, True),
        ("failed", "no luck", False),
    }


def test_concurrent_workers_get_different_attempts_and_one_counts(queued: str, result: tuple[Posterior, Json]) -> None:
    attempts = run_concurrently(*[lambda: service.start(queued)] * 3)
    assert sorted(attempts) == [1, 2, 3]
    assert [service.is_wanted(queued, attempt) for attempt in (1, 2, 3)] == [False, False, True]
    run_concurrently(*[lambda attempt=attempt: store_result(queued, attempt, result) for attempt in (1, 2, 3)])
    assert service.get(DEFAULT_WORKSPACE, queued).state == "succeeded"
    assert has_posterior(queued)


def test_eight_clients_creating_jobs_at_once_get_eight_jobs(client: TestClient, ids: Json) -> None:
    before = counts()
    made = run_concurrently(*[lambda: create_job(client, **ids)] * 8)
    assert len({job["id"] for job in made}) == 8
    after = counts()
    assert after["jobs"] - before["jobs"] == 8
    assert after["workflow_status"] - before["workflow_status"] == 8


@pytest.mark.parametrize("vanishing", ["dataset_id", "problem_id"])
def test_a_job_whose_data_set_or_problem_is_deleted_meanwhile_is_refused(
    client: TestClient, ids: Json, monkeypatch: pytest.MonkeyPatch, vanishing: str
) -> None:
    """The delete arrives between the check and the queue; a service that locks may delay and refuse it."""
    fresh = create_dataset(client) if vanishing == "dataset_id" else create_problem(client)
    path = f"/v1/{'datasets' if vanishing == 'dataset_id' else 'problems'}/{fresh['id']}"
    create = create_module.create
    before = counts()
    with ThreadPoolExecutor(1) as pool:
        deleting = []

        def delete_and_create(*arguments: Any) -> Any:
            deleting.append(pool.submit(client.delete, path))
            with suppress(TimeoutError):
                deleting[0].result(timeout=1)
            return create(*arguments)

        monkeypatch.setattr(create_module, "create", delete_and_create)
        made = client.post("/v1/jobs", json=ids | {vanishing: fresh["id"]})
        deleted = deleting[0].result()
    assert (deleted.status_code, made.status_code) in {(204, 409), (204, 422), (409, 202)}
    kept = made.status_code == 202
    assert counts()["jobs"] - before["jobs"] == kept
    assert counts()["workflow_status"] - before["workflow_status"] == kept
