"""The attacks: each function runs for some seconds and returns a count of the answers it got."""

from __future__ import annotations

import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.bench import attack_payloads

ATTACKER = "127.0.0.2"

Answers = Counter[str]


@dataclass(frozen=True)
class Target:
    """The service under attack, the attacker's keys and posteriors, and the duration of an attack."""

    port: int
    reader: str
    trainer: str
    posterior: str
    whole_numbers: str
    seconds: float

    @contextmanager
    def client(self, key: str = "", timeout: float = 10.0) -> Iterator[httpx.Client]:
        """Yield an attacker's client, which connects from ``ATTACKER``."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        transport = httpx.HTTPTransport(local_address=ATTACKER, retries=0)
        url = f"http://127.0.0.1:{self.port}"
        with httpx.Client(base_url=url, headers=headers, transport=transport, timeout=timeout) as made:
            yield made

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=5, source_address=(ATTACKER, 0))

    def clock(self) -> Callable[[], bool]:
        """Start a clock; the returned function says whether the time is over."""
        end = time.monotonic() + self.seconds
        return lambda: time.monotonic() > end

    def many(self, clients: int, attack: Callable[[], str]) -> Answers:
        """Repeat an attack in ``clients`` threads until the time is over; a client's error counts as an answer."""
        over = self.clock()

        def one() -> Answers:
            heard: Answers = Counter()
            while not over():
                try:
                    heard[attack()] += 1
                except (httpx.HTTPError, OSError) as error:
                    heard[type(error).__name__] += 1
            return heard

        with ThreadPoolExecutor(clients) as pool:
            return sum((future.result() for future in [pool.submit(one) for _ in range(clients)]), Counter())

    def post(self, path: str, key: str, timeout: float = 10.0, **request: Any) -> str:
        with self.client(key, timeout) as client:
            return str(client.post(path, **request).status_code)


def headers_without_end(target: Target) -> Answers:
    line = b"X-Long: " + b"x" * 1_000_000

    def attack() -> str:
        with target.connect() as made:
            made.sendall(b"GET /livez HTTP/1.1\r\n")
            for _ in range(40):
                made.sendall(line)
            return "sent"

    return target.many(4, attack)


def half_sent_requests(target: Target) -> Answers:
    held, over = list[socket.socket](), target.clock()
    heard: Answers = Counter()
    try:
        while len(held) < 1500 and not over():
            with suppress(OSError):
                held.append(target.connect())
                held[-1].sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Half: ")
        heard["opened"] = len(held)
        while not over():
            time.sleep(0.1)
    finally:
        for made in held:
            made.close()
    return heard


def stalled_bodies(target: Target) -> Answers:
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {target.trainer}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 60000\r\n\r\n{"
    held, over = list[socket.socket](), target.clock()
    try:
        while len(held) < 300 and not over():
            with suppress(OSError):
                held.append(target.connect())
                held[-1].sendall(head.encode())
        while not over():
            time.sleep(0.1)
    finally:
        for made in held:
            made.close()
    return Counter(opened=len(held))


def json_without_authority(target: Target) -> Answers:
    body = attack_payloads.json_of_keys(30_000_000)
    headers = {"Content-Type": "application/json"}
    return target.many(4, lambda: target.post("/v1/jobs", target.reader, content=body, headers=headers))


def json_of_mistakes(target: Target) -> Answers:
    body = attack_payloads.json_of_keys(3_500_000)
    headers = {"Content-Type": "application/json"}
    return target.many(4, lambda: target.post("/v1/problems", target.trainer, content=body, headers=headers))


def json_of_rows(target: Target) -> Answers:
    body = attack_payloads.json_of_rows(450_000)
    headers = {"Content-Type": "application/json"}
    return target.many(2, lambda: target.post("/v1/datasets", target.trainer, content=body, headers=headers))


def parquet_bomb(target: Target) -> Answers:
    file = {"file": ("bomb.parquet", attack_payloads.parquet_bomb())}
    form = {"name": "bomb", "outcomes": "demand"}
    return target.many(2, lambda: target.post("/v1/datasets/upload", target.trainer, 60, data=form, files=file))


def bad_lines(target: Target) -> Answers:
    file = {"file": ("bad.csv", b"x,demand\n" + b"1\n" * 6_000_000)}
    form = {"name": "bad", "outcomes": "demand"}
    return target.many(1, lambda: target.post("/v1/datasets/upload", target.trainer, 60, data=form, files=file))


def many_parts(target: Target) -> Answers:
    path = f"/v1/posteriors/{target.posterior}/batch-prescriptions/upload"
    file = {"file": ("days.csv", attack_payloads.mornings(4_000))}
    heard: Answers = Counter()
    with target.client(target.trainer, 60) as client:
        made = client.post(path, data={"scenarios": "2000"}, files=file)
        heard[str(made.status_code)] += 1
        if made.is_success:
            heard[f"cancel {client.post('/v1/jobs/' + made.json()['id'] + '/cancel').status_code}"] += 1
    return heard


def whole_numbers_nobody_waits_for(target: Target) -> Answers:
    path = f"/v1/posteriors/{target.whole_numbers}/prescribe"
    contexts = [{"rain": 5 * index / 40} for index in range(40)]
    body = {"contexts": contexts, "scenarios": 500, "policy": "bcp", "time_limit_seconds": 1}
    return target.many(8, lambda: target.post(path, target.reader, 2.0, json=body))


def large_problems(target: Target) -> Answers:
    body = attack_payloads.large_problem()
    headers = {"Content-Type": "application/json"}
    return target.many(12, lambda: target.post("/v1/problems", target.trainer, content=body, headers=headers))


def wrong_keys(target: Target) -> Answers:
    def attack() -> str:
        guess = "".join(random.choices("0123456789ABCDEFGHJKMNPQRSTVWXYZ", k=25))  # noqa: S311
        return target.post("/v1/problems", f"bco_0{guess}_{guess}")

    return target.many(16, attack)


ATTACKS: dict[str, Callable[[Target], Answers]] = {
    "headers": headers_without_end,
    "half_sent": half_sent_requests,
    "stalled_bodies": stalled_bodies,
    "json_without_authority": json_without_authority,
    "json_of_mistakes": json_of_mistakes,
    "json_of_rows": json_of_rows,
    "parquet_bomb": parquet_bomb,
    "bad_lines": bad_lines,
    "many_parts": many_parts,
    "whole_numbers": whole_numbers_nobody_waits_for,
    "large_problems": large_problems,
    "wrong_keys": wrong_keys,
}
