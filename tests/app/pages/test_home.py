"""The home page: first steps in an empty workspace, the demo, running jobs and the latest decisions."""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.testclient import TestClient

from app import demo
from app.jobs import service
from tests.support.journey import CONTEXTS, Json, check_json, create_job, learn_posterior
from tests.support.pages import look, people, send, words


def cancel_all(client: TestClient) -> None:
    for state in ("queued", "running"):
        for job in check_json(client.get("/v1/jobs", params={"state": state}))["items"]:
            client.post(f"/v1/jobs/{job['id']}/cancel")


def test_an_empty_workspace_shows_four_steps_and_the_demo(browser: TestClient) -> None:
    page = look(browser, "/")
    shown = words(page)
    for step in ("Four steps", "Data", "Problem", "Train", "Decide"):
        assert step in shown
    for address in ("/datasets/new", "/problems/new", "/jobs/new"):
        assert f'href="{address}"' in page.text
    assert 'action="/demo"' in page.text
    # the same steps on the command line
    assert "bco sample bakery.csv" in shown
    assert "/v1/datasets/upload" in page.text
    assert len(page.content) < 100_000


def test_a_read_only_key_in_an_empty_workspace_cannot_load_the_demo(client: TestClient) -> None:
    with people(client) as log_in:
        reader = log_in("read")
        page = look(reader, "/")
        assert "/demo" not in page.text
        assert "Your key can view and decide" in words(page)
        refused = send(reader, "/demo", 403)
        assert "needs a key with the scope 'train'" in words(refused)
    assert check_json(client.get("/v1/problems"))["items"] == []


def test_loading_the_demo_needs_a_csrf_token(browser: TestClient, client: TestClient) -> None:
    assert browser.post("/demo", data={"csrf": "guessed"}).status_code == 403
    assert check_json(client.get("/v1/jobs"))["items"] == []


def test_the_demo_button_loads_the_same_demo_as_the_command_once(browser: TestClient, client: TestClient) -> None:
    address = send(browser, "/demo").headers["location"]
    found = re.fullmatch(r"/jobs/(job_\w+)", address)
    assert found is not None
    job = check_json(client.get(f"/v1/jobs/{found[1]}"))
    problem = check_json(client.get(f"/v1/problems/{job['problem_id']}"))
    dataset = check_json(client.get(f"/v1/datasets/{job['dataset_id']}"))
    assert {problem["name"], dataset["name"], job["name"]} == {demo.DEMO_NAME}
    spec = demo.example_problem()["spec"]
    pairs = zip(spec["items"], problem["spec"]["items"], strict=True)
    items = [{name: created[name] for name in expected} for expected, created in pairs]
    assert items == spec["items"]
    history = demo.split_history()[0]
    assert dataset["rows"] == len(history) == 880
    rows = check_json(client.get(f"/v1/datasets/{dataset['id']}/rows", params={"limit": 2}))["items"]
    assert [row["croissants"] for row in rows] == [row["croissants"] for row in history[:2]]
    assert (job["spec"]["seed"], job["spec"]["inference"]["method"]) == (7, "auto")
    assert send(browser, "/demo").headers["location"] == address
    assert len(check_json(client.get("/v1/jobs"))["items"]) == 1
    # a cancelled job does not count
    client.post(f"/v1/jobs/{job['id']}/cancel")
    assert send(browser, "/demo").headers["location"] != address
    cancel_all(client)


def test_the_page_polls_running_jobs_only_while_they_run(browser: TestClient, client: TestClient) -> None:
    assert "hx-trigger" not in look(browser, "/").text
    job = create_job(client, name="croissants tomorrow")
    page = look(browser, "/")
    poll = f"/home/running?jobs={job['id']}"
    assert f'hx-get="{poll}"' in page.text
    assert "croissants tomorrow queued" in words(page)
    assert "No worker is running" in words(page)
    attempt = service.start(job["id"])
    assert attempt is not None
    service.report(job["id"], attempt, 0.4, "looking at rows")
    part = look(browser, poll)
    assert 'value="0.4"' in part.text
    assert "Looking at rows" in words(part)
    assert "<html" not in part.text
    later = browser.get("/home/running?jobs=job_x")
    assert (later.status_code, later.headers["hx-refresh"]) == (204, "true")
    cancel_all(client)
    ended = browser.get(poll)
    assert (ended.status_code, ended.headers["hx-refresh"]) == (204, "true")
    assert "No jobs are running" in words(look(browser, "/"))


def test_the_page_shows_posteriors_and_the_latest_decisions(
    browser: TestClient, client: TestClient, settings: Callable[..., None]
) -> None:
    posterior = learn_posterior(client, name="bakery at noon")
    body: Json = {"contexts": CONTEXTS[:2]}
    answer = check_json(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))
    assert client.app.state.log.flush(10)  # type: ignore[attr-defined]
    page = look(browser, "/")
    shown = words(page)
    assert "Four steps" not in shown
    assert f'href="/posteriors/{posterior["id"]}/decide"' in page.text
    assert f'href="/log/{answer["id"]}"' in page.text
    assert "weekday MON" in shown
    assert "and 1 more context" in shown
    assert "bakery at noon" in shown
    settings(log_prescriptions=False)
    assert "Logging is off" in words(look(browser, "/"))


def test_each_workspace_sees_only_its_own_objects(client: TestClient) -> None:
    with people(client) as log_in:
        here, elsewhere = log_in(), log_in(workspace="other")
        assert "bakery at noon" in words(look(here, "/"))
        shown = words(look(elsewhere, "/"))
        assert "bakery at noon" not in shown
        assert "Four steps" in shown
