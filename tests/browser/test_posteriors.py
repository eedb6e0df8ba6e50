"""The posterior page in a browser: verdict, charts, aliases, small screens."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

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

QUICK = {"predictor": {"kind": "linear"}, "inference": {"method": "vi", "members": 5, "epochs": 5}}
CHAINS = {"predictor": {"kind": "linear"}, "inference": {"method": "mh", "chains": 2, "steps": 200, "burn_in": 80}}
SHOP = {"kind": "newsvendor", "items": [{"name": "sold", "underage_cost": 3, "overage_cost": 1}]}


def days(numbers: range, level: float = 40.0) -> list[dict[str, Any]]:
    rng = random.Random(numbers.start)
    return [
        {
            "day": str(date(2024, 1, 1) + timedelta(n)),
            "shop": shop,
            "promotion": n % 3 == 0,
            "sold": level + 20 * (n % 7 > 4) + 5 * (shop == "south") + rng.gauss(0, 4),
        }
        for n in numbers
        for shop in ("north", "south")
    ]


@pytest.fixture(scope="module")
def learned(service: Service) -> dict[str, str]:
    """Learn two posteriors: one judged forward in time whose data has drifted since, and one from chains."""
    http = service.http
    problem = create(http, "/v1/problems", {"name": "shops to read of", "spec": SHOP})
    roles = {"outcomes": ["sold"], "time": "day", "series": ["shop"]}
    dataset = create(http, "/v1/datasets", {"name": "shops to read of", "rows": days(range(160)), **roles})
    found = {}
    for name, how in (("read of", QUICK), ("chains to read of", CHAINS)):
        job = create(http, "/v1/jobs", {"name": name, "problem_id": problem, "dataset_id": dataset} | how)
        wait_until(f"{name} is learned", lambda job=job: http.get(f"/v1/jobs/{job}").json()["state"] == "succeeded")
        found[name] = str(http.get(f"/v1/jobs/{job}").json()["posterior_id"])
    answer = http.post(f"/v1/datasets/{dataset}/rows", json={"rows": days(range(160, 200), 70.0)})
    assert answer.is_success, answer.text
    return found


def wait_for_parts(page: Page) -> None:
    """Wait for the lazily loaded parts and the charts."""
    expect(page.locator(".late")).to_have_count(0, timeout=60_000)
    plots = page.locator("[data-chart]")
    expect(page.locator("[data-chart] canvas")).to_have_count(plots.count(), timeout=60_000)


def test_a_posterior_shows_its_verdict_drivers_and_drift(page: Page, learned: dict[str, str], service: Service) -> None:
    page.goto("/posteriors")
    check_accessibility(page)
    page.get_by_role("link", name="read of", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("read of")
    diagnostics = service.http.get(f"/v1/posteriors/{learned['read of']}/diagnostics").json()
    verdict = page.locator(".verdicts")
    expect(verdict).to_contain_text(f"on {diagnostics['held_out_rows']} later rows")
    wait_for_parts(page)
    expect(verdict).to_contain_text("Drift detected")
    expect(page.locator("#drivers")).to_contain_text("rows sampled from the latest 120")
    expect(page.locator("#drivers th[scope=row]")).to_have_count(3)
    expect(page.locator("#since")).to_contain_text("drifting")
    check_accessibility(page)
    check_width(page)
    take_screenshots(page, "posterior")


@pytest.mark.slow
def test_a_chart_shows_values_on_hover_and_in_its_table(page: Page, learned: dict[str, str]) -> None:
    page.goto(f"/posteriors/{learned['read of']}")
    wait_for_parts(page)
    figure = page.locator("figure", has=page.get_by_text("Expected and realised cost over time"))
    figure.scroll_into_view_if_needed()
    box = figure.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(figure.locator(".hover")).to_contain_text("expected")
    shown = figure.locator(".hover").inner_text()
    assert "realised" in shown
    assert shown.startswith("2024-")
    figure.get_by_text("Numbers").click()
    rows = figure.locator("tbody tr")
    assert rows.count() >= 2
    expect(figure.locator("thead")).to_contain_text("expected")
    expect(rows.first).to_contain_text("2024-")


@pytest.mark.slow
def test_chains_show_r_hat_and_an_alias_is_added_and_moved(
    page: Page, learned: dict[str, str], service: Service
) -> None:
    page.goto(f"/posteriors/{learned['chains to read of']}")
    wait_for_parts(page)
    expect(page.locator("#learning")).to_contain_text("R-hat")
    expect(page.locator("#learning canvas")).to_have_count(1)
    check_accessibility(page)
    field = page.get_by_label("New alias")
    field.fill("read.live")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#names")).to_contain_text("read.live points to this posterior")
    page.goto(f"/posteriors/{learned['read of']}")
    page.get_by_role("button", name="Move read.live here").click()
    expect(page.locator("#names .plain")).to_contain_text("read.live points to this posterior")
    assert service.http.get("/v1/aliases/read.live").json()["posterior_id"] == learned["read of"]
    page.get_by_text("History of read.live").click()
    expect(page.get_by_role("region", name="History of read.live").locator("tbody tr")).to_have_count(2)
    page.get_by_label("After training").select_option("read.live")
    check_accessibility(page)


@pytest.mark.slow
def test_an_invalid_alias_shows_an_error_at_its_field(page: Page, learned: dict[str, str], watch: Watch) -> None:
    watch.expected.append("422")
    page.goto(f"/posteriors/{learned['read of']}")
    page.get_by_label("New alias").fill("two words")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_label("New alias")).to_have_value("two words")
    expect(page.get_by_label("New alias")).to_be_focused()
    expect(page.locator("#alias-wrong")).to_contain_text("An alias is 1 to 64 letters")
    check_accessibility(page)


@pytest.mark.slow
@pytest.mark.parametrize("size", [TABLET, PHONE], ids=["tablet", "phone"])
def test_the_pages_fit_small_screens(
    new_context: Callable[..., BrowserContext], service: Service, learned: dict[str, str], size: dict[str, int]
) -> None:
    page = new_context(base_url=service.url, viewport=size).new_page()
    page.goto("/posteriors")
    check_width(page)
    check_accessibility(page)
    for name, posterior in learned.items():
        page.goto(f"/posteriors/{posterior}")
        wait_for_parts(page)
        check_width(page)
        check_accessibility(page)
        take_screenshots(page, f"posterior-{name.replace(' ', '-')}-{size['width']}")


@pytest.mark.slow
def test_the_first_response_is_small(service: Service, learned: dict[str, str]) -> None:
    for posterior in learned.values():
        answer = service.http.get(f"/posteriors/{posterior}", headers={"Accept": "text/html"})
        assert answer.status_code == 200
        assert len(answer.content) < 300_000
