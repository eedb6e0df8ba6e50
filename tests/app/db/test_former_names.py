"""Stored data with former field names stays readable; requests with them are refused."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.blobs import checksum
from app.db.engine import transaction
from app.db.tables import DatasetRow, JobPartRow, JobRow, PrescriptionRow
from app.http.tables import from_parquet, to_parquet
from app.jobs.kinds import KINDS
from app.log.writer import compress, decompress
from app.pages.render import signed
from app.posteriors import portable
from bco_core.progress import no_progress
from tests.app.datasets.test_histories import learned_from, shops
from tests.support.backtesting import backtest_body, create_shop, run_backtest
from tests.support.journey import CONTEXTS, QUICK, Json, check_json, create_job, learn, learn_posterior, prescribe
from tests.support.pages import another_browser, look, words

PATCH: Json = {"items": {"croissants": {"underage_cost": 9.0}}}
FORMER_JOB = {"inference": "posterior", "actual_decision": "done", "problem_patch": "problem"}
FORMER_ALTERNATIVE = {
    "extra_cost": "regret",
    "extra_cost_standard_error": "regret_standard_error",
    "extra_cost_quantiles": "regret_quantiles",
}
JOBS = sa.table("jobs", sa.column("id"), sa.column("spec", sa.JSON), sa.column("summary", sa.JSON))


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, inference=QUICK | {"particles": 60})


def rename_fields(fields: Json, names: dict[str, str]) -> Json:
    return {names.get(name, name): value for name, value in fields.items()}


def post(client: TestClient, posterior: Json, kind: str, **changes: Any) -> Json:
    body = {"contexts": CONTEXTS[:2]} | changes
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/{kind}", json=body))
    assert client.app.state.log.flush(10)  # type: ignore[attr-defined]
    return answer


# the log


def store_older_copy(client: TestClient, answer: Json) -> tuple[str, bytes]:
    """Copy a logged call as an earlier version stored it; return the copy's id and answer."""
    with transaction() as session:
        row = session.get_one(PrescriptionRow, answer["id"])
        fields = {column.name: getattr(row, column.name) for column in sa.inspect(PrescriptionRow).columns}
    request = orjson.loads(decompress(row.request, row.request_sha256))
    content = orjson.loads(decompress(row.answer, row.answer_sha256))
    assert "problem_patch" in request
    request = rename_fields(request, {"problem_patch": "problem"})
    for one in content.get("prescriptions", ()):
        one["reason"] = "a sentence as an earlier version worded it"
    if content["problem_differs"]:
        content["problem_differs"] = [rename_fields(one, {"requested": "asked"}) for one in content["problem_differs"]]
    for one in content.get("evaluations", ()):
        one["alternatives"] = [rename_fields(alternative, FORMER_ALTERNATIVE) for alternative in one["alternatives"]]
    identifier = answer["id"][:-4] + "0000"
    content["id"] = identifier
    kept, sent = orjson.dumps(request), orjson.dumps(content)
    fields |= {"id": identifier, "request": compress(kept), "request_sha256": checksum(kept)}
    fields |= {"answer": compress(sent), "answer_sha256": checksum(sent)}
    with transaction() as session:
        session.execute(sa.insert(PrescriptionRow).values(**fields))
    return identifier, sent


@pytest.mark.parametrize("patch", [None, PATCH])
def test_an_older_prescription_reproduces(client: TestClient, posterior: Json, patch: Json | None) -> None:
    identifier, sent = store_older_copy(client, post(client, posterior, "prescribe", problem_patch=patch))
    record = check_json(client.get(f"/v1/prescriptions/{identifier}"))
    assert record["answer"] == orjson.loads(sent)
    assert record["request"]["problem_patch"] == patch
    assert "problem" not in record["request"]
    again = check_json(client.post(f"/v1/prescriptions/{identifier}/reproduce"))
    assert (again["identical"], again["differences"]) == (True, [])


def test_an_older_evaluation_reproduces_and_is_shown(client: TestClient, posterior: Json) -> None:
    alternatives = [{"name": "many", "decision": {"croissants": 300.0, "loaves": 200.0}}]
    answer = post(client, posterior, "evaluate", alternatives=alternatives, problem_patch=PATCH)
    identifier, sent = store_older_copy(client, answer)
    assert b'"regret":' in sent
    record = check_json(client.get(f"/v1/prescriptions/{identifier}"))
    assert record["answer"] == orjson.loads(sent), "an answer is kept as it was sent"
    again = check_json(client.post(f"/v1/prescriptions/{identifier}/reproduce"))
    assert (again["identical"], again["differing"]) == (True, 0)
    assert "extra_cost" in again["answer"]["evaluations"][0]["alternatives"][0]
    page = look(another_browser(client), f"/log/{identifier}")
    assert f"→ {answer['problem_differs'][0]['requested']:g}" in words(page)
    assert signed(answer["evaluations"][0]["alternatives"][0]["extra_cost"]) in words(page)


def test_a_patch_of_an_older_prescription_counts_for_its_outcome(client: TestClient, posterior: Json) -> None:
    answer = post(client, posterior, "prescribe", problem_patch=PATCH)
    identifier, _ = store_older_copy(client, answer)
    rows = [{"index": 0, "outcomes": {"croissants": 900.0, "loaves": 55.0}, "actual_decision": {"croissants": 1.0}}]
    now = check_json(client.post(f"/v1/prescriptions/{answer['id']}/outcome", json={"rows": rows}))
    then = check_json(client.post(f"/v1/prescriptions/{identifier}/outcome", json={"rows": rows}))
    assert then["rows"][0]["realised_cost"] == now["rows"][0]["realised_cost"] > 9 * 500


# jobs


def rename_job_fields(job_id: str) -> None:
    """Give a job's spec and summary the field names of an earlier version."""
    with transaction() as session:
        stored = session.execute(sa.select(JOBS.c.spec, JOBS.c.summary).where(JOBS.c.id == job_id)).one()
        spec = rename_fields(stored.spec, FORMER_JOB)
        assert spec != stored.spec
        if "ours" in spec:
            spec["ours"] = [rename_fields(one, FORMER_JOB) for one in spec["ours"]]
        text = orjson.dumps(stored.summary).replace(b'"actual_decision"', b'"done"')
        values = {"spec": spec, "summary": orjson.loads(text) if stored.summary else sa.null()}
        session.execute(sa.update(JOBS).where(JOBS.c.id == job_id).values(**values))


def test_an_older_learning_job_is_shown_and_can_be_rerun(client: TestClient) -> None:
    job = create_job(client, seed=3)
    rename_job_fields(job["id"])
    shown = check_json(client.get(f"/v1/jobs/{job['id']}"))
    assert shown["spec"] == job["spec"]
    assert "vi" in words(look(another_browser(client), f"/jobs/{job['id']}"))
    check_json(client.post(f"/v1/jobs/{job['id']}/cancel"), 202)
    check_json(client.post(f"/v1/jobs/{job['id']}/retry"), 202)
    ended = learn(client, job["id"])
    assert ended["state"] == "succeeded", ended["error"]
    same = learn_posterior(client, seed=3, problem_id=job["problem_id"], dataset_id=job["dataset_id"])
    assert check_json(client.get(f"/v1/posteriors/{ended['posterior_id']}"))["digest"] == same["digest"]


def test_an_older_batch_keeps_its_patch(client: TestClient, posterior: Json) -> None:
    body = {"kind": "prescribe", "posterior_id": posterior["id"], "dataset_id": posterior["dataset_id"]}
    job = check_json(client.post("/v1/jobs", json=body | {"problem_patch": PATCH}), 202)
    rename_job_fields(job["id"])
    assert check_json(client.get(f"/v1/jobs/{job['id']}"))["spec"]["problem_patch"] == PATCH
    with transaction() as session:
        given = KINDS["prescribe"].read(session.get_one(JobRow, job["id"]))
        part = session.get_one(JobPartRow, (job["id"], 0))
    decided = from_parquet(KINDS["prescribe"].work(given, part.data, no_progress, lambda data: None))
    patched = prescribe(client, posterior["id"], problem_patch=PATCH)["prescriptions"][0]
    assert decided["decision.croissants"][0].as_py() == patched["decision"]["croissants"]


def test_an_older_backtest_shows_its_results(client: TestClient) -> None:
    job = run_backtest(client, backtest_body(create_shop(client), baselines=["constant"]))
    path = f"/v1/jobs/{job['id']}/backtest/over-time"
    drawn = check_json(client.get(path))
    rename_job_fields(job["id"])
    with transaction() as session:
        for part in session.scalars(sa.select(JobPartRow).where(JobPartRow.job_id == job["id"])):
            table = from_parquet(part.result or b"")
            names = ["done" if name == "actual_decision" else name for name in table["policy"].to_pylist()]
            part.result = to_parquet(
                table.set_column(table.column_names.index("policy"), "policy", pa.array(names, pa.string()))
            )
            part.result_sha256 = checksum(part.result)
    shown = check_json(client.get(f"/v1/jobs/{job['id']}"))
    assert (shown["spec"], shown["summary"]) == (job["spec"], job["summary"])
    assert shown["summary"]["against"] == "actual_decision"
    assert check_json(client.get(path)) == drawn
    page = look(another_browser(client), f"/backtests/{job['id']}")
    assert "the decisions actually taken" in words(page)


def test_a_part_of_an_older_backtest_is_computed(client: TestClient) -> None:
    job = check_json(client.post("/v1/jobs", json=backtest_body(create_shop(client), baselines=["constant"])), 202)
    rename_job_fields(job["id"])
    with transaction() as session:
        given = KINDS["backtest"].read(session.get_one(JobRow, job["id"]))
    result = KINDS["backtest"].work(given, orjson.dumps([0, "done"]), no_progress, lambda data: None)
    assert set(from_parquet(result)["policy"].to_pylist()) == {"actual_decision"}


# files


def test_an_older_exported_posterior_can_be_imported(client: TestClient, tmp_path: Path) -> None:
    made = learned_from(client, shops(client, unseen="other"))
    path = tmp_path / "older.bco"
    portable.export(made["id"], path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts["manifest.json"])
    manifest["dataset"]["policy"] = manifest["dataset"].pop("handling")
    parts["manifest.json"] = json.dumps(manifest).encode()
    older = io.BytesIO()
    with zipfile.ZipFile(older, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    path.write_bytes(older.getvalue())
    row, new = portable.import_(path, "elsewhere")
    assert new
    with transaction() as session:
        assert session.get_one(DatasetRow, row.dataset_id).handling == {"missing": "reject", "unseen": "other"}


# requests


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/jobs", {"problem_id": "p", "dataset_id": "d", "posterior": {"method": "vi"}}, "posterior"),
        ("/v1/jobs", {"kind": "backtest", "problem_id": "p", "dataset_id": "d", "done": {"a": "b"}}, "done"),
        ("/v1/jobs", {"kind": "prescribe", "posterior_id": "p", "dataset_id": "d", "problem": {}}, "problem"),
        ("/v1/posteriors/{id}/prescribe", {"contexts": CONTEXTS[:1], "problem": PATCH}, "problem"),
        ("/v1/posteriors/{id}/evaluate", {"contexts": CONTEXTS[:1], "decisions": [{}], "problem": PATCH}, "problem"),
        ("/v1/posteriors/{id}/batch-prescriptions", {"dataset_id": "d", "problem": PATCH}, "problem"),
        ("/v1/prescriptions/pres_1/outcome", {"outcomes": {"loaves": 1.0}, "done": {"loaves": 1.0}}, "done"),
    ],
)
def test_a_request_with_a_former_name_is_refused(
    client: TestClient, posterior: Json, path: str, body: Json, field: str
) -> None:
    refusal = check_json(client.post(path.format(id=posterior["id"]), json=body), 422)
    assert refusal["errors"] == [{"pointer": f"#/{field}", "detail": "Extra inputs are not permitted"}]
    assert refusal["detail"] == f"#/{field}: Extra inputs are not permitted"


def test_nested_fields_and_forms_refuse_former_names_too(client: TestClient, posterior: Json) -> None:
    body = {"kind": "backtest", "problem_id": "p", "dataset_id": "d", "ours": [{"posterior": {"method": "vi"}}]}
    assert check_json(client.post("/v1/jobs", json=body), 422)["errors"][0]["pointer"] == "#/ours/0/posterior"
    path = f"/v1/posteriors/{posterior['id']}/batch-prescriptions/upload"
    form = client.post(path, data={"problem": json.dumps(PATCH)}, files={"file": ("a.csv", b"weekday\nSAT\n")})
    assert check_json(form, 422)["errors"][0]["pointer"] == "#/problem"
