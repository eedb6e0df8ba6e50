"""Training figures appear in the job's log and event stream while it runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.jobs import compute, events, parts, service
from bco_core.progress import Message
from tests.support.journey import Json, check_json, create_job, learn, prepare_fund

CHAINS: Json = {"method": "mh", "chains": 2, "steps": 120, "burn_in": 60, "particles": 40}


@pytest.fixture(autouse=True)
def _report_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "REPORT_SECONDS", -1.0)
    monkeypatch.setattr(compute, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(compute, "LOG_LINES", 10**9)
    monkeypatch.setattr(compute, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(events, "POLL_SECONDS", 0.01)


def figures_in_log(client: TestClient, job_id: str) -> list[Json]:
    lines = check_json(client.get(f"/v1/jobs/{job_id}/log"))["lines"]
    return [figures for line in lines for figures in line["figures"] or []]


def test_epochs_report_cost_and_divergence(client: TestClient) -> None:
    job = learn(client, create_job(client, inference={"method": "vi", "members": 2, "epochs": 4})["id"])
    found = figures_in_log(client, job["id"])
    assert [one["epoch"] for one in found] == [1, 2, 3, 4]
    assert all({"risk", "kl", "validation_cost"} < set(one) for one in found)
    trace = check_json(client.get(f"/v1/posteriors/{job['posterior_id']}/diagnostics"))["trace"]
    assert [one["kl"] for one in found] == pytest.approx([point["kl"] for point in trace], rel=1e-5)


def test_chains_report_their_loss_by_part_from_any_process(client: TestClient) -> None:
    job_id = create_job(client, **prepare_fund(client), inference=CHAINS)["id"]
    job = learn(client, job_id)
    assert job["state"] == "succeeded"
    found = figures_in_log(client, job_id)
    assert {one["part"] for one in found} == {1, 2}
    assert all(set(one) == {"part", "step", "loss"} for one in found)
    assert {one["step"] for one in found} <= {50, 100, 120}


def test_events_have_the_figures_of_their_log_line(client: TestClient) -> None:
    job_id = create_job(client)["id"]
    learn(client, job_id)
    text = client.get(f"/v1/jobs/{job_id}/events").text
    found = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    lines = check_json(client.get(f"/v1/jobs/{job_id}/log"))["lines"]
    assert [(one["text"], one.get("figures")) for one in found if "text" in one] == [
        (line["text"], line["figures"]) for line in lines
    ]
    assert any("figures" in one for one in found)
    # An event without figures has no such field.
    assert "figures" not in found[0]


def test_a_log_line_has_a_bounded_number_of_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "LOG_SECONDS", 10.0)
    clock = [0.0]
    monkeypatch.setattr(compute.time, "monotonic", lambda: clock[0])
    reports: list[tuple[Any, ...]] = []
    monkeypatch.setattr(service, "report", lambda *arguments: reports.append(arguments) or True)
    progress = compute._reporter("job_1", 1)
    for step in range(1, 1001):
        clock[0] = step / 50
        progress(step / 1000, Message(f"step {step}", {"part": step % 2, "step": step}))
    lines = [(line, figures) for *_, line, figures in reports if line is not None]
    assert len(lines) == 2
    figures = lines[1][1]
    assert 10 < len(figures) <= compute.LINE_FIGURES
    for part in (0, 1):
        steps = [one["step"] for one in figures if one["part"] == part]
        assert steps == sorted(steps)
        assert steps[0] < 100
        assert steps[-1] > 480
    assert all(figures == [] for *_, line, figures in reports if line is None)
    assert all(type(message) is str for _, _, _, message, *_ in reports)


def test_a_missing_part_reports_no_figures(client: TestClient) -> None:
    job_id = create_job(client)["id"]
    parts.report(job_id, 0, 0.5, {"step": 1.0})
    assert parts.figures(job_id) == []
