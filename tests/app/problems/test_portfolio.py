"""Portfolio over HTTP: Metropolis–Hastings jobs, interruption and resumption, prescriptions, unreachable targets."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from python_calamine import CalamineWorkbook
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import JobPartRow
from app.jobs import compute, parts, queue, service
from app.jobs.kinds import prescribe as batches
from tests.support.journey import ASSETS, FUND, Json, check_json, create_job, learn, prepare_fund

QUICK: Json = {"chains": 2, "steps": 120, "burn_in": 60, "particles": 40, "inverse_temperature": 100}


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    return prepare_fund(client)


@pytest.fixture(scope="module")
def posterior(client: TestClient, ids: Json) -> Json:
    job = learn(client, create_job(client, **ids, inference=QUICK)["id"])
    assert job["state"] == "succeeded", job["error"]
    return check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))


CONTEXTS = [{"mood": 0.5, "rates": 0.0}, {"mood": -1.0, "rates": 0.3}]


def test_auto_samples_chains_and_the_diagnostics_show_it(client: TestClient, posterior: Json) -> None:
    found = check_json(client.get(f"/v1/posteriors/{posterior['id']}/diagnostics"))
    assert (found["method"], found["inference"], found["policy"]) == ("auto", "mh", "bcp")
    assert "no useful gradient" in found["inference_reason"]
    assert found["chains"]["count"] == 2
    assert len(found["chains"]["acceptance"]) == 2
    # The history must satisfy the target with two standard errors to spare.
    required = min(1.0, 0.95 + 2 * math.sqrt(0.95 * 0.05 / found["history"]["rows"]))
    assert found["history"]["required_feasibility"] == pytest.approx(required)
    assert min(found["history"]["chain_feasibility"]) >= required
    assert found["temperatures"] == [{"inverse_temperature": 100, "loss_before": None, "loss_after": None, "chosen": 1}]
    assert found["quality"] in ("warn", "ok")


def test_a_portfolio_has_its_probability_of_reaching_the_target(client: TestClient, posterior: Json) -> None:
    body = {"contexts": CONTEXTS, "scenarios": 40}
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))
    assert answer["policy"] == "bcp"
    for one in answer["prescriptions"]:
        assert set(one["decision"]) == set(ASSETS)
        assert 0 < sum(one["decision"].values()) <= 1 + 1e-9
        assert min(one["decision"].values()) >= 0
        assert (one["status"], one["reason"]) == ("optimal", "")
        assert one["feasibility"] > 0.8
        assert one["expected_cost"] > 0


@pytest.mark.parametrize("kind", ["csv", "parquet", "xlsx"])
def test_a_batch_has_a_column_per_fact_even_if_a_part_is_refused(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(batches, "_MOST_ROWS_AT_ONCE", 2)
    text = "mood,rates\n,0\n,1\n" + "".join(f"{row['mood']},{row['rates']}\n" for row in CONTEXTS)
    path = f"/v1/posteriors/{posterior['id']}/batch-prescriptions/upload"
    made = client.post(path, data={"scenarios": "40"}, files={"file": ("contexts.csv", text.encode())})
    job_id = check_json(made, 202)["id"]
    left = [part.seq for part in parts_of(job_id)]
    assert len(left) == 2
    attempt = service.start(job_id)
    assert attempt is not None
    assert parts.offer(job_id, attempt)
    compute.run(job_id, attempt, lambda: run_part(job_id, left.pop(0)))
    response = client.get(f"/v1/jobs/{job_id}/result", params={"format": kind})
    assert response.status_code == 200, response.text
    table = read_table(response.content, kind)
    assert table["status"].to_pylist()[:2] == ["refused", "refused"]
    body = {"contexts": CONTEXTS, "scenarios": 40}
    expected = check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))["prescriptions"]
    for number, one in enumerate(expected, 2):
        assert float(table["facts.variance"][number].as_py()) == pytest.approx(one["facts"]["variance"])
        for name, bounds in one["facts"]["bounds"].items():
            assert json.loads(table[f"facts.bounds.{name}"][number].as_py()) == bounds


def run_part(job_id: str, seq: int) -> None:
    if parts.start(job_id, seq):
        compute.run_part(job_id, seq)


def read_table(data: bytes, kind: str) -> pa.Table:
    file = io.BytesIO(data)
    if kind == "xlsx":
        header, *rows = CalamineWorkbook.from_filelike(file).get_sheet_by_index(0).to_python()
        return pa.table({name: [str(row[number]) for row in rows] for number, name in enumerate(header)})
    return pyarrow.csv.read_csv(file) if kind == "csv" else pq.read_table(file)


@pytest.mark.parametrize("choice", ["best_effort", "error"])
def test_an_unreachable_target_follows_the_option_infeasible(client: TestClient, ids: Json, choice: str) -> None:
    spec = FUND | {"target_return": 0.099, "infeasible": choice}
    problem = check_json(client.post("/v1/problems", json={"name": "dream", "spec": spec}), 201)
    job = learn(client, create_job(client, **ids | {"problem_id": problem["id"]}, inference=QUICK)["id"])
    assert job["state"] == "succeeded", job["error"]
    made = check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))
    assert made["quality"] == "bad"
    assert "satisfy their constraints in 95% of the history" in made["reason"]
    contexts = [{"mood": 0.0, "rates": 0.0}, {"mood": 0.1, "rates": 0.3}]
    response = client.post(f"/v1/posteriors/{made['id']}/prescribe", json={"contexts": contexts, "scenarios": 40})
    for one in check_json(response)["prescriptions"]:
        assert one["reason"].startswith("no portfolio returns 0.099 in the worst 0.05 of the scenarios")
        assert "the best one returns" in one["reason"]
        if choice == "error":
            assert one["status"] == "infeasible"
            assert set(one["decision"].values()) == {None}
            assert one["expected_cost"] is None
        else:
            assert one["status"] == "best_effort"
            assert sum(one["decision"].values()) == pytest.approx(1)


def parts_of(job_id: str) -> list[JobPartRow]:
    with transaction() as session:
        return list(session.scalars(sa.select(JobPartRow).where(JobPartRow.job_id == job_id).order_by(JobPartRow.seq)))


InterruptJob = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def interrupt_job(client: TestClient, ids: Json, monkeypatch: pytest.MonkeyPatch) -> InterruptJob:
    """Run a job whose first attempt dies at a given message; return its id and the list of later messages."""
    monkeypatch.setattr("bco_core.inference.mh.metropolis.CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(compute, "REPORT_SECONDS", -1.0)
    monkeypatch.setattr(compute, "WAIT_SECONDS", 0.01)
    report = service.report

    def interrupt(at: str = "part 1 of 2: burn-in, step 50 of 120") -> tuple[str, list[str]]:
        seen: list[str] = []

        def die(job_id: str, attempt: int, progress: float, message: str, *more: Any) -> bool:
            seen.append(message)
            if at in message and attempt == 1:
                raise MemoryError
            return report(job_id, attempt, progress, message, *more)

        monkeypatch.setattr(service, "report", die)
        job_id = create_job(client, **ids, inference=QUICK)["id"]
        first = service.start(job_id)
        assert first is not None
        with pytest.raises(MemoryError):
            compute.run(job_id, first)
        seen.clear()
        return job_id, seen

    return interrupt


def finish_with_same_posterior(client: TestClient, job_id: str, posterior: Json) -> Json:
    """Finish a job and check that its posterior equals the one without interruption."""
    job = learn(client, job_id)
    assert job["state"] == "succeeded", job["error"]
    assert check_json(client.get(f"/v1/posteriors/{job['posterior_id']}"))["digest"] == posterior["digest"]
    return job


def test_a_killed_job_resumes_from_its_checkpoint_with_the_same_result(
    client: TestClient, posterior: Json, interrupt_job: InterruptJob
) -> None:
    job_id, seen = interrupt_job("part 2 of 2: sampling, step 100 of 120")
    assert [(part.taken, part.done, part.result is None) for part in parts_of(job_id)] == [
        ("job", 120, False),
        ("job", 100, True),
    ]
    assert finish_with_same_posterior(client, job_id, posterior)["attempts"] == 2
    assert not any("part 1" in message or "step 50 of" in message for message in seen)
    assert any("part 2 of 2: sampling, step 120 of 120" in message for message in seen)
    assert parts_of(job_id) == []


def test_chains_computed_by_other_workers_give_the_same_posterior(
    client: TestClient, posterior: Json, interrupt_job: InterruptJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, _ = interrupt_job()
    queued = queue.client().list_queued_workflows(queue_name=queue.PARTS, workflow_id_prefix=job_id)
    assert len(queued) == 2
    # The first chain is still held by the job's own process; the second is free.
    assert not parts.start(job_id, 0)
    assert parts.start(job_id, 1)
    compute.run_part(job_id, 1)
    assert [part.done for part in parts_of(job_id)] == [50, 120]
    taken: list[int | None] = []
    take = parts.take
    monkeypatch.setattr(parts, "take", lambda job_id: taken.append(take(job_id)) or taken[-1])
    finish_with_same_posterior(client, job_id, posterior)
    assert taken == [0]


def test_a_job_waits_for_chains_on_other_workers(
    client: TestClient, posterior: Json, interrupt_job: InterruptJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, _ = interrupt_job()
    assert parts.start(job_id, 1)
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            compute.run_part(job_id, 1)

    monkeypatch.setattr(compute.time, "sleep", sleep)
    finish_with_same_posterior(client, job_id, posterior)
    assert len(waited) == 3


def test_a_job_cancelled_while_waiting_for_chains_ends(
    client: TestClient, interrupt_job: InterruptJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, _ = interrupt_job()
    assert parts.start(job_id, 1)
    monkeypatch.setattr(compute.time, "sleep", lambda _: check_json(client.post(f"/v1/jobs/{job_id}/cancel"), 202))
    assert learn(client, job_id)["state"] == "cancelled"


def test_a_chain_that_keeps_killing_its_workers_fails_its_job(client: TestClient, interrupt_job: InterruptJob) -> None:
    job_id, _ = interrupt_job()
    assert [parts.start(job_id, 1) for _ in range(4)] == [True, True, True, False]
    job = check_json(client.get(f"/v1/jobs/{job_id}"))
    assert job["state"] == "failed"
    assert job["error"] == "part 1: its worker died 3 times; it may need more memory than is available"
    assert parts_of(job_id) == []
    # A retry starts from the beginning.
    check_json(client.post(f"/v1/jobs/{job_id}/retry"), 202)
    assert learn(client, job_id)["state"] == "succeeded"


def test_a_damaged_part_fails_its_job_and_a_cancelled_part_is_ignored(
    client: TestClient, interrupt_job: InterruptJob
) -> None:
    (first, _), (second, _) = interrupt_job(), interrupt_job()
    assert parts.start(first, 1)
    assert parts.start(second, 1)
    with transaction() as session:
        session.execute(sa.update(JobPartRow).where(JobPartRow.job_id == first).values(sha256="0"))
    compute.run_part(first, 1)
    job = check_json(client.get(f"/v1/jobs/{first}"))
    assert job["state"] == "failed"
    assert "does not match its checksum" in job["error"]
    check_json(client.post(f"/v1/jobs/{second}/cancel"), 202)
    assert not parts.is_wanted(second, 1)
    compute.run_part(second, 1)
    compute.run_part("job_00000000000000000000000000", 0)
    assert check_json(client.get(f"/v1/jobs/{second}"))["state"] == "cancelled"


@pytest.mark.parametrize(
    ("changes", "pointer", "words"),
    [
        ({"kind": "lottery"}, "#/spec/kind", "the problem kind must be one of"),
        ({"covariance": [[1.0]]}, "#/spec/covariance", "3 rows of 3 numbers"),
        ({"factors": {"loadings": [[1.0]] * 3, "residual_variances": [1] * 3}}, "#/spec/covariance", "not both"),
        ({"estimate": "factors"}, "#/spec/estimate", "leave one of them out"),
        ({"target_on": "mean", "confidence": 0.9}, "#/spec/confidence", "leave it out"),
        (
            {"fully_invested": True, "groups": [{"assets": ASSETS, "maximum": 0.5}]},
            "#/spec/groups/0/maximum",
            "least 1",
        ),
        ({"groups": [{"assets": ["tulips"], "maximum": 0.5}]}, "#/spec/groups/0/assets/0", "called tulips"),
        ({"maximum_turnover": 0.5}, "#/spec/maximum_turnover", "give current"),
        ({"confidence": 1}, "#/spec/confidence", "less than 1"),
        ({"assets": [{"name": "gold"}, {"name": "gold"}]}, "#/spec", "same name"),
        ({"budget": 0}, "#/spec/budget", "greater than 0"),
    ],
)
def test_an_invalid_portfolio_is_refused_with_a_pointer(
    client: TestClient, changes: Json, pointer: str, words: str
) -> None:
    refusal = check_json(client.post("/v1/problems", json={"name": "fund", "spec": FUND | changes}), 422)
    assert refusal["errors"][0]["pointer"] == pointer
    assert words in refusal["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("inference", "pointer", "words"),
    [
        ({"method": "vi"}, "#/inference/method", "use mh or auto"),
        ({"members": 3}, "#/inference/members", "auto samples chains, and members would have no effect"),
    ],
)
def test_gradient_based_options_are_refused_on_creation_of_the_job(
    client: TestClient, ids: Json, inference: Json, pointer: str, words: str
) -> None:
    refusal = check_json(client.post("/v1/jobs", json=ids | {"inference": inference}), 422)
    assert refusal["errors"][0]["pointer"] == pointer
    assert words in refusal["detail"]


def test_chains_with_nothing_but_burn_in_are_refused(client: TestClient, ids: Json) -> None:
    body = {**ids, "inference": QUICK | {"burn_in": 120}}
    refusal = check_json(client.post("/v1/jobs", json=body), 422)
    assert "burn_in must be shorter" in refusal["detail"]
