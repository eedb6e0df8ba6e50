"""Problems and jobs in a browser: validation while typing, a preview of the request, watching a job."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from app.demo import bakery_rows, example_problem
from app.pages.problems.catalogue import KINDS
from tests.browser.screens import PHONE, TABLET, Service, Watch, check_accessibility, check_width, take_screenshots

LONG = 240_000
# A slow machine is not a failure.
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def bakery(service: Service) -> dict[str, str]:
    """Create a problem and a matching data set."""
    body = {"name": "mornings", "outcomes": ["croissants", "loaves"], "rows": bakery_rows(300)}
    dataset = service.http.post("/v1/datasets", json=body).json()
    problem = service.http.post("/v1/problems", json=example_problem() | {"name": "morning orders"}).json()
    return {"dataset": dataset["id"], "problem": problem["id"]}


def check_width_after_redraw(page: Page) -> None:
    """Check the width once the charts have been redrawn."""
    page.wait_for_timeout(600)
    check_width(page)


@pytest.mark.slow
def test_the_item_table_is_validated_while_typing(page: Page) -> None:
    page.goto("/problems/new")
    check_accessibility(page)
    page.get_by_role("link", name="Order before demand is known").click()
    check = page.locator("#check")
    expect(check).to_contain_text("Valid")
    check_accessibility(page)
    take_screenshots(page, "problem-form")
    rows = page.locator("#items tr")
    cost = rows.first.locator("input[name=few]")
    cost.fill("-1")
    expect(check).to_contain_text("Not complete yet")
    expect(check).to_contain_text("items › 1 › underage cost")
    cost.fill("2")
    expect(check).to_contain_text("Valid")
    page.get_by_role("button", name="Add an item").click()
    expect(rows).to_have_count(3)
    rows.last.locator("input[name=item]").fill("baguettes")
    expect(check).to_contain_text("underage_cost")
    rows.last.locator("input[name=few]").fill("1")
    rows.last.locator("input[name=many]").fill("0,5")
    expect(check).to_contain_text("croissants, loaves, baguettes")
    rows.nth(1).get_by_role("button", name="Remove this item").click()
    expect(check).to_contain_text("croissants, baguettes")
    check.get_by_text("Create it with curl or Python").click()
    expect(check.locator("pre").first).to_contain_text('"overage_cost": 0.5')
    page.get_by_text("Stock, packs, service level, integers").click()
    rows.first.locator("input[name=pack]").fill("12")
    expect(check).to_contain_text("in packs: croissants of 12")
    page.get_by_label("Name", exact=True).fill("by hand")
    page.set_viewport_size(PHONE)
    check_width(page)
    page.get_by_role("button", name="Create problem").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("by hand")
    check_width(page)
    check_accessibility(page)


def test_a_model_as_text_shows_where_it_is_invalid(page: Page, watch: Watch) -> None:
    page.goto("/problems/new?kind=linear")
    check, text = page.locator("#check"), page.get_by_label("Specification")
    expect(check).to_contain_text("Valid")
    text.fill('{"kind": "linear"')
    expect(check).to_contain_text("Invalid JSON at line 1")
    text.fill(KINDS["linear"].text.replace('"limit": 500', '"limit": "much"'))
    expect(check).to_contain_text("rows › 1 › limit")
    check.get_by_role("button", name="line").click()
    expect(text).to_be_focused()
    assert '"much"' in page.evaluate("getSelection().toString()")
    watch.expected.append("422")
    page.get_by_label("Name", exact=True).fill("harvest")
    page.get_by_role("button", name="Create problem").click()
    expect(page.get_by_role("alert")).to_contain_text("rows › 1 › limit")
    expect(page.get_by_label("Name", exact=True)).to_have_value("harvest")
    page.get_by_label("Specification").fill(KINDS["linear"].text)
    expect(check).to_contain_text("Valid")
    page.get_by_role("button", name="Create problem").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("harvest")
    check_accessibility(page)
    take_screenshots(page, "problem-linear")


def test_a_job_is_corrected_started_and_watched_to_its_end(page: Page, watch: Watch, bakery: dict[str, str]) -> None:
    page.goto(f"/problems/{bakery['problem']}")
    page.get_by_role("link", name="Train", exact=True).click()
    data = page.get_by_label("Data", exact=True)
    data.focus()
    data.select_option(bakery["dataset"])
    expect(page.get_by_text("✓ fits")).to_be_visible()
    expect(data).to_be_focused()
    page.get_by_label("Method", exact=True).select_option("vi")
    page.locator("#predictor").select_option("linear")
    page.get_by_text("More settings").click()
    options = page.get_by_label("Method options (JSON)")
    options.fill('{"chains": 8}')
    expect(page.locator("#sent")).to_contain_text('"inference": {"method": "vi", "chains": 8}')
    check_accessibility(page)
    watch.expected.append("422")
    page.get_by_role("button", name="Start training").click()
    expect(page.locator("#options-wrong")).to_contain_text("method vi has no chains; it is an option of auto and mh")
    options.fill('{"epochs": 5}')
    page.get_by_label("Name", exact=True).fill("in a moment")
    page.get_by_role("button", name="Start training").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("in a moment")
    # The page updates without a reload.
    expect(page.get_by_role("link", name="See the posterior")).to_be_visible(timeout=LONG)
    expect(page.locator("#log")).to_contain_text("Succeeded")
    expect(page.locator("#trace-cost canvas")).to_be_visible()
    check_accessibility(page)
    page.set_viewport_size(TABLET)
    check_width_after_redraw(page)


@pytest.mark.slow
def test_a_running_job_shows_its_progress_and_can_be_cancelled(
    page: Page, service: Service, bakery: dict[str, str]
) -> None:
    body = {"problem_id": bakery["problem"], "dataset_id": bakery["dataset"], "name": "a long one"}
    chains = {"method": "mh", "chains": 2, "steps": 200_000, "burn_in": 5_000}
    slow = {"predictor": {"kind": "linear"}, "inference": chains | {"inverse_temperature": 100}}
    job = service.http.post("/v1/jobs", json=body | slow).json()
    page.goto(f"/jobs/{job['id']}")
    expect(page.locator(".badge.running")).to_be_visible(timeout=LONG)
    expect(page.locator("#log")).to_contain_text("of proposals accepted", timeout=LONG)
    expect(page.locator("#trace-chains canvas")).to_be_visible(timeout=LONG)
    expect(page.locator("#left")).to_contain_text("left", timeout=LONG)
    lines = page.locator("#log li")
    before = lines.count()
    expect(lines.nth(before)).to_be_attached()
    check_accessibility(page)
    page.set_viewport_size(PHONE)
    check_width_after_redraw(page)
    take_screenshots(page, "job-running")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("was cancelled")).to_be_visible()
    expect(page.get_by_role("button", name="Run again")).to_be_visible()
    page.goto("/jobs?state=cancelled")
    expect(page.get_by_role("link", name="a long one")).to_be_visible()
    check_accessibility(page)
    check_width(page)
