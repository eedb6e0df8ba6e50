"""Progress callbacks of long work: a fraction from 0 to 1 and a short message. Raising an error stops the work.

Messages may carry figures of an epoch or a step, such as its loss, for charts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Self

Progress = Callable[[float, str], None]
Figures = dict[str, float]


class Message(str):
    """A message that carries named figures; numbers that are not finite are left out."""

    figures: tuple[Figures, ...]

    def __new__(cls, words: str, *figures: Mapping[str, float | None]) -> Self:
        message = super().__new__(cls, words)
        message.figures = tuple(known for one in figures if (known := _finite(one)))
        return message


def _finite(figures: Mapping[str, float | None]) -> Figures:
    """Return the finite figures, rounded to six digits, which is enough for charts."""
    known = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
    return {name: value if isinstance(value, int) else float(f"{value:.6g}") for name, value in known.items()}


def figures_of(message: str) -> tuple[Figures, ...]:
    return message.figures if isinstance(message, Message) else ()


def no_progress(fraction: float, message: str) -> None:
    """Ignore progress."""


def part_of(progress: Progress, first: float, last: float) -> Progress:
    """Return the progress of a part that moves the whole from ``first`` to ``last``."""
    return lambda fraction, message: progress(first + fraction * (last - first), message)


def without_figures(progress: Progress) -> Progress:
    """Return progress that drops figures, for work whose figures could be mistaken for others."""
    return lambda fraction, message: progress(fraction, str(message))
