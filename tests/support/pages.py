"""Read HTML pages in tests: visible text, chart data, and forms sent with their CSRF token."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from httpx import Response
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import KeyRow, SessionRow
from app.keys import service as keys

HTML = {"Accept": "text/html,application/xhtml+xml"}


def words(page: Response | str) -> str:
    """Return the visible text on one line, without scripts and styles."""
    text = page if isinstance(page, str) else page.text
    text = re.sub(r"<script.*?</script>|<style.*?</style>", " ", text, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def look(browser: TestClient, path: str, status: int = 200) -> Response:
    """Open a page and check its status."""
    answer = browser.get(path)
    assert answer.status_code == status, words(answer)
    return answer


def token(browser: TestClient, path: str = "/login") -> str:
    """Return the CSRF token of a form."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', browser.get(path).text)
    assert found is not None
    return found[1]


def send(browser: TestClient, path: str, status: int = 303, **fields: Any) -> Response:
    """Send a form with its CSRF token and check the status."""
    answer = browser.post(path, data={"csrf": token(browser)} | fields)
    assert answer.status_code == status, words(answer)
    return answer


def send_form(browser: TestClient, path: str, fields: dict[str, object], at: str = "", **more: object) -> Response:
    """Send the form on the page ``at`` (default: ``path``) and return the response, whatever its status."""
    return browser.post(path, data={"csrf": token(browser, at or path), **fields}, **more)  # type: ignore[arg-type]


def log_in(browser: TestClient, key: str) -> None:
    send(browser, "/login", key=key)


def charts(response: Response) -> dict[str, dict[str, Any]]:
    """Return the chart data of a page by title."""
    found = re.findall(
        r"<figcaption><b>(.*?)</b>.*?<script type=\"application/json\">(.*?)</script>", response.text, re.S
    )
    return {html.unescape(title): json.loads(data) for title, data in found}


def another_browser(client: TestClient) -> TestClient:
    """Return a browser with its own cookies. It does not stop the application, which would close the log."""
    return TestClient(client.app, raise_server_exceptions=False, follow_redirects=False, headers=HTML)


@contextmanager
def new_keys() -> Iterator[Callable[..., str]]:
    """Yield a function that creates keys; delete the keys and their sessions on exit."""
    try:
        yield lambda scopes="read,train", workspace="default": keys.create("test", workspace, scopes.split(","), None)[
            1
        ]
    finally:
        with transaction() as session:
            session.execute(sa.delete(SessionRow))
            session.execute(sa.delete(KeyRow))


@contextmanager
def people(client: TestClient) -> Iterator[Callable[..., TestClient]]:
    """Yield a function that returns a browser logged in with given scopes; delete the keys on exit."""
    with new_keys() as make_key:

        def new_person(scopes: str = "read,train", workspace: str = "default") -> TestClient:
            browser = another_browser(client)
            log_in(browser, make_key(scopes, workspace))
            return browser

        yield new_person
