"""What the API and its solver processes say to each other: a JSON header and bytes, over a socket pair."""

from __future__ import annotations

import math
import socket
import struct
from time import monotonic
from typing import Any

import orjson

_LENGTHS = struct.Struct("!IQ")

Header = dict[str, Any]


class Ended(Exception):
    """The other side is gone."""


def send(connection: socket.socket, header: Header, body: bytes = b"") -> None:
    packed = orjson.dumps(header)
    try:
        connection.sendall(_LENGTHS.pack(len(packed), len(body)) + packed)
        connection.sendall(body)
    except (BrokenPipeError, ConnectionResetError):
        raise Ended from None


def receive(connection: socket.socket, until: float = math.inf) -> tuple[Header, bytes]:
    """The next message; TimeoutError at this moment of the monotonic clock, Ended where there will be none."""
    header, body = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size, until))
    return orjson.loads(_exactly(connection, header, until)), bytes(_exactly(connection, body, until))


def _exactly(connection: socket.socket, size: int, until: float) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        connection.settimeout(None if until == math.inf else max(until - monotonic(), 1e-3))
        try:
            count = connection.recv_into(view[filled:])
        except ConnectionResetError:
            count = 0
        if not count:
            raise Ended
        filled += count
    return data
