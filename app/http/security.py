"""The door: identifies each caller, their workspace and scopes, and limits how often they call.

``Guard`` stands before every address that is not open, and before any of the body is read. Routers take what it found
as ``Reader``, ``Trainer`` or ``Admin`` and hand the workspace to their service. A key is needed as soon as one has ever
existed or the service listens beyond this machine; without, everything happens in the default workspace. Who comes with
wrong keys again and again waits for each answer, and what is streamed with a key ends when the key does.

Browsers may come with the cookie of a session instead of a key: to pages, which check every form for its token, and to
whatever of the API is only read. A caller that is in the scope already is one of a page of ours, which asks the API on
behalf of whoever looks at it.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
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
from starlette.types import ASGIApp, Receive, Scope, Send

from app.db import outage
from app.db.base import DEFAULT_WORKSPACE
from app.db.tables import KeyRow
from app.http.errors import ForbiddenError, HttpError, TooMany, UnauthorizedError, UnavailableError
from app.http.streams import until_revoked
from app.keys import service as keys
from app.keys import sessions
from app.settings import get_settings

log = logging.getLogger(__name__)

# A key that is made or revoked elsewhere counts here after at most so long.
REMEMBER_SECONDS = 3.0
_REMEMBER_KEYS = 10_000
# Wrong keys a second from one address, in bursts up to twice as many; for more, each answer waits.
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


class _Shown(NamedTuple):
    """What a caller shows of themselves, and who knows what it stands for."""

    recognise: Callable[[str], KeyRow | None]
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.recognise.__module__} {self.text}".encode()).hexdigest()


class LookupCache:
    """Answers of the database that are looked up on every request, kept for some seconds.

    Requests that miss the same answer at once wait for one look.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._kept: dict[str, tuple[Any, float]] = {}
        self._looks: dict[tuple[str, asyncio.AbstractEventLoop], asyncio.Task[Any]] = {}

    async def get(self, what: str, look_up: Callable[[], Value]) -> Value:
        value, until = self._kept.get(what, (None, 0.0))
        if monotonic() >= until:
            key = what, asyncio.get_running_loop()
            look = self._looks.get(key)
            if look is None:
                look = self._looks[key] = asyncio.create_task(run_in_threadpool(look_up))
                look.add_done_callback(lambda _: self._looks.pop(key, None))
            # Whoever leaves does not take the look of the others along.
            value = await asyncio.shield(look)
            if len(self._kept) >= _REMEMBER_KEYS:
                self._kept.clear()
            if value is not None:
                self._kept[what] = value, monotonic() + (REMEMBER_SECONDS if self._seconds is None else self._seconds)
        return value  # type: ignore[no-any-return]

    def forget(self, what: str) -> None:
        """Look again at the next request."""
        self._kept.pop(what, None)


class TokenBucket:
    """So many requests a second, and bursts of twice as many."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens, self._filled_at = 2 * rate, monotonic()

    def take(self, tokens: float = 1) -> float:
        """Seconds to wait; 0 if a request that counts as so many may pass."""
        now = monotonic()
        self._tokens = min(2 * self._rate, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens >= tokens:
            self._tokens -= tokens
            return 0.0
        return (tokens - self._tokens) / self._rate


class WrongKeys:
    """Counts wrong keys by address, for as many addresses as fit; the one not heard of for longest is forgotten."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds that the answer to one more wrong key from there has to wait."""
        bucket = self._buckets.setdefault(address, TokenBucket(WRONG_KEYS_PER_SECOND))
        self._buckets.move_to_end(address)
        if len(self._buckets) > _REMEMBER_KEYS:
            self._buckets.popitem(last=False)
        return WRONG_KEY_WAIT_SECONDS if bucket.take() else 0.0


class Authentication:
    """Refuse callers without the right to call; note the others for the routers as ``scope["caller"]``."""

    def __init__(self, app: ASGIApp, remembered: LookupCache, buckets: dict[str, TokenBucket]) -> None:
        self.app = app
        self._remembered, self._buckets, self._wrong = remembered, buckets, WrongKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"]) and "caller" not in scope:
            try:
                headers = Headers(scope=scope)
                shown = _shown(scope, headers)
                caller = await self._identify(shown)
                if caller.key_id is None:
                    _check_local(headers)
                self._limit(caller)
            except HttpError as error:
                if shown is not None and isinstance(error, UnauthorizedError):
                    await anyio.sleep(self._wrong.wait((scope.get("client") or ("",))[0]))
                await error.answer()(scope, receive, send)
                return
            scope["caller"] = caller
            # Only what is read is streamed.
            if shown is not None and scope["method"] == "GET":
                still = partial(self._still_works, shown)
                await until_revoked(self.app, still, REMEMBER_SECONDS, scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _still_works(self, shown: _Shown) -> bool:
        try:
            await self._identify(shown)
        except UnauthorizedError:
            return False
        except UnavailableError:
            # Nobody knows; the next look will tell.
            return True
        return True

    async def _identify(self, shown: _Shown | None) -> Caller:
        try:
            caller = None
            if shown is not None:
                caller = await self._remembered.get(shown.digest, lambda: _caller(shown.recognise(shown.text)))
            if caller is None and (shown is None or shown.recognise is sessions.recognise):
                # A session that is over is as good as none.
                if await self._remembered.get("required", key_required):
                    raise UnauthorizedError("this service needs an API key; send it as 'Authorization: Bearer <key>'")
                return LOCAL
        except sa.exc.SQLAlchemyError as error:
            log.warning("keys cannot be looked up: %s", outage.in_words(error))
            raise UnavailableError(f"{outage.in_words(error)}; try again in a moment", retry_after=1) from None
        if caller is None:
            raise UnauthorizedError("this API key does not work: it is unknown, revoked or expired")
        return caller

    def _limit(self, caller: Caller) -> None:
        rate = get_settings().requests_per_second
        if caller.key_id is None or not rate:
            return
        if caller.key_id not in self._buckets:
            self._buckets[caller.key_id] = TokenBucket(rate)
        seconds = self._buckets[caller.key_id].take()
        if seconds:
            detail = f"more than {rate} requests a second with this key (BCO_REQUESTS_PER_SECOND); slow down"
            raise TooMany(detail, headers={"Retry-After": str(math.ceil(seconds))})


def is_open(path: str) -> bool:
    """Whether an address may be read by anybody: the docs page and health, which tell nothing of any workspace."""
    return path in _OPEN or path.startswith(_OPEN_UNDER)


def key_required() -> bool:
    settings = get_settings()
    return not _is_loopback(settings.host) or (not settings.allow_anonymous and keys.any_made())


def _check_local(headers: Headers) -> None:
    """Without a key, refuse what a page of some other site makes a browser on this machine send.

    Such a request names that site as its origin or, if the site lets its own name lead here, as the host it calls.
    """
    origin = headers.get("origin")
    if not _is_local(headers.get("host", "localhost")) or not (origin is None or _is_local(origin.partition("//")[2])):
        raise ForbiddenError(
            "without a key, only this machine may call, at 127.0.0.1 or localhost; see 'bco keys create'"
        )


@lru_cache
def _is_local(address: str) -> bool:
    """Whether host[:port] can only mean this machine; a name without a dot may be any machine of its network."""
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


def _shown(scope: Scope, headers: Headers) -> _Shown | None:
    """The key of a request or, where a browser may come without, its session; not to change anything by the API."""
    given = headers.get("authorization")
    if given is not None:
        scheme, _, text = given.partition(" ")
        return _Shown(keys.recognise, text.strip() if scheme.lower() == "bearer" else "")
    if scope["path"].startswith("/v1/") and scope["method"] not in ("GET", "HEAD"):
        return None
    token = cookie_parser(headers.get("cookie", "")).get(SESSION_COOKIE)
    return _Shown(sessions.recognise, token) if token else None


def end_session(remembered: LookupCache, token: str) -> None:
    """For good and, in this process, at once."""
    sessions.end(token)
    remembered.forget(_Shown(sessions.recognise, token).digest)


_bearer = HTTPBearer(
    auto_error=False, scheme_name="API key", description="A key made with `bco keys create`, if the service needs one."
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
    """What a route asks of its caller, as its signature says: ``caller: Trainer``."""
    return [scope for part in dependant.dependencies if part.call is _allowed for scope in part.own_oauth_scopes or []]


Reader = Annotated[Caller, Security(_allowed, scopes=["read"])]
Trainer = Annotated[Caller, Security(_allowed, scopes=["train"])]
Admin = Annotated[Caller, Security(_allowed, scopes=["admin"])]
