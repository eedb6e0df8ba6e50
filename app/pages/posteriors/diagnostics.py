"""Read numbers out of diagnostics, of which any part may be missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
# Standard errors beyond which a difference is clear, and of a margin.
CLEAR, MARGIN = 2.5, 2.0


@dataclass(frozen=True)
class EstimateView:
    """A mean with its standard error, None if unknown."""

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
    def negated(self) -> EstimateView:
        """The estimate with the opposite sign."""
        return EstimateView(-self.mean, self.error)

    @property
    def chance(self) -> str:
        """How significant the difference from zero is, as text."""
        if self.error is None:
            return "significance unknown"
        if abs(self.mean) > CLEAR * self.error:
            return "significant"
        return "barely significant" if abs(self.mean) > MARGIN * self.error else "not significant"

    @property
    def is_clear(self) -> bool:
        return self.error is not None and abs(self.mean) > CLEAR * self.error


def part(data: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None."""
    for name in path:
        if not isinstance(data, Mapping):
            return None
        data = data.get(name)
    return data


def value(data: Any, *path: str) -> float | None:
    """Return the finite number at a path, or None."""
    result = part(data, *path)
    if isinstance(result, bool) or not isinstance(result, int | float) or not math.isfinite(result):
        return None
    return float(result)


def estimate(data: Any, *path: str) -> EstimateView | None:
    """Return the mean with its standard error at a path."""
    mean = value(data, *path, "mean")
    return None if mean is None else EstimateView(mean, value(data, *path, "standard_error"))


def lines(data: Any, *path: str) -> list[Json]:
    """Return the rows of the table at a path."""
    result = part(data, *path)
    return [line for line in result if isinstance(line, Mapping)] if _is_list(result) else []


def numbers(data: Any, *path: str) -> list[float]:
    """Return the finite numbers of the list at a path."""
    result = part(data, *path)
    return [one for one in map(_number, result) if one is not None] if _is_list(result) else []


def finite(found: float) -> float | None:
    return found if math.isfinite(found) else None


def _is_list(found: Any) -> bool:
    return isinstance(found, Sequence) and not isinstance(found, str | bytes)


def _number(found: Any) -> float | None:
    return value({"it": found}, "it")
