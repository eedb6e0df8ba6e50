"""Retries of requests: which failures may pass, and how long to wait."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx

from bco_client.errors import ClientError, Unreachable, of_response
from bco_client.steps import HttpRequest, Pause, Steps

T = TypeVar("T")

# Statuses of a proxy or the service after which the same request may succeed a moment later.
_TRANSIENT = (429, 502, 503, 504)


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
