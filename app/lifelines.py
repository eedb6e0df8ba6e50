"""The kernel ends a process with its parent, however that dies; elsewhere than on Linux nothing happens."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: a new process must not load libraries before it runs a program of its own.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(parent: int, by: signal.Signals) -> None:
    """Have this process sent a signal when the thread that started it ends; it exits if its parent is gone already."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
