"""Operations as steps: one implementation for the blocking and the asynchronous client.

An operation is a generator. It yields requests, pauses and the progress of a job, receives the response to each
request, and returns its result. :mod:`bco_client.client` performs the steps with blocking calls,
:mod:`bco_client.aio` with awaited ones; :mod:`bco_client.retries` repeats requests for both.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from bco_client.errors import UnexpectedAnswer
from bco_client.records import JobRecord, Record, read
from bco_client.to_json import to_json

T = TypeVar("T")
R = TypeVar("R", bound=Record)

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
