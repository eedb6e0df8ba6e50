"""What can go wrong, as exceptions that carry the service's own sentences."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx


class BcoError(Exception):
    """Everything that this package raises by itself."""


@dataclass(frozen=True)
class Mistake:
    """One offending place of a request: a JSON pointer into it, and what would be right."""

    pointer: str
    detail: str


class ApiError(BcoError):
    """The service refused a request: RFC 9457 problem details, with the sentence as the exception's text."""

    def __init__(self, status: int, type: str, title: str, detail: str, errors: tuple[Mistake, ...] = ()) -> None:
        self.status = status
        self.type = type
        self.title = title
        self.detail = detail
        self.errors = errors
        super().__init__(status, type, title, detail, errors)

    def __str__(self) -> str:
        told = [f"{mistake.pointer}: {mistake.detail}" for mistake in self.errors if mistake.detail != self.detail]
        alone = self.errors[0].pointer if len(self.errors) == 1 and not told else ""
        first = f"{self.detail} ({alone})" if alone else self.detail
        return "\n".join([first, *told])


class InvalidInput(ApiError):
    """The request cannot be used as it is; ``errors`` says where and what would be right."""


class Unauthorized(ApiError):
    """The service does not know the key."""


class Forbidden(ApiError):
    """The key does not allow this."""


class NotFound(ApiError):
    """There is no such object."""


class Conflict(ApiError):
    """The object's state does not allow this."""


class TooLarge(ApiError):
    """The request is larger than the service takes."""


class TooManyRequests(ApiError):
    """The key's rate or the service's places are used up, also after waiting."""


class Unavailable(ApiError):
    """The service cannot answer right now, also after trying again."""


class ServerError(ApiError):
    """Something went wrong on the service's side."""


class Unreachable(BcoError):
    """No answer came, also after trying again."""


class UnexpectedAnswer(BcoError):
    """An answer is not what the service's answers look like."""


class BadSignature(BcoError):
    """A webhook was not signed with this secret, or too long ago."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: InvalidInput,
    429: TooManyRequests,
    503: Unavailable,
}


def of_response(response: httpx.Response) -> ApiError:
    """The exception that an answer with an error status stands for."""
    status = response.status_code
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    try:
        told: Any = json.loads(response.content)
    except ValueError:
        told = None
    if not isinstance(told, dict) or not isinstance(told.get("detail"), str):
        sentence = f"the service answered {status} {response.reason_phrase} and did not say why"
        return kind(status, "about:blank", response.reason_phrase, sentence)
    errors = told.get("errors") or []
    return kind(
        status,
        str(told.get("type", "about:blank")),
        str(told.get("title", "")),
        told["detail"],
        tuple(Mistake(str(error.get("pointer", "#")), str(error.get("detail", ""))) for error in errors),
    )
