"""Sessions in a browser: login with a key, access to the API, forged forms, and error pages."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.screens import Service, Watch, check_accessibility, check_width


@pytest.mark.slow
def test_a_key_gives_access_until_logout(
    service_with_keys: Service, new_context: Callable[..., BrowserContext], watch: Watch
) -> None:
    watch.hosts.add(urlsplit(service_with_keys.url).netloc)
    watch.expected.append("401")
    key = service_with_keys.key("read", "train")
    page = new_context(base_url=service_with_keys.url).new_page()
    page.goto("/datasets?limit=5")
    assert urlsplit(page.url).path == "/login"
    check_accessibility(page)
    page.get_by_label("API key").fill("bco_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("is unknown")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{service_with_keys.url}/datasets?limit=5")
    cookie = next(one for one in page.context.cookies() if one["name"] == "bco_session")
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
    assert key not in cookie["value"]
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(f"{service_with_keys.url}/login")
    page.goto("/datasets")
    assert urlsplit(page.url).path == "/login"


@pytest.mark.slow
def test_a_session_can_read_but_not_write_through_the_api(service_with_keys: Service) -> None:
    key = service_with_keys.key("read", "train", "admin")
    with httpx.Client(base_url=service_with_keys.url) as browser:
        form = browser.get("/login").text
        token = form.split('name="csrf" value="')[1].split('"')[0]
        assert browser.post("/login", data={"csrf": token, "key": key, "next": "//elsewhere.example"}).headers[
            "location"
        ] == ("/")
        assert browser.get("/v1/jobs").status_code == 200
        assert browser.post("/v1/problems", json={}).status_code == 401
        assert browser.post("/logout", data={"csrf": "guessed"}).status_code == 403
        outside = browser.post("/logout", headers={"Origin": "https://elsewhere.example"}, data={"csrf": token})
        assert outside.status_code == 403
        cookie = browser.cookies["bco_session"]
    service_with_keys.bco("keys", "revoke", "key_" + key.split("_")[1])
    with httpx.Client(base_url=service_with_keys.url, cookies={"bco_session": cookie}) as browser:
        # A key revoked by another process is rejected within three seconds.
        for _ in range(50):
            if browser.get("/v1/jobs").status_code == 401:
                break
            time.sleep(0.2)
        assert browser.get("/v1/jobs").status_code == 401


def test_an_unknown_address_answers_with_an_error_page(service: Service, page: Page, watch: Watch) -> None:
    watch.expected.append("404")
    page.goto("/nothing/here")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not Found")
    check_accessibility(page)
    check_width(page)
    plain = httpx.get(f"{service.url}/nothing/here")
    assert plain.headers["content-type"] == "application/problem+json"
