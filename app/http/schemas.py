"""What every request and answer model shares."""

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
_MANY = "there are {count} mistakes in this request, too many to list; is it meant for this address?"


def plain(text: str) -> str:
    """Refuse a name that cannot be stored or is not shown as it is written."""
    if not is_plain(text):
        raise ValueError(f"this text holds {NOT_PLAIN}")
    return text


class StrictModel(BaseModel):
    """Requests refuse fields they do not know, numbers that are not finite, and values of another type."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def has_few_strangers(cls, given: Any) -> Any:
        """Naming hundreds of thousands of unknown fields one by one would take seconds."""
        if isinstance(given, dict) and len(given) > len(cls.model_fields) + MOST_MISTAKES:
            raise PydanticCustomError("many_mistakes", _MANY, {"count": len(given) - len(cls.model_fields)})
        return given


class Body(StrictModel):
    """A whole request: one with more mistakes than anybody would read is refused without listing them."""

    @model_validator(mode="wrap")
    @classmethod
    def has_few_mistakes(cls, given: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return read(given)
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
