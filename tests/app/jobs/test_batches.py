"""Batch jobs: prescriptions for a whole table, computed once per part despite crashes and cancellation."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from httpx import Response
from python_calamine import CalamineWorkbook
from starlette.testclient import TestClient

from app.db.base import DEFAULT_WORKSPACE
from app.db.engine import transaction
from app.db.tables import JobPartRow, JobRow
from app.demo import as_csv
from app.jobs import compute, parts, queue, service
from app.jobs.kinds import prescribe as batches
from app.prescriptions import prescribe as prescribe_module
from tests.support.journey import (
    CONTEXTS,
    OUTCOMES,
    QUICK,
    ROWS,
    Json,
    check_json,
    counts,
    create_dataset,
    create_job,
    learn_posterior,
    prescribe,
)


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, predictor={"kind": "mlp", "hidden": [8]}, inference=QUICK, policy="averaged")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_MOST_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(compute, "REPORT_SECONDS", -1.0)


def upload(client: TestClient, posterior: Json, content: bytes, **form: str) -> Response:
    path = f"/v1/posteriors/{posterior['id']}/batch-prescriptions/upload"
    return client.post(path, data=form, files={"file": ("contexts", content)})


def submit(client: TestClient, posterior: Json, rows: list[Json] | None = None, **form: str) -> str:
    job_id: str = check_json(upload(client, posterior, as_csv(rows or CONTEXTS).encode(), **form), 202)["id"]
    return job_id


def parts_of(job_id: str) -> list[int]:
    with transaction() as session:
        query = sa.select(JobPartRow.seq).where(JobPartRow.job_id == job_id).order_by(JobPartRow.seq)
        return list(session.scalars(query))


def run_part(job_id: str, seq: int) -> None:
    if parts.start(job_id, seq):
        compute.run_part(job_id, seq)


def start_batch(job_id: str) -> int:
    attempt = service.start(job_id)
    assert attempt is not None
    assert parts.offer(job_id, attempt)
    return attempt


def watch_batch(job_id: str, attempt: int, each: Callable[[], None] | None = None) -> None:
    """Run a batch to its end as its worker does, calling `each` between polls; without `each`, never wait."""

    def fail_on_poll() -> None:
        raise AssertionError("there is nothing to wait for")

    compute.run(job_id, attempt, each or fail_on_poll)


def run_batch(client: TestClient, job_id: str) -> Json:
    """Run a batch and all its parts in this process."""
    left = parts_of(job_id)
    watch_batch(job_id, start_batch(job_id), lambda: run_part(job_id, left.pop(0)))
    assert left == []
    return check_json(client.get(f"/v1/jobs/{job_id}"))


def download_result(client: TestClient, job_id: str, kind: str) -> pa.Table:
    response = client.get(f"/v1/jobs/{job_id}/result", params={"format": kind})
    assert response.status_code == 200, response.text
    assert response.headers["content-disposition"] == f'attachment; filename="{job_id}.{kind}"'
    file = io.BytesIO(response.content)
    if kind == "xlsx":
        header, *rows = CalamineWorkbook.from_filelike(file).get_sheet_by_index(0).to_python()
        return pa.table({name: list(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)})
    return pyarrow.csv.read_csv(file) if kind == "csv" else pq.read_table(file)


def test_a_batch_decides_as_prescribe_does_in_the_order_of_its_rows(client: TestClient, posterior: Json) -> None:
    job = run_batch(client, submit(client, posterior, scenarios="30"))
    assert (job["state"], job["kind"], job["posterior_id"]) == ("succeeded", "prescribe", posterior["id"])
    assert (job["progress"], job["error"]) == (1.0, None)
    expected = prescribe(client, posterior["id"], contexts=CONTEXTS, scenarios=30)["prescriptions"]
    for kind in ("csv", "parquet", "xlsx"):
        table = download_result(client, job["id"], kind)
        assert table.num_rows == len(CONTEXTS) == 60
        assert table.column("temperature").to_pylist() == [context["temperature"] for context in CONTEXTS]
        for name in OUTCOMES:
            decided = table.column(f"decision.{name}").to_pylist()
            assert decided == pytest.approx([found["decision"][name] for found in expected], rel=1e-6)
        for name in ("expected_cost", "cvar_95", "hedging_gain"):
            assert table.column(name).to_pylist() == pytest.approx(
                [found[name] for found in expected], rel=1e-5, abs=1e-5
            )
        assert table.column("status").to_pylist() == [found["status"] for found in expected]
        low = [found["cost_quantiles"]["0.05"] for found in expected]
        assert table.column("cost_quantiles.0.05").to_pylist() == pytest.approx(low, rel=1e-5)
        assert table.column("map.expected_cost").null_count == 0


@pytest.mark.parametrize("policy", ["bcp", "blended", "map"])
def test_a_batch_takes_the_options_that_prescribe_takes(client: TestClient, posterior: Json, policy: str) -> None:
    options: Json = {"policy": policy, "scenarios": 17, "seed": 5, "costs_over": "posterior"}
    if policy == "blended":
        options["alpha"] = 0.25
    job = run_batch(client, submit(client, posterior, CONTEXTS[:10], **{name: str(v) for name, v in options.items()}))
    expected = prescribe(client, posterior["id"], contexts=CONTEXTS[:10], **options)["prescriptions"]
    table = download_result(client, job["id"], "parquet")
    for name in OUTCOMES:
        decided = table.column(f"decision.{name}").to_pylist()
        assert decided == pytest.approx([found["decision"][name] for found in expected], rel=1e-6)
    assert {name: job["spec"][name] for name in options} == options


def test_a_batch_over_a_data_set_copies_its_outcomes(client: TestClient, posterior: Json) -> None:
    dataset = create_dataset(client)
    path = f"/v1/posteriors/{posterior['id']}/batch-prescriptions"
    response = client.post(path, json={"dataset_id": dataset["id"], "scenarios": 20, "name": "all days"})
    job = check_json(response, 202)
    assert response.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert (job["dataset_id"], job["name"], job["state"]) == (dataset["id"], "all days", "queued")
    table = download_result(client, run_batch(client, job["id"])["id"], "parquet")
    assert table.column("croissants").to_pylist() == [row["croissants"] for row in ROWS]
    assert table.num_rows == 60


def test_a_batch_by_post_jobs_equals_a_batch_by_its_posterior(client: TestClient, posterior: Json) -> None:
    dataset = create_dataset(client)
    body = {"dataset_id": dataset["id"], "scenarios": 20, "name": "all days", "time_limit_seconds": 600}
    there = check_json(client.post(f"/v1/posteriors/{posterior['id']}/batch-prescriptions", json=body), 202)
    job_body = {"kind": "prescribe", "posterior_id": posterior["id"]} | body
    response = client.post("/v1/jobs", json=job_body)
    here = check_json(response, 202)
    assert response.headers["Location"] == f"/v1/jobs/{here['id']}"
    assert {name for name in here if here[name] != there[name]} == {"id", "created_at"}
    assert here["posterior_id"] == here["spec"]["posterior_id"] == posterior["id"]
    files = [download_result(client, run_batch(client, job["id"])["id"], "parquet") for job in (there, here)]
    assert files[0].equals(files[1])


def test_a_batch_from_a_missing_object_is_refused_with_a_pointer(client: TestClient, posterior: Json) -> None:
    ids = {"kind": "prescribe", "posterior_id": posterior["id"], "dataset_id": create_dataset(client)["id"]}
    before = counts()
    for name, missing in (("posterior_id", "post_nowhere"), ("dataset_id", "data_nowhere")):
        refusal = check_json(client.post("/v1/jobs", json=ids | {name: missing}), 422)
        assert refusal["errors"][0]["pointer"] == f"#/{name}"
        assert f"GET /v1/{name.removesuffix('_id')}s" in refusal["detail"]
    assert counts() == before
    waiting = create_job(client)
    refusal = check_json(client.post("/v1/jobs", json=ids | {"posterior_id": waiting["posterior_id"]}), 409)
    assert f"job {waiting['id']} is queued" in refusal["detail"]


def test_parquet_and_csv_contexts_are_decided_alike(client: TestClient, posterior: Json) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(CONTEXTS), buffer)
    first = run_batch(client, check_json(upload(client, posterior, buffer.getvalue()), 202)["id"])
    second = run_batch(client, submit(client, posterior))
    decided = [
        download_result(client, job["id"], "parquet").column("decision.loaves").to_pylist() for job in (first, second)
    ]
    assert decided[0] == decided[1]


def test_other_columns_are_copied_and_name_clashes_are_prefixed(client: TestClient, posterior: Json) -> None:
    rows = [context | {"shop": f'Rue "{index}", Paris', "status": "open"} for index, context in enumerate(CONTEXTS[:9])]
    job = run_batch(client, submit(client, posterior, rows))
    for kind in ("csv", "parquet"):
        table = download_result(client, job["id"], kind)
        assert table.column("shop").to_pylist() == [row["shop"] for row in rows]
        assert table.column("context.status").to_pylist() == ["open"] * 9
        assert set(table.column("status").to_pylist()) == {"optimal"}


def test_column_and_category_names_are_read_as_in_data_sets(client: TestClient, posterior: Json) -> None:
    text = "weekday;temperature;rain;promotion;holiday\nSAT; 21.5;0;1;0\nMON;4;6.5;0;0\n"
    job = run_batch(client, check_json(upload(client, posterior, text.encode()), 202)["id"])
    contexts = [
        {"weekday": "SAT", "temperature": 21.5, "rain": 0, "promotion": 1, "holiday": 0},
        {"weekday": "MON", "temperature": 4, "rain": 6.5, "promotion": 0, "holiday": 0},
    ]
    expected = prescribe(client, posterior["id"], contexts=contexts)["prescriptions"]
    decided = download_result(client, job["id"], "parquet").column("decision.loaves").to_pylist()
    assert decided == pytest.approx([found["decision"]["loaves"] for found in expected])


# invalid contexts

HEADER = "weekday,temperature,rain,promotion,holiday\n"
WRONG = {
    "nothing": (b"", "#/file", "empty"),
    "a header alone": (HEADER.encode(), "#/file", "no rows"),
    "a column is missing": (b"weekday,rain\nSAT,1\n", "#/file", "'temperature' is missing"),
    "text for a number": ((HEADER + "SAT,hot,0,1,0\nSAT,warm,0,1,0\n").encode(), "#/file", "line 2"),
    "a missing number": ((HEADER + "SAT,,0,1,0\n").encode(), "#/file", "line 2"),
    "a number beyond all numbers": ((HEADER + "SAT,1e999,0,1,0\n").encode(), "#/file", "finite"),
    "a category never seen": ((HEADER + "FUNDAY,1,0,1,0\n").encode(), "#/file", "MON"),
    "a missing category": ((HEADER + ",1,0,1,0\n").encode(), "#/file", "line 2"),
    "a line too short": ((HEADER + "SAT,1\n").encode(), "#/file", "line 2"),
    "no table": (b"\xff\xfe\x00", "#/file", "neither Parquet nor"),
    "Parquet cut off": (b"PAR1abc", "#/file", "Parquet"),
}


@pytest.mark.parametrize(("content", "pointer", "words"), WRONG.values(), ids=WRONG.keys())
def test_unusable_contexts_are_refused_with_their_place_and_not_stored(
    client: TestClient, posterior: Json, content: bytes, pointer: str, words: str
) -> None:
    before = counts()
    response = upload(client, posterior, content)
    assert response.status_code == 422, response.text
    assert response.json()["errors"][0]["pointer"] == pointer
    assert words in response.json()["detail"]
    assert counts() == before


def test_one_bad_row_is_refused_with_its_reason_and_the_others_are_decided(client: TestClient, posterior: Json) -> None:
    bad = ["SAT,warm,0,1,0", "FUNDAY,1,0,1,0", "SAT,,0,1,0", "SAT,1e80,0,1,0"]
    good = ["SAT,1,0,1,0", "MON,1,0,1,0", "TUE,4,0,1,0"]
    content = HEADER + "".join(f"{line}\n" for line in [good[0], *bad, *good[1:]])
    job = run_batch(client, check_json(upload(client, posterior, content.encode()), 202)["id"])
    assert job["state"] == "succeeded", job["error"]
    for kind in ("csv", "parquet"):
        found = download_result(client, job["id"], kind).to_pylist()
        assert [row["status"] == "refused" for row in found] == [False, True, True, True, True, False, False]
        for row, says in zip(found[1:5], ("must be a number", "MON", "missing", "far from the history"), strict=True):
            assert says in row["reason"]
            assert row["decision.loaves"] is None
    table = download_result(client, job["id"], "parquet").take([0, 5, 6])
    alone = HEADER + "".join(f"{line}\n" for line in good)
    undisturbed = run_batch(client, check_json(upload(client, posterior, alone.encode()), 202)["id"])
    assert table["decision.loaves"].to_pylist() == pytest.approx(
        download_result(client, undisturbed["id"], "parquet")["decision.loaves"].to_pylist()
    )
    lines = check_json(client.get(f"/v1/jobs/{job['id']}/log"))["lines"]
    assert any("3 row(s) cannot be used" in line["text"] for line in lines)


def test_options_that_cannot_be_used_are_refused(
    client: TestClient, posterior: Json, settings: Callable[..., None]
) -> None:
    before = counts()
    content = as_csv(CONTEXTS).encode()
    for form in ({"scenarios": "0"}, {"alpha": "2"}, {"policy": "hope"}, {"seed": "-1"}, {"scenarios": "100000"}):
        assert upload(client, posterior, content, **form).status_code == 422, form
    assert upload(client, {"id": "post_nowhere"}, content).status_code == 404
    path = f"/v1/posteriors/{posterior['id']}/batch-prescriptions"
    response = client.post(path, json={"dataset_id": "data_nowhere"})
    assert response.json()["errors"][0]["pointer"] == "#/dataset_id"
    settings(max_rows=10)
    assert "BCO_MAX_ROWS" in upload(client, posterior, content).json()["detail"]
    assert counts() == before


def test_a_batch_counts_towards_the_queue_limit(
    client: TestClient, posterior: Json, settings: Callable[..., None]
) -> None:
    submit(client, posterior)
    settings(max_queued_jobs=1)
    before = counts()
    response = upload(client, posterior, as_csv(CONTEXTS).encode())
    assert (response.status_code, int(response.headers["Retry-After"]) > 0) == (503, True)
    assert counts() == before


def test_contexts_far_from_the_history_cause_a_warning_in_the_log(client: TestClient, posterior: Json) -> None:
    job_id = submit(client, posterior, [CONTEXTS[0] | {"temperature": 900.0}, CONTEXTS[1]])
    texts = [line["text"] for line in check_json(client.get(f"/v1/jobs/{job_id}/log"))["lines"]]
    assert any("'temperature' is far outside" in text and "1 context" in text for text in texts)


def test_a_column_that_is_empty_in_some_parts_stays_one_column(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some answers have a reason and a bound that others lack."""
    decide = prescribe_module.decide

    def with_reasons(*arguments: Any, **options: Any) -> list[Json]:
        answers = decide(*arguments, **options)
        full = answers[0]["decision"]["loaves"] > threshold
        return [answer | {"reason": "late" if full else None, "bound": 1.5 if full else None} for answer in answers]

    first = prescribe(client, posterior["id"], contexts=CONTEXTS[:8:7])["prescriptions"]
    threshold = sum(found["decision"]["loaves"] for found in first) / 2
    monkeypatch.setattr(prescribe_module, "decide", with_reasons)
    job = run_batch(client, submit(client, posterior, CONTEXTS[:14]))
    for kind in ("csv", "parquet"):
        table = download_result(client, job["id"], kind)
        assert set(table.column("bound").to_pylist()) == {None, 1.5}
        assert table.column("reason").to_pylist().count("late") == 7


# parts


def test_a_batch_is_cut_into_parts_that_are_queued_apart_from_jobs(client: TestClient, posterior: Json) -> None:
    job_id = submit(client, posterior)
    assert parts_of(job_id) == list(range(9))
    assert parts.offer(job_id, start_batch(job_id))
    queued = queue.client().list_queued_workflows(queue_name=queue.PARTS, workflow_id_prefix=job_id)
    assert sorted(workflow.workflow_id for workflow in queued) == sorted(f"{job_id}.part{seq}" for seq in range(9))
    (parent,) = queue.client().list_queued_workflows(queue_name=queue.WAITING, workflow_ids=[job_id])
    assert parent.workflow_id == job_id


def test_parts_are_smaller_with_more_scenarios(
    client: TestClient, posterior: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_NUMBERS_AT_ONCE", 400)
    assert len(parts_of(submit(client, posterior, scenarios="100"))) == 30


def test_progress_counts_contexts_and_grows_with_the_parts(client: TestClient, posterior: Json) -> None:
    job_id = submit(client, posterior)
    seen, left = [], parts_of(job_id)

    def look() -> None:
        job = service.get(DEFAULT_WORKSPACE, job_id)
        seen.append((job.progress, job.message))
        run_part(job_id, left.pop())

    watch_batch(job_id, start_batch(job_id), look)
    assert seen[0] == (0.0, "0 of 60 contexts")
    assert seen[1] == (pytest.approx(4 / 60), "4 of 60 contexts")
    assert seen[-1][1] == "53 of 60 contexts"
    assert [progress for progress, _ in seen] == sorted(progress for progress, _ in seen)


def test_a_part_is_stored_once_and_a_second_result_is_ignored(client: TestClient, posterior: Json) -> None:
    job_id = submit(client, posterior)
    start_batch(job_id)
    run_part(job_id, 0)
    with transaction() as session:
        before = session.get_one(JobPartRow, (job_id, 0))
    parts.store(job_id, 0, b"another result")
    assert not parts.start(job_id, 0)
    with transaction() as session:
        after = session.get_one(JobPartRow, (job_id, 0))
    assert (after.result, after.result_sha256, after.attempts) == (before.result, before.result_sha256, 1)


def test_a_worker_that_takes_over_a_batch_runs_only_the_missing_parts(client: TestClient, posterior: Json) -> None:
    job_id = submit(client, posterior)
    first = start_batch(job_id)
    for seq in (0, 1, 2):
        run_part(job_id, seq)
    second = start_batch(job_id)
    watch_batch(job_id, first)
    for seq in range(3, 9):
        run_part(job_id, seq)
    watch_batch(job_id, first)
    assert service.get(DEFAULT_WORKSPACE, job_id).state == "running"
    watch_batch(job_id, second)
    job = check_json(client.get(f"/v1/jobs/{job_id}"))
    assert (job["state"], job["attempts"]) == ("succeeded", 2)
    assert download_result(client, job_id, "csv").num_rows == 60


def test_a_part_that_keeps_killing_its_worker_fails_the_batch(client: TestClient, posterior: Json) -> None:
    job_id = submit(client, posterior)
    start_batch(job_id)
    assert [parts.start(job_id, 4) for _ in range(4)] == [True, True, True, False]
    job = check_json(client.get(f"/v1/jobs/{job_id}"))
    assert job["state"] == "failed"
    assert "part 4: its worker died 3 times" in job["error"]
    assert not parts.is_wanted(job_id, 5)
    assert not parts.start(job_id, 5)


def test_deaths_of_workers_waiting_for_a_batch_do_not_fail_it(client: TestClient, posterior: Json) -> None:
    job_id = submit(client, posterior)
    for attempt in range(1, 8):
        assert start_batch(job_id) == attempt
    for seq in parts_of(job_id):
        run_part(job_id, seq)
    watch_batch(job_id, 7)
    assert service.get(DEFAULT_WORKSPACE, job_id).state == "succeeded"


def test_a_part_that_is_handed_back_uses_no_attempt(client: TestClient, posterior: Json) -> None:
    job_id = submit(client, posterior)
    start_batch(job_id)
    for _ in range(5):
        assert parts.start(job_id, 0)
        parts.hand_back(job_id, 0)
    assert service.get(DEFAULT_WORKSPACE, job_id).state == "running"


def test_a_failed_batch_that_is_rerun_keeps_its_finished_parts(client: TestClient, posterior: Json) -> None:
    job_id = submit(client, posterior)
    start_batch(job_id)
    for seq in (0, 1):
        run_part(job_id, seq)
    for _ in range(4):
        parts.start(job_id, 2)
    service.retry(DEFAULT_WORKSPACE, job_id)
    attempt = start_batch(job_id)
    queued = queue.client().list_queued_workflows(queue_name=queue.PARTS, workflow_id_prefix=f"{job_id}.2.")
    assert sorted(workflow.workflow_id for workflow in queued) == sorted(f"{job_id}.2.part{seq}" for seq in range(2, 9))
    for seq in range(2, 9):
        run_part(job_id, seq)
    watch_batch(job_id, attempt)
    assert service.get(DEFAULT_WORKSPACE, job_id).state == "succeeded"


def test_a_cancelled_batch_stops_and_stores_no_late_result(client: TestClient, posterior: Json) -> None:
    job_id = submit(client, posterior)
    attempt = start_batch(job_id)
    assert parts.start(job_id, 0)
    service.cancel(DEFAULT_WORKSPACE, job_id)
    compute.run_part(job_id, 0)
    watch_batch(job_id, attempt)
    assert not parts.is_wanted(job_id, 0)
    with transaction() as session:
        assert session.get_one(JobPartRow, (job_id, 0)).result is None
        assert session.get_one(JobRow, job_id).state == "cancelled"


# results


def test_a_result_is_refused_until_the_batch_has_succeeded(client: TestClient, posterior: Json) -> None:
    waiting = submit(client, posterior)
    response = client.get(f"/v1/jobs/{waiting}/result")
    assert response.status_code == 409
    assert "queued (0%)" in response.json()["detail"]
    learning = create_job(client)["id"]
    response = client.get(f"/v1/jobs/{learning}/result")
    assert response.status_code == 409
    assert learning.replace("job_", "post_") in response.json()["detail"]
    assert client.get("/v1/jobs/job_nowhere/result").status_code == 404
    assert client.get(f"/v1/jobs/{waiting}/result", params={"format": "xls"}).status_code == 422


def test_a_posterior_used_by_a_batch_cannot_be_deleted_before_it(client: TestClient) -> None:
    made = learn_posterior(client)
    job_id = submit(client, made)
    refused = client.delete(f"/v1/posteriors/{made['id']}")
    assert refused.status_code == 409
    assert "batch" in refused.json()["detail"]
    service.cancel(DEFAULT_WORKSPACE, job_id)
    before = counts()
    assert client.delete(f"/v1/jobs/{job_id}").status_code == 204
    after = counts()
    assert (before["jobs"] - after["jobs"], before["job_parts"] - after["job_parts"]) == (1, 9)
    assert client.delete(f"/v1/posteriors/{made['id']}").status_code == 204


def test_a_repeated_idempotency_key_creates_one_batch(client: TestClient, posterior: Json) -> None:
    path = f"/v1/posteriors/{posterior['id']}/batch-prescriptions/upload"
    content = as_csv(CONTEXTS).encode()
    answers = [
        client.post(path, files={"file": ("c", content)}, headers={"Idempotency-Key": "today"}) for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert json.loads(answers[0].content) == json.loads(answers[1].content)
