"""The fast path gives the same answers and log records as the router."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client import REGISTRY
from starlette.testclient import TestClient

from app.keys import service as keys
from app.main import create_app
from app.prescriptions import fast_path
from tests.support.journey import CONTEXTS, Json, learn_posterior, without_id

ONE = CONTEXTS[0]
BODIES: dict[str, Any] = {
    "one context": {"contexts": [ONE]},
    "several": {"contexts": CONTEXTS[:7], "policy": "bcp", "scenarios": 30, "seed": 3, "costs_over": "posterior"},
    "as a list": {"contexts": [list(ONE.values())]},
    "nothing": {},
    "null": None,
    "a list": [1],
    "no contexts": {"contexts": []},
    "contexts of another type": {"contexts": 3},
    "a context of another type": {"contexts": [3]},
    "a lacking column": {"contexts": [{}]},
    "an unknown column": {"contexts": [ONE | {"moon": "full"}]},
    "an unknown category": {"contexts": [ONE | {"weekday": "HOLIDAY"}]},
    "text for a number": {"contexts": [ONE | {"temperature": "warm"}]},
    "a number beyond": {"contexts": [ONE | {"temperature": 10**400}]},
    "far from the history": {"contexts": [ONE | {"temperature": 1e6}]},
    "so far that nothing is predicted": {"contexts": [ONE | {"temperature": 1e99}]},
    "an unknown field": {"contexts": [ONE], "scenario": 3},
    "two mistakes": {"contexts": [ONE], "scenarios": 0, "alpha": 2},
    "a float for an integer": {"contexts": [ONE], "scenarios": 2.5},
    "text for an integer": {"contexts": [ONE], "scenarios": "2"},
    "a large seed": {"contexts": [ONE], "seed": 2**70},
    "an unknown policy": {"contexts": [ONE], "policy": "greedy"},
    "a risk for a policy without": {"contexts": [ONE], "policy": "map", "risk": {"cvar_level": 0.9}},
    "a risk that newsvendors do not take": {"contexts": [ONE], "risk": {"cvar_level": 0.9}},
    "a risk beyond": {"contexts": [ONE], "risk": {"cvar_level": 1}},
    "too many scenarios": {"contexts": [ONE], "scenarios": 10**6},
    "a better posterior": {"contexts": [ONE], "require_quality": "ok"},
    "a time limit": {"contexts": [ONE], "time_limit_seconds": 5},
    "no time": {"contexts": [ONE], "time_limit_seconds": 0},
}
RAW = {
    "no JSON": b"{",
    "no body": b"",
    "NaN": b'{"contexts": [[NaN]]}',
    "twice": b'{"contexts": [], "contexts": [3]}',
    "not UTF-8": b'{"contexts": ["\xff"]}',
    "half a character": b'{"contexts": ["\\ud800"]}',
    "deep": b'{"contexts": ' + b"[" * 3000 + b"]" * 3000 + b"}",
}
ALL = {name: json.dumps(body).encode() for name, body in BODIES.items()} | RAW


@pytest.fixture(scope="module")
def posterior(client: TestClient) -> Json:
    return learn_posterior(client, seed=4)


@pytest.fixture
def fast_path_taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record for each request whether it took the fast path."""
    taken: list[bool] = []
    is_plain = fast_path._is_plain

    def record_is_plain(scope: Any) -> bool:
        taken.append(is_plain(scope))
        return taken[-1]

    monkeypatch.setattr(fast_path, "_is_plain", record_is_plain)
    return taken


def path(posterior: Json) -> str:
    return f"/v1/posteriors/{posterior['id']}/prescribe"


def post_both_ways(client: TestClient, url: str, content: bytes, **headers: str) -> list[httpx.Response]:
    """Post by the fast path and by the router, which handles a content type with a parameter."""
    kinds = ("application/json", "application/json; profile=long")
    return [client.post(url, content=content, headers=headers | {"content-type": kind}) for kind in kinds]


@pytest.mark.parametrize("name", sorted(ALL))
def test_both_paths_give_the_same_answer(
    client: TestClient, posterior: Json, fast_path_taken: list[bool], name: str
) -> None:
    first, second = post_both_ways(client, path(posterior), ALL[name])
    assert fast_path_taken == [True, False]
    assert first.status_code == second.status_code
    assert without_id(first.content) == without_id(second.content)
    assert sorted(set(first.headers.items()) ^ set(second.headers.items()), key=str) == sorted(
        {("x-request-id", first.headers["x-request-id"]), ("x-request-id", second.headers["x-request-id"])}
    )


@pytest.mark.parametrize("identifier", ["post_x", "post_01M7MPTHJ1DCFSMQB79MNFQ5XR", "job_01M7MPTHJ1DCFSMQB79MNFQ5XR"])
def test_both_paths_find_no_missing_posterior(client: TestClient, identifier: str) -> None:
    first, second = post_both_ways(client, f"/v1/posteriors/{identifier}/prescribe", ALL["one context"])
    assert first.status_code == second.status_code == 404
    assert first.content == second.content


def test_a_query_or_a_large_body_takes_the_router(
    client: TestClient, posterior: Json, fast_path_taken: list[bool]
) -> None:
    assert client.post(path(posterior) + "?moon=full", json=BODIES["one context"]).status_code == 422
    assert client.post(path(posterior), json={"contexts": [ONE] * 1000}).status_code == 200
    assert client.get(path(posterior)).status_code == 405
    assert fast_path_taken == [False, False]


def send_messages(client: TestClient, posterior: Json, kind: str, *messages: Json) -> list[Any]:
    """Feed the application these ASGI messages and return what it sends."""
    length = str(len(ALL["one context"]))
    headers = {"content-type": kind, "content-length": length, "host": "localhost"}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path(posterior),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    left, sent = list(messages), list[Any]()

    async def receive() -> Any:
        return left.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    assert client.portal is not None
    client.portal.call(client.app, scope, receive, send)
    return sent


def test_a_body_in_several_pieces_is_joined(client: TestClient, posterior: Json, fast_path_taken: list[bool]) -> None:
    content = ALL["one context"]
    pieces = [content[:20], content[20:40], content[40:]]
    messages = [{"type": "http.request", "body": piece, "more_body": piece is not pieces[-1]} for piece in pieces]
    start, body = send_messages(client, posterior, "application/json", *messages)
    assert start["status"] == 200
    assert without_id(body["body"]) == without_id(post_both_ways(client, path(posterior), content)[1].content)
    assert fast_path_taken[0]


def test_a_client_that_disconnects_while_sending_causes_no_server_error(
    client: TestClient, posterior: Json, caplog: pytest.LogCaptureFixture
) -> None:
    begun = {"type": "http.request", "body": ALL["one context"][:20], "more_body": True}
    statuses = []
    for kind in ("application/json", "application/json; profile=long"):
        start, _ = send_messages(
            client, posterior, kind, begun, {"type": "http.disconnect"}, {"type": "http.disconnect"}
        )
        statuses.append(start["status"])
    assert statuses == [400, 400]
    assert "unexpected error" not in caplog.text


def test_both_paths_are_counted_and_logged_alike(
    client: TestClient, posterior: Json, caplog: pytest.LogCaptureFixture
) -> None:
    labels = {"method": "POST", "route": "/v1/posteriors/{posterior_id}/prescribe"}

    def request_count(status: int) -> float:
        return REGISTRY.get_sample_value("bco_requests_total", labels | {"status": str(status)}) or 0.0

    for name, status in (("one context", 200), ("a lacking column", 422), ("no contexts", 422)):
        before = request_count(status)
        with caplog.at_level(logging.INFO, logger="app.requests"):
            caplog.clear()
            post_both_ways(client, path(posterior), ALL[name])
        assert request_count(status) - before == 2
        assert [(one.getMessage(), one.fields["status"]) for one in caplog.records] == [
            (f"POST {path(posterior)}", status)
        ] * 2


def test_both_paths_refuse_a_key_without_the_read_scope(posterior: Json, settings: Callable[..., None]) -> None:
    settings(host="0.0.0.0")  # noqa: S104
    _, text = keys.create("trainer", "default", ["train"], None)
    with TestClient(create_app(), raise_server_exceptions=False) as client:
        first, second = post_both_ways(client, path(posterior), ALL["one context"], authorization=f"Bearer {text}")
        assert first.status_code == second.status_code == 403
        assert first.content == second.content
        assert [one.status_code for one in post_both_ways(client, path(posterior), ALL["one context"])] == [401, 401]
