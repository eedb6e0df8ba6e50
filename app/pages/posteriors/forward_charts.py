"""Charts of promises in time: what was promised and what happened, by stretch of time and by distance ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.pages.charts import Chart, Number, Series
from app.pages.posteriors.figures import MARGIN, Estimate, Json, estimate, finite, lines, part, value
from app.pages.render import number
from bco_core.errors import InvalidInput
from bco_core.timeline import Clock

_HEIGHT = 200


@dataclass(frozen=True)
class Plateaus(Chart):
    """A chart of levels that hold from one x to another; the table has a row for each of them."""

    heads: Sequence[str] = ()
    cells: Sequence[Sequence[Any]] = ()

    @property
    def columns(self) -> list[str]:
        return list(self.heads)

    def rows(self, most: int = 200) -> list[list[Any]]:
        return [list(row) for row in self.cells]


@dataclass(frozen=True)
class _Axis:
    """How periods stand on an axis: as moments, where the clock knows a calendar, or as they are."""

    clock: Clock | None

    @property
    def is_time(self) -> bool:
        return self.clock is not None and self.clock.has_calendar

    @property
    def has_hours(self) -> bool:
        return self.clock is not None and self.clock.unit in ("hour", "minute")

    def place(self, period: float) -> float:
        if self.clock is None or not self.clock.has_calendar:
            return period
        return float(self.clock.moments(np.array([int(period)])).astype("datetime64[s]").astype(np.int64)[0])

    def text(self, period: float) -> str:
        return number(period) if self.clock is None else self.clock.text(int(period))


def clock_of(recipe: Json | None) -> Clock | None:
    """The clock that a recipe of features counts by."""
    told = part(recipe, "recipe", "clock")
    try:
        return Clock(**told) if isinstance(told, dict) else None
    except (InvalidInput, TypeError):
        return None


def periods(recipe: Json | None) -> str:
    """What periods are called: days, hours, 2 weeks."""
    clock = clock_of(recipe)
    if clock is None or clock.unit == "period":
        return "periods"
    return f"{clock.unit}s" if clock.step == 1 else f"steps of {clock.step} {clock.unit}s"


def over_time(told: Json, recipe: Json | None) -> list[Chart]:
    """Promised and realised cost by stretch of time, and how often costs were above what was promised at most."""
    axis = _Axis(clock_of(recipe))
    found = _held(lines(told, "forward", "stretches"), "from_period", "to_period", axis)
    when = "time" if axis.is_time else "period"
    return found.charts("over time", when, ("from", "to")) if found.spans else []


def by_distance(told: Json, recipe: Json | None) -> list[Chart]:
    """The same by how far ahead of the last known row it was decided."""
    found = _held(lines(told, "forward", "distances"), "from_distance", "to_distance", _Axis(None))
    label = f"{periods(recipe)} after the last row that was known"
    return found.charts("by distance ahead", label, ("from", "to")) if found.spans else []


@dataclass(frozen=True)
class _Held:
    """Lines of a judgement forward in time, each over a span of the axis."""

    axis: _Axis
    spans: list[tuple[float, float]]
    told: list[Json]

    def charts(self, words: str, label: str, heads: tuple[str, str]) -> list[Chart]:
        costs = [estimate(line, "cost") or Estimate(math.nan) for line in self.told]
        promised = [value(line, "promised") for line in self.told]
        above = [value(line, "above_95") for line in self.told]
        rows = [value(line, "rows") or 0.0 for line in self.told]
        x = [place for span in self.spans for place in span]
        chance = [MARGIN * 100 * math.sqrt(0.0475 / count) if count else None for count in rows]
        shared: dict[str, Any] = {
            "x": x,
            "x_label": label,
            "time": self.axis.is_time,
            "height": _HEIGHT,
            "zero": True,
            "extra": {"hours": True} if self.axis.has_hours else {},
        }
        return [
            Plateaus(
                title=f"Promised and realised cost {words}",
                note="The band is two standard errors either side of what was realised.",
                y_label="mean cost",
                series=[
                    Series(
                        "what chance may explain",
                        _twice([one.low for one in costs]),
                        "band",
                        0,
                        _twice([one.high for one in costs]),
                    ),
                    Series("realised", _twice([finite(one.mean) for one in costs]), "line", 0),
                    Series("promised", _twice(promised), "line", 1, dashed=True),
                ],
                heads=[*heads, "rows", "promised", "realised", "± (two standard errors)"],
                cells=[
                    [*self._edges(index), rows[index], promised[index], finite(costs[index].mean), costs[index].margin]
                    for index in range(len(self.told))
                ],
                **shared,
            ),
            Plateaus(
                title=f"Costs above the promised 95 % limit {words}",
                note="One in twenty belongs there.",
                y_label="% of the rows",
                series=[
                    Series(
                        "what chance may explain",
                        _twice([None if one is None else max(0.0, 5 - one) for one in chance]),
                        "band",
                        None,
                        _twice([None if one is None else 5 + one for one in chance]),
                    ),
                    Series("above the limit", _twice([None if one is None else 100 * one for one in above]), "line", 0),
                    Series("as promised", [5.0] * len(x), "line", 1, dashed=True),
                ],
                heads=[*heads, "rows", "% above the limit"],
                cells=[
                    [*self._edges(index), rows[index], None if above[index] is None else 100 * (above[index] or 0.0)]
                    for index in range(len(self.told))
                ],
                **shared,
            ),
        ]

    def _edges(self, index: int) -> list[Any]:
        first, last = self.spans[index]
        return [first, self._last[index]] if self.axis.is_time else [number(first), number(last)]

    @property
    def _last(self) -> list[str]:
        return [self.axis.text(value(line, "to_period") or 0.0) for line in self.told]


def _held(told: list[Json], first: str, last: str, axis: _Axis) -> _Held:
    kept, spans = [], []
    for line in told:
        begin, end = value(line, first), value(line, last)
        if begin is not None and end is not None:
            spans.append((axis.place(begin), axis.place(end)))
            kept.append(line)
    return _Held(axis, spans, kept)


def _twice(values: Sequence[Number]) -> list[Number]:
    """At the beginning and at the end of each span."""
    return [one for one in values for _ in range(2)]
