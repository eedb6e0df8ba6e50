"""Errors of a solver process as plain values, so that the API raises what would have been raised in itself."""

from __future__ import annotations

import logging

from app.http.errors import FieldProblem, HttpError
from app.solving.wire import Header
from bco_core import errors as core

log = logging.getLogger(__name__)


class OutOfMemory(Exception):
    """A solver process needed more memory than it may have."""


class Unforeseen(Exception):
    """A solver process met an error that nobody has foreseen; its log has the traceback."""


def describe_error(error: Exception) -> Header:
    """An error as the header of an answer."""
    if isinstance(error, HttpError):
        fields = [field.model_dump() for field in error.fields]
        facts = {"status": error.status, "type": error.type, "title": error.title, "detail": error.detail}
        return {"api": facts | {"fields": fields, "headers": dict(error.headers or {})}}
    if isinstance(error, core.BcoError):
        return {"core": {"name": type(error).__name__, "text": str(error), "where": getattr(error, "where", ())}}
    # torch says so in words.
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return {"memory": True}
    log.error("unexpected error in a solver process", exc_info=error)
    return {"unforeseen": type(error).__name__}


def raise_error(header: Header) -> None:
    """Raise what the other side has told; nothing if it has not told an error."""
    if "api" in header:
        facts = header["api"]
        error = HttpError(facts["detail"], headers=facts["headers"])
        error.status, error.type, error.title = facts["status"], facts["type"], facts["title"]
        error.fields = [FieldProblem(**field) for field in facts["fields"]]
        raise error
    if "core" in header:
        facts = header["core"]
        kind = getattr(core, facts["name"])
        raise kind(facts["text"], tuple(facts["where"])) if facts["where"] else kind(facts["text"])
    if "memory" in header:
        raise OutOfMemory
    if "unforeseen" in header:
        raise Unforeseen(header["unforeseen"])
