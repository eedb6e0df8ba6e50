"""Requests and answers of aliases."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema

from app.http.schemas import Body
from app.ids import is_id

PATTERN = "[A-Za-z0-9._-]{1,64}"
_NAME = re.compile(PATTERN)
_IS_NAME = (
    "an alias is 1 to 64 letters, digits, dots, hyphens and underscores, at least one of them a letter or digit; it "
    "must not begin with post_, like an id"
)


def is_name(text: str) -> bool:
    """Tell whether a text is a valid alias: safe in a URL, and never mistaken for an id."""
    looks_like_id = is_id(text) or text.lower().startswith("post_")
    return _NAME.fullmatch(text) is not None and text.strip("._-") != "" and not looks_like_id


def _check_name(text: str) -> str:
    if not is_name(text):
        raise ValueError(_IS_NAME)
    return text


AliasName = Annotated[str, AfterValidator(_check_name), WithJsonSchema({"type": "string", "pattern": f"^{PATTERN}$"})]


class AliasTarget(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"posterior_id": "post_DEMO"}]})

    posterior_id: str = Field(description="the posterior that the alias will name, by id or by another alias")
    if_posterior_id: str | None = Field(
        None,
        description="move the alias only if it names this posterior now, else 409; null: only if it does not exist; "
        "omitted: in any case",
    )

    @property
    def is_guarded(self) -> bool:
        return "if_posterior_id" in self.model_fields_set


class AliasAnswer(BaseModel):
    name: str
    posterior_id: str = Field(description="the posterior that it names now")
    digest: str = Field(description="of that posterior")
    revision: int = Field(description="increases with every move")
    created_at: datetime
    moved_at: datetime
    moved_by: str | None = Field(description="the key, or the job, that moved it last; null without a key")


class AliasMoveAnswer(BaseModel):
    revision: int
    at: datetime
    by: str | None = Field(description="the key, or the job, that moved it; null without a key")
    from_posterior_id: str | None = Field(description="null if this move created the alias")
    to_posterior_id: str | None = Field(description="null if this move deleted the alias")
    reason: str = Field(description="the comparison of a job that moved the alias; empty for a move by hand")
