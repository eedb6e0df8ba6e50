"""Server-sent events of a job: each event once, in order, also after a reconnect."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.base import DEFAULT_WORKSPACE
from app.jobs import events, service
from tests.support.journey import Json, check_json, create_dataset, create_job, create_problem, learn


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    return {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}


@pytest.fixture
def job_id(client: TestClient, ids: Json) -> str:
    made: str = create_job(client, **ids)["id"]
    return made


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_SECONDS", 0.01)


def parse_events(lines: Iterator[str]) -> Iterator[Json]:
    """Parse events as a browser does; comments have the kind ''."""
    found: dict[str, Any] = {}
    for line in lines:
        if line.startswith(":"):
            yield {"kind": "", "comment": line[1:].strip()}
        elif line:
            name, _, value = line.partition(": ")
            found[name] = value
        elif "data" in found:
            yield {"id": int(found["id"]), "kind": found["event"], **json.loads(found["data"])}
            found = {}


def follow(client: TestClient, job_id: str, last: object = None) -> list[Json]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    with client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        return list(parse_events(response.iter_lines()))


def test_a_finished_job_streams_all_its_events(client: TestClient, job_id: str) -> None:
    job = learn(client, job_id)
    story = follow(client, job_id)
    assert [found["id"] for found in story] == sorted({found["id"] for found in story})
    lines = check_json(client.get(f"/v1/jobs/{job_id}/log"))["lines"]
    assert [found["text"] for found in story if found["kind"] == "log"] == [line["text"] for line in lines]
    last = story[-1]
    assert (last["kind"], last["state"], last["progress"], last["error"]) == ("state", "succeeded", 1.0, None)
    assert last["attempts"] == job["attempts"]


def test_reconnecting_after_any_event_streams_exactly_the_rest(client: TestClient, job_id: str) -> None:
    learn(client, job_id)
    story = follow(client, job_id)
    assert len(story) >= 4
    for number, found in enumerate(story[:-1]):
        assert follow(client, job_id, found["id"]) == story[number + 1 :]


def test_a_browser_that_has_all_events_is_asked_not_to_reconnect(client: TestClient, job_id: str) -> None:
    learn(client, job_id)
    last = follow(client, job_id)[-1]["id"]
    response = client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(last)})
    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize("odd", ["", "x", "-1", "1.5", "9" * 40, "0x10"])
def test_an_invalid_event_id_starts_from_the_beginning(client: TestClient, job_id: str, odd: str) -> None:
    service.cancel(DEFAULT_WORKSPACE, job_id)
    assert follow(client, job_id, odd)[0]["text"] == "accepted"


def test_the_event_stream_of_a_missing_job_is_not_found(client: TestClient) -> None:
    for path in ("/v1/jobs/job_nowhere/events", "/v1/jobs/job_" + "0" * 26 + "/events"):
        response = client.get(path)
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/problem+json"


def test_changes_are_streamed_as_they_happen_and_only_once(client: TestClient, job_id: str) -> None:
    """Another process changes the job; the stream reads the database alone."""
    received: list[Json] = []
    follower = threading.Thread(target=lambda: received.extend(follow(client, job_id)))
    follower.start()
    attempt = service.start(job_id)
    assert attempt is not None
    for step in range(1, 6):
        assert service.report(job_id, attempt, step / 10, f"step {step}", f"line {step}" if step % 2 else None)
    service.fail(job_id, attempt, "no luck")
    follower.join(30)
    assert {"kind": "state", "state": "failed", "error": "no luck", "progress": 0.5}.items() <= received[-1].items()
    texts = [found["text"] for found in received if found["kind"] == "log"]
    assert texts == ["accepted", "started", "line 1", "line 3", "line 5", "failed: no luck"]
    assert [found["id"] for found in received] == sorted({found["id"] for found in received})


def read_stream(
    job_id: str,
    stopping: Callable[[], bool] = lambda: False,
    is_enough: Callable[[list[bytes]], bool] = lambda sent: False,
) -> list[bytes]:
    """Return the parts that a stream sends, without HTTP, until it ends or they are enough."""
    import anyio

    sent: list[bytes] = []

    async def listen() -> None:
        with anyio.fail_after(600):
            stream = events.stream(DEFAULT_WORKSPACE, job_id, -1, anyio.CapacityLimiter(1), stopping)
            async with aclosing(stream):
                async for part in stream:
                    sent.append(part)
                    if is_enough(sent):
                        break

    anyio.run(listen)
    return sent


def test_an_idle_event_stream_sends_heartbeats(job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.05)
    sent = read_stream(job_id, is_enough=lambda sent: sent.count(b": still here\n\n") == 2)
    assert sum(part.startswith(b"id:") for part in sent) == 2


def test_an_event_stream_ends_when_the_service_stops(job_id: str) -> None:
    end = time.monotonic() + 0.2
    sent = read_stream(job_id, stopping=lambda: time.monotonic() > end)
    assert any(b'"state":"queued"' in part for part in sent)


def test_an_event_stream_ends_when_its_job_is_deleted(client: TestClient, job_id: str) -> None:
    service.cancel(DEFAULT_WORKSPACE, job_id)
    service.delete(DEFAULT_WORKSPACE, job_id)
    assert read_stream(job_id) == [b"retry: 2000\n\n"]


def test_an_event_stream_survives_a_database_outage(job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.05)
    service.cancel(DEFAULT_WORKSPACE, job_id)
    real, failures = events.snapshot, iter([True, True, False])

    def fail_twice(*arguments: Any) -> Any:
        if next(failures, False):
            raise sa.exc.OperationalError("SELECT", {}, Exception("connection refused"))
        return real(*arguments)

    monkeypatch.setattr(events, "snapshot", fail_twice)
    sent = read_stream(job_id)
    assert sum(part.startswith(b": the database") for part in sent) == 2
    assert b'"state":"cancelled"' in sent[-1]
