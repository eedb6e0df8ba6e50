"""Clients that write HTTP directly: a client library would use as much of the machine as the service does."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import statistics
import time
from dataclasses import dataclass
from typing import Any, Self

import httpx

_LENGTH = re.compile(rb"^content-length: (\d+)\r$", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Connection:
    """A connection that posts JSON bodies to one address, one after another."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: bytes

    @classmethod
    async def open(cls, address: str) -> Self:
        url = httpx.URL(address)
        head = f"POST {url.path} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nContent-Type: application/json\r\n"
        return cls(*await asyncio.open_connection(url.host, url.port), head.encode())

    async def post(self, content: bytes) -> int:
        """Post a body, read the whole answer and return its status."""
        self.writer.write(b"%bContent-Length: %d\r\n\r\n%b" % (self.head, len(content), content))
        head = await self.reader.readuntil(b"\r\n\r\n")
        (length,) = _LENGTH.findall(head)
        await self.reader.readexactly(int(length))
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        self.writer.close()


async def load(address: str, bodies: list[dict[str, Any]], clients: int, seconds: float) -> dict[str, float]:
    """Post the bodies from ``clients`` connections for some seconds; return throughput, latencies and refusals."""
    latencies: list[float] = []
    refused = 0
    contents = [json.dumps(body).encode() for body in bodies]

    async def one(number: int) -> None:
        nonlocal refused
        connection = await Connection.open(address)
        own = itertools.islice(itertools.cycle(contents), number % len(contents), None)
        await connection.post(next(own))
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            status = await connection.post(next(own))
            if status == 503:
                refused += 1
                await asyncio.sleep(0.05)
            elif status == 200:
                latencies.append(time.perf_counter() - began)
            else:
                raise RuntimeError(f"the service answered {status}")
        connection.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    centiles = statistics.quantiles(latencies, n=100)
    return {
        "requests_per_s": round(len(latencies) / seconds, 1),
        "p50_ms": round(centiles[49] * 1000, 1),
        "p99_ms": round(centiles[98] * 1000, 1),
        "refused": refused,
    }
