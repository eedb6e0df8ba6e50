"""From nothing to a first job by one click, and a home page that follows what runs."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.screens import DESK, PHONE, TABLET, Service, Watch, axe, fits, shoot


@pytest.fixture
def empty(start_service: Callable[[], Service], watch: Watch) -> Service:
    service = start_service()
    watch.hosts.add(urlsplit(service.url).netloc)
    return service


@pytest.mark.slow
def test_one_click_loads_the_demo_and_home_follows_it(
    empty: Service, new_context: Callable[..., BrowserContext]
) -> None:
    page = new_context(base_url=empty.url).new_page()
    page.goto("/")
    expect(page.get_by_role("heading", name="Four steps to a first decision")).to_be_visible()
    axe(page)
    shoot(page, "home-empty")
    for size in (TABLET, PHONE):
        page.set_viewport_size(size)
        fits(page)
    page.get_by_role("button", name="Load the demo").click()
    page.wait_for_url("**/jobs/job_*")
    job = urlsplit(page.url).path.rsplit("/")[-1]
    # home leads to the same one
    page.set_viewport_size(DESK)
    page.goto("/")
    page.get_by_role("link", name="Watch the demo train").click()
    page.wait_for_url(f"**/jobs/{job}")
    page.goto("/")
    running = page.locator("#running")
    expect(running).to_contain_text("bakery")
    expect(running.locator("progress")).to_be_visible()
    axe(page)
    shoot(page, "home-running")
    with page.expect_response("**/home/running?*"):
        pass
    empty.http.post(f"/v1/jobs/{job}/cancel").raise_for_status()
    # told by the next look, without anybody's doing
    expect(running).to_contain_text("No jobs are running")
    fits(page)


def test_home_shows_what_is_here_on_any_screen(page: Page, service: Service) -> None:
    problem = {"kind": "newsvendor", "items": [{"name": "rolls", "underage_cost": 2, "overage_cost": 1}]}
    made = service.http.post("/v1/problems", json={"name": "home rolls", "spec": problem})
    made.raise_for_status()
    page.goto("/")
    page.get_by_role("link", name="home rolls").click()
    page.wait_for_url(f"**/problems/{made.json()['id']}")
    for size in (PHONE, TABLET):
        page.set_viewport_size(size)
        page.goto("/")
        fits(page)
        axe(page)
