"""Parts of a job: only the current attempt offers them, and joining them equals learning in one piece."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import JobRow
from app.jobs import parts, service
from app.jobs.kinds import KINDS
from app.jobs.kinds.base import JobPart
from bco_core.inference.learn import learn as learn_here
from bco_core.posterior import digest
from tests.support.journey import check_json, create_job, learn

MADE = [JobPart(1, b"one"), JobPart(2, b"two")]


def test_only_the_attempt_that_holds_a_job_may_offer_parts(client: TestClient) -> None:
    job_id = create_job(client)["id"]
    first = service.start(job_id)
    second = service.start(job_id)
    assert first is not None
    assert second == first + 1
    assert parts.offer(job_id, first, MADE) is False
    assert parts.amounts(job_id).parts == 0
    assert parts.offer(job_id, second, MADE) is True
    assert parts.amounts(job_id)[:3] == (2, 0, 3)


def test_a_cancelled_job_takes_no_parts(client: TestClient) -> None:
    job_id = create_job(client)["id"]
    attempt = service.start(job_id)
    assert attempt is not None
    check_json(client.post(f"/v1/jobs/{job_id}/cancel"), 202)
    assert parts.offer(job_id, attempt, MADE) is False
    assert parts.amounts(job_id).parts == 0


def test_a_job_in_parts_learns_the_same_as_the_core(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bco_core.inference.vi.plan.SHARED_ROWS", 20)
    inference = {"method": "vi", "members": 3, "epochs": 2, "particles": 20}
    job = create_job(client, inference=inference, seed=5)
    with transaction() as session:
        row = session.get_one(JobRow, job["id"])
        given = KINDS["learn"].read(row)
    assert len(given.learning.split()) == 3
    found = check_json(client.get(f"/v1/posteriors/{learn(client, job['id'])['posterior_id']}"))
    task = given.learning.task
    here = learn_here(task.problem, task.sample, task.options).posterior
    assert found["digest"] == digest(*here.to_arrays())
