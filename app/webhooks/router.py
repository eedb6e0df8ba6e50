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
    """Have word sent when jobs of this workspace end, signed with the workspace's secret.

    What is not taken with a 2xx within ten seconds is sent again for about a day, ever later, under the same event id.
    """
    row = service.create(caller.workspace, request)
    response.headers["Location"] = f"/v1/webhooks/{row.id}"
    return WebhookAnswer.model_validate(row, from_attributes=True)


@router.get("")
def list_webhooks(caller: Reader, limit: Limit = 50, cursor: str | None = None) -> Page[WebhookAnswer]:
    rows, following = service.listing(caller.workspace, limit, cursor)
    return Page(items=[WebhookAnswer.model_validate(row, from_attributes=True) for row in rows], next_cursor=following)


@router.post("/secret", status_code=201)
def make_webhook_secret(caller: Admin) -> SecretAnswer:
    """Make the secret that signs this workspace's webhooks, or a new one; the former signs too for another day."""
    secret, until = service.new_secret(caller.workspace)
    return SecretAnswer(secret=secret, signs_with_former_until=until)


@router.get("/{webhook_id}")
def read_webhook(webhook_id: str, caller: Reader) -> WebhookAnswer:
    return WebhookAnswer.model_validate(service.get(caller.workspace, webhook_id), from_attributes=True)


@router.post("/{webhook_id}/ping", status_code=202)
def ping_webhook(webhook_id: str, caller: Admin) -> DeliveryAnswer:
    """Send an event of type `ping`, to see whether it comes; the deliveries tell how it went."""
    return _shown(service.ping(caller.workspace, webhook_id))


@router.get("/{webhook_id}/deliveries")
def list_deliveries(
    webhook_id: str, caller: Reader, limit: Limit = 50, cursor: str | None = None
) -> Page[DeliveryAnswer]:
    """What was sent or is to be, newest first: attempts, the receiver's last answer, when it is tried next."""
    rows, following = service.deliveries(caller.workspace, webhook_id, limit, cursor)
    return Page(items=[_shown(row) for row in rows], next_cursor=following)


@router.delete("/{webhook_id}", status_code=204)
def delete_webhook(webhook_id: str, caller: Admin) -> None:
    """Send nothing there any more, not even what waits."""
    service.delete(caller.workspace, webhook_id)


def _shown(row: Any) -> DeliveryAnswer:
    fields = {name: getattr(row, name) for name in DeliveryAnswer.model_fields if name != "next_at"}
    return DeliveryAnswer(**fields, next_at=row.due_at if row.state == "waiting" else None)
