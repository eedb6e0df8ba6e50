"""A real browser and a running service.

Every page is watched: console errors, failing scripts, content policy violations and requests to other hosts fail the
test that caused them.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="Using `httpx` with `starlette.testclient`")
    from tests.support.processes import Part, is_ready

from app.commands.serve import free_port
from tests.browser.screens import DESKTOP, Service, Watch
from tests.support.polling import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# The browser itself must not call other hosts either.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


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


@pytest.fixture(scope="session")
def start_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Service]]:
    """Start services; stop all of them at the end of the run."""
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
    """A service without keys, shared by all tests; each test creates its objects under names of its own."""
    return start_service()


@pytest.fixture(scope="module")
def service_with_keys(start_service: Callable[[], Service]) -> Service:
    """A service that requires keys, shared by the tests of a module."""
    service = start_service()
    service.key("read", "train", "admin")
    return service


@pytest.fixture
def watch(service: Service) -> Iterator[Watch]:
    watch = Watch({urlsplit(service.url).netloc})
    yield watch
    watch.check()


@pytest.fixture
def new_context(browser: Browser, watch: Watch) -> Iterator[Callable[..., BrowserContext]]:
    """Create a fresh browser profile, like that of another person."""
    contexts: list[BrowserContext] = []

    def make(**options: Any) -> BrowserContext:
        context = browser.new_context(**{"viewport": DESKTOP, "reduced_motion": "reduce"} | options)
        context.on("page", watch.observe)
        # A slow machine is not a failure.
        context.set_default_timeout(60_000)
        contexts.append(context)
        return context

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def page(new_context: Callable[..., BrowserContext], service: Service) -> Page:
    """Open a page of desktop size; addresses may be relative."""
    return new_context(base_url=service.url).new_page()
