"""The home page: it teaches who has nothing yet, loads the demo by one click, and shows what is here and what runs."""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.testclient import TestClient

from app import demo
from app.jobs import service
from tests.support.journey import CONTEXTS, Json, answered, create_job, learned
from tests.support.pages import look, people, send, words


def cancel_all(client: TestClient) -> None:
    for state in ("queued", "running"):
        for job in answered(client.get("/v1/jobs", params={"state": state}))["items"]:
            client.post(f"/v1/jobs/{job['id']}/cancel")


def test_who_has_nothing_is_taught_in_four_steps_and_shown_the_demo(browser: TestClient) -> None:
    page = look(browser, "/")
    said = words(page)
    for step in ("Four steps", "Data", "Problem", "Train", "Decide"):
        assert step in said
    for address in ("/datasets/new", "/problems/new", "/jobs/new"):
        assert f'href="{address}"' in page.text
    assert 'action="/demo"' in page.text
    # the same without a page
    assert "bco sample bakery.csv" in said
    assert "/v1/datasets/upload" in page.text
    assert len(page.content) < 100_000


def test_a_reader_of_nothing_is_told_who_can_change_that(client: TestClient) -> None:
    with people(client) as log_in:
        reader = log_in("read")
        page = look(reader, "/")
        assert "/demo" not in page.text
        assert "Your key can view and decide" in words(page)
        refused = send(reader, "/demo", 403)
        assert "needs a key with the scope 'train'" in words(refused)
    assert answered(client.get("/v1/problems"))["items"] == []


def test_the_demo_needs_a_form_of_ours(browser: TestClient, client: TestClient) -> None:
    assert browser.post("/demo", data={"csrf": "guessed"}).status_code == 403
    assert answered(client.get("/v1/jobs"))["items"] == []


def test_one_click_loads_what_the_command_loads_and_a_second_leads_to_the_same(
    browser: TestClient, client: TestClient
) -> None:
    address = send(browser, "/demo").headers["location"]
    found = re.fullmatch(r"/jobs/(job_\w+)", address)
    assert found is not None
    job = answered(client.get(f"/v1/jobs/{found[1]}"))
    problem = answered(client.get(f"/v1/problems/{job['problem_id']}"))
    dataset = answered(client.get(f"/v1/datasets/{job['dataset_id']}"))
    assert {problem["name"], dataset["name"], job["name"]} == {demo.DEMO_NAME}
    spec = demo.example_problem()["spec"]
    pairs = zip(spec["items"], problem["spec"]["items"], strict=True)
    items = [{name: made[name] for name in asked} for asked, made in pairs]
    assert items == spec["items"]
    history = demo.split_history()[0]
    assert dataset["rows"] == len(history) == 880
    rows = answered(client.get(f"/v1/datasets/{dataset['id']}/rows", params={"limit": 2}))["items"]
    assert [row["croissants"] for row in rows] == [row["croissants"] for row in history[:2]]
    assert (job["spec"]["seed"], job["spec"]["inference"]["method"]) == (7, "auto")
    assert send(browser, "/demo").headers["location"] == address
    assert len(answered(client.get("/v1/jobs"))["items"]) == 1
    # one that was given up does not count
    client.post(f"/v1/jobs/{job['id']}/cancel")
    assert send(browser, "/demo").headers["location"] != address
    cancel_all(client)


def test_what_runs_is_shown_and_asked_for_again_only_while_it_does(browser: TestClient, client: TestClient) -> None:
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


def test_what_is_here_and_what_was_prescribed_last_are_shown(
    browser: TestClient, client: TestClient, settings: Callable[..., None]
) -> None:
    posterior = learned(client, name="bakery at noon")
    body: Json = {"contexts": CONTEXTS[:2]}
    answer = answered(client.post(f"/v1/posteriors/{posterior['id']}/prescribe", json=body))
    assert client.app.state.log.flush(10)  # type: ignore[attr-defined]
    page = look(browser, "/")
    said = words(page)
    assert "Four steps" not in said
    assert f'href="/posteriors/{posterior["id"]}/decide"' in page.text
    assert f'href="/log/{answer["id"]}"' in page.text
    assert "weekday MON" in said
    assert "and 1 more context" in said
    assert "bakery at noon" in said
    settings(log_prescriptions=False)
    assert "Logging is off" in words(look(browser, "/"))


def test_two_workspaces_see_their_own(client: TestClient) -> None:
    with people(client) as log_in:
        here, elsewhere = log_in(), log_in(workspace="other")
        assert "bakery at noon" in words(look(here, "/"))
        said = words(look(elsewhere, "/"))
        assert "bakery at noon" not in said
        assert "Four steps" in said
