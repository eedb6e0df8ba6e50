"""Query parameters: an address takes those that it declares and refuses others, instead of ignoring a typing error."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute

from app.http.errors import InvalidRequest


def refuse_unknown_query(request: Request) -> None:
    """A dependency for every route of a router; what a route takes is read from its own signature."""
    if not request.query_params:
        return
    known = _declared(request.scope["route"])
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        detail = f"this address does not know this query parameter; {takes}"
        raise InvalidRequest(detail, *((("query", name), detail) for name in unknown))


def _declared(route: APIRoute) -> list[str]:
    return [field.alias for field in get_flat_params(route.dependant) if isinstance(field.field_info, Query)]
