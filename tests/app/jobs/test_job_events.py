"""Following a job by server-sent events: everything once, in order, also after coming back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.db.base import DEFAULT_WORKSPACE
from app.jobs import events, service
from tests.support.journey import Json, answered, create_dataset, create_job, create_problem, learn


@pytest.fixture(scope="module")
def ids(client: TestClient) -> Json:
    return {"problem_id": create_problem(client)["id"], "dataset_id": create_dataset(client)["id"]}


@pytest.fixture
def job_id(client: TestClient, ids: Json) -> str:
    made: str = create_job(client, **ids)["id"]
    return made


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_SECONDS", 0.01)


def parsed(lines: Iterator[str]) -> Iterator[Json]:
    """Events as a browser would see them; comments have the kind ''."""
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


def followed(client: TestClient, job_id: str, last: object = None) -> list[Json]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    with client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        return list(parsed(response.iter_lines()))


def test_a_finished_jobs_story_is_told_from_beginning_to_end(client: TestClient, job_id: str) -> None:
    job = learn(client, job_id)
    story = followed(client, job_id)
    assert [found["id"] for found in story] == sorted({found["id"] for found in story})
    lines = answered(client.get(f"/v1/jobs/{job_id}/log"))["lines"]
    assert [found["text"] for found in story if found["kind"] == "log"] == [line["text"] for line in lines]
    last = story[-1]
    assert (last["kind"], last["state"], last["progress"], last["error"]) == ("state", "succeeded", 1.0, None)
    assert last["attempts"] == job["attempts"]


def test_coming_back_after_any_event_tells_exactly_the_rest(client: TestClient, job_id: str) -> None:
    learn(client, job_id)
    story = followed(client, job_id)
    assert len(story) >= 4
    for number, found in enumerate(story[:-1]):
        assert followed(client, job_id, found["id"]) == story[number + 1 :]


def test_a_browser_that_has_heard_everything_is_told_not_to_come_back(client: TestClient, job_id: str) -> None:
    learn(client, job_id)
    last = followed(client, job_id)[-1]["id"]
    response = client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": str(last)})
    assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize("odd", ["", "x", "-1", "1.5", "9" * 40, "0x10"])
def test_an_event_id_that_is_none_starts_from_the_beginning(client: TestClient, job_id: str, odd: str) -> None:
    service.cancel(DEFAULT_WORKSPACE, job_id)
    assert followed(client, job_id, odd)[0]["text"] == "accepted"


def test_nobody_can_follow_a_job_that_is_not_there(client: TestClient) -> None:
    for path in ("/v1/jobs/job_nowhere/events", "/v1/jobs/job_" + "0" * 26 + "/events"):
        response = client.get(path)
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/problem+json"


def test_changes_are_told_while_they_happen_and_nothing_is_told_twice(client: TestClient, job_id: str) -> None:
    """Another process changes the job; the story here comes from the database alone."""
    told: list[Json] = []
    follower = threading.Thread(target=lambda: told.extend(followed(client, job_id)))
    follower.start()
    attempt = service.start(job_id)
    assert attempt is not None
    for step in range(1, 6):
        assert service.report(job_id, attempt, step / 10, f"step {step}", f"line {step}" if step % 2 else None)
    service.fail(job_id, attempt, "no luck")
    follower.join(30)
    assert {"kind": "state", "state": "failed", "error": "no luck", "progress": 0.5}.items() <= told[-1].items()
    texts = [found["text"] for found in told if found["kind"] == "log"]
    assert texts == ["accepted", "started", "line 1", "line 3", "line 5", "failed: no luck"]
    assert [found["id"] for found in told] == sorted({found["id"] for found in told})


def collected(job_id: str, seconds: float, **changes: Any) -> list[bytes]:
    """What a stream says within a time, without HTTP."""
    import anyio

    said: list[bytes] = []

    async def listen() -> None:
        with anyio.move_on_after(seconds):
            stopping = changes.pop("stopping", lambda: False)
            async for part in events.stream(DEFAULT_WORKSPACE, job_id, -1, anyio.CapacityLimiter(1), stopping):
                said.append(part)

    anyio.run(listen)
    return said


def test_a_story_without_news_shows_signs_of_life(job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.05)
    said = collected(job_id, 0.5)
    assert said.count(b": still here\n\n") >= 2
    assert sum(part.startswith(b"id:") for part in said) == 2


def test_a_story_ends_when_the_service_stops(job_id: str) -> None:
    end = time.monotonic() + 0.2
    began = time.monotonic()
    said = collected(job_id, 30, stopping=lambda: time.monotonic() > end)
    assert time.monotonic() - began < 10
    assert any(b'"state":"queued"' in part for part in said)


def test_a_story_ends_when_its_job_is_deleted(client: TestClient, job_id: str) -> None:
    service.cancel(DEFAULT_WORKSPACE, job_id)
    service.delete(DEFAULT_WORKSPACE, job_id)
    assert collected(job_id, 30) == [b"retry: 2000\n\n"]


def test_a_story_goes_on_after_an_outage(job_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.05)
    service.cancel(DEFAULT_WORKSPACE, job_id)
    real, failures = events.snapshot, iter([True, True, False])

    def shaky(*arguments: Any) -> Any:
        if next(failures, False):
            raise sa.exc.OperationalError("SELECT", {}, Exception("connection refused"))
        return real(*arguments)

    monkeypatch.setattr(events, "snapshot", shaky)
    said = collected(job_id, 30)
    assert sum(part.startswith(b": the database") for part in said) == 2
    assert b'"state":"cancelled"' in said[-1]
