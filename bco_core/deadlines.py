"""One deadline for everything below a call: slow code checks it, so no signature has to carry it.

    with deadlines.until(monotonic() + 2.0):
        prescribe(posterior, problem, contexts)    # raises OutOfTime soon after two seconds

Loops call :func:`check` every few milliseconds, and solvers get at most :func:`seconds_left`. A ``quick`` deadline
also refuses work that cannot be interrupted (:func:`before_long_work`): its caller runs that elsewhere, for example in
a process that can be killed.
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
    """A time on the monotonic clock, and whether long work is refused."""

    at: float = math.inf
    quick: bool = False


_in_force: ContextVar[_Deadline] = ContextVar("deadline", default=_Deadline())  # noqa: B039


@contextmanager
def until(at: float, quick: bool = False) -> Iterator[None]:
    """Set a deadline on the monotonic clock for the body; an outer deadline holds if it is sooner."""
    outer = _in_force.get()
    token = _in_force.set(_Deadline(min(at, outer.at), quick or outer.quick))
    try:
        yield
    finally:
        _in_force.reset(token)


def seconds_left() -> float:
    """Return the seconds until the deadline, at least zero; infinite if there is none."""
    at = _in_force.get().at
    return math.inf if at == math.inf else max(at - monotonic(), 0.0)


def check() -> None:
    """Raise OutOfTime once the deadline has passed."""
    at = _in_force.get().at
    if at != math.inf and monotonic() >= at:
        raise OutOfTime("the allowed time passed before there was a decision; ask for fewer contexts or scenarios")


def before_long_work() -> None:
    """Raise OutOfTime if the deadline is quick or has passed."""
    if _in_force.get().quick:
        raise OutOfTime("this takes longer than a quick call is allowed to take")
    check()


@contextmanager
def alarm(time_limit_seconds: float | None) -> Iterator[Flag]:
    """Yield a flag for kernels that is raised after the time limit or at the deadline in force."""
    seconds = min(math.inf if time_limit_seconds is None else time_limit_seconds, seconds_left())
    flag: Flag = np.array([seconds <= 0])
    timer = threading.Timer(seconds, flag.fill, (True,))
    if 0 < seconds < threading.TIMEOUT_MAX:
        timer.start()
    try:
        yield flag
    finally:
        timer.cancel()
