"""What every request and answer model shares."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Generic, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from app.db.text import NOT_PLAIN, is_plain
from bco_core.policies import POLICIES

Item = TypeVar("Item")


def plain(text: str) -> str:
    """Refuse a name that cannot be stored or is not shown as it is written."""
    if not is_plain(text):
        raise ValueError(f"this text holds {NOT_PLAIN}")
    return text


class Request(BaseModel):
    """Requests refuse fields they do not know, numbers that are not finite, and values of another type."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)


class Resource(BaseModel):
    id: str
    name: str
    created_at: datetime


class Page(BaseModel, Generic[Item]):
    """Newest first; pass ``next_cursor`` as ``cursor`` to get the following page."""

    items: list[Item]
    next_cursor: str | None


Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=200),
    AfterValidator(plain),
]


def _written_out(text: object) -> object:
    """A bare number would be taken for seconds since 1970."""
    if not isinstance(text, str) or "-" not in text.strip().lstrip("-"):
        raise ValueError("write the time as 2026-01-31T06:00:00Z")
    return text


Moment = Annotated[datetime, BeforeValidator(_written_out)]
Limit = Annotated[int, Field(ge=1, le=200)]
if TYPE_CHECKING:
    PolicyName = str
else:
    PolicyName = Literal[tuple(POLICIES)]
Seed = Annotated[int, Field(ge=0, lt=2**53)]
TimeLimit = Annotated[float, Field(gt=0, le=1e9)]
