"""The progress bar of a job, its remaining time, and waiting for its end."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from bco_client import Client, JobCancelled, JobFailed, JobRecord, StillRunning
from bco_client.progress import in_words, make_bar, remaining_seconds

STARTED = datetime(2026, 1, 1, tzinfo=UTC)


def job(**changes: Any) -> JobRecord:
    fields: dict[str, Any] = {"id": "j", "name": "n", "created_at": STARTED, "kind": "learn", "state": "running"}
    return JobRecord(**fields | {"progress": 0.0, "message": "epoch 3", "started_at": STARTED} | changes)


def after(seconds: float) -> datetime:
    return STARTED + timedelta(seconds=seconds)


def test_remaining_time_follows_the_estimate_first_and_then_the_pace() -> None:
    assert remaining_seconds(job(progress=0.25), after(10)) == 30
    assert remaining_seconds(job(progress=0.25, remaining_seconds=12), after(10)) == 12
    assert remaining_seconds(job(progress=0.01, estimate_seconds=60), after(10)) == 50
    assert remaining_seconds(job(progress=0.01, estimate_seconds=5), after(10)) == 0
    assert remaining_seconds(job(progress=0.01), after(10)) is None
    assert remaining_seconds(job(started_at=None, estimate_seconds=60)) is None
    assert remaining_seconds(job(state="succeeded", progress=1.0), after(10)) is None
    # The service's clock may be ahead of ours.
    assert remaining_seconds(job(progress=0.5), STARTED - timedelta(seconds=5)) == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (4.4, "about 4 s left"), (200, "about 3 min 20 s left"), (7500, "about 2 h 05 min left")],
)
def test_remaining_time_is_formatted_in_words(seconds: float | None, words: str) -> None:
    assert in_words(seconds) == words


def test_a_file_gets_one_line_per_ten_percent() -> None:
    out = io.StringIO()
    bar = make_bar(quiet=False, out=out)
    for share in (0.0, 0.01, 0.11, 0.12, 0.2):
        bar.show(job(progress=share))
    bar.show(job(progress=1.0, state="succeeded", message="done"))
    bar.close()
    lines = out.getvalue().splitlines()
    assert [line.split(" epoch")[0] for line in lines[:3]] == [
        "learn running   0%",
        "learn running  11%",
        "learn running  20%",
    ]
    assert lines[3:] == ["learn succeeded 100% done"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_that_is_overwritten() -> None:
    out = Terminal()
    bar = make_bar(quiet=False, out=out)
    bar.show(job(progress=0.1))
    bar.show(job(progress=0.11))
    bar.close()
    assert out.getvalue().count("\r") == 2
    assert out.getvalue().count("\n") == 1


def answer_with(*states: dict[str, Any]) -> httpx.MockTransport:
    replies = iter(states)
    fields = {
        "id": "j",
        "name": "n",
        "created_at": STARTED.isoformat(),
        "kind": "learn",
        "progress": 0.5,
        "message": "x",
    }
    return httpx.MockTransport(lambda request: httpx.Response(200, json=fields | next(replies)))


@pytest.mark.parametrize("quiet", [True, False])
def test_waiting_shows_a_bar_on_standard_error_unless_quiet(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    transport = answer_with({"state": "queued"}, {"state": "running"}, {"state": "succeeded"})
    with Client("http://service", transport=transport, quiet=quiet) as client:
        assert client.jobs.wait("j").state == "succeeded"
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("learn succeeded" in captured.err) is not quiet


def test_without_rich_progress_is_printed_as_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bco_client.progress.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "rich", None)
    with Client("http://service", transport=answer_with({"state": "succeeded"})) as client:
        client.jobs.wait("j")
    assert capsys.readouterr().err == "learn succeeded  50% x\n"


def test_a_failed_job_raises_its_error() -> None:
    transport = answer_with({"state": "failed", "error": "no rows"})
    with Client("http://service", transport=transport, quiet=True) as client, pytest.raises(JobFailed) as caught:
        client.jobs.wait("j")
    assert str(caught.value) == "no rows"
    assert caught.value.job.state == "failed"


def test_a_cancelled_job_raises() -> None:
    with (
        Client("http://service", transport=answer_with({"state": "cancelled"}), quiet=True) as client,
        pytest.raises(JobCancelled, match="the job j was cancelled"),
    ):
        client.jobs.wait("j")


def test_waiting_ends_at_the_timeout() -> None:
    transport = answer_with(*[{"state": "running"}] * 20)
    with Client("http://service", transport=transport, quiet=True) as client, pytest.raises(StillRunning) as caught:
        client.jobs.wait("j", timeout=0.2)
    assert str(caught.value) == "the job j is running (50%) after 0.2 s"
    assert isinstance(caught.value, TimeoutError)
