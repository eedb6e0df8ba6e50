"""Arrays as bytes and back: .npy without pickle, every block checked against its sha256."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

BLOCK_BYTES = 4_000_000


class CorruptBlob(Exception):
    """Stored bytes do not match their checksum."""


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def verify(data: bytes, sha256: str) -> bytes:
    if checksum(data) != sha256:
        raise CorruptBlob("stored data does not match its checksum; restore the database from a backup")
    return data


def to_blocks(array: Array) -> Iterator[tuple[int, bytes]]:
    """Split along the first axis; yield (first row, .npy bytes) of about 4 MB each, which can be read alone."""
    rows = max(1, BLOCK_BYTES // max(1, array.nbytes // max(1, len(array))))
    for first in range(0, max(1, len(array)), rows):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, array[first : first + rows], allow_pickle=False)
        yield first, buffer.getvalue()


def from_blocks(blocks: Iterable[bytes]) -> Array:
    """Join blocks in the order of their first rows."""
    return np.concatenate([np.lib.format.read_array(io.BytesIO(block), allow_pickle=False) for block in blocks])
