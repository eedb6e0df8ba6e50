"""Render pages from templates, and format numbers, times and terms."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from app.http.security import SESSION_COOKIE, Caller
from app.pages import forms
from app.pages.api_client import Api, ApiRefusal, sentence
from app.pages.glossary import WORDS
from app.settings import get_settings

ASSETS = Path(__file__).with_name("assets")
VERSION = version("bco-service")
# No other hosts, no inline scripts or styles.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; manifest-src 'self'"
)


def number(value: Any, digits: int = 4) -> str:
    """Format a number with significant digits and thousands separators, without trailing zeros."""
    if value is None or isinstance(value, str | bool):
        return "–" if value is None else str(value)
    value = float(value)
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size >= 9 or size < -4:
        parts = f"{value:.{max(0, digits - 1)}e}".split("e")
        return f"{float(parts[0]):g}e{int(parts[1])}".replace("-", "−")
    decimals = max(0, digits - 1 - size)
    written = f"{value:,.{decimals}f}"
    return (written.rstrip("0").rstrip(".") if "." in written else written).replace("-", "−")


def percent(value: Any, digits: int = 0) -> str:
    return "–" if value is None else f"{100 * float(value):.{digits}f} %"


def signed(value: Any) -> str:
    """Format a difference with its sign."""
    return "–" if value is None else ("+" if float(value) > 0 else "") + number(value)


def duration(seconds: Any) -> str:
    """Format seconds as ``40 s``, ``3 min`` or ``2 h 5 min``."""
    if seconds is None:
        return "–"
    whole = max(0, round(float(seconds)))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def moment(text: str | None) -> Markup:
    """Render a time that scripts show in the reader's zone; UTC without scripts."""
    if not text:
        return Markup("–")
    when = datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC)
    written = when.strftime("%Y-%m-%d %H:%M UTC")
    return Markup('<time datetime="{}" class="moment">{}</time>').format(when.isoformat(), written)


def day(seconds: float) -> str:
    """Format seconds since 1970 as a date, with the time of day unless midnight."""
    when = datetime.fromtimestamp(seconds, UTC)
    return when.strftime("%Y-%m-%d %H:%M" if when.hour or when.minute else "%Y-%m-%d")


def tojson(value: Any) -> Markup:
    """Encode JSON for a data block or an attribute of a page."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e").replace("'", "\\u0027"))  # noqa: S704


def term(word: str, shown: str | None = None) -> Markup:
    """Render a glossary term with a tooltip."""
    shown = shown or word
    return Markup('<span class="term" tabindex="0">{}<span class="tip" role="tooltip">{}</span></span>').format(
        shown, WORDS[word]
    )


@lru_cache
def _fingerprint(name: str, changed: int) -> str:
    return hashlib.sha256((ASSETS / name).read_bytes()).hexdigest()[:12]


def asset(name: str) -> str:
    """Return an asset's URL with a content hash, so that browsers can cache it for ever."""
    return f"/assets/{name}?v={_fingerprint(name, (ASSETS / name).stat().st_mtime_ns)}"


@lru_cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("app.pages"),
        autoescape=True,
        # Templates belong to the running code.
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "percent": percent,
        "signed": signed,
        "duration": duration,
        "moment": moment,
        "day": day,
        "json": tojson,
        "sentence": sentence,
    }
    environment.globals |= {"asset": asset, "term": term, "version": VERSION}
    return environment


def render(
    request: Request,
    template: str,
    status: int = 200,
    *,
    api: Api | None = None,
    refusal: ApiRefusal | None = None,
    **given: Any,
) -> Response:
    """Render a page; ``api`` has the calls to show, ``refusal`` the errors of a form."""
    caller: Caller | None = request.scope.get("caller")
    scopes = caller.scopes if caller is not None else frozenset()
    text = (
        _environment()
        .get_template(template)
        .render(
            request=request,
            path=request.url.path,
            caller=caller,
            signed_in=caller is not None and caller.key_id is not None,
            can_train="train" in scopes,
            can_admin="admin" in scopes,
            csrf=forms.form_token(request),
            base=str(request.base_url).rstrip("/"),
            calls=api.calls if api is not None else [],
            refusal=refusal,
            settings=get_settings(),
            **given,
        )
    )
    # Lone surrogates that somebody typed cannot be encoded.
    response = HTMLResponse(text.encode(errors="replace"), status)
    response.headers["Content-Security-Policy"] = CONTENT_POLICY
    response.headers["Cache-Control"] = "no-store"
    # Browsers send a form's origin only with this policy.
    response.headers["Referrer-Policy"] = "same-origin"
    if request.cookies.get(SESSION_COOKIE) is None:
        forms.set_token(request, response, forms.browser_token(request))
    return response


def see_other(address: str) -> RedirectResponse:
    """Redirect after a form was sent."""
    return RedirectResponse(address, 303)
