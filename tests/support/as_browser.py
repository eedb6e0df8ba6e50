"""Pages as a browser without scripts sees them: forms with their token, and text without its tags."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from httpx import Response
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import KeyRow, SessionRow
from app.keys import service as keys

HTML = {"Accept": "text/html,application/xhtml+xml"}


@contextmanager
def new_browser(client: TestClient) -> Iterator[TestClient]:
    """Another browser on the same service: cookies of its own."""
    with TestClient(client.app, raise_server_exceptions=False, follow_redirects=False, headers=HTML) as browser:
        yield browser


@contextmanager
def new_keys() -> Iterator[Callable[[str], str]]:
    """Makes keys of some scopes that are gone afterwards."""
    yield lambda scopes: keys.create("test", "default", scopes.split(","), None)[1]
    with transaction() as session:
        session.execute(sa.delete(SessionRow))
        session.execute(sa.delete(KeyRow))


def token(browser: TestClient, path: str) -> str:
    """What a form on a page carries."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', browser.get(path).text)
    assert found is not None
    return found[1]


def send(browser: TestClient, path: str, fields: dict[str, object], at: str = "", **more: object) -> Response:
    """Fill in a form that stands on the page ``at``, by default where it is sent to."""
    return browser.post(path, data={"csrf": token(browser, at or path), **fields}, **more)  # type: ignore[arg-type]


def log_in(browser: TestClient, key: str) -> None:
    assert send(browser, "/login", {"key": key}).status_code == 303


def words(page: Response | str) -> str:
    """What can be read on a page."""
    text = page if isinstance(page, str) else page.text
    text = re.sub(r"<script.*?</script>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text))).strip()
