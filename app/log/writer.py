"""Write answers to the log in the background, so that requests do not wait for it.

``keep`` gives an answer its id and queues it; one thread of each API process writes the answers of ``BATCH_SECONDS`` in
one transaction. An answer gets an id only if the rate, its size and the queue allow to keep it. While the database is
out, answers with an id wait; once the queue is full, later answers get none. So an id is lost only if its process is
killed before it is written, or stopped while the database is out.
"""

from __future__ import annotations

import json
import logging
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
from app.db.blobs import CorruptBlob, checksum, verify
from app.db.engine import get_engine
from app.db.tables import PrescriptionRow
from app.http.security import Caller, TokenBucket
from app.ids import new_id
from app.prescriptions.context import AnswerBody
from app.settings import get_settings

log = logging.getLogger(__name__)

# Answers of this long are written together; limits of the queue; most answers in one transaction.
BATCH_SECONDS = 0.2
MOST_WAITING, MOST_BYTES = 5_000, 64_000_000
AT_ONCE = 200
# A call counts once towards BCO_LOG_RATE for each piece of this size.
PIECE_BYTES = 20_000
# How long a stopping service waits for the last answers to be written.
_LAST_SECONDS = 1.5


class LoggedRequest(Protocol):
    """A request that can be logged."""

    contexts: list[Any]

    def model_dump(self) -> dict[str, Any]: ...


class _Record(NamedTuple):
    id: str
    kind: str
    caller: Caller
    at: datetime
    posterior_id: str
    digest: str
    request: LoggedRequest
    answer: bytes
    bytes: int


class Writer:
    """The queue of one API process and the thread that empties it, which starts with the first answer."""

    def __init__(self) -> None:
        self._waiting: deque[_Record] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._come, self._stop, self._empty = threading.Event(), threading.Event(), threading.Event()
        self._empty.set()
        self._bucket: tuple[int, TokenBucket] = 0, TokenBucket(1)
        self._thread: threading.Thread | None = None

    def keep(self, kind: str, http: Request, request: LoggedRequest, body: AnswerBody) -> bytes:
        """Queue an answer, and return it as JSON with its id; the id is null for an answer that is not kept."""
        asked, answered = _length(http, request), len(body.content)
        # A decision dragged about on a page gives hundreds of answers that nobody acts on.
        why_not = self._why_not(asked, answered) if http.scope.get("kept", True) else "tried"
        if why_not:
            metrics.LOGGED.labels(why_not).inc()
            return body.with_id(None)
        identifier, caller, size = new_id("pres"), http.scope["caller"], asked + answered
        answer = body.with_id(identifier)
        record = _Record(identifier, kind, caller, now(), body.posterior_id, body.digest, request, answer, size)
        with self._lock:
            self._waiting.append(record)
            self._bytes += size
            self._empty.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prescription log", daemon=True)
                self._thread.start()
        self._come.set()
        return answer

    def _why_not(self, asked: int, answered: int) -> str | None:
        """Return why a request and an answer of these sizes are not kept, as a metrics label; None if they are."""
        settings = get_settings()
        if not settings.log_prescriptions or self._stop.is_set():
            return "off"
        if max(asked, answered) > 1000 * settings.log_max_kb:
            return "large"
        if len(self._waiting) >= MOST_WAITING or self._bytes + asked + answered > MOST_BYTES:
            return "full"
        if self._bucket[0] != settings.log_rate:
            self._bucket = settings.log_rate, TokenBucket(settings.log_rate)
        # A large answer must not cost more tokens than the bucket holds.
        pieces = min(1 + answered // PIECE_BYTES, 2 * settings.log_rate)
        return "sampled" if self._bucket[1].take(pieces) else None

    def flush(self, seconds: float) -> bool:
        """Wait until the queue is written; return whether it is."""
        return self._empty.wait(seconds)

    def close(self) -> None:
        """Write the queue and stop; answers that cannot be written now are lost."""
        self._stop.set()
        self._come.set()
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)
        if self._waiting:
            log.warning("%d prescriptions were not written in time and are lost", len(self._waiting))

    def _run(self) -> None:
        while not self._stop.is_set() or self._waiting:
            self._come.wait()
            self._come.clear()
            self._stop.wait(BATCH_SECONDS)
            while self._waiting:
                # Answers being written still count as waiting.
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
        """Write a batch, however long the database is out, unless the service stops meanwhile."""
        rows = [row for row in map(_row, batch) if row is not None]
        written = 0
        try:
            if rows:
                outage.insist(lambda: _insert(rows), self._stop)
            written = len(rows)
        except Exception as error:
            # The caller has its answer; the failure shows here and in the metrics.
            log.exception("%d prescriptions could not be kept: %s", len(rows), outage.in_words(error))
        metrics.LOGGED.labels("kept").inc(written)
        metrics.LOGGED.labels("lost").inc(len(batch) - written)


def _length(http: Request, request: LoggedRequest) -> int:
    """Return the size of a request in bytes, by its header or else by serialising it."""
    for name, value in http.scope["headers"]:
        if name == b"content-length":
            return int(value)
    return len(as_json(request.model_dump()))


def as_json(fields: dict[str, Any]) -> bytes:
    """Serialise a request with its defaults, which may change in later versions."""
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:
        # A lone surrogate, or a number of more than 64 bits, in a context that is refused or ignored.
        return json.dumps(fields).encode()


def _row(record: _Record) -> dict[str, Any] | None:
    try:
        request = as_json(record.request.model_dump())
    except Exception:
        log.exception("the prescription %s could not be kept", record.id)
        return None
    return {
        "id": record.id,
        "workspace": record.caller.workspace,
        "kind": record.kind,
        "posterior_id": record.posterior_id,
        "digest": record.digest,
        "key_id": record.caller.key_id,
        "created_at": record.at,
        "contexts": len(record.request.contexts),
        "request_sha256": checksum(request),
        "request": compress(request),
        "answer_sha256": checksum(record.answer),
        "answer": compress(record.answer),
    }


def _insert(rows: list[dict[str, Any]]) -> None:
    with get_engine().begin() as connection:
        inserting = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
        # If the connection breaks during a commit, the rows may be written already.
        connection.execute(inserting(PrescriptionRow).on_conflict_do_nothing(), rows)


def compress(data: bytes) -> bytes:
    return zlib.compress(data, 1)


def decompress(data: bytes, sha256: str) -> bytes:
    try:
        return verify(zlib.decompress(data), sha256)
    except zlib.error:
        raise CorruptBlob("a stored prescription cannot be decompressed; restore the database from a backup") from None
