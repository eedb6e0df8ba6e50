"""A real browser, and a service of its own to look at.

Every page that a test opens is watched: messages of errors in the console, scripts that fail, breaches of the content
policy and requests to any other host fail the test that caused them.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient`")
    from processes import Part, is_ready

from patience import wait_until

from app.commands.serve import free_port

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Nothing of the browser's own leaves this machine either.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SHOTS = Path(os.environ.get("BCO_SCREENSHOTS", "var/screenshots"))
# Sizes that pages are looked at in.
DESK, TABLET, PHONE = {"width": 1280, "height": 900}, {"width": 768, "height": 1024}, {"width": 390, "height": 844}


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> None:
    for name in list(os.environ):
        if name.startswith("BCO_") and name != "BCO_SCREENSHOTS":
            del os.environ[name]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        sentence = "no browser to look at pages with: install Debian's chromium (make test does so where it may)"
        if os.environ.get("CI"):
            pytest.fail(sentence)
        pytest.skip(sentence)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@dataclass
class Service:
    """A running ``bco serve`` with one worker, on an SQLite file of its own."""

    url: str
    folder: Path
    environment: dict[str, str]
    http: httpx.Client

    def bco(self, *arguments: str) -> str:
        """What a command of the operator says."""
        part = Part(self.folder, f"command{len(list(self.folder.glob('command*')))}", *arguments, **self.environment)
        assert part.done() == 0, part.messages()
        return part.messages()

    def key(self, *scopes: str, workspace: str = "default") -> str:
        said = self.bco("keys", "create", "a test", "--workspace", workspace, "--scopes", ",".join(scopes))
        return next(word for word in said.split() if word.startswith("bco_"))


@pytest.fixture(scope="session")
def start_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Service]]:
    """Starts services; all of them end with the run."""
    running: list[tuple[Part, httpx.Client]] = []

    def start() -> Service:
        folder, port = tmp_path_factory.mktemp("pages"), free_port()
        environment = {"BCO_DATABASE_URL": f"sqlite:///{folder / 'bco.db'}", "BCO_PORT": str(port)}
        part = Part(folder, "serve", "serve", **environment)
        http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
        running.append((part, http))
        wait_until("the service is ready", lambda: is_ready(http))
        return Service(str(http.base_url), folder, environment, http)

    yield start
    for part, http in running:
        http.close()
        part.__exit__()


@pytest.fixture(scope="session")
def service(start_service: Callable[[], Service]) -> Service:
    """A service without keys that all tests of a run share: each makes what it needs under names of its own."""
    return start_service()


@dataclass
class Watch:
    """What went wrong in the pages of one test. ``expected`` are words of messages that the test provokes."""

    hosts: set[str]
    wrong: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def over(self, page: Page) -> None:
        page.on("console", lambda one: self._note(one.type == "error", f"console: {one.text} ({page.url})"))
        page.on("pageerror", lambda error: self._note(True, f"script: {error}"))
        page.on("request", lambda request: self._note(not self._is_ours(request.url), f"outside: {request.url}"))

    def _is_ours(self, address: str) -> bool:
        parts = urlsplit(address)
        return parts.scheme in ("data", "blob", "about") or parts.netloc in self.hosts

    def _note(self, is_wrong: bool, text: str) -> None:
        if is_wrong:
            self.wrong.append(text)

    def check(self) -> None:
        left = [text for text in self.wrong if not any(word in text for word in self.expected)]
        assert left == [], "\n".join(left)


@pytest.fixture
def watch(service: Service) -> Iterator[Watch]:
    watch = Watch({urlsplit(service.url).netloc})
    yield watch
    watch.check()


@pytest.fixture
def new_context(browser: Browser, watch: Watch) -> Iterator[Callable[..., BrowserContext]]:
    """Makes a fresh browser profile, as another person would have."""
    contexts: list[BrowserContext] = []

    def make(**options: Any) -> BrowserContext:
        context = browser.new_context(**{"viewport": DESK, "reduced_motion": "reduce"} | options)
        context.on("page", watch.over)
        # Slow machines are no failures.
        context.set_default_timeout(60_000)
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def page(new_context: Callable[..., BrowserContext], service: Service) -> Page:
    """A page on a desk's screen; addresses may be written from ``/`` on."""
    return new_context(base_url=service.url).new_page()


def axe(page: Page) -> None:
    """Fail on anything that keeps keyboards, screen readers or weak eyes out."""
    found = Axe().run(page)
    told = [
        f"{one['id']}: {one['help']} ({'; '.join(node['html'][:160] for node in one['nodes'][:3])})"
        for one in found.response["violations"]
    ]
    assert told == [], "\n".join([page.url, *told])


def fits(page: Page) -> None:
    """The page does not scroll sideways."""
    wide, room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= room, f"{page.url} is {wide} px wide in {room} px"


def shoot(page: Page, name: str) -> None:
    """Keep a picture of the whole page, light and dark."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(150)
        page.screenshot(path=SHOTS / f"{name}-{scheme}.png", full_page=True)
    page.emulate_media(color_scheme="light")
