"""Base models and field types of requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from app.db.text import NOT_PLAIN, is_plain
from bco_core.policies import POLICIES

Item = TypeVar("Item")

MOST_MISTAKES = 100
_MANY = "there are {count} mistakes in this request, too many to list; was it meant for this address?"


def plain(text: str) -> str:
    """Refuse a name that cannot be stored or is not displayed as written."""
    if not is_plain(text):
        raise ValueError(f"this text contains {NOT_PLAIN}")
    return text


class StrictModel(BaseModel):
    """Refuses unknown fields, numbers that are not finite, and values of another type."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def has_few_unknown_fields(cls, value: Any) -> Any:
        """Refuse many unknown fields at once: naming hundreds of thousands one by one would take seconds."""
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + MOST_MISTAKES:
            raise PydanticCustomError("many_mistakes", _MANY, {"count": len(value) - len(cls.model_fields)})
        return value


class Body(StrictModel):
    """A whole request: if it has very many mistakes, they are not listed."""

    @model_validator(mode="wrap")
    @classmethod
    def has_few_mistakes(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return read(value)
        except ValidationError as error:
            if error.error_count() <= MOST_MISTAKES:
                raise
            raise PydanticCustomError("many_mistakes", _MANY, {"count": error.error_count()}) from None


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


def _check_written_out(text: object) -> object:
    """Refuse a bare number, which would be taken for seconds since 1970."""
    if not isinstance(text, str) or "-" not in text.strip().lstrip("-"):
        raise ValueError("write the time as 2026-01-31T06:00:00Z")
    return text


Moment = Annotated[datetime, BeforeValidator(_check_written_out)]
Limit = Annotated[int, Field(ge=1, le=200)]
if TYPE_CHECKING:
    PolicyName = str
else:
    PolicyName = Literal[tuple(POLICIES)]
Seed = Annotated[int, Field(ge=0, lt=2**53)]
TimeLimit = Annotated[float, Field(gt=0, le=1e9)]
