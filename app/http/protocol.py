"""HTTP/1.1 with limits on the size and speed of requests, and on connections.

uvicorn's parser buffers everything until the headers are complete, before any key is checked. Here the headers are
limited in size, number and time, bodies in how slowly they may arrive, and connections by client address. A request
that arrives in one piece, as most do, costs a comparison or two; timers run only for incomplete requests.
"""

from __future__ import annotations

import asyncio
import math
import resource
from collections import Counter
from enum import Enum
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app import metrics
from app.http.errors import answer
from app.settings import Settings

# Requests on one connection that may be sent before the first is answered.
MOST_PIPELINED = 16
# A body that arrives more slowly than this counts as stalled.
SLOWEST_BYTES_PER_SECOND = 1_000
# Open files that are not connections: the database, uploads, solvers.
SPARE_FILES = 200
# Time for a refused client to read its answer; what it still sends is discarded.
LINGER_SECONDS = 1.0


class Phase(Enum):
    """What the server waits for: nothing, the rest of the headers, the rest of the body."""

    NOTHING = 0
    HEADERS = 1
    BODY = 2


def limited_protocol(settings: Settings) -> type[asyncio.Protocol]:
    """Return the protocol of a server with these limits; all its connections are counted together."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = math.inf if files == resource.RLIM_INFINITY else max(files - SPARE_FILES, files // 2)
    protocol: Any = partial(LimitedProtocol, settings=settings, most_connections=most, addresses=Counter())
    return protocol  # type: ignore[no-any-return]


class LimitedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with limits: a client that exceeds one gets an error answer and is disconnected."""

    def __init__(self, *, settings: Settings, most_connections: float, addresses: Counter[str], **server: Any) -> None:
        super().__init__(**server)
        self._settings, self._most_connections, self._addresses = settings, most_connections, addresses
        self._most_header_bytes = settings.max_header_kb * 1_000
        self._most_body_bytes = settings.max_body_mb * 1_000_000
        self._phase = Phase.HEADERS
        # bytes not parsed yet; bytes of the body in this interval; bytes of the body after its answer
        self._unread = self._in_interval = self._discarded = 0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: tuple[int, str, str] | None = None
        self._address, self._refused = "", False

    # connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # A socket without an address, such as a proxy's, is not counted.
        address, most = self.client[0] if self.client else "", self._settings.max_connections_per_address
        if address and most and self._addresses[address] >= most:
            limit = f"{most} connections from one address (BCO_MAX_CONNECTIONS_PER_ADDRESS)"
            self._refuse(429, "connections", f"there are already {limit}; close some or reuse them")
            return
        if len(self.connections) > self._most_connections:
            self._refuse(503, "connections", "this process has as many connections as it may have; try again later")
            return
        self._address = address
        self._addresses[address] += 1
        self._since = self.loop.time()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._address:
            self._addresses[self._address] -= 1
            if not self._addresses[self._address]:
                del self._addresses[self._address]
        super().connection_lost(exc)

    # input

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._unread + len(data) <= self._most_header_bytes:
            self._unread += len(data)
            super().data_received(data)
        else:
            self._in_pieces(data)
        if self._phase is Phase.NOTHING and self._unread:
            # Empty lines before a request begin it, too.
            self._phase, self._since = Phase.HEADERS, self.loop.time()
        if self._phase is not Phase.NOTHING and self._timer is None:
            self._watch()

    def _in_pieces(self, data: bytes) -> None:
        """Feed the parser in pieces no larger than headers may be, and check that it makes progress."""
        rest = memoryview(data)
        while rest and not self._refused:
            room = self._most_header_bytes - self._unread
            if room <= 0:
                limit = f"{self._settings.max_header_kb} kB (BCO_MAX_HEADER_KB)"
                self._refuse(431, "headers", f"the headers of a request may have at most {limit}")
                return
            piece, rest = rest[:room], rest[room:]
            self._unread += len(piece)
            super().data_received(piece)  # type: ignore[arg-type]

    def on_message_begin(self) -> None:
        self._phase, self._since = Phase.HEADERS, self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.headers) > self._settings.max_headers:
            limit = f"{self._settings.max_headers} headers (BCO_MAX_HEADERS)"
            self._stop_parser(431, "headers", f"a request may have at most {limit}")
        if len(self.pipeline) >= MOST_PIPELINED:
            self._stop_parser(
                429, "pipelined", f"at most {MOST_PIPELINED} requests may wait for an answer on one connection"
            )
        self._phase, self._since = Phase.BODY, self.loop.time()
        self._unread = self._in_interval = self._discarded = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        self._in_interval += len(body)
        if self.cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > self._most_body_bytes:
                self._stop_parser(413, "body", "the request was already answered, but its body continues")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = Phase.NOTHING
        self._unread = 0
        super().on_message_complete()

    # time

    def _watch(self) -> None:
        seconds = self._settings.header_seconds if self._phase is Phase.HEADERS else self._settings.body_seconds
        self._timer = self.loop.call_later(max(0.01, self._since + seconds - self.loop.time()), self._check)

    def _check(self) -> None:
        """Refuse a request that is too slow; a body is judged by the bytes since the last check."""
        self._timer = None
        if self._phase is Phase.NOTHING or self._refused or self.transport.is_closing():
            return
        now = self.loop.time()
        if self._phase is Phase.HEADERS:
            if now - self._since >= self._settings.header_seconds:
                if not self._unread:
                    # Browsers open connections that they may never use.
                    self.transport.close()
                    return
                limit = f"{self._settings.header_seconds:g} s (BCO_HEADER_SECONDS)"
                self._refuse(408, "slow headers", f"the headers of a request must be complete within {limit}")
                return
        elif now - self._since >= self._settings.body_seconds:
            # While reading is paused, the server keeps the client waiting.
            if not self.flow.read_paused and self._in_interval < self._settings.body_seconds * SLOWEST_BYTES_PER_SECOND:
                limit = f"{self._settings.body_seconds:g} s (BCO_BODY_SECONDS)"
                self._refuse(408, "slow body", f"the body of the request has stalled for {limit}")
                return
            self._since, self._in_interval = now, 0
        self._watch()

    # refusals

    def _stop_parser(self, status: int, reason: str, detail: str) -> None:
        """Stop the parser from inside a callback; it then calls ``send_400_response``."""
        self._refusal = status, reason, detail
        raise ValueError(detail)

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (400, "invalid", "this is not a valid HTTP request")))

    def _refuse(self, status: int, reason: str, detail: str) -> None:
        """Answer, unless another answer comes next, and close."""
        if self._refused or self.transport.is_closing():
            return
        metrics.REFUSED_CONNECTIONS.labels(reason).inc()
        self._refused = True
        self._unset_keepalive_if_required()
        if not self._may_answer():
            self.transport.close()
            return
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(_render(status, detail))
        self.transport.write_eof()
        # If it were closed at once, with unread input, the connection would be reset and the answer lost.
        self.flow.resume_reading()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _may_answer(self) -> bool:
        """Return whether the answer of the refused request comes next."""
        if self.cycle is None:
            return True
        if self._phase is Phase.BODY:
            return not self.cycle.response_started and not self.pipeline
        return self.cycle.response_complete


@lru_cache
def _render(status: int, detail: str) -> bytes:
    phrase = HTTPStatus(status).phrase
    response = answer(status, phrase.lower().replace(" ", "-"), phrase, detail, headers={"Connection": "close"})
    lines = [name + b": " + value + b"\r\n" for name, value in response.raw_headers]
    return b"".join([STATUS_LINE[status], *lines, b"\r\n", bytes(response.body)])
