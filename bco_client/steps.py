"""Operations as steps, apart from how they are taken: one code for the blocking and the asynchronous client.

An operation is a generator. It yields requests, pauses and news of a job, is sent the response to each request, and
returns its result. :mod:`bco_client.client` takes the steps with blocking calls, :mod:`bco_client.aio` with awaited
ones. What follows a lost or refused request is written here, once, for both.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from bco_client.errors import BcoError, UnexpectedAnswer, Unreachable, of_response
from bco_client.records import Job, Record, read
from bco_client.to_json import to_json

T = TypeVar("T")
R = TypeVar("R", bound=Record)

# What a proxy or the service says when the same request may succeed a moment later.
_MOMENTARY = (429, 502, 503, 504)
_PAGE = 200


@dataclass(frozen=True)
class Request:
    """One HTTP request. Sent twice it does what it does once: what creates something carries an Idempotency-Key."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    form: Mapping[str, str] | None = None
    files: Mapping[str, tuple[str, bytes]] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """Wait so long before the next step."""

    seconds: float


@dataclass(frozen=True)
class News:
    """How a job that is waited for gets on, for a progress bar."""

    job: Job


Step = Request | Pause | News
Steps = Generator[Step, Any, T]


@dataclass(frozen=True)
class Patience:
    """How often a request is tried in all, and how long to wait before the next try: doubled each time, at random.

    A service that asks for more than ``longest_seconds`` (Retry-After) is not waited for.
    """

    attempts: int = 6
    first_seconds: float = 0.25
    longest_seconds: float = 30.0

    def backoff(self, attempt: int) -> float:
        most: float = min(self.longest_seconds, self.first_seconds * 2 ** (attempt - 1))
        # At random, so that clients which failed together do not come back together.
        return most * random.uniform(0.5, 1.0)  # noqa: S311


# requests


def address(*parts: str) -> str:
    """The path of an object; what is odd in an id or alias cannot lead elsewhere."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def get(*parts: str, **params: Any) -> Request:
    several = {name: list(map(_text, value)) for name, value in params.items() if isinstance(value, list)}
    given = {name: _text(value) for name, value in params.items() if value is not None} | several
    return Request("GET", address(*parts), given)


def ask(*parts: str, body: Mapping[str, Any] | None = None) -> Request:
    """A POST that makes nothing new, or nothing twice by its nature."""
    return Request("POST", address(*parts), body=to_json(body or {}), headers=_JSON)


def put(*parts: str, body: Mapping[str, Any]) -> Request:
    return Request("PUT", address(*parts), body=to_json(body), headers=_JSON)


def delete(*parts: str) -> Request:
    return Request("DELETE", address(*parts))


def create(*parts: str, body: Mapping[str, Any] | None = None, key: str | None = None) -> Request:
    """A POST that makes something: with its Idempotency-Key it may be sent again and makes it once."""
    headers = _keyed(key) if body is None else _keyed(key) | _JSON
    return Request("POST", address(*parts), body=None if body is None else to_json(body), headers=headers)


def upload(*parts: str, form: Mapping[str, str], key: str | None = None, **files: tuple[str, bytes]) -> Request:
    """A POST of files with the fields of a form; it makes something once, like :func:`create`."""
    return Request("POST", address(*parts), form=form, files=files, headers=_keyed(key))


_JSON = {"Content-Type": "application/json"}


def _keyed(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid.uuid4())}


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


# what comes back


def answer(request: Request) -> Steps[Any]:
    """The JSON that a request is answered with; None where the answer is empty."""
    response: httpx.Response = yield request
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError:
        raise UnexpectedAnswer(
            f"{request.path} did not answer with JSON; is this the address of the service?"
        ) from None


def record(kind: type[R], request: Request) -> Steps[R]:
    return read(kind, (yield from answer(request)))


def done(request: Request) -> Steps[None]:
    yield request


def content(request: Request) -> Steps[bytes]:
    response: httpx.Response = yield request
    return response.content


def listed(kind: type[R], /, *parts: str, limit: int | None, **filters: Any) -> Steps[list[R]]:
    """The objects of a list, newest first, page after page: all of them, or so many."""
    found: list[R] = []
    cursor = None
    while limit is None or len(found) < limit:
        size = _PAGE if limit is None else min(_PAGE, limit - len(found))
        page = yield from answer(get(*parts, limit=size, cursor=cursor, **filters))
        found += [read(kind, item) for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    return found


# requests that are sent again


def patiently(steps: Steps[T], patience: Patience) -> Steps[T]:
    """The same steps, each request sent again while that may help; what does not help is raised in them."""
    try:
        step = next(steps)
        while True:
            if not isinstance(step, Request):
                yield step
                step = steps.send(None)
                continue
            try:
                response = yield from _sent(step, patience)
            except BcoError as error:
                step = steps.throw(error)
            else:
                step = steps.send(response)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def _sent(request: Request, patience: Patience) -> Steps[httpx.Response]:
    attempt = 1
    while True:
        may_repeat = attempt < patience.attempts
        try:
            response: httpx.Response = yield request
        except httpx.TransportError as error:
            if not may_repeat:
                raise Unreachable(_unreachable(request, error, attempt)) from error
            wait = patience.backoff(attempt)
        else:
            # A deletion whose answer was lost has been done.
            if response.is_success or (request.method == "DELETE" and attempt > 1 and response.status_code == 404):
                return response
            asked = _wait_asked_for(response)
            # 409 with Retry-After: the same creation is still under way.
            momentary = response.status_code in _MOMENTARY or (response.status_code == 409 and asked is not None)
            if not (may_repeat and momentary) or (asked or 0.0) > patience.longest_seconds:
                raise of_response(response)
            wait = max(asked or 0.0, patience.backoff(attempt))
        yield Pause(wait)
        attempt += 1


def _unreachable(request: Request, error: httpx.TransportError, attempts: int) -> str:
    times = "once" if attempts == 1 else f"{attempts} times"
    return f"no answer to {request.method} {request.path}, tried {times}: {error or type(error).__name__}"


def _wait_asked_for(response: httpx.Response) -> float | None:
    """Seconds from the header Retry-After: a number, or a date."""
    text = response.headers.get("Retry-After", "").strip()
    if not text:
        return None
    if text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
