"""Exceptions; those of refused requests carry the service's own messages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx


class ClientError(Exception):
    """Base class of this package's exceptions."""


@dataclass(frozen=True)
class RequestMistake:
    """One mistake in a request: a JSON pointer to it, and what would be right."""

    pointer: str
    detail: str


class ApiError(ClientError):
    """The service refused a request: RFC 9457 problem details, with ``detail`` as the exception's text."""

    def __init__(
        self, status: int, type: str, title: str, detail: str, errors: tuple[RequestMistake, ...] = ()
    ) -> None:
        self.status = status
        self.type = type
        self.title = title
        self.detail = detail
        self.errors = errors
        super().__init__(status, type, title, detail, errors)

    def __str__(self) -> str:
        lines = [f"{mistake.pointer}: {mistake.detail}" for mistake in self.errors if mistake.detail != self.detail]
        alone = self.errors[0].pointer if len(self.errors) == 1 and not lines else ""
        first = f"{self.detail} ({alone})" if alone else self.detail
        return "\n".join([first, *lines])


class UnprocessableRequest(ApiError):
    """The request is invalid; ``errors`` says where, and what would be right."""


class Unauthorized(ApiError):
    """The service does not know the key."""


class Forbidden(ApiError):
    """The key does not allow this."""


class NotFound(ApiError):
    """There is no such object."""


class Conflict(ApiError):
    """The object's state does not allow this."""


class TooLarge(ApiError):
    """The request is larger than the service accepts."""


class TooManyRequests(ApiError):
    """The rate limit or the capacity is used up, also after retries."""


class Unavailable(ApiError):
    """The service is unavailable, also after retries."""


class ServerError(ApiError):
    """The service failed."""


class Unreachable(ClientError):
    """No answer came, also after retries."""


class UnexpectedAnswer(ClientError):
    """An answer does not look like one of the service."""


class BadSignature(ClientError):
    """A webhook was not signed with this secret, or was signed too long ago."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: UnprocessableRequest,
    429: TooManyRequests,
    503: Unavailable,
}


def of_response(response: httpx.Response) -> ApiError:
    """Return the exception for an answer with an error status."""
    status = response.status_code
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    try:
        document: Any = json.loads(response.content)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("detail"), str):
        sentence = f"the service answered {status} {response.reason_phrase} and did not say why"
        return kind(status, "about:blank", response.reason_phrase, sentence)
    errors = document.get("errors") or []
    return kind(
        status,
        str(document.get("type", "about:blank")),
        str(document.get("title", "")),
        document["detail"],
        tuple(RequestMistake(str(error.get("pointer", "#")), str(error.get("detail", ""))) for error in errors),
    )
