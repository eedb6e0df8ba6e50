"""Pages about jobs: the list, the form with the API's messages, and a job before, during and after its run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.db.base import DEFAULT_WORKSPACE
from app.jobs import compute, service
from app.jobs.kinds import KINDS
from app.pages import jobs as job_pages
from app.pages.jobs import log_figures, training_charts
from bco_core.policies import POLICIES
from bco_core.predictors.registry import BOOSTED, PREDICTORS
from tests.support.journey import (
    QUICK,
    ROWS,
    Json,
    check_json,
    counts,
    create_dataset,
    create_job,
    create_problem,
    learn,
    prepare_fund,
)
from tests.support.pages import log_in, send_form, token, words

FORM = {"name": "", "method": "auto", "predictor": "auto", "seed": "0"}


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    made = {"problem_id": create_problem(client), "dataset_id": create_dataset(client)}
    return {name: one["id"] for name, one in made.items()}


# lists


def test_the_list_can_be_filtered_by_state_and_kind(client: TestClient, browser: TestClient, ids: Json) -> None:
    queued = create_job(client, **ids, name="still waiting")
    done = learn(client, create_job(client, **ids, name="done already")["id"])
    shown = words(browser.get("/jobs"))
    assert "still waiting" in shown
    assert "done already" in shown
    only = browser.get("/jobs?state=queued&kind=learn")
    assert "still waiting" in words(only)
    assert "done already" not in words(only)
    assert f"/posteriors/{done['posterior_id']}" in browser.get("/jobs").text
    # The page refreshes itself while a listed job is unfinished.
    assert 'hx-trigger="every 4s"' in only.text
    assert 'hx-trigger="every 4s"' not in browser.get("/jobs?state=succeeded").text
    assert browser.get("/jobs?state=asleep").status_code == 422
    service.cancel(DEFAULT_WORKSPACE, queued["id"])


def test_the_form_offers_the_choices_of_the_api() -> None:
    assert set(job_pages.KINDS) == set(KINDS)
    assert set(job_pages.PREDICTORS) == {"auto", *PREDICTORS, BOOSTED}
    assert set(job_pages.POLICIES) == {"", *POLICIES}


# the form


def test_the_form_marks_data_sets_that_fit_the_problem(client: TestClient, browser: TestClient, ids: Json) -> None:
    create_dataset(client, name="temperatures", outcomes=["temperature"], contexts=["weekday"])
    page = browser.get("/jobs/new", params={"problem": ids["problem_id"]}).text
    assert "✓ days (60 rows)" in page
    assert "temperatures (60 rows) – other outcomes" in page
    both = {"problem": ids["problem_id"], "dataset": ids["dataset_id"]}
    assert "✓ fits" in words(browser.get("/jobs/new", params=both))


def test_the_preview_shows_the_request_without_default_values(browser: TestClient, ids: Json) -> None:
    at = "/jobs/new"
    shown = words(send_form(browser, "/jobs/new/preview", FORM | ids, at=at))
    body = f'{{"problem_id": "{ids["problem_id"]}", "dataset_id": "{ids["dataset_id"]}", "seed": 0}}'
    assert body in shown
    assert "service.post('/v1/jobs'" in shown
    more = {
        "name": "mine",
        "method": "vi",
        "options": '{"epochs": 3}',
        "policy": "map",
        "time_limit_seconds": "60",
        "predictor": "linear",
    }
    shown = words(send_form(browser, "/jobs/new/preview", FORM | ids | more, at=at))
    for part in (
        '"name": "mine"',
        '"inference": {"method": "vi", "epochs": 3}',
        '"predictor": {"kind": "linear"}',
        '"policy": "map"',
        '"time_limit_seconds": 60',
    ):
        assert part in shown


def test_the_form_asks_for_features_only_if_the_data_has_a_time_column(client: TestClient, browser: TestClient) -> None:
    rows = [{"day": f"2024-01-{day:02}", "sold": day % 5} for day in range(1, 31)]
    timed = create_dataset(client, rows=rows, outcomes=["sold"], time="day")["id"]
    plain = create_dataset(client)["id"]
    assert "Time features" in words(browser.get(f"/jobs/new?dataset={timed}"))
    assert "Time features" not in words(browser.get(f"/jobs/new?dataset={plain}"))
    spec = {"kind": "newsvendor", "items": [{"name": "sold", "underage_cost": 2, "overage_cost": 1}]}
    problem = create_problem(client, spec=spec)["id"]
    fields = FORM | {"problem_id": problem, "dataset_id": timed, "features": "own", "features_text": '{"lags": [-1]}'}
    refused = send_form(browser, "/jobs/new", fields, at="/jobs/new")
    assert refused.status_code == 422
    assert "{&#34;lags&#34;: [-1]}" in refused.text
    made = send_form(browser, "/jobs/new", fields | {"features_text": '{"lags": [7]}'}, at="/jobs/new")
    assert made.status_code == 303
    job = check_json(client.get("/v1" + made.headers["location"]))
    assert job["spec"]["features"]["lags"] == [7]
    service.cancel(DEFAULT_WORKSPACE, job["id"])


def test_the_form_creates_a_job(client: TestClient, browser: TestClient, ids: Json) -> None:
    fields = FORM | ids | {"name": "by hand", "seed": "7", "method": "vi", "options": '{"epochs": 2, "members": 2}'}
    made = send_form(browser, "/jobs/new", fields, at="/jobs/new")
    assert made.status_code == 303
    job = check_json(client.get("/v1" + made.headers["location"]))
    assert (job["name"], job["state"], job["spec"]["seed"]) == ("by hand", "queued", 7)
    assert job["spec"]["inference"]["epochs"] == 2
    service.cancel(DEFAULT_WORKSPACE, job["id"])


@pytest.mark.parametrize(
    ("wrong", "error_id"),
    [
        ({"problem_id": ""}, "problem-wrong"),
        ({"dataset_id": "data_nowhere"}, "dataset-wrong"),
        ({"seed": "-1"}, "seed-wrong"),
        ({"seed": "lucky"}, "seed-wrong"),
        ({"method": "vi", "options": '{"chains": 8}'}, "options-wrong"),
        ({"options": '{"epochs": 0}'}, "options-wrong"),
        ({"options": "{"}, "options-wrong"),
        ({"method": "dice"}, "method-wrong"),
        ({"predictor": "crystal"}, "predictor-wrong"),
        ({"policy": "hope"}, "policy-wrong"),
        ({"time_limit_seconds": "0"}, "time-wrong"),
        ({"name": "x" * 201}, "name-wrong"),
    ],
)
def test_invalid_choices_show_an_error_at_their_field(
    client: TestClient, browser: TestClient, ids: Json, wrong: Json, error_id: str
) -> None:
    before = counts()
    fields = FORM | ids | wrong
    page = send_form(browser, "/jobs/new", fields, at="/jobs/new")
    assert page.status_code == 422
    assert counts() == before
    element = re.search(rf'id="{error_id}"[^>]*>(.*?)</(p|div)>', page.text, re.DOTALL)
    assert element is not None
    sentence = words(element[1])
    assert sentence
    if wrong != {"options": "{"}:
        body = job_pages._job_form(dict.fromkeys(job_pages.FIELDS, "") | job_pages.DEFAULTS | fields).body
        details = [error["detail"] for error in check_json(client.post("/v1/jobs", json=body), 422)["errors"]]
        assert any(detail.lower() in sentence.lower() for detail in details)


def test_data_without_the_outcomes_is_rejected_with_the_apis_message(client: TestClient, browser: TestClient) -> None:
    other = create_dataset(client, outcomes=["temperature"], contexts=["weekday"])["id"]
    fields = FORM | {"problem_id": create_problem(client)["id"], "dataset_id": other}
    page = send_form(browser, "/jobs/new", fields, at="/jobs/new")
    assert page.status_code == 422
    assert "the problem needs the outcome column(s) croissants, loaves" in words(page).replace("The p", "the p")
    assert "✕ does not fit" in words(page)


# one job


def test_a_job_can_be_watched_cancelled_and_retried(client: TestClient, browser: TestClient, ids: Json) -> None:
    job_id = create_job(client, **ids, name="watched")["id"]
    address = f"/jobs/{job_id}"
    waiting = browser.get(address)
    assert "data-running" in waiting.text
    assert "Waiting for a worker" in words(waiting)
    attempt = service.start(job_id)
    assert attempt is not None
    service.report(job_id, attempt, 0.25, "epoch 5", "25%, epoch 5", [{"epoch": 5, "risk": 3, "kl": 2.5}])
    running = browser.get(address)
    assert 'value="0.25"' in running.text
    assert "Epoch 5" in words(running)
    assert "about" in words(running)
    assert f"/v1/jobs/{job_id}/events" in running.text
    traces = browser.get(f"{address}/traces")
    assert traces.status_code == 200
    assert 'id="trace-cost"' in traces.text
    assert "<html" not in traces.text
    gone = send_form(browser, f"{address}/cancel", {}, at=address)
    assert (gone.status_code, gone.headers["location"]) == (303, address)
    ended = browser.get(address)
    assert "was cancelled" in words(ended)
    assert "data-running" not in ended.text
    again = send_form(browser, f"{address}/retry", {}, at=address)
    assert again.status_code == 303
    assert check_json(client.get(f"/v1/jobs/{job_id}"))["state"] == "queued"
    learn(client, job_id)
    late = browser.post(f"{address}/cancel", data={"csrf": token(browser, "/jobs/new")})
    assert late.status_code == 409
    assert "The job has already succeeded, so there is nothing to cancel" in words(late)


def test_a_failed_job_shows_its_error(client: TestClient, browser: TestClient, ids: Json) -> None:
    job_id = create_job(client, **ids)["id"]
    attempt = service.start(job_id)
    assert attempt is not None
    service.fail(job_id, attempt, "the rows were too <strange>")
    page = browser.get(f"/jobs/{job_id}")
    assert "The job failed. The rows were too &lt;strange&gt;." in re.sub(r"</?b>", "", page.text)
    assert "<strange>" not in page.text
    assert "Run again" in words(page)


def test_a_finished_learn_job_links_to_its_posterior(
    client: TestClient, browser: TestClient, ids: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute, "REPORT_SECONDS", -1.0)
    job = learn(client, create_job(client, **ids, inference=QUICK | {"epochs": 4})["id"])
    page = browser.get(f"/jobs/{job['id']}")
    shown = words(page)
    assert "See the posterior" in shown
    assert f"/posteriors/{job['posterior_id']}/decide" in page.text
    assert "Training" in shown
    assert "Cost of decisions" in shown
    assert "Run again" not in shown
    reason = check_json(client.get(f"/v1/posteriors/{job['posterior_id']}/diagnostics"))["reason"]
    assert reason[1:] in shown
    assert client.delete(f"/v1/posteriors/{job['posterior_id']}").status_code == 204
    assert "has been deleted" in words(browser.get(f"/jobs/{job['id']}"))


def test_a_chain_method_shows_one_trace_per_chain(client: TestClient, browser: TestClient) -> None:
    options = {"method": "mh", "chains": 2, "steps": 120, "burn_in": 60, "particles": 40}
    job_id = create_job(client, **prepare_fund(client), inference=options)["id"]
    assert 'id="trace-chains"' in browser.get(f"/jobs/{job_id}").text
    learn(client, job_id)
    shown = words(browser.get(f"/jobs/{job_id}"))
    assert "chain 1" in shown
    assert "chain 2" in shown


def test_other_jobs_link_to_their_results(client: TestClient, browser: TestClient, ids: Json) -> None:
    posterior = learn(client, create_job(client, **ids)["id"])["posterior_id"]
    body = {"kind": "prescribe", "posterior_id": posterior, "dataset_id": ids["dataset_id"]}
    batch = check_json(client.post("/v1/jobs", json=body), 202)["id"]
    page = browser.get(f"/jobs/{batch}")
    assert "Decisions for a table" in words(page)
    assert f"/posteriors/{posterior}" in page.text
    attempt = service.start(batch)
    assert attempt is not None
    service.succeed(batch, attempt)
    assert f"/v1/jobs/{batch}/result?format=xlsx" in browser.get(f"/jobs/{batch}").text
    longer = create_dataset(client, rows=ROWS * 4)["id"]
    body = {"kind": "backtest", "problem_id": ids["problem_id"], "dataset_id": longer}
    backtest = check_json(client.post("/v1/jobs", json=body), 202)["id"]
    attempt = service.start(backtest)
    assert attempt is not None
    service.succeed(backtest, attempt)
    assert f"/backtests/{backtest}" in browser.get(f"/jobs/{backtest}").text


# charts


def epoch(number: int, cost: float, kl: float = 1.0) -> dict[str, Any]:
    return {"epoch": number, "risk": cost + 1, "kl": kl, "validation_cost": cost}


def test_consecutive_fits_are_drawn_one_after_the_other() -> None:
    figures = [epoch(1, 9), epoch(4, 5), epoch(1, 6, 30.0), epoch(3, 4, 20.0)]
    cost, divergence = training_charts(figures, None, "auto")
    assert cost.x == [1, 4, 4.5, 5, 7]
    assert cost.series[0].values == [9, 5, None, 6, 4]
    assert [mark.text for mark in cost.marks] == ["fit 2"]
    assert divergence.x == [1, 3]
    assert divergence.series[0].values == [30.0, 20.0]
    assert training_charts([], None, "auto")[0].x == []


def test_the_axis_ignores_outliers_of_the_first_epochs() -> None:
    figures = [epoch(number, 500.0 if number == 1 else 20 + 1 / number) for number in range(1, 30)]
    low, high = training_charts(figures, None, "vi")[0].extra["yRange"]
    assert 20 < low < 21
    assert high < 30
    assert training_charts([epoch(number, 5.0) for number in range(1, 9)], None, "vi")[0].extra == {}


def test_chains_share_an_axis_and_members_are_separate_series() -> None:
    figures = [{"part": part, "step": step, "loss": part * step} for part in (2, 1) for step in (50, 100 * part)]
    (chart,) = training_charts(figures, None, "mh")
    assert chart.x == [50, 100, 200]
    assert [one.name for one in chart.series] == ["chain 1", "chain 2"]
    assert chart.series[0].values == [50, 100, None]
    assert chart.series[1].values == pytest.approx([100, 200, 400])
    members = [{"part": part} | epoch(number, part) for part in (1, 2) for number in (1, 2)]
    assert [one.name for one in training_charts(members, None, "vi")[0].series] == ["member 1", "member 2"]


def test_the_posteriors_trace_replaces_a_short_log() -> None:
    trace = [epoch(number, 10 - number) for number in range(1, 5)]
    assert training_charts([epoch(1, 9)], {"trace": trace}, "vi")[0].x == [1, 2, 3, 4]
    chains = {"chains": {"trace": [{"step": 1, "loss": [3.0, 4.0]}, {"step": 2, "loss": [2.0, 5.0]}]}}
    (chart,) = training_charts([], chains, "auto")
    assert [one.values for one in chart.series] == [[3.0, 2.0], [4.0, 5.0]]


def test_figures_before_a_retry_are_dropped() -> None:
    lines = [
        {"text": "5%", "figures": [{"epoch": 1}]},
        {"text": "asked to run again", "figures": None},
        {"text": "1%", "figures": [{"epoch": 2}]},
        {"text": "done"},
    ]
    assert log_figures(lines) == [{"epoch": 2}]


# permissions


def test_forms_without_a_csrf_token_are_rejected(client: TestClient, browser: TestClient, ids: Json) -> None:
    job_id = create_job(client, **ids)["id"]
    before = counts()
    for path in ("/jobs/new", "/jobs/new/preview", f"/jobs/{job_id}/cancel", f"/jobs/{job_id}/retry"):
        for wrong in ({}, {"csrf": "0" * 64}):
            assert browser.post(path, data=FORM | ids | wrong).status_code == 403
    assert counts() == before
    assert check_json(client.get(f"/v1/jobs/{job_id}"))["state"] == "queued"
    service.cancel(DEFAULT_WORKSPACE, job_id)


def test_a_read_only_key_can_watch_but_not_change_jobs(
    client: TestClient, browser: TestClient, ids: Json, make_key: Callable[[str], str]
) -> None:
    job_id = create_job(client, **ids)["id"]
    log_in(browser, make_key("read"))
    address = f"/jobs/{job_id}"
    page = browser.get(address)
    assert "Cancel" not in words(page)
    assert "data-running" in page.text
    assert "Start training" not in words(browser.get("/jobs/new"))
    csrf = token(browser, "/jobs/new")
    before = counts()
    for path in ("/jobs/new", f"{address}/cancel", f"{address}/retry"):
        assert browser.post(path, data=FORM | ids | {"csrf": csrf}).status_code == 403
    assert counts() == before
    # The session alone is enough to follow events.
    service.cancel(DEFAULT_WORKSPACE, job_id)
    with browser.stream("GET", f"/v1/jobs/{job_id}/events") as events:
        assert events.status_code == 200
        assert "event: state" in events.read().decode()


def test_an_unknown_job_answers_404(browser: TestClient) -> None:
    for path in ("/jobs/job_nowhere", "/jobs/job_nowhere/traces"):
        assert browser.get(path).status_code == 404
