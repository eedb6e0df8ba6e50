"""/v1/aliases"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.aliases import service
from app.aliases.schemas import AliasAnswer, AliasMoveAnswer, AliasName, AliasTarget
from app.http.routes import ScopedRoute
from app.http.schemas import Limit, Page
from app.http.security import Admin, Reader, Trainer

router = APIRouter(prefix="/v1/aliases", tags=["aliases"], route_class=ScopedRoute)


@router.put("/{name}")
def move_alias(name: AliasName, target: AliasTarget, caller: Trainer, http: Request) -> AliasAnswer:
    """Create an alias of a posterior, or move it to another. An alias may be used wherever a posterior's id may.

    Every process follows within about a second.
    """
    service.put(caller.workspace, name, target, caller.key_id)
    http.app.state.aliases.forget(service.key(caller.workspace, name))
    return read_alias(name, caller)


@router.get("")
def list_aliases(caller: Reader, limit: Limit = 50, cursor: str | None = None) -> Page[AliasAnswer]:
    """List aliases, newest first."""
    rows, next_cursor = service.listing(caller.workspace, limit, cursor)
    return Page(items=[AliasAnswer.model_validate(row, from_attributes=True) for row in rows], next_cursor=next_cursor)


@router.get("/{name}")
def read_alias(name: AliasName, caller: Reader) -> AliasAnswer:
    """Read the posterior that an alias names, and who moved it there."""
    return AliasAnswer.model_validate(service.get(caller.workspace, name), from_attributes=True)


@router.get("/{name}/moves")
def list_alias_moves(
    name: AliasName,
    caller: Reader,
    limit: Limit = 50,
    cursor: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="the next_cursor of the previous page")] = None,
) -> Page[AliasMoveAnswer]:
    """List the moves of an alias: by whom, when, from and to which posterior; newest first, even if deleted."""
    rows, following = service.moves(caller.workspace, name, limit, cursor)
    return Page(
        items=[AliasMoveAnswer.model_validate(row, from_attributes=True) for row in rows],
        next_cursor=None if following is None else str(following),
    )


@router.delete("/{name}", status_code=204)
def delete_alias(name: AliasName, caller: Admin, http: Request) -> None:
    """Delete an alias; its posterior and its moves stay."""
    service.delete(caller.workspace, name, caller.key_id)
    http.app.state.aliases.forget(service.key(caller.workspace, name))
