"""Parts of the page of a decision: pieces that scripts put in place, and pages of their own for who has none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response

from app.pages.decide.query import DecideQuery
from app.pages.error_pages import FRAGMENT
from app.pages.render import render


def is_part(request: Request) -> bool:
    """Whether a script of ours asks, for a piece of a page; not for a whole one that somebody went back to."""
    return FRAGMENT in request.headers and "hx-history-restore-request" not in request.headers


def render_part(
    request: Request, template: str, asked: DecideQuery, posterior: Mapping[str, Any], status: int = 200, **given: Any
) -> Response:
    """A piece of the page, or a page around it."""
    shown = template if is_part(request) else "decide_part.html"
    is_piece = is_part(request)
    return render(request, shown, status, piece=template, is_part=is_piece, asked=asked, posterior=posterior, **given)
