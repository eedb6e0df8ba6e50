"""Charts as data: what a page draws, and the table that stands behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Number = float | None
Style = Literal["line", "points", "bars", "steps", "band"]


@dataclass(frozen=True)
class Series:
    """One thing over the x axis; ``colour`` is a number of the palette, None for a quiet grey.

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
    """A vertical line at some x, with a word."""

    x: float
    text: str
    until: float | None = None
    # a number of the palette, None for a quiet grey
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
    # words for x values, where they are categories
    names: Sequence[str] | None = None
    note: str = ""
    height: int = 240
    # y begins at zero
    zero: bool = False
    # an id, where a script wants to find the chart again
    key: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """What the script draws from."""
        return {
            "x": list(self.x),
            "time": self.time,
            "names": self.names,
            "xLabel": self.x_label,
            "yLabel": self.y_label,
            "zero": self.zero,
            "marks": [
                {"x": mark.x, "text": mark.text, "until": mark.until, "colour": mark.colour} for mark in self.marks
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
        """The numbers behind the chart; evenly thinned where there are many."""
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
    """A row of a chart of intervals: a mean with its range, and words behind it."""

    name: str
    mean: Number
    low: Number
    high: Number
    note: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Intervals:
    """Means with their ranges below each other, on a common axis drawn by the server; ``zero`` marks equality."""

    title: str
    rows: Sequence[Interval]
    x_label: str = ""
    zero: Number = None
    note: str = ""

    @property
    def span(self) -> tuple[float, float]:
        found = [value for row in self.rows for value in (row.mean, row.low, row.high) if value is not None]
        found += [] if self.zero is None else [self.zero]
        low, high = (min(found), max(found)) if found else (0.0, 1.0)
        room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
        return low - room, high + room

    def place(self, value: float) -> float:
        """Where a value stands, from 0 to 100."""
        low, high = self.span
        return round(100 * (value - low) / (high - low), 2)
