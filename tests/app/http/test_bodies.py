"""Request bodies: scopes are checked before reading, and sizes are limited one by one and in total."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import anyio
import pytest
import sqlalchemy as sa
from httpx import Response
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from app.db.engine import transaction
from app.db.tables import KeyRow
from app.demo import example_problem
from app.http import routes, security
from app.http.errors import HttpError
from app.http.middleware import SMALL_BODY, BodyLimit
from app.http.schemas import MOST_MISTAKES
from app.keys import service as keys
from app.main import create_app
from tests.support.journey import OUTCOMES, ROWS, check_json

ROUTES = [
    ("/v1/jobs", "read"),
    ("/v1/problems", "read"),
    ("/v1/datasets", "read"),
    ("/v1/datasets/upload", "read"),
    ("/v1/datasets/data_x/rows", "read"),
    ("/v1/datasets/data_x/rows/upload", "read"),
    ("/v1/posteriors/post_x/prescribe", "train"),
    ("/v1/posteriors/post_x/batch-prescriptions", "read"),
    ("/v1/posteriors/post_x/batch-prescriptions/upload", "read"),
    ("/v1/jobs/job_x/cancel", "read"),
]


@pytest.fixture
def with_scope(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], dict[str, str]]]:
    monkeypatch.setattr(security, "CACHE_SECONDS", 0.0)
    yield lambda scope: {"Authorization": f"Bearer {keys.create('test', 'default', [scope], None)[1]}"}
    with transaction() as session:
        session.execute(sa.delete(KeyRow))


async def post_counted(path: str, headers: dict[str, str], content_type: str, read: list[int]) -> int:
    """Post to the application, record each read of the body, and return the status."""
    sent: list[Any] = []
    raw = {"host": "localhost", "content-type": content_type, **{n.lower(): v for n, v in headers.items()}}
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(name.encode(), value.encode()) for name, value in raw.items()],
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> dict[str, Any]:
        read.append(1)
        return {"type": "http.request", "body": b"[1," * 1000, "more_body": len(read) < 50}

    async def send(message: Any) -> None:
        sent.append(message)

    await create_app()(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(("path", "scope"), ROUTES)
@pytest.mark.parametrize("repeated", [False, True], ids=["once", "repeatable"])
def test_a_caller_without_the_scope_is_refused_before_its_body_is_read(
    with_scope: Callable[[str], dict[str, str]], path: str, scope: str, repeated: bool
) -> None:
    headers = with_scope(scope) | ({"Idempotency-Key": "mine"} if repeated else {})
    read: list[int] = []
    kind = "multipart/form-data; boundary=x" if path.endswith("upload") else "application/json"
    assert anyio.run(post_counted, path, headers, kind, read) == 403
    assert read == []


def test_an_idempotent_answer_is_not_replayed_without_the_scope(
    client: TestClient, with_scope: Callable[[str], dict[str, str]]
) -> None:
    once, body = {"Idempotency-Key": uuid4().hex}, example_problem()
    first = check_json(client.post("/v1/problems", json=body, headers=with_scope("train") | once), 201)
    assert client.post("/v1/problems", json=body, headers=with_scope("read") | once).status_code == 403
    again = check_json(client.post("/v1/problems", json=body, headers=with_scope("train") | once), 201)
    assert again == first


def post(client: TestClient, path: str, content: bytes) -> Response:
    return client.post(path, content=content, headers={"Content-Type": "application/json"})


def assert_refused(response: Response, status: int, words: str) -> None:
    assert response.status_code == status, response.text
    assert words in response.json()["detail"]


@pytest.mark.parametrize(("path", "most"), routes.SMALL_BODIES.items())
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "in chunks"])
def test_small_endpoints_accept_only_small_bodies(client: TestClient, path: str, most: int, declared: bool) -> None:
    content = b" " * (most + 1)
    body: Any = content if declared else iter([content[: most // 2], content[most // 2 :]])
    method = "PUT" if path == "/v1/aliases/{name}" else "POST"
    response = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
    if path == "/v1/problems/import" and not declared:
        # A body that is not a form is not read.
        assert_refused(response, 422, "required")
    else:
        assert_refused(response, 413, "at most")


def test_an_unused_body_is_limited_too(client: TestClient) -> None:
    headers = {"Idempotency-Key": "some"}
    response = client.post("/v1/jobs/job_x/cancel", content=b"x" * (routes.NO_BODY + 1), headers=headers)
    assert_refused(response, 413, "at most 64 kB")


class ConcurrentBodies:
    """Concurrent requests to an application that limits all bodies to 1 MB and answers once `go` is set."""

    def __init__(self) -> None:
        self.limit = BodyLimit(self._serve, 2_000_000, 1_000_000)
        self.go = anyio.Event()
        self.answers: list[tuple[int, dict[bytes, bytes]]] = []

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            while (await receive())["more_body"]:
                pass
            await self.go.wait()
            await JSONResponse({})(scope, receive, send)
        except HttpError as error:
            await error.answer()(scope, receive, send)

    async def post(self, size: int, declared: bool) -> None:
        left = size
        headers = [(b"content-length", b"%d" % size)] if declared else []

        async def receive() -> Any:
            nonlocal left
            part = min(left, 100_000)
            left -= part
            return {"type": "http.request", "body": bytes(part), "more_body": left > 0}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.answers.append((message["status"], dict(message["headers"])))

        await self.limit({"type": "http", "headers": headers}, receive, send)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "in chunks"])
def test_bodies_have_a_total_limit_and_small_ones_always_pass(declared: bool) -> None:
    async def run() -> None:
        bodies = ConcurrentBodies()
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(bodies.post, 400_000, declared)
            await anyio.wait_all_tasks_blocked()
            assert (bodies.limit.total, bodies.answers) == (800_000, [])
            await bodies.post(300_000, declared)
            ((status, headers),) = bodies.answers
            assert status == 503
            assert int(headers[b"retry-after"]) >= 1
            assert bodies.limit.total == 800_000
            for _ in range(10):
                tasks.start_soon(bodies.post, SMALL_BODY, declared)
            await anyio.wait_all_tasks_blocked()
            bodies.go.set()
        assert [status for status, _ in bodies.answers] == [503] + [200] * 12
        assert bodies.limit.total == 0
        # Alone, a body above the total limit passes.
        await bodies.post(1_100_000, declared)
        assert bodies.answers[-1][0] == 200

    anyio.run(run)


def test_the_total_limit_of_bodies_is_a_setting(settings: Callable[..., None]) -> None:
    settings(max_bodies_mb=3)
    limits = [one.kwargs["max_total_bytes"] for one in create_app().user_middleware if one.cls is BodyLimit]
    assert limits == [3_000_000]


def test_json_has_its_own_size_limit(client: TestClient, settings: Callable[..., None]) -> None:
    settings(max_json_mb=1)
    assert_refused(post(client, "/v1/datasets", b" " * 1_000_001), 413, "at most 1 MB")
    form = {"name": "days", "outcomes": ",".join(OUTCOMES)}
    table = "\n".join([",".join(ROWS[0]), *(",".join(map(str, row.values())) for row in ROWS)]) + "\n" * 1_000_001
    check_json(client.post("/v1/datasets/upload", data=form, files={"file": ("days.csv", table.encode())}), 201)


def test_json_has_a_limited_number_of_values(client: TestClient, settings: Callable[..., None]) -> None:
    settings(max_json_values=1000)
    for content in (b"[1," * 600, b'{"a":' * 1001, b"1," * 1001):
        assert_refused(post(client, "/v1/datasets", content), 413, "BCO_MAX_JSON_VALUES")
    check_json(client.post("/v1/problems", json=example_problem()), 201)


def test_json_has_a_limited_depth(client: TestClient) -> None:
    deep = b'{"name": ' + b"[" * 300 + b"]" * 300 + b"}"
    assert_refused(post(client, "/v1/problems", deep), 422, "200 levels")


def test_a_request_with_thousands_of_errors_is_refused_without_a_list(client: TestClient) -> None:
    content = b"{" + b",".join(b'"k%d":1' % number for number in range(5000)) + b"}"
    for path in ("/v1/jobs", "/v1/problems", "/v1/datasets", "/v1/posteriors/post_x/prescribe"):
        answer = post(client, path, content)
        assert_refused(answer, 422, "mistakes")
        assert len(answer.json()["errors"]) == 1
    nested = b'{"name": "x", "spec": {"kind": "newsvendor", "items": [%s]}}' % content
    answer = post(client, "/v1/problems", nested)
    assert_refused(answer, 422, "mistakes")
    assert answer.json()["errors"][0]["pointer"] == "#/spec/items/0"
    few = b"{" + b",".join(b'"k%d":1' % number for number in range(20)) + b"}"
    assert 20 <= len(post(client, "/v1/problems", few).json()["errors"]) <= MOST_MISTAKES


def test_parsing_json_does_not_trigger_garbage_collection() -> None:
    """The parser holds the interpreter lock; garbage collection would block all requests ten times longer."""
    body = b"[" + b",".join(b'{"k%d":[]}' % number for number in range(100_000)) + b"]"
    before = [generation["collections"] for generation in gc.get_stats()]
    assert len(routes.parse_json(body)) == 100_000
    after = [generation["collections"] for generation in gc.get_stats()]
    assert sum(after) - sum(before) < 10
    assert gc.isenabled()
