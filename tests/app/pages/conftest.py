"""Fixtures shared by the tests of pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from app.http import security
from tests.support.pages import HTML, new_keys


@pytest.fixture(autouse=True)
def _disable_key_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "CACHE_SECONDS", 0.0)


@pytest.fixture
def browser(client: TestClient) -> TestClient:
    """Return a browser with its own cookies on the running application."""
    browser = TestClient(client.app, raise_server_exceptions=False, follow_redirects=False, headers=HTML)
    browser.portal = client.portal
    return browser


@pytest.fixture
def make_key(client: TestClient) -> Iterator[Callable[..., str]]:
    with new_keys() as make:
        yield make
