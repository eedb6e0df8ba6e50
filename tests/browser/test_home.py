"""The home page in a browser: loading the demo by one click and following running jobs."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.screens import (
    DESKTOP,
    PHONE,
    TABLET,
    Service,
    Watch,
    check_accessibility,
    check_width,
    take_screenshots,
)


@pytest.fixture
def empty_service(start_service: Callable[[], Service], watch: Watch) -> Service:
    service = start_service()
    watch.hosts.add(urlsplit(service.url).netloc)
    return service


@pytest.mark.slow
def test_one_click_loads_the_demo_and_the_home_page_follows_it(
    empty_service: Service, new_context: Callable[..., BrowserContext]
) -> None:
    page = new_context(base_url=empty_service.url).new_page()
    page.goto("/")
    expect(page.get_by_role("heading", name="Four steps to a first decision")).to_be_visible()
    check_accessibility(page)
    take_screenshots(page, "home-empty")
    for size in (TABLET, PHONE):
        page.set_viewport_size(size)
        check_width(page)
    page.get_by_role("button", name="Load the demo").click()
    page.wait_for_url("**/jobs/job_*")
    job = urlsplit(page.url).path.rsplit("/")[-1]
    # the home page links to the same job
    page.set_viewport_size(DESKTOP)
    page.goto("/")
    page.get_by_role("link", name="Watch the demo train").click()
    page.wait_for_url(f"**/jobs/{job}")
    page.goto("/")
    running = page.locator("#running")
    expect(running).to_contain_text("bakery")
    expect(running.locator("progress")).to_be_visible()
    check_accessibility(page)
    take_screenshots(page, "home-running")
    with page.expect_response("**/home/running?*"):
        pass
    empty_service.http.post(f"/v1/jobs/{job}/cancel").raise_for_status()
    # the next poll updates the page
    expect(running).to_contain_text("No jobs are running")
    check_width(page)


def test_the_home_page_lists_problems_and_fits_any_screen(page: Page, service: Service) -> None:
    problem = {"kind": "newsvendor", "items": [{"name": "rolls", "underage_cost": 2, "overage_cost": 1}]}
    created = service.http.post("/v1/problems", json={"name": "home rolls", "spec": problem})
    created.raise_for_status()
    page.goto("/")
    page.get_by_role("link", name="home rolls").click()
    page.wait_for_url(f"**/problems/{created.json()['id']}")
    for size in (PHONE, TABLET):
        page.set_viewport_size(size)
        page.goto("/")
        check_width(page)
        check_accessibility(page)
