"""Charts as data for the script that draws them, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Number = float | None
Style = Literal["line", "points", "bars", "steps", "band"]


@dataclass(frozen=True)
class Series:
    """One series; ``colour`` is an index of the palette, None for grey.

    A ``band`` is drawn between its ``values`` and its ``upper`` values, behind everything else.
    """

    name: str
    values: Sequence[Number]
    style: Style = "line"
    colour: int | None = 0
    upper: Sequence[Number] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Mark:
    """A vertical line, or a span up to ``x_end``, with a label."""

    x: float
    text: str
    x_end: float | None = None
    # index of the palette, None for grey
    colour: int | None = 3


@dataclass(frozen=True)
class Chart:
    """Series over common x values. With ``time``, x are seconds since 1970."""

    title: str
    x: Sequence[float]
    series: Sequence[Series]
    x_label: str = ""
    y_label: str = ""
    time: bool = False
    marks: Sequence[Mark] = ()
    # labels of x values that are categories
    names: Sequence[str] | None = None
    note: str = ""
    height: int = 240
    # y begins at zero
    zero: bool = False
    # an id for scripts
    key: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """Return the data for the script."""
        return {
            "x": list(self.x),
            "time": self.time,
            "names": self.names,
            "xLabel": self.x_label,
            "yLabel": self.y_label,
            "zero": self.zero,
            "marks": [
                {"x": mark.x, "text": mark.text, "until": mark.x_end, "colour": mark.colour} for mark in self.marks
            ],
            "series": [
                {
                    "name": one.name,
                    "values": list(one.values),
                    "upper": None if one.upper is None else list(one.upper),
                    "style": one.style,
                    "colour": one.colour,
                    "dashed": one.dashed,
                }
                for one in self.series
            ],
            **self.extra,
        }

    @property
    def columns(self) -> list[str]:
        heads = [self.x_label or "x"]
        for one in self.series:
            heads += [one.name] if one.upper is None else [f"{one.name}, from", f"{one.name}, to"]
        return heads

    def rows(self, most: int = 200) -> list[list[Any]]:
        """Return the chart's numbers as rows, evenly thinned to ``most``."""
        count = len(self.x)
        step = max(1, -(-count // most))
        shown = []
        for index in range(0, count, step):
            row: list[Any] = [self.names[index] if self.names else self.x[index]]
            for one in self.series:
                row.append(one.values[index])
                if one.upper is not None:
                    row.append(one.upper[index])
            shown.append(row)
        return shown


@dataclass(frozen=True)
class Interval:
    """A row of an interval chart: a mean with its range and a note."""

    name: str
    mean: Number
    low: Number
    high: Number
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Intervals:
    """An interval chart drawn by the server; ``zero`` marks equality."""

    title: str
    rows: Sequence[Interval]
    x_label: str = ""
    zero: Number = None
    note: str = ""

    @property
    def span(self) -> tuple[float, float]:
        result = [value for row in self.rows for value in (row.mean, row.low, row.high) if value is not None]
        result += [] if self.zero is None else [self.zero]
        low, high = (min(result), max(result)) if result else (0.0, 1.0)
        room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        return low - room, high + room

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 100."""
        low, high = self.span
        return round(100 * (value - low) / (high - low), 2)
