"""Helpers for browser tests: a running service, a watch for page errors, and checks of accessibility and width."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.support.processes import Part

SHOTS = Path(os.environ.get("BCO_SCREENSHOTS", "var/screenshots"))
# Screen sizes.
DESKTOP, TABLET, PHONE = {"width": 1280, "height": 900}, {"width": 768, "height": 1024}, {"width": 390, "height": 844}


@dataclass
class Service:
    """A running ``bco serve`` with one worker, on an SQLite file of its own."""

    url: str
    folder: Path
    environment: dict[str, str]
    http: httpx.Client

    def bco(self, *arguments: str) -> str:
        """Run a ``bco`` command and return its output."""
        part = Part(self.folder, f"command{len(list(self.folder.glob('command*')))}", *arguments, **self.environment)
        assert part.done() == 0, part.messages()
        return part.messages()

    def key(self, *scopes: str, workspace: str = "default") -> str:
        output = self.bco("keys", "create", "a test", "--workspace", workspace, "--scopes", ",".join(scopes))
        return next(word for word in output.split() if word.startswith("bco_"))


@dataclass
class Watch:
    """Errors in the pages of one test; ``expected`` are words of messages that the test provokes."""

    hosts: set[str]
    errors: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def observe(self, page: Page) -> None:
        page.on("console", lambda one: self._note(one.type == "error", f"console: {one.text} ({page.url})"))
        page.on("pageerror", lambda error: self._note(True, f"script: {error}"))
        page.on("request", lambda request: self._note(not self._is_ours(request.url), f"outside: {request.url}"))

    def _is_ours(self, address: str) -> bool:
        parts = urlsplit(address)
        return parts.scheme in ("data", "blob", "about") or parts.netloc in self.hosts

    def _note(self, is_error: bool, text: str) -> None:
        if is_error:
            self.errors.append(text)

    def check(self) -> None:
        left = [text for text in self.errors if not any(word in text for word in self.expected)]
        assert left == [], "\n".join(left)


def create(http: httpx.Client, path: str, body: dict[str, Any]) -> str:
    """Create an object through the API and return its id."""
    answer = http.post(path, json=body)
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


def check_accessibility(page: Page) -> None:
    """Fail on violations of accessibility rules."""
    found = Axe().run(page)
    violations = [
        f"{one['id']}: {one['help']} ({'; '.join(node['html'][:160] for node in one['nodes'][:3])})"
        for one in found.response["violations"]
    ]
    assert violations == [], "\n".join([page.url, *violations])


def check_width(page: Page) -> None:
    """Fail if the page scrolls sideways."""
    width, available = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert width <= available, f"{page.url} is {width} px wide in {available} px"


def take_screenshots(page: Page, name: str) -> None:
    """Save screenshots of the whole page, light and dark."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(150)
        page.screenshot(path=SHOTS / f"{name}-{scheme}.png", full_page=True)
    page.emulate_media(color_scheme="light")
