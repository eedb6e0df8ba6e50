"""Numbers out of diagnostics, of which any part may be missing: older services told less."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
# A difference is clear beyond so many standard errors, and margins are drawn two of them wide.
CLEAR, MARGIN = 2.5, 2.0


@dataclass(frozen=True)
class EstimateView:
    """A mean; ``error`` is its standard error, None where that is not known."""

    mean: float
    error: float | None = None

    @property
    def margin(self) -> float | None:
        """Two standard errors."""
        return None if self.error is None else MARGIN * self.error

    @property
    def low(self) -> float | None:
        return None if self.margin is None else self.mean - self.margin

    @property
    def high(self) -> float | None:
        return None if self.margin is None else self.mean + self.margin

    @property
    def turned(self) -> EstimateView:
        """The same with the other sign."""
        return EstimateView(-self.mean, self.error)

    @property
    def chance(self) -> str:
        """Whether chance may explain that it is not zero, in words."""
        if self.error is None:
            return "though from too little to tell it from chance"
        if abs(self.mean) > CLEAR * self.error:
            return "beyond chance"
        return "hardly by chance" if abs(self.mean) > MARGIN * self.error else "which chance may explain"

    @property
    def is_clear(self) -> bool:
        return self.error is not None and abs(self.mean) > CLEAR * self.error


def part(told: Any, *path: str) -> Any:
    """What stands at a path of names; None where there is nothing."""
    for name in path:
        if not isinstance(told, Mapping):
            return None
        told = told.get(name)
    return told


def value(told: Any, *path: str) -> float | None:
    """The finite number at a path."""
    found = part(told, *path)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return float(found)


def estimate(told: Any, *path: str) -> EstimateView | None:
    """The mean with its standard error at a path."""
    mean = value(told, *path, "mean")
    return None if mean is None else EstimateView(mean, value(told, *path, "standard_error"))


def lines(told: Any, *path: str) -> list[Json]:
    """The lines of the table at a path."""
    found = part(told, *path)
    return [line for line in found if isinstance(line, Mapping)] if _is_list(found) else []


def numbers(told: Any, *path: str) -> list[float]:
    """The numbers of the list at a path, as far as they are any."""
    found = part(told, *path)
    return [one for one in map(_number, found) if one is not None] if _is_list(found) else []


def finite(found: float) -> float | None:
    return found if math.isfinite(found) else None


def _is_list(found: Any) -> bool:
    return isinstance(found, Sequence) and not isinstance(found, str | bytes)


def _number(found: Any) -> float | None:
    return value({"it": found}, "it")
