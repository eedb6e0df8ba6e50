"""Pages as a test reads them: their words, the data of their charts, and forms that are sent with their token."""

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
    """What a reader sees, on one line; neither scripts nor styles."""
    text = page if isinstance(page, str) else page.text
    text = re.sub(r"<script.*?</script>|<style.*?</style>", " ", text, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def look(browser: TestClient, path: str, status: int = 200) -> Response:
    answer = browser.get(path)
    assert answer.status_code == status, words(answer)
    return answer


def token(browser: TestClient, path: str = "/login") -> str:
    """The token that a form on a page carries."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', browser.get(path).text)
    assert found is not None
    return found[1]


def send(browser: TestClient, path: str, status: int = 303, **fields: Any) -> Response:
    """Send a form as one of our pages would."""
    answer = browser.post(path, data={"csrf": token(browser)} | fields)
    assert answer.status_code == status, words(answer)
    return answer


def send_form(browser: TestClient, path: str, fields: dict[str, object], at: str = "", **more: object) -> Response:
    """Fill in a form that stands on the page ``at``, by default where it is sent to; any answer will do."""
    return browser.post(path, data={"csrf": token(browser, at or path), **fields}, **more)  # type: ignore[arg-type]


def log_in(browser: TestClient, key: str) -> None:
    send(browser, "/login", key=key)


def charts(response: Response) -> dict[str, dict[str, Any]]:
    """The data of the charts on a page, by their titles."""
    found = re.findall(
        r"<figcaption><b>(.*?)</b>.*?<script type=\"application/json\">(.*?)</script>", response.text, re.S
    )
    return {html.unescape(title): json.loads(data) for title, data in found}


def another_browser(client: TestClient) -> TestClient:
    """A browser with cookies of its own. The application is not stopped with it, since it would close its log."""
    return TestClient(client.app, raise_server_exceptions=False, follow_redirects=False, headers=HTML)


@contextmanager
def new_keys() -> Iterator[Callable[..., str]]:
    """Makes keys of some scopes; they are gone afterwards, with their sessions."""
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
    """Browsers of people who have logged in with keys of some scopes; the keys are gone afterwards."""
    with new_keys() as make_key:

        def new_person(scopes: str = "read,train", workspace: str = "default") -> TestClient:
            browser = another_browser(client)
            log_in(browser, make_key(scopes, workspace))
            return browser

        yield new_person
