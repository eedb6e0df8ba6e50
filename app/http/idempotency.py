"""POSTs with an ``Idempotency-Key``: repeated with the same body they get the same answer and create nothing twice.

The first request claims the key in the database, which all API processes share. The location of the object is stored
with the claim in the transaction that creates the object (``record_location``); the answer is stored afterwards. A
second request waits for that answer. If the first dies before it creates the object, its claim becomes stale and the
second does the work; if it dies between creating and answering, the second reads the object. A request that lost its
claim cannot create anything any more.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any
from uuid import uuid4

import httpx
import sqlalchemy as sa
from fastapi import Request, Response
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from app.db.base import now
from app.db.engine import affected_rows, transaction
from app.db.tables import AnswerRow
from app.http.errors import ConflictError, InvalidRequest
from app.http.routes import Handler, ScopedRoute

log = logging.getLogger(__name__)

RETENTION = timedelta(hours=24)
# A claim is renewed while its request is served; one this old belongs to a process that is gone.
STALE = timedelta(seconds=15)
RENEW_SECONDS = 3.0
WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.05
_SWEEP_SECONDS = 600.0
_KEY = re.compile(r"[!-~]{1,200}")
_BOUNDARY = re.compile(r'boundary="?([^";,]+)"?', re.IGNORECASE)

_PARAMETER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
    "description": "Any text of your own, such as a UUID. The same request with the same key within 24 hours gets the "
    "same answer and creates nothing new; another body with the same key is refused (409).",
}


@dataclass(frozen=True)
class Claim:
    """The right to serve one request: its key, the hash of its body, and a token."""

    workspace: str
    path: str
    key: str
    body_sha256: str
    token: str

    def where(self) -> sa.ColumnElement[bool]:
        row = AnswerRow
        return sa.and_(row.workspace == self.workspace, row.path == self.path, row.key == self.key)

    def is_claimed(self) -> sa.ColumnElement[bool]:
        return sa.and_(self.where(), AnswerRow.claim == self.token)


_current: ContextVar[Claim | None] = ContextVar("claim", default=None)


def record_location(session: Session, location: str) -> None:
    """Store the location of a new object, inside the transaction that creates it."""
    claim = _current.get()
    if claim is None:
        return
    if not affected_rows(session, sa.update(AnswerRow).where(claim.is_claimed()).values(location=location)):
        raise ConflictError(
            "this request took so long that another one with the same Idempotency-Key was served instead"
        )


class IdempotentRoute(ScopedRoute):
    """A route class: POSTs that answer 201 or 202 accept an Idempotency-Key."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._creates = "POST" in (options.get("methods") or ()) and options.get("status_code") in (201, 202)
        if self._creates:
            options["openapi_extra"] = {"parameters": [_PARAMETER]}
        super().__init__(path, endpoint, **options)

    def unchecked_handler(self) -> Handler:
        serve = super().unchecked_handler()
        if not self._creates:
            return serve

        async def once(request: Request) -> Response:
            key = request.headers.get("idempotency-key")
            return await (serve(request) if key is None else _once(request, key, serve))

        return once


async def _once(request: Request, key: str, serve: Handler) -> Response:
    if not _KEY.fullmatch(key):
        raise InvalidRequest.at(
            ("header", "Idempotency-Key"), "a key has 1 to 200 visible ASCII characters without spaces"
        )
    try:
        body = await request.body()
    except ClientDisconnect:
        raise HTTPException(400) from None
    sha256 = await run_in_threadpool(_hash, body, request.headers.get("content-type", ""))
    claim = Claim(request.scope["caller"].workspace, request.url.path, key, sha256, uuid4().hex)
    await _sweep(request.app.state)
    stored = await _claim_or_read(claim)
    if stored is None:
        return await _serve(request, claim, serve)
    if stored.answer is None or stored.status is None:
        return await _recover(request, claim, stored)
    return _replay(stored.status, stored.answer, stored.location)


async def _claim_or_read(claim: Claim) -> AnswerRow | None:
    """Return None once the claim is ours, or the row of an earlier request once that has created its object."""
    deadline = monotonic() + WAIT_SECONDS
    while True:
        if await run_in_threadpool(_claim, claim):
            return None
        row = await run_in_threadpool(_read, claim)
        if row is not None:
            if row.body_sha256 != claim.body_sha256:
                raise ConflictError(
                    "this Idempotency-Key was used with a different body; use a new key for a new request"
                )
            if row.answer is not None:
                return row
            if row.claimed_at < now() - STALE and await run_in_threadpool(_take_over, claim, row.claim):
                log.warning("a request with an Idempotency-Key was left unanswered; serving it again")
                return None if row.location is None else row
        if monotonic() > deadline:
            detail = "a request with this Idempotency-Key is still being served; try again in a moment"
            raise ConflictError(detail, headers={"Retry-After": "1"})
        await asyncio.sleep(_POLL_SECONDS)


async def _serve(request: Request, claim: Claim, serve: Handler) -> Response:
    renewing = asyncio.create_task(_renew(claim))
    current = _current.set(claim)
    try:
        response = await serve(request)
    except BaseException:
        # A refused request may be corrected and sent again with the same key.
        await run_in_threadpool(_release, claim)
        raise
    finally:
        _current.reset(current)
        renewing.cancel()
        with suppress(asyncio.CancelledError):
            await renewing
    await run_in_threadpool(_store, claim, response.status_code, bytes(response.body))
    return response


async def _renew(claim: Claim) -> None:
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        try:
            await run_in_threadpool(_change, sa.update(AnswerRow).where(claim.is_claimed()).values(claimed_at=now()))
        except sa.exc.SQLAlchemyError:
            log.exception("the claim of an Idempotency-Key could not be renewed; trying again")


async def _recover(request: Request, claim: Claim, row: AnswerRow) -> Response:
    """Answer for a process that died before it could: with the object as it is now."""
    headers = {name: value for name, value in request.headers.items() if name == "authorization"}
    transport = httpx.ASGITransport(app=request.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        response = await client.get(row.location or "", headers=headers)
    if not response.is_success:
        await run_in_threadpool(_change, sa.delete(AnswerRow).where(claim.is_claimed()))
        raise ConflictError("the object that this Idempotency-Key created is gone; use a new key")
    status = request.scope["route"].status_code
    await run_in_threadpool(_store, claim, status, response.content)
    return _replay(status, response.content, row.location)


def _replay(status: int, answer: bytes, location: str | None) -> Response:
    headers = {"Idempotency-Replayed": "true"} | ({"Location": location} if location else {})
    return Response(answer, status, headers, media_type="application/json")


def _hash(body: bytes, content_type: str) -> str:
    """Return the sha256 of a body, without the boundary of a form's parts, which differs each time."""
    boundary = _BOUNDARY.search(content_type)
    if boundary and content_type.lower().startswith("multipart/"):
        body = body.replace(boundary[1].encode("latin-1"), b"")
    return hashlib.sha256(body).hexdigest()


async def _sweep(state: State) -> None:
    """Remove answers that are too old to be repeated, now and then."""
    if monotonic() - state.swept_at > _SWEEP_SECONDS:
        state.swept_at = monotonic()
        await run_in_threadpool(_change, sa.delete(AnswerRow).where(AnswerRow.created_at < now() - RETENTION))


def _claim(claim: Claim) -> bool:
    row = AnswerRow(
        workspace=claim.workspace, path=claim.path, key=claim.key, body_sha256=claim.body_sha256, claim=claim.token
    )
    try:
        with transaction() as session:
            session.execute(sa.delete(AnswerRow).where(claim.where(), AnswerRow.created_at < now() - RETENTION))
            session.add(row)
    except sa.exc.IntegrityError:
        return False
    return True


def _read(claim: Claim) -> AnswerRow | None:
    with transaction() as session:
        return session.get(AnswerRow, (claim.workspace, claim.path, claim.key))


def _take_over(claim: Claim, token: str) -> bool:
    query = sa.update(AnswerRow).where(claim.where(), AnswerRow.claim == token, AnswerRow.answer.is_(None))
    return _change(query.values(claim=claim.token, claimed_at=now()))


def _store(claim: Claim, status: int, answer: bytes) -> None:
    try:
        _change(sa.update(AnswerRow).where(claim.is_claimed()).values(status=status, answer=answer))
    except sa.exc.SQLAlchemyError:
        # The object and its location are stored; a repeated request reads the object.
        log.exception("an answer could not be stored")


def _release(claim: Claim) -> None:
    try:
        _change(sa.delete(AnswerRow).where(claim.is_claimed(), AnswerRow.location.is_(None)))
    except sa.exc.SQLAlchemyError:
        log.exception("an Idempotency-Key could not be released; it is free again in %s", STALE)


def _change(statement: sa.Update | sa.Delete) -> bool:
    with transaction() as session:
        return affected_rows(session, statement) > 0
