"""Webhooks: signed events of ended jobs, retries, and restrictions on URLs and addresses."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from app.commands.serve import LocalService
from app.db.base import now
from app.db.engine import transaction
from app.db.tables import DeliveryRow, WebhookSecretRow
from app.jobs import service as jobs
from app.keys import service as keys
from app.webhooks import addresses, delivery, service
from app.webhooks.addresses import AddressNotAllowed
from tests.support.journey import Json, check_json, create_job
from tests.support.polling import wait_until

Settings = Callable[..., None]


class Receiver(ThreadingHTTPServer):
    """Record requests and answer with the given statuses."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.pause = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hooks?from=bco"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((dict(self.headers), body))
        time.sleep(self.server.pause)
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 204)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


class SlowByteServer(socketserver.ThreadingTCPServer):
    """Answer one byte at a time, so that no single pause is long."""

    daemon_threads = True

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with suppress(OSError), request:
            for letter in b"HTTP/1.1 200 OK\r\n" * 3:
                request.sendall(bytes([letter]))
                time.sleep(0.1)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _allow_anonymous(settings: Settings) -> None:
    """Some tests create keys; the others need access without one."""
    settings(allow_anonymous="true")


@pytest.fixture
def allow_local_hooks(settings: Settings) -> None:
    settings(webhook_hosts="127.0.0.1:*,localhost:*", webhook_networks="127.0.0.0/8")


@pytest.fixture
def delivery_thread(allow_local_hooks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the delivery loop of workers in this process, with short waits between retries."""
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(delivery, "WAITS", [timedelta(seconds=0.1)] * 3)
    stop = threading.Event()
    thread = threading.Thread(target=delivery.keep_delivering, args=(stop,))
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.fixture
def secret(client: TestClient) -> str:
    return str(check_json(client.post("/v1/webhooks/secret"), 201)["secret"])


def create_webhook(client: TestClient, url: str, **more: Any) -> Json:
    return check_json(client.post("/v1/webhooks", json={"url": url, **more}), 201)


def deliveries(client: TestClient, hook: Json) -> list[Json]:
    items: list[Json] = check_json(client.get(f"/v1/webhooks/{hook['id']}/deliveries"))["items"]
    return items


def is_signed(headers: dict[str, str], body: bytes, secret: str) -> bool:
    """Check a signature as documented."""
    fields = [part.split("=") for part in headers["BCO-Signature"].split(",")]
    (moment,) = (value for name, value in fields if name == "t")
    mark = hmac.new(secret.encode(), moment.encode() + b"." + body, hashlib.sha256).hexdigest()
    return abs(time.time() - int(moment)) < 300 and mark in [value for name, value in fields if name == "v1"]


# sending


def test_an_ended_job_sends_one_signed_event_of_its_type(
    client: TestClient, receiver: Receiver, delivery_thread: None, secret: str
) -> None:
    hook = create_webhook(client, receiver.url, events=["job.cancelled"])
    ignored = create_webhook(client, receiver.url, events=["job.failed"])
    job = create_job(client)
    check_json(client.post(f"/v1/jobs/{job['id']}/cancel"), 202)
    wait_until("it is delivered", lambda: deliveries(client, hook)[0]["state"] == "delivered")
    ((headers, body),) = receiver.seen
    assert is_signed(headers, body, secret)
    assert not is_signed(headers, body + b" ", secret)
    event = json.loads(body)
    assert (event["type"], event["job"]["id"], event["job"]["state"]) == ("job.cancelled", job["id"], "cancelled")
    assert headers["BCO-Event-Id"] == event["id"] == deliveries(client, hook)[0]["id"]
    assert deliveries(client, ignored) == []
    assert client.delete(f"/v1/webhooks/{hook['id']}").status_code == 204
    assert client.delete(f"/v1/webhooks/{ignored['id']}").status_code == 204


def test_a_failed_delivery_is_retried_with_the_same_id(
    client: TestClient, receiver: Receiver, delivery_thread: None, secret: str
) -> None:
    receiver.statuses = [500, 302]
    hook = create_webhook(client, receiver.url)
    check_json(client.post(f"/v1/webhooks/{hook['id']}/ping"), 202)
    wait_until("it is delivered", lambda: deliveries(client, hook)[0]["state"] == "delivered")
    (found,) = deliveries(client, hook)
    assert (found["attempts"], found["status"], found["error"], found["next_at"]) == (3, 204, None, None)
    assert len({json.loads(body)["id"] for _, body in receiver.seen}) == 1
    assert len(receiver.seen) == 3


@pytest.mark.parametrize(("statuses", "attempts"), [([500] * 9, 4), ([410], 1)])
def test_a_delivery_fails_after_its_last_attempt(
    client: TestClient, receiver: Receiver, delivery_thread: None, secret: str, statuses: list[int], attempts: int
) -> None:
    receiver.statuses = list(statuses)
    hook = create_webhook(client, receiver.url)
    check_json(client.post(f"/v1/webhooks/{hook['id']}/ping"), 202)
    wait_until("the delivery has failed", lambda: deliveries(client, hook)[0]["state"] == "failed")
    (found,) = deliveries(client, hook)
    assert found["attempts"] == attempts
    assert found["error"] == f"the receiver answered {statuses[0]}"


@pytest.mark.slow
def test_a_slow_receiver_does_not_delay_others(
    client: TestClient, receiver: Receiver, delivery_thread: None, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SEND_SECONDS", 30.0)
    receiver.pause = 20.0
    slow = create_webhook(client, receiver.url)
    for _ in range(2 * delivery.AT_ONCE):
        check_json(client.post(f"/v1/webhooks/{slow['id']}/ping"), 202)
    wait_until("it is busy", lambda: len(receiver.seen) >= delivery.AT_ONCE_A_WORKSPACE)
    other = Receiver()
    threading.Thread(target=other.serve_forever, daemon=True).start()
    _, key = keys.create("test", "elsewhere", ["admin", "read", "train"], None)
    theirs = {"Authorization": f"Bearer {key}"}
    check_json(client.post("/v1/webhooks/secret", headers=theirs), 201)
    hook = check_json(client.post("/v1/webhooks", json={"url": other.url}, headers=theirs), 201)
    check_json(client.post(f"/v1/webhooks/{hook['id']}/ping", headers=theirs), 202)
    wait_until("the other receives it", lambda: bool(other.seen))
    assert len(receiver.seen) == delivery.AT_ONCE_A_WORKSPACE
    assert client.delete(f"/v1/webhooks/{slow['id']}", headers=theirs).status_code == 404
    other.shutdown()
    other.server_close()
    with transaction() as session:
        session.execute(sa.delete(DeliveryRow))


def test_a_receiver_that_answers_byte_by_byte_is_cut_off(
    client: TestClient, delivery_thread: None, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "SEND_SECONDS", 0.5)
    server = SlowByteServer(("127.0.0.1", 0), socketserver.BaseRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook = create_webhook(client, f"http://127.0.0.1:{server.server_address[1]}/")
    check_json(client.post(f"/v1/webhooks/{hook['id']}/ping"), 202)
    wait_until("an attempt has failed", lambda: deliveries(client, hook)[0]["error"] is not None)
    assert deliveries(client, hook)[0]["error"] == "there was no answer within 0.5 s"
    server.shutdown()
    server.server_close()


def test_two_workers_take_a_delivery_once(client: TestClient, allow_local_hooks: None, secret: str) -> None:
    with transaction() as session:
        session.execute(sa.delete(DeliveryRow))
    hook = create_webhook(client, "http://127.0.0.1:9/")
    for _ in range(delivery.AT_ONCE_A_WORKSPACE):
        check_json(client.post(f"/v1/webhooks/{hook['id']}/ping"), 202)
    taken: list[str] = []

    def take() -> None:
        taken.extend(row.id for row, _, _ in delivery.take(10, Counter()))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(taken)) == delivery.AT_ONCE_A_WORKSPACE
    with transaction() as session:
        row = session.get_one(DeliveryRow, taken[0])
        assert row.due_at > now()
    # A worker that held a delivery for too long cannot settle it.
    row.attempts -= 1
    delivery.settle(row, 204, None)
    assert {found["state"] for found in deliveries(client, hook)} == {"waiting"}
    with transaction() as session:
        session.execute(sa.delete(DeliveryRow))


def test_the_former_secret_also_signs_for_a_day(client: TestClient, secret: str) -> None:
    second = check_json(client.post("/v1/webhooks/secret"), 201)
    assert second["signs_with_former_until"] is not None
    with transaction() as session:
        both = service.secrets_of(session, "default")
        assert both == [second["secret"], secret]
        session.get_one(WebhookSecretRow, "default").former_until = now()
        assert service.secrets_of(session, "default") == [second["secret"]]
    mark = delivery.signature(both, b"{}", 12)
    assert mark.startswith("t=12,v1=")
    assert mark.count("v1=") == 2


def test_deliveries_above_the_limit_are_dropped(
    client: TestClient, allow_local_hooks: None, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MOST_WAITING", 1)
    hook = create_webhook(client, "http://127.0.0.1:9/")
    for _ in range(3):
        job = create_job(client)
        with transaction() as session:
            jobs.finish(session, job["id"], "failed", error="a reason", message="failed")
    assert len(deliveries(client, hook)) == 1


# allowed URLs


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://hooks.example/", "must begin with https://"),
        ("https:///path", "must begin with https://"),
        ("https://user:secret@hooks.example/", "leave user"),
        ("https://hooks.example/#part", "leave user"),
        ("https://hooks.example:99999/", "not a URL"),
        ("https://hooks.example/a b", "without spaces"),
        ("https://hooks.exämple/", "ASCII"),
        ("https://evil.example/", "are not allowed"),
        ("https://hooks.example:8443/", "are not allowed"),
        ("https://hooks.example.evil.example/", "are not allowed"),
        ("https://below.example/", "are not allowed"),
        ("https://" + "a" * 3_000 + ".example/", "at most"),
    ],
)
def test_urls_that_are_not_allowed_are_refused(
    client: TestClient, settings: Settings, secret: str, url: str, words: str
) -> None:
    settings(webhook_hosts="hooks.example, *.below.example, other.example:8443")
    answer = check_json(client.post("/v1/webhooks", json={"url": url}), 422)
    assert words in answer["errors"][0]["detail"]
    assert answer["errors"][0]["pointer"] == "#/url"


def test_urls_of_allowed_hosts_are_accepted(settings: Settings) -> None:
    settings(webhook_hosts="hooks.example, *.below.example, other.example:8443")
    for url in ("https://HOOKS.example/x?y=1", "https://a.b.below.example/", "https://other.example:8443/"):
        addresses.check(url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.8",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",  # noqa: S104
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "fd00::1",
        "fe80::1%eth0",
        "ff02::1",
    ],
)
def test_names_of_private_addresses_are_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    settings(webhook_hosts="hooks.example")
    public = (socket.AF_INET, 1, 6, "", ("93.184.216.34", 443))
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    found = [public, (family, 1, 6, "", (address, 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(AddressNotAllowed, match="private network"):
        addresses.resolve("https://hooks.example/")
    # The public address alone is allowed, and the connection goes to it.
    found.pop()
    target = addresses.resolve("https://hooks.example/x")
    assert (target.url, target.host_header) == ("https://93.184.216.34:443/x", "hooks.example")


def test_plain_http_is_allowed_for_listed_networks_only(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(webhook_hosts="hooks.example", webhook_networks="10.1.0.0/16")
    place = ["10.1.2.3"]
    entry = lambda: [(socket.AF_INET, 1, 6, "", (place[0], 80))]  # noqa: E731
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entry())
    assert addresses.resolve("http://hooks.example/").url == "http://10.1.2.3:80/"
    place[0] = "93.184.216.34"
    with pytest.raises(AddressNotAllowed, match="http is allowed for private networks only"):
        addresses.resolve("http://hooks.example/")
    place[0] = "10.2.0.1"
    with pytest.raises(AddressNotAllowed, match="private network"):
        addresses.resolve("http://hooks.example/")


def test_without_allowed_hosts_webhooks_are_refused(client: TestClient, secret: str) -> None:
    answer = check_json(client.post("/v1/webhooks", json={"url": "https://hooks.example/"}), 422)
    assert "BCO_WEBHOOK_HOSTS" in answer["errors"][0]["detail"]


# scopes and workspaces


def test_webhooks_belong_to_a_workspace_and_need_the_admin_scope(client: TestClient, allow_local_hooks: None) -> None:
    _, reads = keys.create("test", "other", ["read", "train"], None)
    _, admin = keys.create("test", "other", ["read", "admin"], None)
    reader, owner = ({"Authorization": f"Bearer {key}"} for key in (reads, admin))
    body = {"url": "http://127.0.0.1:9/"}
    assert check_json(client.post("/v1/webhooks", json=body, headers=reader), 403)
    assert check_json(client.post("/v1/webhooks/secret", headers=reader), 403)
    assert (
        "POST /v1/webhooks/secret" in check_json(client.post("/v1/webhooks", json=body, headers=owner), 409)["detail"]
    )
    check_json(client.post("/v1/webhooks/secret", headers=owner), 201)
    hook = check_json(client.post("/v1/webhooks", json=body, headers=owner), 201)
    assert check_json(client.get("/v1/webhooks", headers=reader))["items"] == [hook]
    _, stranger = keys.create("test", "third", ["read", "admin"], None)
    theirs = {"Authorization": f"Bearer {stranger}"}
    for path in ("", "/deliveries"):
        check_json(client.get(f"/v1/webhooks/{hook['id']}{path}", headers=theirs), 404)
    check_json(client.post(f"/v1/webhooks/{hook['id']}/ping", headers=theirs), 404)
    check_json(client.delete(f"/v1/webhooks/{hook['id']}", headers=theirs), 404)
    for _ in range(service.MOST - 1):
        check_json(client.post("/v1/webhooks", json=body, headers=owner), 201)
    assert "at most" in check_json(client.post("/v1/webhooks", json=body, headers=owner), 409)["detail"]


# real processes


@pytest.mark.slow
def test_a_worker_sends_events_queued_by_the_api(receiver: Receiver, tmp_path: Path) -> None:
    hook_settings = {"BCO_WEBHOOK_HOSTS": "127.0.0.1:*", "BCO_WEBHOOK_NETWORKS": "127.0.0.0/8"}
    with (
        LocalService(BCO_DATABASE_URL=f"sqlite:///{tmp_path / 'bco.db'}", **hook_settings) as running,
        httpx.Client(base_url=running.url, timeout=60) as caller,
    ):
        secret = caller.post("/v1/webhooks/secret").raise_for_status().json()["secret"]
        hook = caller.post("/v1/webhooks", json={"url": receiver.url}).raise_for_status().json()
        caller.post(f"/v1/webhooks/{hook['id']}/ping").raise_for_status()
        wait_until("the event has arrived", lambda: bool(receiver.seen))
    headers, body = receiver.seen[0]
    assert is_signed(headers, body, secret)
    assert json.loads(body)["type"] == "ping"
