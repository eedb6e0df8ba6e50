"""One deadline for everything below a call: whatever may take long looks at it, so no signature has to carry it.

    with deadline.until(monotonic() + 2.0):
        prescribe(posterior, problem, contexts)    # raises OutOfTime soon after two seconds

Loops call :func:`check` between pieces of some milliseconds, and solvers are given no more time than is :func:`left`.
A ``quick`` deadline also forbids to begin what cannot be stopped half-way (:func:`before_long_work`): its caller has a
better place for that, such as a process that can be killed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from bco_core.errors import OutOfTime

Flag = np.ndarray[Any, np.dtype[np.bool_]]


class _Deadline(NamedTuple):
    """A moment of the monotonic clock, and whether long work must not even begin."""

    at: float = math.inf
    quick: bool = False


_in_force: ContextVar[_Deadline] = ContextVar("deadline", default=_Deadline())  # noqa: B039


@contextmanager
def until(at: float, quick: bool = False) -> Iterator[None]:
    """What is done inside ends by this moment of the monotonic clock, or by an outer deadline if that is sooner."""
    outer = _in_force.get()
    token = _in_force.set(_Deadline(min(at, outer.at), quick or outer.quick))
    try:
        yield
    finally:
        _in_force.reset(token)


def left() -> float:
    """Seconds until the deadline, at least zero; infinite where there is none."""
    at = _in_force.get().at
    return math.inf if at == math.inf else max(at - monotonic(), 0.0)


def check() -> None:
    """Raise OutOfTime once the deadline has passed."""
    at = _in_force.get().at
    if at != math.inf and monotonic() >= at:
        raise OutOfTime("the allowed time passed before there was a decision; fewer contexts or scenarios take less")


def before_long_work() -> None:
    """Raise OutOfTime where the deadline is a quick one, or has passed."""
    if _in_force.get().quick:
        raise OutOfTime("this takes longer than a quick call may")
    check()


@contextmanager
def alarm(time_limit: float | None) -> Iterator[Flag]:
    """A flag that is raised after so many seconds, or at the deadline in force, for a kernel to look at."""
    seconds = min(math.inf if time_limit is None else time_limit, left())
    rung: Flag = np.array([seconds <= 0])
    timer = threading.Timer(seconds, rung.fill, (True,))
    if 0 < seconds < threading.TIMEOUT_MAX:
        timer.start()
    try:
        yield rung
    finally:
        timer.cancel()
