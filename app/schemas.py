"""What every request and answer model shares."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Item = TypeVar("Item")


class Request(BaseModel):
    """Requests refuse fields they do not know and numbers that are not finite."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Resource(BaseModel):
    id: str
    name: str
    created_at: datetime


class Page(BaseModel, Generic[Item]):
    """Newest first; pass ``next_cursor`` as ``cursor`` to get the following page."""

    items: list[Item]
    next_cursor: str | None


Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]
Limit = Annotated[int, Field(ge=1, le=200)]
