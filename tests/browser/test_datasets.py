"""Data sets in a browser: dropping a file, correcting its roles, saving it, and reading the data set."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.screens import PHONE, TABLET, Service, Watch, check_accessibility, check_width, take_screenshots


def shops(days: int = 120, first: date = date(2024, 1, 1)) -> str:
    """Return the sales of two shops that rise from April on, with a week missing."""
    lines = ["day;shop;promotion;sold;stocked"]
    for number in range(days):
        day = first + timedelta(number)
        if 50 <= number < 57:
            continue
        for shop, level in (("north", 40), ("south", 60)):
            sold = level + number * 7 % 13 + (15 if number > 90 else 0)
            lines.append(f"{day};{shop};{number % 2};{sold};{level if number % 5 else ''}")
    return "\n".join(lines)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my shops.csv"
    path.write_text(shops())
    return path


def upload(page: Page, file: Path, name: str) -> None:
    page.goto("/datasets/new")
    page.get_by_label("Drop a file here").set_input_files(file)
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Save this data set").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)


DROP = """([text, name]) => {
  const held = new DataTransfer();
  held.items.add(new File([atob(text)], name, { type: "text/csv" }));
  const dropped = new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: held });
  document.getElementById("drop").dispatchEvent(dropped);
}"""


def test_a_file_is_dropped_corrected_and_saved(page: Page, watch: Watch) -> None:
    watch.expected.append("422")
    page.goto("/datasets")
    page.get_by_role("link", name="Upload a file").first.click()
    check_accessibility(page)
    page.evaluate(DROP, [base64.b64encode(shops().encode()).decode(), "my shops.csv"])
    expect(page.get_by_role("heading", name="my shops.csv")).to_be_visible()
    assert page.get_by_label("Use of day").input_value() == "time"
    assert page.get_by_label("Use of shop").input_value() == "series"
    assert page.get_by_label("Use of sold").input_value() == "outcome"
    assert page.get_by_label("Use of stocked").input_value() == "decision"
    check_accessibility(page)
    check_width(page)
    take_screenshots(page, "dataset-preview")
    # A mistake keeps all choices.
    page.get_by_label("Use of sold").select_option("context")
    page.get_by_label("Periods ahead").fill("2")
    page.get_by_role("button", name="Save this data set").click()
    expect(page.get_by_role("alert")).to_contain_text("Name at least one outcome column")
    assert page.get_by_label("Use of sold").input_value() == "context"
    assert page.get_by_label("Periods ahead").input_value() == "2"
    page.get_by_label("Use of sold").select_option("outcome")
    page.get_by_label("Periods ahead").fill("0")
    page.get_by_role("button", name="Save this data set").click()
    expect(page.locator("#wrong-lead")).to_contain_text("greater than or equal to 1")
    expect(page.get_by_label("Periods ahead")).to_have_attribute("aria-invalid", "true")
    check_accessibility(page)
    page.get_by_label("Periods ahead").fill("2")
    page.get_by_label("Periods ahead").blur()
    page.get_by_text("Do this with curl or Python").last.click()
    expect(page.locator("#call pre").first).to_contain_text("lead=2")
    page.get_by_role("button", name="Save this data set").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("my shops")
    expect(page.locator(".verdict")).to_contain_text("226 rows of 2 series (by shop), each day from 2024-01-01")
    expect(page.locator(".verdict")).to_contain_text("2 days ahead")


def test_a_data_set_shows_its_charts_gaps_and_series(page: Page, file: Path) -> None:
    upload(page, file, "shops to look at")
    expect(page.locator(".u-over")).to_have_count(1)
    expect(page.get_by_text("No rows of 2 series between 2024-02-19 and 2024-02-27: 7 days.")).to_be_visible()
    expect(page.get_by_text("% higher:").first).to_be_visible()
    page.locator(".u-over").hover()
    expect(page.locator(".plot .hover")).to_contain_text("mean")
    page.get_by_label("Series").select_option("north")
    expect(page.get_by_text("north alone")).to_be_visible()
    expect(page.locator(".u-over")).to_have_count(1)
    assert page.url.endswith("?series=north")
    assert page.locator(".histogram").count() == 5
    check_accessibility(page)
    take_screenshots(page, "dataset")
    for size in (TABLET, PHONE):
        page.set_viewport_size(size)
        page.wait_for_timeout(300)
        check_width(page)
    page.emulate_media(color_scheme="dark")
    check_accessibility(page)


@pytest.mark.slow
def test_rows_are_appended_and_the_data_set_is_deleted(page: Page, file: Path, watch: Watch, tmp_path: Path) -> None:
    watch.expected.append("422")
    upload(page, file, "shops that grow")
    more = tmp_path / "more.csv"
    more.write_text(shops(3, date(2024, 5, 1)))
    page.get_by_label("File of rows").set_input_files(more)
    page.get_by_role("button", name="Append rows").click()
    expect(page.get_by_role("status").filter(has_text="appended")).to_contain_text("6 rows were appended")
    page.get_by_label("File of rows").set_input_files(more)
    page.get_by_role("button", name="Append rows").click()
    expect(page.get_by_role("alert")).to_contain_text("the same time and series")
    page.get_by_text("Delete this data set").click()
    page.get_by_role("button", name="Delete shops that grow").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Data")
    expect(page.get_by_role("link", name="shops that grow")).to_have_count(0)


@pytest.mark.slow
def test_invalid_and_oversized_files_are_reported_at_the_file_field(
    page: Page, watch: Watch, tmp_path: Path, service: Service
) -> None:
    watch.expected.append("422")
    page.goto("/datasets/new")
    junk = tmp_path / "junk.csv"
    junk.write_bytes(bytes(range(256)) * 50)
    page.get_by_label("Drop a file here").set_input_files(junk)
    expect(page.get_by_role("alert")).to_contain_text("neither Parquet nor an Excel workbook")
    check_accessibility(page)
    large = tmp_path / "large.csv"
    with large.open("wb") as written:
        written.truncate(70_000_000)
    page.get_by_label("Drop a file here").set_input_files(large)
    expect(page.get_by_role("alert").first).to_contain_text("the limit is 64 MB")


@pytest.mark.slow
def test_markup_in_names_is_escaped(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=alert(1)>.csv"
    rows = "\n".join(f"<b>{n % 3}</b>,{n % 7},{n * 7 % 31}" for n in range(60))
    path.write_text(f"<script>alert(1)</script>,x,sold\n{rows}")
    page.on("dialog", lambda dialog: pytest.fail(f"a script of the file ran: {dialog.message}"))
    upload(page, path, "<script>alert(2)</script>")
    expect(page.get_by_role("heading", name="<script>alert(1)</script>")).to_be_visible()
    page.goto("/datasets")
    expect(page.get_by_role("link", name="<script>alert(2)</script>", exact=True)).to_be_visible()
    check_accessibility(page)
    check_width(page)


@pytest.mark.slow
def test_a_file_can_be_uploaded_on_a_phone(
    new_context: Callable[..., BrowserContext], service: Service, file: Path
) -> None:
    page = new_context(base_url=service.url, viewport=PHONE).new_page()
    page.goto("/datasets/new")
    page.get_by_label("Drop a file here").set_input_files(file)
    expect(page.get_by_role("button", name="Save this data set")).to_be_visible()
    check_width(page)
    check_accessibility(page)
