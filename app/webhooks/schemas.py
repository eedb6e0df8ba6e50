"""Webhooks as asked for and answered, and what is sent."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.http.schemas import Body
from app.webhooks import addresses

Event = Literal["job.succeeded", "job.failed", "job.cancelled"]
ALL: list[Event] = ["job.succeeded", "job.failed", "job.cancelled"]
DeliveryState = Literal["waiting", "delivered", "failed"]


def _allowed(url: str) -> str:
    try:
        addresses.check(url)
    except addresses.NotAllowed as error:
        raise ValueError(str(error)) from None
    return url


class NewWebhook(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": "https://planner.example/hooks/bco", "events": ["job.succeeded"]}]}
    )

    url: Annotated[str, AfterValidator(_allowed)] = Field(
        description="where to send to, by https; the operator allows hosts (BCO_WEBHOOK_HOSTS)"
    )
    events: list[Event] = Field(ALL, min_length=1, max_length=3, description="what to tell; all ends by default")


class WebhookAnswer(BaseModel):
    id: str
    url: str
    events: list[str]
    created_at: datetime


class SecretAnswer(BaseModel):
    secret: str = Field(description="shown this once; it signs all webhooks of the workspace")
    signs_with_former_until: datetime | None = Field(
        description="until then the secret before it signs too, so that receivers can change over; null for the first"
    )


class DeliveryAnswer(BaseModel):
    id: str = Field(description="the event's own; it is sent again under the same id")
    event: str
    job_id: str | None
    state: DeliveryState
    attempts: int
    next_at: datetime | None = Field(description="when it is tried next; null once delivered or failed")
    status: int | None = Field(description="the receiver's last answer")
    error: str | None = Field(description="why the last attempt failed")
    created_at: datetime
