"""Memory of loaded posteriors: measure it, and return it to the system."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from torch import Tensor

# Settings of glibc's malloc: arrays from this size on get their own mapping, which returns to the system when they are
# freed; and threads share few heaps, instead of each keeping memory that it once needed.
_LARGE_BYTES = 1 << 20
_HEAPS = 2
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
# Only objects of these packages are searched; others lead to modules and compilers.
_OURS = ("app", "bco_core")


def give_back_early() -> None:
    """Make this process return memory to the system when arrays are freed."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _HEAPS)


def size_of(value: Any) -> int:
    """Return the bytes of all arrays in a value, however deep, each memory once."""
    sizes: dict[int, int] = {}
    _collect(value, sizes, set())
    return sum(sizes.values())


def _collect(value: Any, sizes: dict[int, int], seen: set[int]) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    elif isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        sizes[value.ctypes.data] = max(value.nbytes, sizes.get(value.ctypes.data, 0))
    elif isinstance(value, dict):
        for part in value.values():
            _collect(part, sizes, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            _collect(part, sizes, seen)
    elif type(value).__module__.partition(".")[0] in _OURS and hasattr(value, "__dict__"):
        for part in list(vars(value).values()):
            _collect(part, sizes, seen)
