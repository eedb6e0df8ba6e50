"""Retries: which requests are sent again, after which wait, and which never are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import httpx
import pytest

from bco_client import (
    AsyncClient,
    Client,
    Conflict,
    RetryOptions,
    ServerError,
    TooManyRequests,
    Unavailable,
    UnexpectedAnswer,
    UnprocessableRequest,
    Unreachable,
)

PROBLEM = {"kind": "newsvendor", "items": [{"underage_cost": 1, "overage_cost": 1}]}
MADE = {"id": "prob_1", "name": "newsvendor", "created_at": "2026-01-01T00:00:00Z", "spec": PROBLEM, "outcomes": ["y"]}
Reply = httpx.Response | Exception


class Flaky:
    """A service that gives prepared replies in turn, records its requests and honours idempotency keys."""

    def __init__(self, *replies: Reply) -> None:
        self.replies: Iterator[Reply] = iter(replies)
        self.seen: list[httpx.Request] = []
        self.created: dict[str, Any] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.seen.append(request)
        reply = next(self.replies, None)
        # A request that reaches the service takes effect even if its answer is lost.
        if request.method == "POST" and (reply is None or isinstance(reply, httpx.ReadError)):
            self.created.setdefault(request.headers["Idempotency-Key"], MADE)
        if isinstance(reply, Exception):
            raise reply
        return reply or httpx.Response(201, json=MADE)

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get("Idempotency-Key") for request in self.seen]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses of the clients without waiting."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr("bco_client.client.time.sleep", found.append)
    monkeypatch.setattr(anyio, "sleep", sleep)
    return found


def call_blocking(service: Flaky, call: Callable[[Any], Any], **options: Any) -> Any:
    with Client("http://service", transport=httpx.MockTransport(service), **options) as client:
        return call(client)


def call_async(service: Flaky, call: Callable[[Any], Any], **options: Any) -> Any:
    async def run() -> Any:
        async with AsyncClient("http://service", transport=httpx.MockTransport(service), **options) as client:
            return await call(client)

    return asyncio.run(run())


@pytest.fixture(params=[call_blocking, call_async])
def call_client(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Run each test with the blocking and with the asynchronous client."""
    found: Callable[..., Any] = request.param
    return found


def error_response(status: int, detail: str = "not now", **headers: str) -> httpx.Response:
    content = {"type": "urn:bco:error:x", "title": "x", "status": status, "detail": detail}
    return httpx.Response(status, json=content, headers={"content-type": "application/problem+json"} | headers)


def create(client: Any) -> Any:
    return client.problems.create(PROBLEM)


def test_a_creation_with_lost_answers_creates_one_object(call_client: Callable[..., Any], waits: list[float]) -> None:
    service = Flaky(httpx.ReadError("cut"), httpx.ConnectError("refused"), httpx.ReadTimeout("late"))
    assert call_client(service, create).id == "prob_1"
    assert len(service.seen) == 4
    assert len(service.created) == 1
    assert len(set(service.keys)) == 1
    assert all(service.keys)


def test_two_calls_have_different_idempotency_keys(call_client: Callable[..., Any], waits: list[float]) -> None:
    service = Flaky()
    call_client(service, create)
    call_client(service, create)
    assert len(service.created) == 2


def test_the_callers_own_idempotency_key_is_sent(call_client: Callable[..., Any], waits: list[float]) -> None:
    service = Flaky()
    call_client(service, lambda client: client.problems.create(PROBLEM, idempotency_key="monday"))
    assert service.keys == ["monday"]


def test_an_upload_is_retried_with_the_same_key_and_file(call_client: Callable[..., Any], waits: list[float]) -> None:
    dataset = httpx.Response(201, json={"id": "d", "name": "n", "created_at": "2026-01-01T00:00:00Z", "rows": 1})
    service = Flaky(httpx.ReadError("cut"), dataset)
    call_client(service, lambda client: client.datasets.create(b"a,b\n1,2\n", "n", outcomes="b"))
    first, second = service.seen
    assert first.url.path == "/v1/datasets/upload"
    assert b"a,b\n1,2\n" in first.content
    assert b"a,b\n1,2\n" in second.content
    assert len(set(service.keys)) == 1


def test_the_client_waits_for_retry_after(call_client: Callable[..., Any], waits: list[float]) -> None:
    service = Flaky(error_response(503, **{"Retry-After": "7"}), error_response(429, **{"Retry-After": "2"}))
    call_client(service, create)
    assert waits == [7.0, 2.0]


def test_retry_after_may_be_a_date(call_client: Callable[..., Any], waits: list[float]) -> None:
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    call_client(Flaky(error_response(503, **{"Retry-After": moment})), create)
    assert 15 < waits[0] <= 20


def test_a_retry_after_that_is_too_long_raises_at_once(call_client: Callable[..., Any], waits: list[float]) -> None:
    service = Flaky(error_response(503, "back tomorrow", **{"Retry-After": "86400"}))
    with pytest.raises(Unavailable, match="back tomorrow"):
        call_client(service, create)
    assert waits == []


def test_waits_double_up_to_the_limit(call_client: Callable[..., Any], waits: list[float]) -> None:
    service = Flaky(*[httpx.ConnectError("refused")] * 5)
    call_client(service, create, retries=RetryOptions(attempts=6, first_seconds=1, longest_seconds=4))
    for wait, limit in zip(waits, [1, 2, 4, 4, 4], strict=True):
        assert limit / 2 <= wait <= limit


def test_giving_up_names_the_address_and_the_number_of_tries(
    call_client: Callable[..., Any], waits: list[float]
) -> None:
    service = Flaky(*[httpx.ConnectError("refused")] * 9)
    with pytest.raises(Unreachable, match=r"POST /v1/problems, tried 3 times: refused"):
        call_client(service, create, retries=RetryOptions(attempts=3))
    assert len(service.seen) == 3


def test_a_service_that_stays_busy_raises_too_many_requests(
    call_client: Callable[..., Any], waits: list[float]
) -> None:
    service = Flaky(*[error_response(429, "20 requests a second")] * 9)
    with pytest.raises(TooManyRequests, match="20 requests a second"):
        call_client(service, create, retries=RetryOptions(attempts=2))
    assert len(service.seen) == 2


def test_a_creation_in_progress_is_retried(call_client: Callable[..., Any], waits: list[float]) -> None:
    service = Flaky(error_response(409, "still being served", **{"Retry-After": "1"}))
    assert call_client(service, create).id == "prob_1"
    with pytest.raises(Conflict, match="another body"):
        call_client(Flaky(error_response(409, "this key was used with another body")), create)


def test_validation_errors_are_not_retried_and_keep_the_services_message(
    call_client: Callable[..., Any], waits: list[float]
) -> None:
    mistakes = [{"pointer": "#/spec/items/0/overage_cost", "detail": "must be positive"}]
    mistakes.append({"pointer": "#/name", "detail": "too long"})
    body = {"type": "urn:bco:error:invalid-input", "title": "t", "status": 422, "detail": "two", "errors": mistakes}
    service = Flaky(httpx.Response(422, json=body))
    with pytest.raises(UnprocessableRequest) as caught:
        call_client(service, create)
    assert len(service.seen) == 1
    error = caught.value
    assert (error.status, error.type, error.detail) == (422, "urn:bco:error:invalid-input", "two")
    assert [mistake.pointer for mistake in error.errors] == ["#/spec/items/0/overage_cost", "#/name"]
    assert str(error) == "two\n#/spec/items/0/overage_cost: must be positive\n#/name: too long"


def test_a_server_error_is_not_retried(call_client: Callable[..., Any], waits: list[float]) -> None:
    service = Flaky(error_response(500, "went wrong"))
    with pytest.raises(ServerError, match="went wrong"):
        call_client(service, create)
    assert len(service.seen) == 1


def test_a_proxy_error_without_details_has_a_readable_message(
    call_client: Callable[..., Any], waits: list[float]
) -> None:
    with pytest.raises(ServerError, match="the service answered 502 Bad Gateway and did not say why"):
        call_client(Flaky(httpx.Response(502, text="<html>")), create, retries=RetryOptions(attempts=1))


def test_answers_that_are_not_from_the_service_raise_unexpected_answer(
    call_client: Callable[..., Any], waits: list[float]
) -> None:
    with pytest.raises(UnexpectedAnswer, match="did not answer with JSON"):
        call_client(Flaky(httpx.Response(200, text="<html>hello</html>")), create)
    with pytest.raises(UnexpectedAnswer, match="lacks fields of ProblemRecord, among id, name"):
        call_client(Flaky(httpx.Response(200, json={"hello": 1})), create)


def test_a_retried_deletion_accepts_404(call_client: Callable[..., Any], waits: list[float]) -> None:
    service = Flaky(httpx.ReadError("cut"), error_response(404, "no such problem"))
    assert call_client(service, lambda client: client.problems.delete("prob_1")) is None
    with pytest.raises(Exception, match="no such problem"):
        call_client(Flaky(error_response(404, "no such problem")), lambda client: client.problems.delete("prob_1"))


def test_ids_are_quoted_in_paths(call_client: Callable[..., Any], waits: list[float]) -> None:
    service = Flaky(httpx.Response(200, json=MADE))
    call_client(service, lambda client: client.problems.get("../jobs?x=1"))
    assert service.seen[0].url.raw_path == b"/v1/problems/..%2Fjobs%3Fx%3D1"


def test_unknown_fields_of_a_newer_service_are_kept(call_client: Callable[..., Any], waits: list[float]) -> None:
    found = call_client(Flaky(httpx.Response(201, json=MADE | {"brand_new": 3})), create)
    assert found.raw["brand_new"] == 3
    assert found.created_at == datetime(2026, 1, 1, tzinfo=UTC)


def test_the_api_key_is_sent_but_not_shown_in_repr(
    call_client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BCO_API_KEY", "from the environment")
    service = Flaky()
    call_client(service, create)
    call_client(service, create, api_key="secret")
    authorizations = [request.headers["Authorization"] for request in service.seen]
    assert authorizations == ["Bearer from the environment", "Bearer secret"]
    assert "secret" not in repr(Client("http://service", api_key="secret"))
