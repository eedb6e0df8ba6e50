"""/v1/webhooks"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from app.http.idempotency import IdempotentRoute
from app.http.schemas import Limit, Page
from app.http.security import Admin, Reader
from app.webhooks import service
from app.webhooks.schemas import DeliveryAnswer, NewWebhook, SecretAnswer, WebhookAnswer

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=IdempotentRoute)


@router.post("", status_code=201)
def create_webhook(request: NewWebhook, caller: Admin, response: Response) -> WebhookAnswer:
    """Create a webhook: a signed POST for each ended job of this workspace.

    A delivery without a 2xx answer within ten seconds is repeated for about a day, at growing intervals, with the same
    event id.
    """
    row = service.create(caller.workspace, request)
    response.headers["Location"] = f"/v1/webhooks/{row.id}"
    return WebhookAnswer.model_validate(row, from_attributes=True)


@router.get("")
def list_webhooks(caller: Reader, limit: Limit = 50, cursor: str | None = None) -> Page[WebhookAnswer]:
    """List the webhooks of this workspace, newest first."""
    rows, next_cursor = service.listing(caller.workspace, limit, cursor)
    return Page(
        items=[WebhookAnswer.model_validate(row, from_attributes=True) for row in rows], next_cursor=next_cursor
    )


@router.post("/secret", status_code=201)
def make_webhook_secret(caller: Admin) -> SecretAnswer:
    """Create a new secret that signs this workspace's webhooks; the previous one signs too for another day."""
    secret, former_until = service.new_secret(caller.workspace)
    return SecretAnswer(secret=secret, signs_with_former_until=former_until)


@router.get("/{webhook_id}")
def read_webhook(webhook_id: str, caller: Reader) -> WebhookAnswer:
    """Read a webhook."""
    return WebhookAnswer.model_validate(service.get(caller.workspace, webhook_id), from_attributes=True)


@router.post("/{webhook_id}/ping", status_code=202)
def ping_webhook(webhook_id: str, caller: Admin) -> DeliveryAnswer:
    """Send an event of type `ping`, as a test; the list of deliveries has the result."""
    return _delivery_answer(service.ping(caller.workspace, webhook_id))


@router.get("/{webhook_id}/deliveries")
def list_deliveries(
    webhook_id: str, caller: Reader, limit: Limit = 50, cursor: str | None = None
) -> Page[DeliveryAnswer]:
    """List deliveries, newest first: attempts, the receiver's last answer, time of the next attempt."""
    rows, next_cursor = service.deliveries(caller.workspace, webhook_id, limit, cursor)
    return Page(items=[_delivery_answer(row) for row in rows], next_cursor=next_cursor)


@router.delete("/{webhook_id}", status_code=204)
def delete_webhook(webhook_id: str, caller: Admin) -> None:
    """Delete a webhook and its waiting deliveries."""
    service.delete(caller.workspace, webhook_id)


def _delivery_answer(row: Any) -> DeliveryAnswer:
    fields = {name: getattr(row, name) for name in DeliveryAnswer.model_fields if name != "next_at"}
    return DeliveryAnswer(**fields, next_at=row.due_at if row.state == "waiting" else None)
