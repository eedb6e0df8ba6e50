"""Errors as RFC 9457 ``application/problem+json``: each class knows its status and its stable type.

Answers say what was wrong, where (a JSON pointer into the request) and what would be right. They never carry a stack
trace and never echo the input.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from http import HTTPStatus
from time import monotonic
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from app.db import outage
from app.db.blobs import CorruptBlob
from bco_core.errors import BcoError, InvalidInput, SolverFailure
from bco_core.inference.options import OPTIONS
from bco_core.problems.registry import PROBLEMS

log = logging.getLogger(__name__)


class FieldProblem(BaseModel):
    """One offending part of the request."""

    pointer: str = Field(description="JSON pointer into the request", examples=["#/contexts/0/weekday"])
    detail: str


class ErrorBody(BaseModel):
    """RFC 9457 problem details."""

    type: str = Field(examples=["urn:bco:error:invalid-input"])
    title: str
    status: int
    detail: str = Field(description="What was wrong and what would be right, in a sentence.")
    errors: list[FieldProblem] = []


class HttpError(HTTPException):
    """Base of the errors of the API; FastAPI passes HTTP exceptions through even from body parsing."""

    status = 500
    type = "internal"
    title = "Something went wrong on our side"

    def __init__(self, detail: str, *fields: tuple[Sequence[str | int], str], headers: dict[str, str] | None = None):
        super().__init__(self.status, detail, headers)
        self.fields = [FieldProblem(pointer=pointer(where), detail=text) for where, text in fields]

    def answer(self) -> JSONResponse:
        return answer(self.status, self.type, self.title, self.detail, self.fields, dict(self.headers or {}))


class InvalidRequest(HttpError):
    status = 422
    type = "invalid-input"
    title = "The request is invalid"

    @classmethod
    def at(cls, where: Sequence[str | int], detail: str) -> InvalidRequest:
        """Return an error with one offending field; the sentence is the summary too."""
        return cls(detail, (where, detail))


class UnauthorizedError(HttpError):
    status = 401
    type = "unauthorized"
    title = "The caller is unknown"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"WWW-Authenticate": "Bearer"})


class ForbiddenError(HttpError):
    status = 403
    type = "forbidden"
    title = "The key does not allow this"


class NotFoundError(HttpError):
    status = 404
    type = "not-found"
    title = "There is no such object"


class ConflictError(HttpError):
    status = 409
    type = "conflict"
    title = "The object's state does not allow this"


class TooLargeError(HttpError):
    status = 413
    type = "too-large"
    title = "The request is too large"


class TooManyError(HttpError):
    status = 429
    type = "too-many-requests"
    title = "Too many requests"


class DamagedError(HttpError):
    """Stored bytes do not match their checksum; trying again does not help."""

    status = 500
    type = "damaged-data"
    title = "Stored data is damaged"


class UnavailableError(HttpError):
    status = 503
    type = "unavailable"
    title = "The service cannot answer right now"

    def __init__(
        self, detail: str, retry_after: int = outage.RETRY_AFTER_SECONDS, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after)} | (headers or {}))


# Fields of the request by argument of the core; others have the same name.
_FIELDS = {"sample": ("dataset_id",)} | {
    option: ("inference", option)
    for options in OPTIONS.values()
    for option in ("method", *(field.name for field in dataclasses.fields(options)))
    if option not in ("predictor", "policy", "seed")
}


def of_core(error: InvalidInput, *under: str) -> InvalidRequest:
    """Return the core's error about an argument as an error about a field of the request, ``under`` some part of it."""
    where = error.where
    if where and not under:
        where = (*_FIELDS.get(str(where[0]), where[:1]), *where[1:])
    return InvalidRequest.at((*under, *where), str(error))


def pointer(where: Sequence[str | int]) -> str:
    """Return a path such as ("contexts", 0, "weekday") as the JSON pointer ``#/contexts/0/weekday``."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in where)


def answer(
    status: int,
    type_: str,
    title: str,
    detail: str,
    fields: Sequence[FieldProblem] = (),
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    body = ErrorBody(type=f"urn:bco:error:{type_}", title=title, status=status, detail=detail, errors=list(fields))
    return JSONResponse(body.model_dump(), status, headers, media_type="application/problem+json")


def install(app: FastAPI) -> None:
    """Make every error of this application a problem+json answer."""

    @app.exception_handler(HttpError)
    async def on_api_error(request: Request, error: HttpError) -> JSONResponse:
        return error.answer()

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
        phrase = HTTPStatus(error.status_code).phrase
        detail = {
            404: "there is no such address; the docs page at /docs lists all",
            405: "this address does not support this method; the docs page at /docs lists its methods",
            400: "the request body could not be read; send valid JSON, or a multipart form for an upload",
        }.get(error.status_code, phrase)
        headers = dict(error.headers or {})
        if error.status_code == 405:
            # The router names the methods of the first route at this address only.
            headers["Allow"] = ", ".join(_methods_at(app, request.url.path)) or headers.get("Allow", "")
        return answer(error.status_code, phrase.lower().replace(" ", "-"), phrase, detail, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        fields = [_field_problem(entry, request, error.body) for entry in error.errors()]
        detail = f"{fields[0].pointer}: {fields[0].detail}"
        if len(fields) > 1:
            detail += f" (and {len(fields) - 1} more)"
        return answer(InvalidRequest.status, InvalidRequest.type, InvalidRequest.title, detail, fields)

    @app.exception_handler(BcoError)
    async def on_core_error(request: Request, error: BcoError) -> JSONResponse:
        if isinstance(error, InvalidInput) and error.where:
            return of_core(error).answer()
        kinds = {InvalidInput: "invalid-input", SolverFailure: "solver-failure"}
        status = InvalidRequest.status
        return answer(status, kinds.get(type(error), "unusable"), InvalidRequest.title, str(error))

    @app.exception_handler(CorruptBlob)
    async def on_damage(request: Request, error: CorruptBlob) -> JSONResponse:
        log.error("%s: %s %s", error, request.method, request.url.path)
        return DamagedError(str(error)).answer()

    @app.exception_handler(sa.exc.SQLAlchemyError)
    async def on_database_error(request: Request, error: sa.exc.SQLAlchemyError) -> JSONResponse:
        if not outage.is_outage(error):
            raise error
        if outage.in_words(error) == outage.NO_ROOM:
            request.app.state.full_at = monotonic()
        log.warning("%s on %s %s", outage.in_words(error), request.method, request.url.path)
        return UnavailableError(f"{outage.in_words(error)}; try again in a moment").answer()


def _methods_at(app: FastAPI, path: str) -> list[str]:
    """Return the methods that the OpenAPI description lists at an address."""
    paths = app.openapi()["paths"]
    matches = [paths[path]] if path in paths else [paths[at] for at in paths if compile_path(at)[0].match(path)]
    return sorted(method.upper() for entry in matches for method in entry)


def unexpected() -> JSONResponse:
    """Return the answer to an unexpected error; the log has the details."""
    return answer(
        500,
        HttpError.type,
        HttpError.title,
        "an unexpected error occurred, which is in the service's log; trying again may help",
    )


def _field_problem(entry: dict[str, Any], request: Request, body: Any) -> FieldProblem:
    where = entry["loc"]
    if where[0] == "body":
        where = _in_body(where[1:], body, entry["type"] == "missing")
    if entry["type"] == "json_invalid":
        return FieldProblem(pointer="#", detail="the body is not valid JSON")
    if entry["type"] in ("union_tag_invalid", "union_tag_not_found"):
        detail = f"the problem kind must be one of {', '.join(PROBLEMS)}"
        return FieldProblem(pointer=pointer([*where, "kind"]), detail=detail)
    if entry["type"] == "unknown_method":
        where = (*where, "method")
    kind = request.headers.get("content-type", "")
    if not where and not kind.startswith(("application/json", "multipart/form-data")):
        return FieldProblem(pointer="#", detail="send the body as JSON, with Content-Type: application/json")
    return FieldProblem(pointer=pointer(where), detail=entry["msg"].removeprefix("Value error, "))


def _in_body(where: tuple[str | int, ...], body: Any, missing: bool) -> tuple[str | int, ...]:
    """Return a path in the body as it was sent: without the tags of union members.

    A part that the body does not have is such a tag, unless it is the last one and the missing field itself.
    """
    if not isinstance(body, dict | list):
        return where
    path: list[str | int] = []
    part: Any
    for number, part in enumerate(where, start=1):
        there = part in body if isinstance(body, dict) else isinstance(body, list) and isinstance(part, int)
        if there:
            body = body[part]
        if there or (missing and number == len(where)):
            path.append(part)
    return tuple(path)
