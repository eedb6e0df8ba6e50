"""A posterior in a browser: read from top to bottom, pointed at, named, on a phone and in the dark."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.screens import PHONE, TABLET, Service, Watch, axe, fits, shoot
from tests.support.polling import wait_until

QUICK = {"predictor": {"kind": "linear"}, "inference": {"method": "vi", "members": 5, "epochs": 5}}
CHAINS = {"predictor": {"kind": "linear"}, "inference": {"method": "mh", "chains": 2, "steps": 200, "burn_in": 80}}
SHOP = {"kind": "newsvendor", "items": [{"name": "sold", "underage_cost": 3, "overage_cost": 1}]}


def days(numbers: range, level: float = 40.0) -> list[dict[str, Any]]:
    drawn = random.Random(numbers.start)
    return [
        {
            "day": str(date(2024, 1, 1) + timedelta(n)),
            "shop": shop,
            "promotion": n % 3 == 0,
            "sold": level + 20 * (n % 7 > 4) + 5 * (shop == "south") + drawn.gauss(0, 4),
        }
        for n in numbers
        for shop in ("north", "south")
    ]


def made(http: httpx.Client, path: str, body: dict[str, Any]) -> str:
    answer = http.post(path, json=body)
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


@pytest.fixture(scope="module")
def learned(service: Service) -> dict[str, str]:
    """Posteriors of a problem: one judged forward in time, whose world has drifted since, and one of chains."""
    http = service.http
    problem = made(http, "/v1/problems", {"name": "shops to read of", "spec": SHOP})
    roles = {"outcomes": ["sold"], "time": "day", "series": ["shop"]}
    dataset = made(http, "/v1/datasets", {"name": "shops to read of", "rows": days(range(160)), **roles})
    found = {}
    for name, how in (("read of", QUICK), ("chains to read of", CHAINS)):
        job = made(http, "/v1/jobs", {"name": name, "problem_id": problem, "dataset_id": dataset} | how)
        wait_until(f"{name} is learned", lambda job=job: http.get(f"/v1/jobs/{job}").json()["state"] == "succeeded")
        found[name] = str(http.get(f"/v1/jobs/{job}").json()["posterior_id"])
    answer = http.post(f"/v1/datasets/{dataset}/rows", json={"rows": days(range(160, 200), 70.0)})
    assert answer.is_success, answer.text
    return found


def ready(page: Page) -> None:
    """All parts have come that come a moment later, and all charts are drawn."""
    expect(page.locator(".late")).to_have_count(0, timeout=60_000)
    plots = page.locator("[data-chart]")
    expect(page.locator("[data-chart] canvas")).to_have_count(plots.count(), timeout=60_000)


@pytest.mark.slow
def test_a_posterior_is_read_from_the_verdict_to_its_names(
    page: Page, learned: dict[str, str], service: Service
) -> None:
    page.goto("/posteriors")
    axe(page)
    page.get_by_role("link", name="read of", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("read of")
    told = service.http.get(f"/v1/posteriors/{learned['read of']}/diagnostics").json()
    verdict = page.locator(".verdicts")
    expect(verdict).to_contain_text(f"on {told['held_out_rows']} later rows")
    ready(page)
    expect(verdict).to_contain_text("Drift detected")
    expect(page.locator("#drivers")).to_contain_text("rows sampled from the latest 120")
    expect(page.locator("#drivers th[scope=row]")).to_have_count(3)
    expect(page.locator("#since")).to_contain_text("drifting")
    axe(page)
    fits(page)
    shoot(page, "posterior")


@pytest.mark.slow
def test_a_chart_tells_its_values_to_who_points_at_it_or_opens_its_table(page: Page, learned: dict[str, str]) -> None:
    page.goto(f"/posteriors/{learned['read of']}")
    ready(page)
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
def test_chains_are_read_and_a_name_is_given_by_clicking(page: Page, learned: dict[str, str], service: Service) -> None:
    page.goto(f"/posteriors/{learned['chains to read of']}")
    ready(page)
    expect(page.locator("#learning")).to_contain_text("R-hat")
    expect(page.locator("#learning canvas")).to_have_count(1)
    axe(page)
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
    axe(page)


@pytest.mark.slow
def test_a_wrong_name_is_refused_beside_its_field(page: Page, learned: dict[str, str], watch: Watch) -> None:
    watch.expected.append("422")
    page.goto(f"/posteriors/{learned['read of']}")
    page.get_by_label("New alias").fill("two words")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_label("New alias")).to_have_value("two words")
    expect(page.get_by_label("New alias")).to_be_focused()
    expect(page.locator("#alias-wrong")).to_contain_text("An alias is 1 to 64 letters")
    axe(page)


@pytest.mark.slow
@pytest.mark.parametrize("size", [TABLET, PHONE], ids=["tablet", "phone"])
def test_it_fits_smaller_screens(
    new_context: Callable[..., BrowserContext], service: Service, learned: dict[str, str], size: dict[str, int]
) -> None:
    page = new_context(base_url=service.url, viewport=size).new_page()
    page.goto("/posteriors")
    fits(page)
    axe(page)
    for name, posterior in learned.items():
        page.goto(f"/posteriors/{posterior}")
        ready(page)
        fits(page)
        axe(page)
        shoot(page, f"posterior-{name.replace(' ', '-')}-{size['width']}")


@pytest.mark.slow
def test_the_first_answer_is_quick_and_small(service: Service, learned: dict[str, str]) -> None:
    for posterior in learned.values():
        answer = service.http.get(f"/posteriors/{posterior}", headers={"Accept": "text/html"})
        assert answer.status_code == 200
        assert len(answer.content) < 300_000
