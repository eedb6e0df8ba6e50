"""Backtests in a browser: filling in the form, watching the run, reading the result; and entries of the log."""

from __future__ import annotations

import re
from datetime import date, timedelta
from random import Random
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.screens import PHONE, TABLET, Service, Watch, check_accessibility, check_width, take_screenshots

QUICK: dict[str, Any] = {"predictor": {"kind": "linear"}, "inference": {"method": "vi", "epochs": 5}}


def sales(shops: int = 24, days: int = 60) -> list[dict[str, Any]]:
    rng, rows = Random(3), []
    for number in range(days):
        day = date(2024, 1, 1) + timedelta(number)
        for shop in range(shops):
            promotion = int(rng.random() < 0.3)
            sold = round(30 + 3 * shop + 20 * (day.weekday() == 5) + 25 * promotion + rng.gauss(0, 4))
            stocked = None if number % 11 == 3 else 20 + 3 * shop
            rows.append(
                {"day": str(day), "shop": f"shop {shop:02}", "promotion": promotion, "sold": sold, "stocked": stocked}
            )
    return rows


@pytest.fixture(scope="module")
def ids(service: Service) -> dict[str, str]:
    """Create a history with decisions, its problem and a posterior."""

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = service.http.post(path, json=body)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    roles = {"outcomes": ["sold"], "time": "day", "series": ["shop"], "decisions": ["stocked"]}
    dataset = post("/v1/datasets", {"name": "many shops", "rows": sales()} | roles)
    spec = {"kind": "newsvendor", "items": [{"name": "sold", "underage_cost": 3, "overage_cost": 1}]}
    problem = post("/v1/problems", {"name": "many shops", "spec": spec})
    job = post("/v1/jobs", {"problem_id": problem["id"], "dataset_id": dataset["id"], "name": "many shops"} | QUICK)
    service.http.get(f"/v1/jobs/{job['id']}/events", timeout=120)
    return {"dataset": dataset["id"], "problem": problem["id"], "posterior": job["posterior_id"]}


def test_a_backtest_is_started_watched_and_read(
    page: Page, service: Service, ids: dict[str, str], watch: Watch
) -> None:
    watch.expected.append("422")
    page.goto("/backtests/new")
    page.get_by_label("Problem", exact=True).select_option(ids["problem"])
    page.get_by_label("Data", exact=True).select_option(ids["dataset"])
    # dependent fields follow the choice
    expect(page.locator("select[name='actual_decision.sold']")).to_have_value("stocked")
    page.get_by_label("Quick look").check()
    expect(page.locator("#asked")).to_contain_text('"epochs": 30')
    for rule in ("boosted", "neighbours", "kernel", "ieo"):
        page.locator(f"input[value={rule}]").uncheck()
    check_accessibility(page)
    take_screenshots(page, "backtest-new")
    page.get_by_label("Splits").fill("sixty")
    page.get_by_label("Splits").blur()
    expect(page.locator("#asked")).to_contain_text('"splits": "sixty"')
    page.get_by_role("button", name="Start the backtest").click()
    expect(page.locator("#splits-wrong")).to_have_text("Input should be a valid integer")
    expect(page.get_by_label("Splits")).to_have_value("sixty")
    check_accessibility(page)
    page.get_by_label("Splits").fill("2")
    page.get_by_label("Splits").blur()
    expect(page.locator("#asked")).to_contain_text('"splits": 2')
    page.get_by_role("button", name="Start the backtest").click()
    page.wait_for_url("**/backtests/job_*")
    check_accessibility(page)
    # the page turns into the result without a reload
    expect(page.locator(".verdict-card h2")).to_have_text("✓ Worth using here", timeout=60_000)
    expect(page.locator("#over-time .uplot").first).to_be_visible()
    check_accessibility(page)
    check_width(page)
    take_screenshots(page, "backtest")
    explore_result(page)
    address = page.url
    for size in (PHONE, TABLET):
        page.set_viewport_size(size)
        page.goto(address)
        expect(page.locator("#over-time .uplot").first).to_be_visible()
        check_width(page)
        check_accessibility(page)
    page.goto("/backtests")
    check_width(page)
    expect(page.locator("tbody tr").first).to_contain_text("worth using")


def explore_result(page: Page) -> None:
    """Choose the charted policies, hover over the chart, search a series and download the file."""
    page.get_by_label("Cumulative difference from").select_option("constant")
    expect(page.locator("#over-time figcaption").first).to_contain_text("minus the best constant decision")
    expect(page).to_have_url(re.compile("against=constant"))
    page.locator("#over-time .u-over").first.hover()
    expect(page.locator("#over-time .hover").first).to_contain_text("cumulative difference")
    page.locator("#over-time summary", has_text="Numbers").first.click()
    expect(page.locator("#over-time table").first).to_be_visible()
    page.get_by_label("the best constant decision", exact=True).check()
    expect(page.locator("#over-time .legend").nth(1)).to_contain_text("the best constant decision")
    page.get_by_label("Find a series").fill("shop 07")
    expect(page.locator("#all-series tr:visible")).to_have_count(1)
    expect(page.locator("#all-series-found")).to_have_text("1 of 24")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.path().read_text().startswith('"row","time"')


@pytest.mark.slow
def test_a_running_backtest_can_be_cancelled(page: Page, ids: dict[str, str]) -> None:
    page.goto(f"/backtests/new?posterior={ids['posterior']}")
    page.get_by_role("button", name="Start the backtest").click()
    page.wait_for_url("**/backtests/job_*")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("The backtest was cancelled.")).to_be_visible()
    check_accessibility(page)


@pytest.mark.slow
def test_a_log_entry_is_found_recorded_and_reproduced(
    page: Page, service: Service, ids: dict[str, str], watch: Watch
) -> None:
    watch.expected.append("409")
    body = {"contexts": [{"day": "2024-03-01", "shop": "shop 03", "promotion": 1}]}
    answer = service.http.post(f"/v1/posteriors/{ids['posterior']}/prescribe", json=body).json()
    # this read returns once the call is in the log
    service.http.get(f"/v1/prescriptions/{answer['id']}").raise_for_status()
    page.goto(f"/log?posterior={ids['posterior']}")
    check_accessibility(page)
    check_width(page)
    take_screenshots(page, "log")
    page.locator(f"a[href='/log/{answer['id']}']").click()
    page.get_by_role("group", name="Observed outcome").get_by_label("sold").fill("70")
    page.get_by_role("group", name="Decision actually taken").get_by_label("sold").fill("60")
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.locator("#later .verdict")).to_contain_text("The decision actually taken cost 30")
    check_accessibility(page)
    page.get_by_text("Correct the outcome").click()
    page.get_by_role("group", name="Observed outcome").get_by_label("sold").fill("71")
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.locator("#later .wrong")).to_contain_text("Another value is recorded already")
    page.get_by_label("Replace the recorded outcome").check()
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.locator("#later .verdict")).to_contain_text("The decision actually taken cost 33")
    page.get_by_role("button", name="Reproduce").click()
    expect(page.locator("#again .notice")).to_contain_text("Identical")
    check_accessibility(page)
    take_screenshots(page, "log-entry")
    page.set_viewport_size(PHONE)
    check_width(page)
    expect(page.get_by_role("link", name="Decide again")).to_have_attribute(
        "href", re.compile(r"/decide\?c\.day=2024-03-01&c\.shop=shop%2003&c\.promotion=1")
    )
