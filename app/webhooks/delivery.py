"""Send deliveries of webhooks, in a thread of every worker.

A worker takes a delivery by a guarded update that postpones it for a while, so that no other worker sends it meanwhile
and a worker that dies loses nothing. A receiver may get an event twice, with the same id. An event counts as delivered
once the receiver answers with 2xx. A slow receiver delays only its own workspace, which sends few events at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import threading
import time
from collections import Counter
from datetime import timedelta
from functools import partial

import httpx
import sqlalchemy as sa
from starlette.concurrency import run_in_threadpool

from app.db.base import now
from app.db.engine import affected_rows, transaction
from app.db.outage import is_outage
from app.db.tables import DeliveryRow, WebhookRow
from app.webhooks import service
from app.webhooks.addresses import AddressNotAllowed, WebhookTarget, resolve

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
SEND_SECONDS = 10.0
# Waits after each failed attempt; after the last a delivery has failed.
WAITS = [timedelta(seconds=seconds) for seconds in (5, 30, 120, 600, 3_600, 4 * 3_600, 18 * 3_600)]
# Longer than an attempt can take.
LEASE = timedelta(seconds=60)
AT_ONCE, AT_ONCE_A_WORKSPACE = 16, 4
SIGNATURE = "BCO-Signature"


def keep_delivering(stop: threading.Event) -> None:
    """Send due deliveries until the worker stops."""
    asyncio.run(_deliver(stop))


async def _deliver(stop: threading.Event) -> None:
    sending: set[asyncio.Task[None]] = set()
    busy: Counter[str] = Counter()
    # No proxy, cookies or redirects: a request goes to its checked address only.
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)
    async with httpx.AsyncClient(
        trust_env=False, follow_redirects=False, timeout=SEND_SECONDS, limits=limits
    ) as client:
        while not stop.is_set():
            taken = await _take_due(AT_ONCE - len(sending), busy)
            for row, hook_url, secrets in taken:
                busy[row.workspace] += 1
                task = asyncio.create_task(_attempt(client, row, hook_url, secrets))
                sending.add(task)
                task.add_done_callback(partial(_finish_sending, row.workspace, sending, busy))
            if not taken:
                await asyncio.sleep(POLL_SECONDS)
        if sending:
            await asyncio.wait(sending, timeout=1.0)


def _finish_sending(
    workspace: str, sending: set[asyncio.Task[None]], busy: Counter[str], task: asyncio.Task[None]
) -> None:
    sending.discard(task)
    busy[workspace] -= 1
    if not task.cancelled() and task.exception() is not None:
        log.error("a webhook could not be sent; it is tried again later", exc_info=task.exception())


async def _take_due(most: int, busy: Counter[str]) -> list[tuple[DeliveryRow, str, list[str]]]:
    if most <= 0:
        return []
    try:
        return await run_in_threadpool(take, most, busy)
    except Exception as error:
        if not is_outage(error):
            log.exception("looking for webhooks failed; trying again")
        return []


def take(most: int, busy: Counter[str]) -> list[tuple[DeliveryRow, str, list[str]]]:
    """Take up to ``most`` due deliveries for a while; return them with their URLs and secrets."""
    full = [workspace for workspace, count in busy.items() if count >= AT_ONCE_A_WORKSPACE]
    due = sa.select(DeliveryRow, WebhookRow.url).join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
    due = due.where(DeliveryRow.state == "waiting", DeliveryRow.due_at <= now(), DeliveryRow.workspace.not_in(full))
    taken, count = [], Counter(busy)
    with transaction() as session:
        for row, url in session.execute(due.order_by(DeliveryRow.due_at).limit(most)).all():
            if count[row.workspace] >= AT_ONCE_A_WORKSPACE:
                continue
            mine = DeliveryRow.id == row.id, DeliveryRow.state == "waiting", DeliveryRow.attempts == row.attempts
            later = {"attempts": row.attempts + 1, "due_at": now() + LEASE}
            if affected_rows(session, sa.update(DeliveryRow).where(*mine).values(**later)):
                count[row.workspace] += 1
                session.refresh(row)
                session.expunge(row)
                taken.append((row, url, service.secrets_of(session, row.workspace)))
    return taken


async def _attempt(client: httpx.AsyncClient, row: DeliveryRow, url: str, secrets: list[str]) -> None:
    status, error = None, None
    try:
        async with asyncio.timeout(SEND_SECONDS):
            target = await run_in_threadpool(resolve, url)
            status = await _send(client, target, row, secrets)
    except AddressNotAllowed as refusal:
        error = str(refusal)
    except TimeoutError:
        error = f"there was no answer within {SEND_SECONDS:g} s"
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as failure:
        error = f"the event could not be sent ({type(failure).__name__})"
    if status is not None and not 200 <= status < 300:
        error = f"the receiver answered {status}"
    await run_in_threadpool(settle, row, status, error)


async def _send(client: httpx.AsyncClient, target: WebhookTarget, row: DeliveryRow, secrets: list[str]) -> int:
    """Send an event; return the status of the receiver's answer, whose body is not read."""
    headers = {
        "Host": target.host_header,
        "Content-Type": "application/json",
        "User-Agent": "bco-webhooks/1",
        "BCO-Event": row.event,
        "BCO-Event-Id": row.id,
        SIGNATURE: signature(secrets, row.body, int(time.time())),
    }
    extensions = {"sni_hostname": target.name}
    request = client.build_request("POST", target.url, content=row.body, headers=headers, extensions=extensions)
    response = await client.send(request, stream=True)
    await response.aclose()
    return response.status_code


def signature(secrets: list[str], body: bytes, moment: int) -> str:
    """Return ``t=…,v1=…``: the hex HMAC-SHA256 of ``t.body`` with each secret that signs."""
    signed = b"%d." % moment + body
    marks = [hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets]
    return ",".join([f"t={moment}", *(f"v1={mark}" for mark in marks)])


def settle(row: DeliveryRow, status: int | None, error: str | None) -> None:
    """Store the result of an attempt, unless another worker has taken the delivery meanwhile."""
    # A receiver that answers "gone" wants no further attempts.
    given_up = row.attempts > len(WAITS) or status == 410
    state = "delivered" if error is None else "failed" if given_up else "waiting"
    due = now() + WAITS[row.attempts - 1] if state == "waiting" else now()
    mine = DeliveryRow.id == row.id, DeliveryRow.state == "waiting", DeliveryRow.attempts == row.attempts
    with transaction() as session:
        values = {"state": state, "due_at": due, "status": status, "error": error}
        affected_rows(session, sa.update(DeliveryRow).where(*mine).values(**values))
