"""How long work tells how far it has come: a fraction from 0 to 1 and a few words. Raising stops the work."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]


def no_progress(fraction: float, message: str) -> None:
    """For callers that do not watch."""


def part_of(progress: Progress, first: float, last: float) -> Progress:
    """Progress of a part that takes the whole from ``first`` to ``last``."""
    return lambda fraction, message: progress(first + fraction * (last - first), message)
