"""Webhooks of a workspace, its secret, and its deliveries.

A delivery is stored in the transaction of its event, so that events are neither lost nor invented;
:mod:`app.webhooks.delivery` sends them.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.orm import Session

from app.db.base import now
from app.db.engine import affected_rows, transaction
from app.db.tables import DeliveryRow, JobRow, WebhookRow, WebhookSecretRow
from app.http.errors import ConflictError, NotFoundError
from app.http.idempotency import record_location
from app.http.rows import delete_row, find, page
from app.ids import new_id, sibling_id
from app.webhooks.schemas import DeliveryAnswer, NewWebhook

MISSING = "no webhook has this id; GET /v1/webhooks lists them"
UNSIGNED = "this workspace has no secret to sign with yet; create one with POST /v1/webhooks/secret"
PING = "ping"
MOST = 20
# Most waiting deliveries of one workspace; further events are not sent.
MOST_WAITING = 10_000
CHANGE_OVER = timedelta(hours=24)


def create(workspace: str, request: NewWebhook) -> WebhookRow:
    with transaction() as session:
        if session.get(WebhookSecretRow, workspace) is None:
            raise ConflictError(UNSIGNED)
        if (session.scalar(sa.select(sa.func.count()).where(WebhookRow.workspace == workspace)) or 0) >= MOST:
            raise ConflictError(f"a workspace may have at most {MOST} webhooks; delete one first")
        events = list(dict.fromkeys(request.events))
        row = WebhookRow(id=new_id("hook"), workspace=workspace, url=request.url, events=events)
        session.add(row)
        record_location(session, f"/v1/webhooks/{row.id}")
    return row


def listing(workspace: str, limit: int, cursor: str | None) -> tuple[list[sa.Row[Any]], str | None]:
    columns = [WebhookRow.id, WebhookRow.url, WebhookRow.events, WebhookRow.created_at]
    with transaction() as session:
        return page(session, WebhookRow, workspace, limit, cursor, columns=columns)


def get(workspace: str, webhook_id: str) -> WebhookRow:
    with transaction() as session:
        return _get(session, workspace, webhook_id)


def _get(session: Session, workspace: str, webhook_id: str) -> WebhookRow:
    row = find(session, WebhookRow, workspace, webhook_id)
    if row is None:
        raise NotFoundError(MISSING)
    return row


def delete(workspace: str, webhook_id: str) -> None:
    with transaction() as session:
        delete_row(session, WebhookRow, workspace, webhook_id, MISSING, MISSING)


def new_secret(workspace: str) -> tuple[str, datetime | None]:
    """Create a secret; return it, and until when the previous one signs too."""
    secret = "whsec_" + secrets.token_urlsafe(32)
    with transaction() as session:
        row = session.get(WebhookSecretRow, workspace)
        if row is None:
            session.add(WebhookSecretRow(workspace=workspace, secret=secret))
            return secret, None
        row.former, row.former_until, row.secret = row.secret, now() + CHANGE_OVER, secret
        return secret, row.former_until


def secrets_of(session: Session, workspace: str) -> list[str]:
    """Return the secrets that sign now, newest first."""
    row = session.get(WebhookSecretRow, workspace)
    if row is None:
        return []
    late = row.former_until is None or row.former_until < now()
    return [row.secret] if late or row.former is None else [row.secret, row.former]


def deliveries(workspace: str, webhook_id: str, limit: int, cursor: str | None) -> tuple[list[sa.Row[Any]], str | None]:
    columns: list[Any] = [getattr(DeliveryRow, name) for name in DeliveryAnswer.model_fields if name != "next_at"]
    columns.append(DeliveryRow.due_at)
    with transaction() as session:
        _get(session, workspace, webhook_id)
        of_it = DeliveryRow.webhook_id == webhook_id
        return page(session, DeliveryRow, workspace, limit, cursor, of_it, columns=columns)


def ping(workspace: str, webhook_id: str) -> DeliveryRow:
    """Store a test delivery."""
    with transaction() as session:
        row = _delivery(_get(session, workspace, webhook_id), PING, None, {})
        session.add(row)
    return row


def announce(session: Session, job: JobRow, makes_posterior: bool) -> None:
    """Store a delivery for every webhook that wants the event of an ended job."""
    event = f"job.{job.state}"
    hooks = session.scalars(sa.select(WebhookRow).where(WebhookRow.workspace == job.workspace)).all()
    hooks = [hook for hook in hooks if event in hook.events]
    if not hooks or _waiting(session, job.workspace) >= MOST_WAITING:
        return
    has_posterior = makes_posterior and job.state == "succeeded"
    fields = {
        "id": job.id,
        "kind": job.kind,
        "name": job.name,
        "state": job.state,
        "error": job.error,
        "problem_id": job.problem_id,
        "dataset_id": job.dataset_id,
        "posterior_id": sibling_id(job.id, "post") if has_posterior else job.posterior_id,
        "created_at": job.created_at.isoformat(),
        "finished_at": None if job.finished_at is None else job.finished_at.isoformat(),
    }
    session.add_all([_delivery(hook, event, job.id, {"job": fields}) for hook in hooks])


def _waiting(session: Session, workspace: str) -> int:
    waiting = DeliveryRow.workspace == workspace, DeliveryRow.state == "waiting"
    return session.scalar(sa.select(sa.func.count()).where(*waiting)) or 0


def _delivery(hook: WebhookRow, event: str, job_id: str | None, content: dict[str, Any]) -> DeliveryRow:
    identifier, moment = new_id("event"), now()
    body = {"id": identifier, "type": event, "created_at": moment.isoformat(), **content}
    return DeliveryRow(
        id=identifier,
        workspace=hook.workspace,
        webhook_id=hook.id,
        job_id=job_id,
        event=event,
        body=orjson.dumps(body),
        state="waiting",
        attempts=0,
        due_at=moment,
        created_at=moment,
    )


def forget(session: Session, before: datetime, most: int) -> int:
    """Remove at most ``most`` deliveries that ended and were created before a time; return how many."""
    few = sa.select(DeliveryRow.id).where(DeliveryRow.state != "waiting", DeliveryRow.created_at < before).limit(most)
    return affected_rows(session, sa.delete(DeliveryRow).where(DeliveryRow.id.in_(few)))
