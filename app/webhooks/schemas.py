"""Requests and answers of webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app.http.schemas import Body
from app.webhooks import addresses

Event = Literal["job.succeeded", "job.failed", "job.cancelled"]
ALL: list[Event] = ["job.succeeded", "job.failed", "job.cancelled"]
DeliveryState = Literal["waiting", "delivered", "failed"]


def _check_url(url: str) -> str:
    try:
        addresses.check(url)
    except addresses.AddressNotAllowed as error:
        raise ValueError(str(error)) from None
    return url


class NewWebhook(Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": "https://planner.example/hooks/bco", "events": ["job.succeeded"]}]}
    )

    url: Annotated[str, AfterValidator(_check_url)] = Field(
        description="https address to send to; the operator allows hosts (BCO_WEBHOOK_HOSTS)"
    )
    events: list[Event] = Field(ALL, min_length=1, max_length=3, description="events to send; by default all")


class WebhookAnswer(BaseModel):
    id: str
    url: str
    events: list[str]
    created_at: datetime


class SecretAnswer(BaseModel):
    secret: str = Field(description="shown only once; signs all webhooks of the workspace")
    signs_with_former_until: datetime | None = Field(
        description="until then the previous secret signs too, so that receivers can switch; null for the first secret"
    )


class DeliveryAnswer(BaseModel):
    id: str = Field(description="id of the event; repeated deliveries have the same id")
    event: str
    job_id: str | None
    state: DeliveryState
    attempts: int
    next_at: datetime | None = Field(description="time of the next attempt; null once delivered or failed")
    status: int | None = Field(description="HTTP status of the receiver's last answer")
    error: str | None = Field(description="why the last attempt failed")
    created_at: datetime
