"""The decide page in a browser: dragging, sharing and logging a decision, whole tables, explanations."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from app.demo import bakery_rows, example_problem
from tests.browser.screens import (
    PHONE,
    TABLET,
    Service,
    Watch,
    check_accessibility,
    check_width,
    create,
    take_screenshots,
)
from tests.support.polling import wait_until

QUICK = {"predictor": {"kind": "linear"}, "inference": {"method": "vi", "epochs": 5}}
SATURDAY = {"weekday": "SAT", "temperature": "21.5", "rain": "0", "promotion": "1", "holiday": "0"}


@pytest.fixture(scope="module")
def posterior(service: Service) -> str:
    """Learn a posterior from some weeks of a bakery."""
    http = service.http
    problem = create(http, "/v1/problems", example_problem() | {"name": "to decide"})
    rows = bakery_rows(150)
    dataset = create(http, "/v1/datasets", {"name": "to decide", "outcomes": ["croissants", "loaves"], "rows": rows})
    job = create(http, "/v1/jobs", {"name": "to decide", "problem_id": problem, "dataset_id": dataset} | QUICK)
    wait_until("the posterior is learned", lambda: http.get(f"/v1/jobs/{job}").json()["state"] == "succeeded")
    return str(http.get(f"/v1/jobs/{job}").json()["posterior_id"])


def address(posterior: str, **more: str) -> str:
    pairs = {f"c.{name}": value for name, value in SATURDAY.items()} | more
    query = "&".join(f"{quote(name)}={quote(value)}" for name, value in pairs.items())
    return f"/posteriors/{posterior}/decide?{query}"


def wait_for_parts(page: Page) -> None:
    """Wait for the lazily loaded parts."""
    expect(page.locator("#cost-curve .handle")).to_be_attached()
    expect(page.get_by_role("heading", name="Drivers of the prediction")).to_be_visible()
    expect(page.locator("tr[data-policy=map]")).to_be_visible()


def expected_cost(page: Page) -> str:
    return page.locator("[data-figure=expected]").inner_text()


def test_dragging_a_decision_updates_its_cost(page: Page, posterior: str) -> None:
    page.goto(address(posterior))
    wait_for_parts(page)
    mine = page.get_by_role("textbox", name="croissants")
    ours, cost = mine.input_value(), page.locator("[data-cost]")
    # With the slider, by keyboard.
    handle = page.get_by_role("slider", name="croissants slider")
    handle.focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    expect(page.locator("[data-verdict]")).to_contain_text("than the recommended decision")
    expect(mine).not_to_have_value(ours)
    by_handle = cost.inner_text()
    # With the line in the chart, by mouse.
    over = page.locator("#cost-curve .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.5 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.05 * box["width"], middle, steps=4)
    page.mouse.up()
    expect(page.locator("[data-verdict]")).to_contain_text("more than the recommended decision")
    expect(cost).not_to_have_text(by_handle)
    assert float(mine.input_value()) < float(ours)
    assert float(handle.input_value()) == pytest.approx(float(mine.input_value()), abs=1)
    # By typing a number that violates a constraint.
    loaves = page.get_by_role("textbox", name="loaves")
    loaves.fill("200")
    expect(page.locator("#judged")).to_contain_text("violates constraints")
    expect(page.get_by_label("Entry in the chart")).to_have_value("loaves")
    expect(page.get_by_text("Cost over loaves")).to_be_visible()
    loaves.fill("many")
    expect(page.locator("#judged").get_by_role("alert")).to_be_visible()
    page.get_by_role("button", name="Reset").click()
    expect(page.locator("[data-verdict]")).to_have_text("It costs the same as the recommended decision.")
    expect(mine).to_have_value(ours)


@pytest.fixture(autouse=True)
def _expect_422(watch: Watch) -> None:
    watch.expected.append("422")


@pytest.mark.slow
def test_risk_aversion_updates_the_decision_and_a_link_shares_it(
    page: Page, posterior: str, new_context: Callable[..., BrowserContext], service: Service
) -> None:
    page.goto(address(posterior))
    wait_for_parts(page)
    before = expected_cost(page)
    page.get_by_role("slider", name="Risk aversion").focus()
    for _ in range(16):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#risk-shown")).to_have_text("80 %")
    expect(page).to_have_url(re.compile(r"risk=0\.8"))
    expect(page.locator("[data-figure=expected]")).not_to_have_text(before)
    link = page.get_by_label("Link to share").input_value()
    other = new_context(base_url=service.url).new_page()
    other.goto(link)
    assert expected_cost(other) == expected_cost(page)
    assert [one.inner_text() for one in other.locator("[data-decision]").all()] == [
        one.inner_text() for one in page.locator("[data-decision]").all()
    ]
    expect(other.get_by_role("slider", name="Risk aversion")).to_have_value("0.8")


def test_changing_the_context_updates_only_the_answer_or_shows_an_error(page: Page, posterior: str) -> None:
    page.goto(address(posterior))
    wait_for_parts(page)
    before = expected_cost(page)
    page.evaluate("window.same = true")
    page.get_by_label("weekday").select_option("MON")
    expect(page.locator("[data-figure=expected]")).not_to_have_text(before)
    expect(page).to_have_url(re.compile("c.weekday=MON"))
    assert page.evaluate("window.same")
    warm = page.get_by_label("temperature")
    warm.fill("warm")
    warm.blur()
    expect(page.locator("#field1-wrong")).to_have_text("'temperature' is not a number; it must be a number")
    expect(warm).to_have_value("warm")
    expect(warm).to_have_attribute("aria-invalid", "true")
    check_accessibility(page)
    warm.fill("12,5")
    warm.blur()
    expect(page.locator("[data-figure=expected]")).to_be_visible()
    expect(page.locator("#field1-wrong")).to_be_hidden()
    expect(warm).not_to_have_attribute("aria-invalid", "true")


def test_the_decide_button_logs_the_decision(page: Page, posterior: str, service: Service) -> None:
    page.goto(address(posterior))
    wait_for_parts(page)
    expect(page.locator(".kept")).to_have_text("Not logged yet.")
    # One click leaves the field and presses the button.
    page.get_by_label("temperature").fill("18")
    page.get_by_role("button", name="Decide", exact=True).click()
    link = page.get_by_role("link", name="see the entry")
    expect(link).to_be_visible()
    page.wait_for_timeout(400)
    expect(link).to_be_visible()
    entry_id = (link.get_attribute("href") or "").rpartition("/")[2]
    found = f"/v1/prescriptions/{entry_id}"
    wait_until("it is in the log", lambda: service.http.get(found).status_code == 200)
    context = service.http.get(found).json()["request"]["contexts"][0]
    assert context == {"weekday": "SAT", "temperature": 18, "rain": 0, "promotion": 1, "holiday": 0}
    expect(page).to_have_url(re.compile("c.temperature=18"))


@pytest.mark.slow
def test_a_table_is_pasted_and_downloaded(page: Page, posterior: str) -> None:
    page.goto(f"/posteriors/{posterior}/decide")
    page.get_by_role("link", name="Decide for a table").click()
    page.get_by_role("button", name="Decide for all rows").click()
    expect(page.locator("#table-wrong")).to_contain_text("Paste a header line")
    rows = ["weekday\ttemperature\train\tpromotion\tholiday", "SAT\t21,5\t0\t1\t0", "NIX\t1\t0\t0\t0"]
    page.get_by_label("Paste rows from a spreadsheet").fill("\n".join(rows))
    page.get_by_role("button", name="Decide for all rows").click()
    expect(page.get_by_role("heading", name="1 of 2 rows decided")).to_be_visible()
    expect(page.get_by_text("'weekday' was never seen in the history")).to_be_visible()
    check_accessibility(page)
    check_width(page)
    take_screenshots(page, "decide-table")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as CSV").click()
    with open(download.value.path(), encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [row["status"] for row in found] == ["optimal", "refused"]
    page.set_viewport_size(PHONE)
    check_width(page)


@pytest.mark.slow
def test_the_page_is_accessible_on_every_screen_size(page: Page, posterior: str) -> None:
    page.goto(address(posterior))
    wait_for_parts(page)
    page.get_by_role("textbox", name="croissants").fill("100")
    expect(page.locator("[data-verdict]")).to_be_visible()
    check_accessibility(page)
    check_width(page)
    take_screenshots(page, "decide")
    page.emulate_media(color_scheme="dark")
    check_accessibility(page)
    page.emulate_media(color_scheme="light")
    for size, name in ((TABLET, "tablet"), (PHONE, "phone")):
        page.set_viewport_size(size)
        page.wait_for_timeout(300)
        check_width(page)
        take_screenshots(page, f"decide-{name}")
    check_accessibility(page)


def test_the_page_works_without_scripts(
    posterior: str, new_context: Callable[..., BrowserContext], service: Service
) -> None:
    page = new_context(base_url=service.url, java_script_enabled=False).new_page()
    page.goto(address(posterior))
    before = expected_cost(page)
    page.get_by_label("weekday").select_option("MON")
    page.get_by_role("button", name="Try without logging").click()
    assert expected_cost(page) != before
    assert "c.weekday=MON" in urlsplit(page.url).query
    expect(page.locator(".kept")).to_have_text("Not logged yet.")
    page.get_by_role("button", name="Decide", exact=True).click()
    expect(page.get_by_role("link", name="see the entry")).to_be_visible()
    page.get_by_role("textbox", name="croissants").fill("100")
    page.get_by_role("button", name="Show the cost").click()
    expect(page.locator("[data-verdict]")).to_contain_text("than the recommended decision")
    page.go_back()
    page.get_by_role("link", name="Explain this decision").click()
    expect(page.get_by_role("heading", name="Drivers of the prediction")).to_be_visible()
