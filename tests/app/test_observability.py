"""Logs and metrics: one log line per request with its id, metrics by route, no secrets."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from app import logs
from app.commands.serve import free_port
from app.demo import MORNINGS, as_csv, bakery_rows, example_problem
from app.logs import JsonLines, PlainLines, redact
from app.main import create_app
from app.problems import check
from app.problems import service as problems
from app.settings import Settings
from bco_core.status import CUTS, HIGHS
from tests.support.in_process import service_on
from tests.support.journey import (
    CONTEXTS,
    QUICK,
    ROWS,
    Json,
    check_json,
    create_dataset,
    create_job,
    create_problem,
    learn_posterior,
    prescribe,
)
from tests.support.polling import wait_until
from tests.support.processes import is_ready, wait_for_job

KEY = "bco_01M7HHJHXCKX15YKTS59YF7F5C_hVL0deIqT3C7qFfEEiDJDgwubYumQ9vXz8aycK38iFU"


class Lines(logging.Handler):
    """Collect log lines as parsed JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonLines())
        self.lines: list[Json] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def lines() -> Iterator[list[Json]]:
    handler, root = Lines(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler.lines
    root.removeHandler(handler)
    root.setLevel(before)


def request_lines(lines: list[Json]) -> list[Json]:
    return [line for line in lines if line["logger"] == "app.requests"]


# request ids and headers


def test_a_request_keeps_the_id_of_its_header(client: TestClient, lines: list[Json]) -> None:
    answer = client.get("/v1/problems", headers={"X-Request-ID": "planner-7:42"})
    assert answer.headers["x-request-id"] == "planner-7:42"
    (line,) = request_lines(lines)
    assert line["request_id"] == "planner-7:42"
    assert (line["message"], line["status"], line["level"]) == ("GET /v1/problems", 200, "INFO")
    assert line["ms"] > 0
    assert line["workspace"] == "default"


@pytest.mark.parametrize("given", [None, "", "with blank", "x" * 101, 'a"b', "é"])
def test_a_request_without_a_usable_id_gets_one(client: TestClient, given: str | None) -> None:
    headers = [] if given is None else [(b"x-request-id", given.encode("latin-1"))]
    ids = {client.get("/livez", headers=headers).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(len(one) == 32 for one in ids)


def test_log_lines_written_during_a_request_carry_its_id(
    client: TestClient, lines: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = check.check_problem

    def check_and_log(spec: Json) -> Any:
        logging.getLogger("app.test").warning("building")
        return build(spec)

    monkeypatch.setattr(check, "check_problem", check_and_log)
    client.post("/v1/problems", json=example_problem(), headers={"X-Request-ID": "seven"})
    assert [line["request_id"] for line in lines if line["message"] == "building"] == ["seven"]


def responses_by_path(client: TestClient) -> Iterator[httpx.Response]:
    yield client.get("/docs")
    yield client.get("/docs/assets/swagger-ui.css")
    yield client.get("/openapi.json")
    yield client.get("/livez")
    yield client.get("/v1/problems")
    yield client.get("/v1/problems/nowhere")
    yield client.get("/nowhere")
    yield client.put("/v1/problems")
    yield client.post("/v1/problems", json={})
    yield client.get("/v1/problems", headers={"Authorization": "Bearer x"})
    yield client.post("/v1/problems", content=b"", headers={"Content-Length": "99999999999"})


def test_every_answer_has_safe_headers_and_an_id(client: TestClient) -> None:
    statuses = []
    for answer in responses_by_path(client):
        statuses.append(answer.status_code)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-request-id"]
        if answer.url.path.startswith("/v1/"):
            assert answer.headers["cache-control"] == "no-store"
    assert statuses == [200, 200, 200, 200, 200, 404, 404, 405, 422, 401, 413]


def test_pages_run_only_scripts_of_this_service(client: TestClient) -> None:
    policy = client.get("/docs").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'self'"
    assert "script-src" not in rules
    assert "<script>" not in client.get("/docs").text


def test_an_unexpected_error_logs_a_traceback_that_the_answer_omits(
    client: TestClient, lines: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_error(*_: object) -> None:
        raise RuntimeError("the left hand did not know")

    monkeypatch.setattr(problems, "read", raise_error)
    answer = client.get("/v1/problems/prob_x", headers={"X-Request-ID": "unlucky"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == "unlucky"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "left hand" not in answer.text
    assert "Traceback" not in answer.text
    (line,) = [line for line in lines if line["level"] == "ERROR"]
    assert "the left hand did not know" in line["traceback"]
    assert line["request_id"] == "unlucky"
    assert request_lines(lines)[-1]["status"] == 500


def test_a_path_cannot_inject_log_lines(client: TestClient, lines: list[Json]) -> None:
    client.get("/v1/problems/x%0A2026-11-16 INFO app: all is well%1b[2J")
    (line,) = request_lines(lines)
    assert line["message"] == "GET /v1/problems/x%0A2026-11-16%20INFO%20app%3A%20all%20is%20well%1B%5B2J"


# secrets


@pytest.mark.parametrize(
    "text",
    [
        f"refused {KEY}",
        f"Authorization: Bearer {KEY}",
        "Authorization: bearer hVL0deIqT3C7qFfEEiDJDgwubYumQ9vXz8aycK38iFU",
        "postgresql://bco:hVL0deIqT3C7qFfEEiDJDgwubYumQ9vXz8aycK38iFU@host/bco",
        "host=db password=hVL0deIqT3C7qFfEEiDJDgwubYumQ9vXz8aycK38iFU dbname=bco",
    ],
)
def test_secrets_are_redacted(text: str) -> None:
    record = logging.LogRecord("app", logging.INFO, "", 0, text, None, None)
    for written in (redact(text), JsonLines().format(record), PlainLines().format(record)):
        assert "hVL0deIqT3C7" not in written
        assert "***" in written


def test_other_text_is_not_redacted(client: TestClient) -> None:
    text = "job job_01M7HHJHXCKX15YKTS59YF7F5C of key_01M7HHJHXCKX15YKTS59YF7F5C at http://127.0.0.1:8000/docs"
    assert redact(text) == text


def test_neither_keys_nor_passwords_nor_data_reach_the_log(lines: list[Json]) -> None:
    with service_on("postgresql://bco:sesame-4711@/nowhere?host=/nonexistent"):
        client = TestClient(create_app(), raise_server_exceptions=False)
        for _ in range(2):
            client.get("/readyz")
            client.post("/v1/problems", json=example_problem(), headers={"Authorization": f"Bearer {KEY}"})
            client.post("/v1/problems?token=sesame-4711", json=example_problem())
    # Only the test's own client may log its requests.
    written = json.dumps([line for line in lines if not line["logger"].startswith("httpx")])
    assert "not ready" in written
    assert "sesame-4711" not in written
    assert "hVL0deIqT3C7" not in written


def test_a_failing_statement_is_logged_without_its_values(client: TestClient, lines: list[Json]) -> None:
    import sqlalchemy as sa

    from app.db.engine import get_engine

    values = {"value": "sesame-4711"}
    with pytest.raises(sa.exc.SQLAlchemyError) as failed, get_engine().begin() as connection:
        connection.execute(sa.text("INSERT INTO nowhere VALUES (:value)"), values)
    logging.getLogger("app").error("failed", exc_info=failed.value)
    assert "INSERT INTO nowhere" in json.dumps(lines)
    assert "sesame-4711" not in json.dumps(lines)


# log formats


def test_log_lines_are_plain_on_a_terminal_and_json_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        for terminal, chosen, expected in (
            (True, "auto", PlainLines),
            (False, "auto", JsonLines),
            (True, "json", JsonLines),
            (False, "text", PlainLines),
        ):
            monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
            logs.configure(Settings(log_format=chosen))
            (handler,) = root.handlers
            assert type(handler.formatter) is expected
    finally:
        root.handlers, root.level = before, level


def test_a_plain_log_line_names_its_job() -> None:
    token = logs.job_id.set("job_7")
    record = logging.LogRecord("app", logging.INFO, "", 0, "learning", None, None)
    assert PlainLines().format(record).endswith("learning  [job_id=job_7]")
    logs.job_id.reset(token)


# metrics


def read_metrics(client: TestClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = client.get("/metrics").text
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def metric_increase(client: TestClient) -> Callable[..., float]:
    """Return the increase of a metric since the test began."""
    before = read_metrics(client)

    def of(name: str, **labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return read_metrics(client).get(key, 0.0) - before.get(key, 0.0)

    return of


def test_requests_are_counted_by_route_not_by_address(
    client: TestClient, metric_increase: Callable[..., float]
) -> None:
    made = create_problem(client)
    for identifier in (made["id"], "nowhere", "elsewhere"):
        client.get(f"/v1/problems/{identifier}")
    route = {"method": "GET", "route": "/v1/problems/{problem_id}"}
    assert metric_increase("bco_requests_total", **route, status="200") == 1
    assert metric_increase("bco_requests_total", **route, status="404") == 2
    assert metric_increase("bco_request_seconds_count", **route) == 3
    assert metric_increase("bco_requests_total", method="POST", route="/v1/problems", status="201") == 1


def test_unknown_paths_and_methods_create_no_metric_series(
    client: TestClient, metric_increase: Callable[..., float]
) -> None:
    for index in range(5):
        client.get(f"/nowhere/{index}")
        client.request(f"VERB{index}", "/v1/problems")
    text = client.get("/metrics").text
    assert "nowhere" not in text
    assert "VERB3" not in text


def test_the_queue_is_measured(client: TestClient, metric_increase: Callable[..., float]) -> None:
    create_job(client)
    assert metric_increase("bco_queue_depth") == 1
    assert metric_increase("bco_jobs", state="queued") == 1
    assert read_metrics(client)[("bco_queue_oldest_seconds", frozenset())] > 0
    assert ("bco_workers", frozenset()) in read_metrics(client)


def test_jobs_caches_and_decisions_are_measured(client: TestClient, metric_increase: Callable[..., float]) -> None:
    posterior = learn_posterior(client)
    for _ in range(3):
        prescribe(client, posterior["id"], scenarios=20)
    assert metric_increase("bco_jobs", state="succeeded") == 1
    assert metric_increase("bco_job_seconds_bucket", state="succeeded", le="+Inf") == 1
    assert metric_increase("bco_posterior_cache_total", result="miss") == 1
    assert metric_increase("bco_posterior_cache_total", result="hit") == 2
    assert metric_increase("bco_prescriptions_total", status="optimal", solver="formula") == 3
    assert metric_increase("bco_solver_fallbacks_total") == 0


TRUCKS: Json = {
    "kind": "two_stage_linear",
    "decisions": [{"name": "trucks", "cost": 9, "maximum": 50}],
    "outcomes": [{"name": "croissants", "minimum": 0}],
    "recourse": [{"name": "courier", "cost": 3}],
    "rows": [{"recourse": {"courier": 1}, "decisions": {"trucks": 5}, "sense": ">=", "outcomes": {"croissants": 1}}],
}


def trucks_posterior(client: TestClient, integer: bool) -> Json:
    (trucks,) = TRUCKS["decisions"]
    problem = create_problem(client, spec=TRUCKS | {"decisions": [trucks | {"integer": integer}]})
    rows = [{name: value for name, value in row.items() if name != "loaves"} for row in ROWS]
    dataset = create_dataset(client, outcomes=["croissants"], rows=rows)
    return learn_posterior(client, problem_id=problem["id"], dataset_id=dataset["id"])


@pytest.mark.parametrize(("integer", "solver", "fallbacks"), [(True, HIGHS, 2), (False, CUTS, 0)])
def test_decisions_by_the_fallback_solver_are_counted(
    client: TestClient, metric_increase: Callable[..., float], integer: bool, solver: str, fallbacks: int
) -> None:
    posterior = trucks_posterior(client, integer)
    found = prescribe(client, posterior["id"], contexts=CONTEXTS[:2], scenarios=20, policy="bcp")["prescriptions"]
    assert [one["solver"] for one in found] == [solver] * 2
    assert metric_increase("bco_prescriptions_total", status="optimal", solver=solver) == 2
    assert metric_increase("bco_solver_fallbacks_total") == fallbacks


def test_decisions_cut_off_by_the_time_limit_are_counted(
    client: TestClient, metric_increase: Callable[..., float]
) -> None:
    posterior = trucks_posterior(client, integer=False)
    prescribe(client, posterior["id"], scenarios=20, policy="bcp", time_limit_seconds=1e-9)
    assert metric_increase("bco_prescriptions_total", status="time_limit", solver=CUTS) == 1
    assert metric_increase("bco_solver_fallbacks_total") == 1


def test_metrics_are_served_while_the_database_is_down() -> None:
    with service_on("postgresql://nobody@/nowhere?host=/nonexistent"):
        from app import metrics

        text = metrics.exposition().decode()
    assert "bco_requests_total" in text
    assert "bco_queue_depth" not in text


# real processes


@pytest.mark.slow
def test_the_running_service_logs_json_with_request_and_job_ids(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    environment = os.environ | {
        "BCO_DATABASE_URL": f"sqlite:///{tmp_path / 'bco.db'}",
        "BCO_PORT": str(port),
        "BCO_LOG_FORMAT": "json",
    }
    with log.open("w") as stderr:
        service = subprocess.Popen((sys.executable, "-m", "app.commands.cli", "serve"), env=environment, stderr=stderr)
        try:
            job, batch = run_job_and_batch(f"http://127.0.0.1:{port}")
            # The worker writes the last log line just after the job has ended.
            for ended in (job, batch):
                wait_until("the worker logs it", lambda ended=ended: f"{ended['id']} succeeded" in log.read_text())
        finally:
            service.terminate()
            service.wait(60)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    by_request = {line["request_id"]: line for line in lines if line["logger"] == "app.requests"}
    assert by_request["the-job"]["message"] == "POST /v1/jobs"
    assert by_request["the-job"]["status"] == 202
    for ended in (job, batch):
        about = [line for line in lines if f"{ended['id']} s" in line["message"] and line["logger"] != "app.requests"]
        assert {line["message"].split()[2].strip(",") for line in about} == {"starts", "succeeded"}
        assert {line.get("job_id") for line in about} == {ended["id"]}


def run_job_and_batch(url: str) -> tuple[Json, Json]:
    """Run a training job, then a batch from its posterior."""
    with httpx.Client(base_url=url, timeout=60) as client:
        wait_until("the service is ready", lambda: is_ready(client))
        problem = check_json(client.post("/v1/problems", json=example_problem()), 201)
        form = {"name": "days", "outcomes": "croissants,loaves"}
        file = {"file": ("days.csv", as_csv(bakery_rows(60)).encode())}
        dataset = check_json(client.post("/v1/datasets/upload", data=form, files=file), 201)
        body = {"problem_id": problem["id"], "dataset_id": dataset["id"], "inference": QUICK}
        job = check_json(client.post("/v1/jobs", json=body, headers={"X-Request-ID": "the-job"}), 202)
        job = wait_for_job(client, job["id"])
        assert job["state"] == "succeeded"
        path = f"/v1/posteriors/{job['posterior_id']}/batch-prescriptions/upload"
        file = {"file": ("mornings.csv", as_csv(MORNINGS).encode())}
        batch = wait_for_job(client, check_json(client.post(path, files=file), 202)["id"])
        assert batch["state"] == "succeeded"
    return job, batch


def test_creating_a_data_set_logs_none_of_its_rows(client: TestClient, lines: list[Json]) -> None:
    create_dataset(client)
    assert "croissants" not in json.dumps(lines)
