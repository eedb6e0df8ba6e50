"""Polling outlasts slow work and notices when nothing moves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.support import polling
from tests.support.polling import wait_until, within


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(polling, "crowding", lambda: 1.0)


@contextmanager
def process(code: str) -> Iterator[None]:
    running = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        running.kill()
        running.wait()


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


@pytest.mark.slow
def test_wait_until_outlasts_its_patience_while_a_process_computes() -> None:
    with process("while True: pass"):
        wait_until("it comes", after(4), 1.5)


def test_wait_until_gives_up_when_all_processes_are_idle() -> None:
    with process("import time; time.sleep(60)"):
        # Starting counts as work.
        wait_until("it has started", after(1), 10)
        began = time.monotonic()
        with pytest.raises(AssertionError, match="nothing has moved for 1 s: it comes"):
            wait_until("it comes", lambda: False, 1.0)
        assert time.monotonic() - began < 8


@pytest.mark.slow
def test_wait_until_gives_up_on_endless_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "MOST_SECONDS", 2.0)
    with process("while True: pass"), pytest.raises(AssertionError, match="not within 2 s: it comes"):
        wait_until("it comes", lambda: False, 1.5)


def test_within_enforces_its_time_limit() -> None:
    within("it comes", after(0.2), 5)
    with process("while True: pass"), pytest.raises(AssertionError, match=r"not within 0.5 s: it comes"):
        within("it comes", after(30), 0.5)
