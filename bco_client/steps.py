"""Operations as steps: one implementation for the blocking and the asynchronous client.

An operation is a generator. It yields requests, pauses and the progress of a job, receives the response to each
request, and returns its result. :mod:`bco_client.client` performs the steps with blocking calls,
:mod:`bco_client.aio` with awaited ones. Retries are here, once, for both.
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

from bco_client.errors import ClientError, UnexpectedAnswer, Unreachable, of_response
from bco_client.records import JobRecord, Record, read
from bco_client.to_json import to_json

T = TypeVar("T")
R = TypeVar("R", bound=Record)

# Statuses of a proxy or the service after which the same request may succeed a moment later.
_TRANSIENT = (429, 502, 503, 504)
_PAGE = 200


@dataclass(frozen=True)
class HttpRequest:
    """One HTTP request. It is safe to repeat: requests that create something carry an Idempotency-Key."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = None
    form: Mapping[str, str] | None = None
    files: Mapping[str, tuple[str, bytes]] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    """Wait before the next step."""

    seconds: float


@dataclass(frozen=True)
class JobProgress:
    """Progress of an awaited job, for a progress bar."""

    job: JobRecord


Step = HttpRequest | Pause | JobProgress
Steps = Generator[Step, Any, T]


@dataclass(frozen=True)
class RetryOptions:
    """Attempts for each request, and the pause before the next one, which doubles each time and is randomised.

    If the service asks for more than ``longest_seconds`` (Retry-After), the request fails at once.
    """

    attempts: int = 6
    first_seconds: float = 0.25
    longest_seconds: float = 30.0

    def backoff(self, attempt: int) -> float:
        most: float = min(self.longest_seconds, self.first_seconds * 2 ** (attempt - 1))
        # Randomised, so that clients that failed together do not return together.
        return most * random.uniform(0.5, 1.0)  # noqa: S311


# requests


def address(*parts: str) -> str:
    """Return the path of an object; ids and aliases are quoted, so that they cannot change the path."""
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def get(*parts: str, **params: Any) -> HttpRequest:
    several = {name: list(map(_text, value)) for name, value in params.items() if isinstance(value, list)}
    given = {name: _text(value) for name, value in params.items() if value is not None} | several
    return HttpRequest("GET", address(*parts), given)


def ask(*parts: str, body: Mapping[str, Any] | None = None) -> HttpRequest:
    """Return a POST that creates nothing, or is idempotent by itself."""
    return HttpRequest("POST", address(*parts), body=to_json(body or {}), headers=_JSON)


def put(*parts: str, body: Mapping[str, Any]) -> HttpRequest:
    return HttpRequest("PUT", address(*parts), body=to_json(body), headers=_JSON)


def delete(*parts: str) -> HttpRequest:
    return HttpRequest("DELETE", address(*parts))


def create(*parts: str, body: Mapping[str, Any] | None = None, key: str | None = None) -> HttpRequest:
    """Return a POST that creates something, with an Idempotency-Key so that repeats create nothing more."""
    headers = _keyed(key) if body is None else _keyed(key) | _JSON
    return HttpRequest("POST", address(*parts), body=None if body is None else to_json(body), headers=headers)


def upload(*parts: str, form: Mapping[str, str], key: str | None = None, **files: tuple[str, bytes]) -> HttpRequest:
    """Return a POST of files and form fields, with an Idempotency-Key like :func:`create`."""
    return HttpRequest("POST", address(*parts), form=form, files=files, headers=_keyed(key))


_JSON = {"Content-Type": "application/json"}


def _keyed(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid.uuid4())}


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


# answers


def answer(request: HttpRequest) -> Steps[Any]:
    """Return the JSON answer to a request; None if it is empty."""
    response: httpx.Response = yield request
    if not response.content:
        return None
    try:
        return response.json()
    except ValueError:
        raise UnexpectedAnswer(
            f"{request.path} did not answer with JSON; is this the address of the service?"
        ) from None


def record(kind: type[R], request: HttpRequest) -> Steps[R]:
    return read(kind, (yield from answer(request)))


def done(request: HttpRequest) -> Steps[None]:
    yield request


def content(request: HttpRequest) -> Steps[bytes]:
    response: httpx.Response = yield request
    return response.content


def listed(kind: type[R], /, *parts: str, limit: int | None, **filters: Any) -> Steps[list[R]]:
    """Return the objects of a list, newest first, page by page: all, or up to ``limit``."""
    items: list[R] = []
    cursor = None
    while limit is None or len(items) < limit:
        size = _PAGE if limit is None else min(_PAGE, limit - len(items))
        page = yield from answer(get(*parts, limit=size, cursor=cursor, **filters))
        items += [read(kind, item) for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    return items


# retries


def with_retries(steps: Steps[T], retries: RetryOptions) -> Steps[T]:
    """Run the same steps, retrying each request while that may help; raise the final error in them."""
    try:
        step = next(steps)
        while True:
            if not isinstance(step, HttpRequest):
                yield step
                step = steps.send(None)
                continue
            try:
                response = yield from _send(step, retries)
            except ClientError as error:
                step = steps.throw(error)
            else:
                step = steps.send(response)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def _send(request: HttpRequest, retries: RetryOptions) -> Steps[httpx.Response]:
    attempt = 1
    while True:
        may_repeat = attempt < retries.attempts
        try:
            response: httpx.Response = yield request
        except httpx.TransportError as error:
            if not may_repeat:
                raise Unreachable(_unreachable(request, error, attempt)) from error
            wait = retries.backoff(attempt)
        else:
            # A repeated deletion that finds nothing has succeeded before: only its answer was lost.
            if response.is_success or (request.method == "DELETE" and attempt > 1 and response.status_code == 404):
                return response
            requested = _retry_after(response)
            # 409 with Retry-After: the first attempt is still under way.
            transient = response.status_code in _TRANSIENT or (response.status_code == 409 and requested is not None)
            if not (may_repeat and transient) or (requested or 0.0) > retries.longest_seconds:
                raise of_response(response)
            wait = max(requested or 0.0, retries.backoff(attempt))
        yield Pause(wait)
        attempt += 1


def _unreachable(request: HttpRequest, error: httpx.TransportError, attempts: int) -> str:
    times = "once" if attempts == 1 else f"{attempts} times"
    return f"no answer to {request.method} {request.path}, tried {times}: {error or type(error).__name__}"


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of the Retry-After header, which is a number or a date."""
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
