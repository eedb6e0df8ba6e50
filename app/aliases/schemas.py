"""Aliases as asked for and answered."""

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
    "does not look like an id, which begins with post_"
)


def is_name(text: str) -> bool:
    """Whether an alias may be called so: safe in an address, and never mistaken for an id."""
    looks_like_id = is_id(text) or text.lower().startswith("post_")
    return _NAME.fullmatch(text) is not None and text.strip("._-") != "" and not looks_like_id


def _checked(text: str) -> str:
    if not is_name(text):
        raise ValueError(_IS_NAME)
    return text


AliasName = Annotated[str, AfterValidator(_checked), WithJsonSchema({"type": "string", "pattern": f"^{PATTERN}$"})]


class AliasTarget(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"posterior_id": "post_DEMO"}]})

    posterior_id: str = Field(description="the posterior that the alias is to name, by its id or by another alias")
    if_posterior_id: str | None = Field(
        None,
        description="move it only if it names this posterior now, else 409; null: only if there is no such alias yet; "
        "left out: whatever it names",
    )

    @property
    def is_guarded(self) -> bool:
        return "if_posterior_id" in self.model_fields_set


class AliasAnswer(BaseModel):
    name: str
    posterior_id: str = Field(description="the posterior that it names now")
    digest: str = Field(description="that posterior's")
    revision: int = Field(description="grows with every move")
    created_at: datetime
    moved_at: datetime
    moved_by: str | None = Field(description="the key, or the job, that moved it last; null without a key")


class AliasMoveAnswer(BaseModel):
    revision: int
    at: datetime
    by: str | None = Field(description="the key, or the job, that moved it; null without a key")
    from_posterior_id: str | None = Field(description="null where it was made by this move")
    to_posterior_id: str | None = Field(description="null where it was deleted by this move")
    reason: str = Field(description="what a job found before it moved the alias; empty for a move by hand")
