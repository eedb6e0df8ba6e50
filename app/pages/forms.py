"""Read forms that pages sent, protected against cross-site requests.

Every browser has a random token in an HTTP-only cookie: that of its session or, without a key, one of its own. A form
carries a hash of that token, which no other site can know.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from urllib.parse import urlsplit

from fastapi import Request, Response
from starlette.datastructures import FormData, UploadFile

from app.http.errors import ForbiddenError, InvalidRequest
from app.http.security import SESSION_COOKIE
from app.keys.sessions import new_token

FIELD, HEADER = "csrf", "x-csrf-token"
# Enough for a pasted table or a model as text.
_MOST_TEXT = 16_000_000
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d{1,3})?")
# 1,200 may mean 1200 or 1.2.
_AMBIGUOUS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


def browser_token(request: Request) -> str:
    """Return the token of the browser's cookie, or a new one that the answer must set."""
    if not hasattr(request.state, "browser_token"):
        request.state.browser_token = request.cookies.get(SESSION_COOKIE) or new_token()
    token: str = request.state.browser_token
    return token


def form_token(request: Request) -> str:
    return hashlib.sha256(f"form {browser_token(request)}".encode()).hexdigest()


def set_token(request: Request, response: Response, token: str) -> None:
    """Set the browser's cookie: SameSite lax, so that links from elsewhere find their reader logged in."""
    secure = request.url.scheme == "https"
    response.set_cookie(SESSION_COOKIE, token, httponly=True, samesite="lax", secure=secure, path="/")


async def read_form(request: Request) -> FormData:
    """Read the fields of a form sent from one of our pages; refuse any other."""
    origin = request.headers.get("origin")
    form = await request.form(max_part_size=_MOST_TEXT)
    given = request.headers.get(HEADER) or text(form, FIELD)
    elsewhere = origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")
    if elsewhere or not hmac.compare_digest(given.encode(), form_token(request).encode()):
        await form.close()
        raise ForbiddenError("this form has expired or comes from another site; reload the page and send it again")
    return form


def text(form: FormData, name: str) -> str:
    """Return a field of a form as text, empty if absent."""
    value = form.get(name, "")
    return value if isinstance(value, str) else ""


def parse_number(text: str) -> int | float | str:
    """Return the number that was typed, with a point or a comma for decimals; text that is no number, or an
    ambiguous one such as 1,200, stays text, for the API to refuse at its place."""
    text = text.strip()
    plain = text.replace("−", "-").replace("\N{NO-BREAK SPACE}", "")
    if not _NUMBER.fullmatch(plain) or _AMBIGUOUS.fullmatch(plain):
        return text
    value = float(plain.replace(",", "."))
    if not math.isfinite(value):
        return text
    return int(value) if value.is_integer() and abs(value) < 1e15 else value


async def read_upload(form: FormData) -> tuple[str, bytes]:
    """Return the name and the content of the uploaded file."""
    file = form.get("file")
    content = b""
    if isinstance(file, UploadFile):
        content = await file.read()
        await file.close()
    if not isinstance(file, UploadFile) or not file.filename:
        raise InvalidRequest.at(("file",), "choose a file first")
    return file.filename, content
