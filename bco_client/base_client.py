"""What both clients share: where the service is, how patient to be, and methods made of operations."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import httpx

from bco_client.records import Posterior
from bco_client.steps import Request

DEFAULT_URL = "http://127.0.0.1:8000"
# A prescription may take a minute; so may an upload that is read within its limits.
DEFAULT_TIMEOUT = 120.0


def connection(base_url: str | None, api_key: str | None, timeout: float) -> dict[str, Any]:
    """The arguments of httpx's clients; BCO_URL and BCO_API_KEY say where and who unless arguments do."""
    key = api_key or os.environ.get("BCO_API_KEY")
    return {
        "base_url": base_url or os.environ.get("BCO_URL") or DEFAULT_URL,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "timeout": timeout,
    }


def of_httpx(client: httpx.Client | httpx.AsyncClient, request: Request) -> httpx.Request:
    """The request as httpx sends it."""
    return client.build_request(
        request.method,
        request.path,
        params=dict(request.params),
        content=request.body,
        data=None if request.form is None else dict(request.form),
        files=request.files,
        headers=dict(request.headers),
    )


def signed_like(method: Callable[..., Any], operation: Callable[..., Any]) -> None:
    """Let ``help`` and editors show the operation's signature, with the result that its steps come to."""
    signature = inspect.signature(operation)
    owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    result = signature.return_annotation
    if isinstance(result, str) and result.startswith("Steps["):
        result = result.removeprefix("Steps[").removesuffix("]")
    parameters = [owner, *signature.parameters.values()]
    method.__signature__ = signature.replace(parameters=parameters, return_annotation=result)  # type: ignore[attr-defined]


class Decider:
    """A posterior, and what it says of itself; subclasses decide with it."""

    def __init__(self, posterior: Posterior) -> None:
        self.posterior = posterior

    @property
    def id(self) -> str:
        return self.posterior.id

    @property
    def quality(self) -> str:
        """ok, warn or bad; ``reason`` says why."""
        return self.posterior.quality

    @property
    def reason(self) -> str:
        return self.posterior.reason

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, quality={self.quality!r}: {self.reason})"
