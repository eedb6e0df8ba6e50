"""How long work tells how far it has come: a fraction from 0 to 1 and a few words. Raising stops the work.

Words may carry figures, for who wants to draw them: what an epoch or a step has met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Self

Progress = Callable[[float, str], None]
Figures = dict[str, float]


class Message(str):
    """Words that carry figures, by name; what is no finite number is left out."""

    figures: tuple[Figures, ...]

    def __new__(cls, words: str, *figures: Mapping[str, float | None]) -> Self:
        made = super().__new__(cls, words)
        made.figures = tuple(found for one in figures if (found := _finite(one)))
        return made


def _finite(figures: Mapping[str, float | None]) -> Figures:
    """Six digits are enough for drawing."""
    known = {name: value for name, value in figures.items() if value is not None and math.isfinite(value)}
    return {name: value if isinstance(value, int) else float(f"{value:.6g}") for name, value in known.items()}


def figures_of(message: str) -> tuple[Figures, ...]:
    return message.figures if isinstance(message, Message) else ()


def no_progress(fraction: float, message: str) -> None:
    """For callers that do not watch."""


def part_of(progress: Progress, first: float, last: float) -> Progress:
    """Progress of a part that takes the whole from ``first`` to ``last``."""
    return lambda fraction, message: progress(first + fraction * (last - first), message)


def without_figures(progress: Progress) -> Progress:
    """Progress without figures, for work whose figures would be taken for others."""
    return lambda fraction, message: progress(fraction, str(message))
