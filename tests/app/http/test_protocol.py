"""HTTP protocol limits: sizes, timeouts and connections, before authentication."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
import uvicorn

from app.commands.serve import free_port
from app.http.protocol import MOST_PIPELINED, limited_protocol
from app.settings import Settings
from tests.support.polling import within

LIMITS = {"max_header_kb": 16, "max_headers": 50, "header_seconds": 1.0, "body_seconds": 1.0, "max_body_mb": 1}
JSON = b"HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Application:
    """Answer with the length of the body at /read, at once elsewhere; record the requested paths."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, scope: dict, receive: Callable, send: Callable) -> None:  # type: ignore[type-arg]
        if scope["type"] != "http":
            return
        self.paths.append(scope["path"])
        length, more = 0, scope["path"] == "/read"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.paths.append("gone")
                return
            length += len(message["body"])
            more = message["more_body"]
        if scope["path"] == "/wait":
            await asyncio.sleep(2.5)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(length).encode()})


@contextmanager
def run_server(application: Application, **changes: object) -> Iterator[int]:
    port = free_port()
    limits = Settings(**LIMITS | changes)  # type: ignore[arg-type]
    server = uvicorn.Server(
        uvicorn.Config(application, port=port, http=limited_protocol(limits), log_config=None, timeout_keep_alive=30)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    within("the server listens", lambda: server.started, 10)
    try:
        yield port
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
def port(application: Application) -> Iterator[int]:
    with run_server(application) as port:
        yield port


@contextmanager
def connection(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as made:
        yield made


def read_all(made: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    received = b""
    while piece := made.recv(65536):
        received += piece
    return received


def send_all(made: socket.socket, pieces: Iterator[bytes]) -> int:
    """Send until the server stops reading; return the number of bytes sent."""
    sent = 0
    try:
        for piece in pieces:
            made.sendall(piece)
            sent += len(piece)
    except OSError:
        pass
    return sent


def assert_refused(received: bytes, status: int, words: str) -> None:
    assert received.startswith(b"HTTP/1.1 %d " % status), received[:200]
    assert b"application/problem+json" in received
    assert b"connection: close" in received.lower()
    assert words.encode() in received


@pytest.mark.parametrize("line", [b"X-A: " + b"x" * 1000 + b"\r\n", b"x" * 1000], ids=["lines", "one line"])
def test_headers_over_the_limit_are_refused_before_they_are_stored(
    port: int, application: Application, line: bytes
) -> None:
    with connection(port) as made:
        made.sendall(b"GET /read HTTP/1.1\r\nX-Long: ")
        made.sendall(line * 20)
        assert_refused(read_all(made), 431, "BCO_MAX_HEADER_KB")
    assert application.paths == []


def test_forty_megabytes_of_headers_are_not_read(port: int) -> None:
    with connection(port) as made:
        sent = send_all(made, (b"X-A: " + b"x" * 100_000 + b"\r\n" for _ in range(400_000)))
        # Bytes that arrive while the client reads the answer are discarded.
        assert sent < 400_000 * 100_000
    assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200


def test_too_many_headers_are_refused(port: int, application: Application) -> None:
    with connection(port) as made:
        made.sendall(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 51 + b"\r\n")
        assert_refused(read_all(made), 431, "BCO_MAX_HEADERS")
    assert application.paths == []
    assert httpx.get(f"http://127.0.0.1:{port}/", headers={f"X-{n}": "b" for n in range(40)}).status_code == 200


def test_trailers_after_a_chunked_body_are_limited_too(port: int) -> None:
    with connection(port) as made:
        made.sendall(b"POST /read " + JSON + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n")
        made.sendall(b"X-A: " + b"x" * 60_000)
        assert_refused(read_all(made), 431, "BCO_MAX_HEADER_KB")


def test_a_large_body_does_not_count_as_headers(port: int) -> None:
    content = b"x" * 900_000
    assert httpx.post(f"http://127.0.0.1:{port}/read", content=content).text == "900000"
    pieces = (b"x" * 1000 for _ in range(900))
    assert httpx.post(f"http://127.0.0.1:{port}/read", content=pieces).text == "900000"


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nHost: lo", b"G", b"\r\n"], ids=["headers", "method", "blank"])
def test_a_half_sent_request_is_closed_in_time(port: int, start: bytes) -> None:
    with connection(port) as made:
        began = time.monotonic()
        made.sendall(start)
        assert_refused(read_all(made), 408, "BCO_HEADER_SECONDS")
        assert time.monotonic() - began > 0.9


def test_a_request_sent_byte_by_byte_is_closed_in_time(port: int) -> None:
    with connection(port) as made:
        request = b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 100

        def send_slowly() -> Iterator[bytes]:
            for letter in request:
                yield bytes([letter])
                time.sleep(0.05)

        assert send_all(made, send_slowly()) < len(request) / 2


def test_a_silent_connection_is_closed_without_a_response(port: int) -> None:
    with connection(port) as made:
        assert read_all(made) == b""


def test_blank_lines_after_an_answer_do_not_keep_a_connection(port: int) -> None:
    with connection(port) as made:
        made.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = made.recv(65536)
        while not received.endswith(b"0\r\n\r\n"):
            received += made.recv(65536)
        made.sendall(b"\r\n")
        assert_refused(read_all(made), 408, "BCO_HEADER_SECONDS")


def test_a_stalled_body_gets_408_and_its_request_ends(port: int, application: Application) -> None:
    with connection(port) as made:
        made.sendall(b"POST /read " + JSON + b"Content-Length: 100\r\n\r\n{")
        assert_refused(read_all(made), 408, "BCO_BODY_SECONDS")
    within("the request ends", lambda: application.paths == ["/read", "gone"], 5)


def test_a_slow_body_gets_408(port: int) -> None:
    with connection(port) as made:
        made.sendall(b"POST /read " + JSON + b"Content-Length: 5000\r\n\r\n")

        def drip() -> Iterator[bytes]:
            for _ in range(5000):
                yield b"x"
                time.sleep(0.05)

        assert send_all(made, drip()) < 500


@pytest.mark.slow
def test_a_slow_answer_does_not_time_out_the_client(port: int) -> None:
    assert httpx.get(f"http://127.0.0.1:{port}/wait", timeout=20).status_code == 200
    assert httpx.post(f"http://127.0.0.1:{port}/wait", content=b"x" * 500_000, timeout=20).status_code == 200


@pytest.mark.slow
def test_an_idle_connection_can_be_reused(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            assert client.get("/").status_code == 200
            time.sleep(1.5)


def test_a_body_that_continues_long_after_its_answer_is_cut_off(port: int) -> None:
    with connection(port) as made:
        made.sendall(b"POST /at-once " + JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = send_all(made, (b"2710\r\n" + b"x" * 10_000 + b"\r\n" for _ in range(2000)))
        assert sent < 20_000_000


def test_an_address_has_a_limited_number_of_connections_and_regains_them() -> None:
    with run_server(Application(), max_connections_per_address=5) as port, ExitStack() as stack:
        held = [stack.enter_context(connection(port)) for _ in range(5)]
        for made in held:
            made.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert made.recv(65536).startswith(b"HTTP/1.1 200")
        with connection(port) as made:
            assert_refused(read_all(made), 429, "BCO_MAX_CONNECTIONS_PER_ADDRESS")
        held[0].close()

        def is_free() -> bool:
            return httpx.get(f"http://127.0.0.1:{port}/").status_code == 200

        within("a connection is free", is_free, 5)


def test_connections_leave_file_descriptors_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (6, 6))
    with run_server(Application(), max_connections_per_address=0) as port, ExitStack() as stack:
        for _ in range(3):
            made = stack.enter_context(connection(port))
            made.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert made.recv(65536).startswith(b"HTTP/1.1 200")
        with connection(port) as made:
            assert_refused(read_all(made), 503, "as many connections")


def test_pipelined_requests_on_one_connection_are_limited(port: int, application: Application) -> None:
    with connection(port) as made:
        made.sendall(b"GET /wait HTTP/1.1\r\nHost: localhost\r\n\r\n" * (MOST_PIPELINED + 10))
        read_all(made)
    assert len(application.paths) <= MOST_PIPELINED + 1


def test_bytes_that_are_not_http_get_a_problem_document(port: int) -> None:
    with connection(port) as made:
        made.sendall(b"\x16\x03\x01 this is no request\r\n\r\n")
        assert_refused(read_all(made), 400, "not a valid HTTP request")
