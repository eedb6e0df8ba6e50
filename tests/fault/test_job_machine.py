"""Jobs as a state machine: state, attempts, result and log stay consistent under any order of events.

Hypothesis walks through everything that users, workers and outages may do and checks a small model after every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from starlette.testclient import TestClient

from app.db.base import DEFAULT_WORKSPACE
from app.db.engine import transaction
from app.db.migrate import migrate
from app.db.tables import JobLogRow, JobRow, PosteriorRow
from app.http.errors import ConflictError, NotFoundError
from app.ids import sibling_id
from app.jobs import queue, recovery, service
from app.main import create_app
from app.posteriors import service as posteriors
from app.settings import get_settings
from bco_core.posterior import Posterior
from tests.support.in_process import service_on
from tests.support.journey import Json, create_dataset, create_job, create_problem, learn_posterior, store_function_for


class World:
    """One service for all walks: a client, the ids that a job needs, and a result to store."""

    client: TestClient
    ids: Json
    result: tuple[Posterior, Json]


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path: Path = tmp_path_factory.mktemp("machine") / "bco.db"
    with service_on(f"sqlite:///{path}"):
        migrate(get_settings().sqlalchemy_url)
        with TestClient(create_app(), raise_server_exceptions=False) as client:
            World.client = client
            World.ids = {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}
            posterior = learn_posterior(client, **World.ids)
            with transaction() as session:
                row = session.get_one(PosteriorRow, posterior["id"])
                World.result = posteriors.load(session, row), row.diagnostics
            yield


class JobMachine(RuleBasedStateMachine):
    """The model: the expected state, the number of starts, and the attempts that still run."""

    @initialize()
    def accept(self) -> None:
        self.job_id: str = create_job(World.client, **World.ids)["id"]
        self.state, self.started, self.allowed, self.runs = "queued", 0, 3, 1
        self.live_attempts: list[int] = []
        self.lines, self.revision, self.deleted = 1, 0, False

    # workers

    @precondition(lambda self: not self.deleted)
    @rule()
    def a_worker_starts_it(self) -> None:
        attempt = service.start(self.job_id)
        if self.state not in service.UNFINISHED:
            assert attempt is None
            return
        self.started += 1
        self.lines += 1
        if self.started > self.allowed:
            assert attempt is None
            self.state, self.lines = "failed", self.lines + 1
        else:
            assert attempt == self.started
            self.state = "running"
            self.live_attempts.append(attempt)

    @precondition(lambda self: self.state == "running" and self.started < self.allowed and not self.deleted)
    @rule()
    def a_second_worker_starts_it(self) -> None:
        """The first worker is taken for dead but goes on."""
        assert service.start(self.job_id) == self.started + 1
        self.started, self.lines = self.started + 1, self.lines + 1
        self.live_attempts.append(self.started)

    @precondition(lambda self: self.live_attempts)
    @rule(data=st.data())
    def an_attempt_reports(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.live_attempts))
        assert service.report(self.job_id, attempt, 0.5, "half way") == self.is_current(attempt)
        assert service.is_wanted(self.job_id, attempt) == self.is_current(attempt)

    @precondition(lambda self: self.live_attempts)
    @rule(data=st.data())
    def an_attempt_stores_its_result(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.live_attempts))
        if self.deleted:
            return
        service.succeed(self.job_id, attempt, store_function_for(self.job_id, World.result))
        if self.state in service.UNFINISHED and attempt == self.started:
            self.state, self.lines = "succeeded", self.lines + 1

    @precondition(lambda self: self.live_attempts)
    @rule(data=st.data())
    def an_attempt_fails(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(self.live_attempts))
        service.fail(self.job_id, attempt, "no luck")
        if self.state in service.UNFINISHED and attempt == self.started and not self.deleted:
            self.state, self.lines = "failed", self.lines + 1

    @precondition(lambda self: self.live_attempts)
    @rule()
    def the_last_attempt_is_handed_back(self) -> None:
        attempt = self.live_attempts.pop()
        service.hand_back(self.job_id, attempt)
        if self.is_current(attempt):
            self.state, self.started, self.lines = "queued", attempt - 1, self.lines + 1

    @precondition(lambda self: not self.deleted)
    @rule()
    def the_queue_loses_its_workflow(self) -> None:
        """The workflow ends although the job is unfinished, as after an outage; a worker notices."""
        with transaction() as session:
            queue.client().cancel_workflow(session.get_one(JobRow, self.job_id).run_id)
        recovery.requeue_lost()
        if self.state in service.UNFINISHED:
            self.state, self.runs, self.lines = "queued", self.runs + 1, self.lines + 1

    @precondition(lambda self: self.state in service.UNFINISHED and not self.deleted)
    @rule()
    def an_unfinished_job_is_neither_deleted_nor_requeued(self) -> None:
        with pytest.raises(ConflictError):
            service.delete(DEFAULT_WORKSPACE, self.job_id)
        recovery.requeue_lost()

    # users

    @precondition(lambda self: not self.deleted)
    @rule()
    def cancel(self) -> None:
        if self.state in ("succeeded", "failed"):
            with pytest.raises(ConflictError):
                service.cancel(DEFAULT_WORKSPACE, self.job_id)
            return
        self.lines += self.state != "cancelled"
        self.state = service.cancel(DEFAULT_WORKSPACE, self.job_id).state
        assert self.state == "cancelled"

    @precondition(lambda self: not self.deleted)
    @rule()
    def retry(self) -> None:
        if self.state not in ("failed", "cancelled"):
            with pytest.raises(ConflictError):
                service.retry(DEFAULT_WORKSPACE, self.job_id)
            return
        service.retry(DEFAULT_WORKSPACE, self.job_id)
        self.state, self.runs, self.allowed, self.lines = "queued", self.runs + 1, self.started + 3, self.lines + 1

    @precondition(lambda self: self.state not in service.UNFINISHED and not self.deleted)
    @rule(posterior_first=st.booleans())
    def delete(self, posterior_first: bool) -> None:
        if self.state == "succeeded":
            if not posterior_first:
                with pytest.raises(ConflictError):
                    service.delete(DEFAULT_WORKSPACE, self.job_id)
                return
            posteriors.delete(DEFAULT_WORKSPACE, sibling_id(self.job_id, "post"))
        service.delete(DEFAULT_WORKSPACE, self.job_id)
        self.deleted = True

    @precondition(lambda self: self.deleted)
    @rule()
    def a_deleted_job_is_not_found_and_another_is_created(self) -> None:
        for act in (service.get, service.cancel, service.retry, service.delete):
            with pytest.raises(NotFoundError):
                act(DEFAULT_WORKSPACE, self.job_id)
        assert service.start(self.job_id) is None
        self.accept()

    # invariants

    def is_current(self, attempt: int) -> bool:
        return not self.deleted and self.state == "running" and attempt == self.started

    @invariant()
    def the_database_matches_the_model(self) -> None:
        with transaction() as session:
            row = session.get(JobRow, self.job_id)
            result = session.get(PosteriorRow, sibling_id(self.job_id, "post"))
            lines = session.query(JobLogRow).filter_by(job_id=self.job_id).order_by(JobLogRow.seq).all()
            workflows = queue.client().list_workflows(workflow_id_prefix=self.job_id, load_input=False)
        if self.deleted:
            assert (row, result, lines, workflows) == (None, None, [], [])
            return
        assert row is not None
        assert (row.state, row.attempts, row.attempts_allowed) == (self.state, self.started, self.allowed)
        assert (result is not None) == (self.state == "succeeded")
        assert (row.finished_at is not None) == (self.state not in service.UNFINISHED)
        assert (row.error is not None) == (self.state == "failed")
        assert len(lines) == self.lines
        assert row.revision >= self.revision
        self.revision = row.revision
        assert row.run_id == (self.job_id if self.runs == 1 else f"{self.job_id}.{self.runs}")
        assert len(workflows) == self.runs
        if self.state in service.UNFINISHED:
            active = {workflow.workflow_id for workflow in workflows if workflow.status == "ENQUEUED"}
            assert row.run_id in active


TestJobs = JobMachine.TestCase
TestJobs.settings = settings(
    max_examples=15,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
