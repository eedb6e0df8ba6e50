"""Query parameters: unknown ones are refused, so that typing errors show."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute

from app.http.errors import InvalidRequest


def refuse_unknown_query(request: Request) -> None:
    """Refuse query parameters that the route does not declare; a dependency of every router."""
    if not request.query_params:
        return
    declared = _declared(request.scope["route"])
    unknown = [name for name in request.query_params if name not in declared]
    if unknown:
        choices = f"it accepts {', '.join(declared)}" if declared else "it accepts none"
        detail = f"this address does not have this query parameter; {choices}"
        raise InvalidRequest(detail, *((("query", name), detail) for name in unknown))


def _declared(route: APIRoute) -> list[str]:
    return [field.alias for field in get_flat_params(route.dependant) if isinstance(field.field_info, Query)]
