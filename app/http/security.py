"""Authentication: identifies each caller, their workspace and scopes, and limits their rate.

The middleware runs before any of the body is read. Routers take the caller as ``Reader``, ``Trainer`` or ``Admin`` and
pass the workspace to their service. A key is needed as soon as one has ever existed or the service listens beyond this
machine; without keys, everything belongs to the default workspace. Repeated wrong keys are throttled, and streams end
when their key does.

Browsers may send the cookie of a session instead of a key: to pages, which check every form for its token, and to
addresses of the API that are only read. A caller that is already in the scope comes from one of our pages, which calls
the API on behalf of its reader.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from time import monotonic
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import anyio
import sqlalchemy as sa
from fastapi import Request, Security
from fastapi.dependencies.models import Dependant
from fastapi.security import HTTPBearer, SecurityScopes
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.db import outage
from app.db.base import DEFAULT_WORKSPACE
from app.db.tables import KeyRow
from app.http.errors import ForbiddenError, HttpError, TooManyError, UnauthorizedError, UnavailableError
from app.keys import service as keys
from app.keys import sessions
from app.settings import get_settings

log = logging.getLogger(__name__)

# A key that is created or revoked elsewhere takes effect here after at most this time.
CACHE_SECONDS = 3.0
_CACHED_KEYS = 10_000
# Wrong keys a second from one address, in bursts up to twice as many; beyond that each answer waits.
WRONG_KEYS_PER_SECOND = 5
WRONG_KEY_WAIT_SECONDS = 1.0
_OPEN = ("/docs", "/redoc", "/openapi.json", "/livez", "/readyz", "/favicon.ico", "/login")
_OPEN_UNDER = ("/docs/", "/assets/")
SESSION_COOKIE = "bco_session"

Value = TypeVar("Value")


@dataclass(frozen=True)
class Caller:
    """The caller of a request: the workspace they see, what they may do, and the id of their key if they have one."""

    workspace: str
    scopes: frozenset[str]
    key_id: str | None = None


LOCAL = Caller(DEFAULT_WORKSPACE, frozenset(keys.SCOPES))


class _Credential(NamedTuple):
    """A key or session token, and the function that looks it up."""

    recognise: Callable[[str], KeyRow | None]
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.recognise.__module__} {self.text}".encode()).hexdigest()


class LookupCache:
    """A cache of database lookups that every request needs, for some seconds.

    Concurrent requests for the same missing entry wait for one lookup.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._entries: dict[str, tuple[Any, float]] = {}
        self._lookups: dict[tuple[str, asyncio.AbstractEventLoop], asyncio.Task[Any]] = {}

    async def get(self, what: str, look_up: Callable[[], Value]) -> Value:
        value, expires_at = self._entries.get(what, (None, 0.0))
        if monotonic() >= expires_at:
            key = what, asyncio.get_running_loop()
            lookup = self._lookups.get(key)
            if lookup is None:
                lookup = self._lookups[key] = asyncio.create_task(run_in_threadpool(look_up))
                lookup.add_done_callback(lambda _: self._lookups.pop(key, None))
            # A caller that leaves does not cancel the lookup of the others.
            value = await asyncio.shield(lookup)
            if len(self._entries) >= _CACHED_KEYS:
                self._entries.clear()
            if value is not None:
                self._entries[what] = value, monotonic() + (CACHE_SECONDS if self._seconds is None else self._seconds)
        return value  # type: ignore[no-any-return]

    def forget(self, what: str) -> None:
        """Look again at the next request."""
        self._entries.pop(what, None)


class TokenBucket:
    """Token bucket: a rate, and bursts of twice that."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens, self._filled_at = 2 * rate, monotonic()

    def take(self, tokens: float = 1) -> float:
        """Take tokens for a request; return 0, or the seconds to wait if there are too few."""
        now = monotonic()
        self._tokens = min(2 * self._rate, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens >= tokens:
            self._tokens -= tokens
            return 0.0
        return (tokens - self._tokens) / self._rate


class WrongKeys:
    """Counts wrong keys by address; forgets the addresses not seen for longest."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def wait(self, address: str) -> float:
        """Return the seconds that the answer to another wrong key from this address has to wait."""
        bucket = self._buckets.setdefault(address, TokenBucket(WRONG_KEYS_PER_SECOND))
        self._buckets.move_to_end(address)
        if len(self._buckets) > _CACHED_KEYS:
            self._buckets.popitem(last=False)
        return WRONG_KEY_WAIT_SECONDS if bucket.take() else 0.0


class Authentication:
    """Middleware that refuses unknown callers and stores the others as ``scope["caller"]``."""

    def __init__(self, app: ASGIApp, lookups: LookupCache, buckets: dict[str, TokenBucket]) -> None:
        self.app = app
        self._lookups, self._buckets, self._wrong = lookups, buckets, WrongKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"]) and "caller" not in scope:
            try:
                headers = Headers(scope=scope)
                credential = _credential(scope, headers)
                caller = await self._identify(credential)
                if caller.key_id is None:
                    _check_local(headers)
                self._limit(caller)
            except HttpError as error:
                if credential is not None and isinstance(error, UnauthorizedError):
                    await anyio.sleep(self._wrong.wait((scope.get("client") or ("",))[0]))
                await error.answer()(scope, receive, send)
                return
            scope["caller"] = caller
            # Only GETs are streamed.
            if credential is not None and scope["method"] == "GET":
                still = partial(self._still_works, credential)
                await _serve_until_revoked(self.app, still, CACHE_SECONDS, scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _still_works(self, credential: _Credential) -> bool:
        try:
            await self._identify(credential)
        except UnauthorizedError:
            return False
        except UnavailableError:
            # Unknown for now; the next lookup will tell.
            return True
        return True

    async def _identify(self, credential: _Credential | None) -> Caller:
        try:
            caller = None
            if credential is not None:
                caller = await self._lookups.get(
                    credential.digest, lambda: _caller(credential.recognise(credential.text))
                )
            if caller is None and (credential is None or credential.recognise is sessions.recognise):
                # An ended session is the same as none.
                if await self._lookups.get("required", key_required):
                    raise UnauthorizedError("this service needs an API key; send it as 'Authorization: Bearer <key>'")
                return LOCAL
        except sa.exc.SQLAlchemyError as error:
            log.warning("keys cannot be looked up: %s", outage.in_words(error))
            raise UnavailableError(f"{outage.in_words(error)}; try again in a moment", retry_after=1) from None
        if caller is None:
            raise UnauthorizedError("this API key is unknown, revoked or expired")
        return caller

    def _limit(self, caller: Caller) -> None:
        rate = get_settings().requests_per_second
        if caller.key_id is None or not rate:
            return
        if caller.key_id not in self._buckets:
            self._buckets[caller.key_id] = TokenBucket(rate)
        seconds = self._buckets[caller.key_id].take()
        if seconds:
            detail = f"this key may send at most {rate} requests a second (BCO_REQUESTS_PER_SECOND); slow down"
            raise TooManyError(detail, headers={"Retry-After": str(math.ceil(seconds))})


async def _serve_until_revoked(
    app: ASGIApp, still_valid: Callable[[], Awaitable[bool]], every: float, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve a request; report a disconnect to it when the client leaves or the key stops working.

    A stream of events then ends normally. Any other answer stays incomplete, so that half a file never looks whole.
    """
    read = revoked = is_event_stream = is_over = False

    async def watched_receive() -> Message:
        nonlocal read, revoked
        if not read:
            message = await receive()
            read = not message.get("more_body", False)
            return message
        leaving = asyncio.ensure_future(receive())
        try:
            while not (await asyncio.wait({leaving}, timeout=max(every, 0.1)))[0]:
                if not await still_valid():
                    revoked = True
                    return {"type": "http.disconnect"}
            return leaving.result()
        finally:
            leaving.cancel()

    async def recorded_send(message: Message) -> None:
        nonlocal is_event_stream, is_over
        if message["type"] == "http.response.start":
            is_event_stream = any(
                name == b"content-type" and b"event-stream" in value for name, value in message["headers"]
            )
        is_over = message["type"] == "http.response.body" and not message.get("more_body", False)
        await send(message)

    await app(scope, watched_receive, recorded_send)
    if revoked and is_event_stream and not is_over:
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def is_open(path: str) -> bool:
    """Return whether an address needs no key: docs and health, which show nothing of any workspace."""
    return path in _OPEN or path.startswith(_OPEN_UNDER)


def key_required() -> bool:
    settings = get_settings()
    return not _is_loopback(settings.host) or (not settings.allow_anonymous and keys.any_created())


def _check_local(headers: Headers) -> None:
    """Refuse requests without a key that another site makes a browser on this machine send.

    Such a request names that site as its origin or, after DNS rebinding, as its host.
    """
    origin = headers.get("origin")
    if not _is_local(headers.get("host", "localhost")) or not (origin is None or _is_local(origin.partition("//")[2])):
        raise ForbiddenError(
            "without a key, only calls to 127.0.0.1 or localhost from this machine are allowed; see 'bco keys create'"
        )


@lru_cache
def _is_local(address: str) -> bool:
    """Return whether host[:port] can only mean this machine; a name without a dot may be any machine of a network."""
    try:
        return _is_loopback(urlsplit(f"//{address}").hostname or "")
    except ValueError:
        return False


@lru_cache
def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _caller(row: KeyRow | None) -> Caller | None:
    return None if row is None else Caller(row.workspace, frozenset(row.scopes), row.id)


def _credential(scope: Scope, headers: Headers) -> _Credential | None:
    """Return the key of a request or else its session cookie, which may not change anything through the API."""
    header = headers.get("authorization")
    if header is not None:
        scheme, _, text = header.partition(" ")
        return _Credential(keys.recognise, text.strip() if scheme.lower() == "bearer" else "")
    if scope["path"].startswith("/v1/") and scope["method"] not in ("GET", "HEAD"):
        return None
    token = cookie_parser(headers.get("cookie", "")).get(SESSION_COOKIE)
    return _Credential(sessions.recognise, token) if token else None


def end_session(lookups: LookupCache, token: str) -> None:
    """End a session, in this process at once."""
    sessions.end(token)
    lookups.forget(_Credential(sessions.recognise, token).digest)


_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="API key",
    description="A key created with `bco keys create`, if the service needs one.",
)


async def _allowed(request: Request, needed: SecurityScopes, _: Annotated[Any, Security(_bearer)]) -> Caller:
    caller: Caller = request.scope["caller"]
    check_scopes(caller, needed.scopes)
    return caller


def check_scopes(caller: Caller, needed: Sequence[str]) -> None:
    for scope in needed:
        if scope not in caller.scopes:
            held = ", ".join(sorted(caller.scopes))
            raise ForbiddenError(f"this needs a key with the scope '{scope}', and yours has {held}")


def scopes_of(dependant: Dependant) -> list[str]:
    """Return the scopes that a route needs, by its signature: ``caller: Trainer``."""
    return [scope for part in dependant.dependencies if part.call is _allowed for scope in part.own_oauth_scopes or []]


Reader = Annotated[Caller, Security(_allowed, scopes=["read"])]
Trainer = Annotated[Caller, Security(_allowed, scopes=["train"])]
Admin = Annotated[Caller, Security(_allowed, scopes=["admin"])]
