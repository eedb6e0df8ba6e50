"""Answers on their way into the log, off the path of requests.

``keep`` gives an answer its id and puts it in a queue; one thread of each API process writes what has come within
``COMPANY_SECONDS`` in one transaction. An answer is only given an id if there is room for it: within the rate, within
the size, and in the queue. While the database is out, what has an id waits; once the queue is full, later answers get
none. So an id is lost only if its process is killed before it was written, or stopped while the database is out.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import zlib
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import orjson
from sqlalchemy.dialects import postgresql, sqlite
from starlette.requests import Request

from app import metrics
from app.db import outage
from app.db.base import now
from app.db.blobs import CorruptBlob, checksum, verified
from app.db.engine import get_engine
from app.db.tables import PrescriptionRow
from app.http.security import Caller, TokenBucket
from app.ids import new_id
from app.settings import get_settings

log = logging.getLogger(__name__)

# How long an answer waits for others to be written with; most of the queue; most in one transaction.
COMPANY_SECONDS = 0.2
MOST_WAITING, MOST_BYTES = 5_000, 64_000_000
AT_ONCE = 200
# A call counts as one of BCO_LOG_RATE for each piece of so many bytes.
PIECE_BYTES = 20_000
# How long a service that stops waits for the last answers to be written.
_LAST_SECONDS = 1.5
_ABOUT = re.compile(rb'\{"id":"[^"]*","posterior_id":"([^"]*)","digest":"([^"]*)"')


class Asked(Protocol):
    """A request that can be kept."""

    contexts: list[Any]

    def model_dump(self) -> dict[str, Any]: ...


class _Record(NamedTuple):
    id: str
    kind: str
    caller: Caller
    at: datetime
    request: Asked
    answer: bytes
    bytes: int


class Writer:
    """The queue of one API process and the thread that empties it, which begins with the first answer."""

    def __init__(self) -> None:
        self._waiting: deque[_Record] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._come, self._stop, self._empty = threading.Event(), threading.Event(), threading.Event()
        self._empty.set()
        self._bucket: tuple[int, TokenBucket] = 0, TokenBucket(1)
        self._thread: threading.Thread | None = None

    def keep(self, kind: str, http: Request, request: Asked, answer: bytes) -> bytes:
        """The answer, a JSON object, with its id first; null for one that is not kept."""
        asked, answered = _length(http, request), len(answer)
        # Somebody who drags a decision to and fro on a page asks for hundreds of answers that nobody acts on.
        why_not = self._why_not(asked, answered) if http.scope.get("kept", True) else "tried"
        if why_not:
            metrics.LOGGED.labels(why_not).inc()
            return b'{"id":null,' + answer[1:]
        identifier = new_id("pres")
        answer = b'{"id":"%b",%b' % (identifier.encode(), answer[1:])
        with self._lock:
            size = asked + answered
            self._waiting.append(_Record(identifier, kind, http.scope["caller"], now(), request, answer, size))
            self._bytes += size
            self._empty.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prescription log", daemon=True)
                self._thread.start()
        self._come.set()
        return answer

    def _why_not(self, asked: int, answered: int) -> str | None:
        """Why a request and an answer of so many bytes are not kept, in a word for the metrics; None if they are."""
        settings = get_settings()
        if not settings.log_prescriptions or self._stop.is_set():
            return "off"
        if max(asked, answered) > 1000 * settings.log_max_kb:
            return "large"
        if len(self._waiting) >= MOST_WAITING or self._bytes + asked + answered > MOST_BYTES:
            return "full"
        if self._bucket[0] != settings.log_rate:
            self._bucket = settings.log_rate, TokenBucket(settings.log_rate)
        # A large one must not cost more than there ever is.
        pieces = min(1 + answered // PIECE_BYTES, 2 * settings.log_rate)
        return "sampled" if self._bucket[1].take(pieces) else None

    def flush(self, seconds: float) -> bool:
        """Wait until everything that was kept is written; whether it is."""
        return self._empty.wait(seconds)

    def close(self) -> None:
        """Write what waits, and end; what cannot be written now is lost."""
        self._stop.set()
        self._come.set()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)
        if self._waiting:
            log.warning("%d prescriptions were not written in time, and are lost", len(self._waiting))

    def _run(self) -> None:
        while not self._stop.is_set() or self._waiting:
            self._come.wait()
            self._come.clear()
            self._stop.wait(COMPANY_SECONDS)
            while self._waiting:
                # What is being written still counts as waiting.
                batch = [self._waiting[number] for number in range(min(AT_ONCE, len(self._waiting)))]
                metrics.LOG_WAITING.set(len(self._waiting))
                self._write(batch)
                with self._lock:
                    for record in batch:
                        self._waiting.popleft()
                        self._bytes -= record.bytes
                    if not self._waiting:
                        self._empty.set()
            metrics.LOG_WAITING.set(0)

    def _write(self, batch: Sequence[_Record]) -> None:
        """Write a batch down, however long the database is out, unless the service stops meanwhile."""
        rows = [row for row in map(_row, batch) if row is not None]
        written = 0
        try:
            if rows:
                outage.insist(lambda: _insert(rows), self._stop)
            written = len(rows)
        except Exception as error:
            # The caller's answer is as good as ever; what failed is said here and in the metrics.
            log.exception("%d prescriptions could not be kept: %s", len(rows), outage.in_words(error))
        metrics.LOGGED.labels("kept").inc(written)
        metrics.LOGGED.labels("lost").inc(len(batch) - written)


def _length(http: Request, request: Asked) -> int:
    """The bytes of a request: as its header says or, where it does not, as they are."""
    for name, value in http.scope["headers"]:
        if name == b"content-length":
            return int(value)
    return len(as_json(request.model_dump()))


def as_json(fields: dict[str, Any]) -> bytes:
    """Everything that was asked for, defaults too: what is left out today may mean something else tomorrow."""
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:
        # Half a character, or a number of more than 64 bits, in a context that is refused or does not matter.
        return json.dumps(fields).encode()


def _row(record: _Record) -> dict[str, Any] | None:
    try:
        about = _ABOUT.match(record.answer)
        if about is None:
            raise ValueError("the answer does not begin with its posterior and digest")
        request = as_json(record.request.model_dump())
    except Exception:
        log.exception("the prescription %s could not be kept", record.id)
        return None
    return {
        "id": record.id,
        "workspace": record.caller.workspace,
        "kind": record.kind,
        "posterior_id": about[1].decode(),
        "digest": about[2].decode(),
        "key_id": record.caller.key_id,
        "created_at": record.at,
        "contexts": len(record.request.contexts),
        "request_sha256": checksum(request),
        "request": packed(request),
        "answer_sha256": checksum(record.answer),
        "answer": packed(record.answer),
    }


def _insert(rows: list[dict[str, Any]]) -> None:
    with get_engine().begin() as connection:
        inserting = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        # A connection that breaks in the middle of a commit does not tell whether it went through.
        connection.execute(inserting(PrescriptionRow).on_conflict_do_nothing(), rows)


def packed(data: bytes) -> bytes:
    return zlib.compress(data, 1)


def unpacked(data: bytes, sha256: str) -> bytes:
    try:
        return verified(zlib.decompress(data), sha256)
    except zlib.error:
        raise CorruptBlob("a stored prescription cannot be unpacked; restore the database from a backup") from None
