"""From the rows of a data set to what is learned from: which features are asked for, and the sample that they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pydantic import ConfigDict, Field

from app.datasets.encode_values import Matrix, Whole
from app.datasets.encoding import ContextEncoding
from app.datasets.lookback import Looking, Past
from app.db.tables import DatasetRow
from app.http.errors import InvalidRequest, of_core
from app.http.schemas import StrictModel
from bco_core.data import Sample
from bco_core.errors import InvalidInput
from bco_core.features.calendar import Clock
from bco_core.features.recipe import Recipe, auto_recipe
from bco_core.timeline import Timeline

# Keys with no more different values than this are categories too.
FEW_KEYS = 30

_Periods = Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=100)]


class RecipeSpec(StrictModel):
    """Features of time; what is not given is as with ``auto``."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"lags": [7, 14], "windows": [28], "holidays": "DE"}]})

    calendar: list[Literal["weekday", "month", "year", "hour", "day"]] | None = Field(
        None,
        max_length=5,
        description="weekday, month and hour as categories; the time of the year and of the day as waves",
    )
    lags: _Periods | None = Field(
        None, description="outcomes so many periods ago are features; none can be younger than the data set's lead"
    )
    windows: _Periods | None = Field(
        None, description="mean and quantiles over so many periods up to the newest that is known are features"
    )
    trend: bool | None = Field(None, description="whether the time since the history began is a feature")
    holidays: str | None = Field(
        None, description="mark public holidays of this country, by its ISO code of two letters"
    )


Features = Literal["auto", "none"] | RecipeSpec
DESCRIPTION = (
    "features of time, where the data set has a time column: auto chooses calendar parts, lags and windows by its "
    "spacing, none leaves time out, and an object changes what auto chooses. The level of a series is always among them"
)


@dataclass(frozen=True)
class History:
    """A sample, and the state by which :class:`ContextEncoding` encodes new contexts as it encoded these.

    ``left_out`` rows have nothing before them that would be known at their decision.
    """

    sample: Sample
    state: dict[str, Any] | None
    left_out: int = 0


def column_of(columns: list[dict[str, Any]], role: str) -> dict[str, Any] | None:
    return next((column for column in columns if column["role"] == role), None)


def planned_width(dataset: DatasetRow, features: Features, outcomes: list[str]) -> int:
    """About how many columns an encoded context will have; refuses features that cannot be made."""
    time = column_of(dataset.columns, "time")
    if time is None and features not in ("auto", "none"):
        raise InvalidRequest.at(("features",), "the data set has no time column, so there are no features of time")
    width: int = ContextEncoding.of(dataset.columns).width
    width += sum(c["distinct"] for c in dataset.columns if c["role"] == "series" and c["distinct"] <= FEW_KEYS)
    if time is not None and features != "none":
        width += _recipe(time, dataset.lead, features, _span(time), tuple(outcomes)).width
    if not width and time is not None:
        raise InvalidRequest.at(("features",), "without features of time there is nothing to decide by; ask for auto")
    return width


def encode(dataset: DatasetRow, table: pa.Table, features: Features, outcomes: list[str], revision: int) -> History:
    """The rows of a revision as a sample; the features of each are made of rows that were known at its decision."""
    return encode_rows(dataset, table, table, features, outcomes, revision)[0]


def encode_rows(
    dataset: DatasetRow, known: pa.Table, table: pa.Table, features: Features, outcomes: list[str], revision: int
) -> tuple[History, Whole]:
    """The rows of a table as a sample, and which of them are in it. What is chosen or counted is so by the ``known``
    ones of them and the data set's profile alone."""
    values = outcomes_of(table, outcomes)
    time = column_of(dataset.columns, "time")
    keys = tuple(column["name"] for column in dataset.columns if column["role"] == "series")
    if time is None and not keys:
        return _without_time(ContextEncoding.of(dataset.columns), table, values, None)
    state: dict[str, Any] = {
        "recipe": None,
        "keys": _few_keys(dataset.columns, known),
        "unseen": (dataset.handling or {}).get("unseen", "reject"),
        "revision": revision,
    }
    if time is None:
        return _without_time(ContextEncoding.of(dataset.columns, state), table, values, state)
    # Series begin and end when they like: the recipe is for one of usual length, known once rows are on the grid.
    plan = _recipe(time, dataset.lead, "auto", _span(time), tuple(outcomes))
    looking = Looking(time, keys, plan)
    past = looking.past(known, revision)
    usual = int(np.median(np.diff(past.grid.starts)))
    if features != "none":
        state["recipe"] = _recipe(time, dataset.lead, features, usual, tuple(outcomes)).to_json()
        state["learned_until"] = past.last
    encoding = ContextEncoding.of(dataset.columns, state)
    cycles = plan.clock.cycles(usual)
    season = cycles[-1] if cycles else 0
    if table is not known:
        past = looking.past(table, revision)
    return in_time(encoding, looking, past, table, values, dataset.lead, season, state)


def _without_time(
    encoding: ContextEncoding, table: pa.Table, values: Matrix, state: dict[str, Any] | None
) -> tuple[History, Whole]:
    encoded = encoding.encode_table(table)
    kept = encoded.usable
    sample = Sample(torch.from_numpy(encoded.matrix[kept]), torch.from_numpy(values[kept]))
    return History(sample, state, len(encoded.matrix) - len(kept)), kept


class Places(NamedTuple):
    """When the rows of a data set were made: period and series (n,), the names of the series, the clock, the season."""

    periods: Whole
    series: Whole
    names: list[str]
    clock: Clock
    season: int


def places(dataset: DatasetRow, table: pa.Table, outcomes: list[str]) -> Places | None:
    """Where the rows of a data set lie in time; None if it has no time column."""
    time = column_of(dataset.columns, "time")
    if time is None:
        return None
    keys = tuple(column["name"] for column in dataset.columns if column["role"] == "series")
    looking = Looking(time, keys, _recipe(time, dataset.lead, "auto", _span(time), tuple(outcomes)))
    past = looking.past(table, dataset.revision)
    cycles = looking.recipe.clock.cycles(int(np.median(np.diff(past.grid.starts))))
    names = [", ".join(str(part) for part in key) for key in past.numbers]
    return Places(*looking.places(past, table), names, looking.recipe.clock, cycles[-1] if cycles else 0)


def outcomes_of(table: pa.Table, names: list[str]) -> Matrix:
    """The outcomes (n, d_y) of a table."""
    return np.stack([table.column(name).to_numpy() for name in names], axis=1)


def in_time(
    encoding: ContextEncoding,
    looking: Looking,
    past: Past,
    table: pa.Table,
    values: Matrix,
    lead: int,
    season: int,
    state: dict[str, Any],
) -> tuple[History, Whole]:
    """The rows of a table with time as a sample, and which of them are in it; the state is completed."""
    encoded = encoding.encode_table(table, past, notes=False)
    kept = encoded.usable
    if not len(kept):
        raise InvalidInput(f"no row has another one {lead} period(s) before it; lower lead or send more rows")
    matrix = encoded.matrix[kept]
    if encoding.looking is not None:
        state |= {"lowest": matrix.min(axis=0).tolist(), "highest": matrix.max(axis=0).tolist()}
    state |= {"rows": len(kept), "left_out": len(encoded.matrix) - len(kept)}
    periods, series = looking.places(past, table)
    timeline = Timeline(torch.from_numpy(periods[kept]), torch.from_numpy(series[kept]), lead, season, encoding.levels)
    sample = Sample(torch.from_numpy(matrix), torch.from_numpy(values[kept]), timeline)
    return History(sample, state, state["left_out"]), kept


def _few_keys(columns: list[dict[str, Any]], table: pa.Table) -> dict[str, list[str]]:
    """The values of key columns that have few of them."""
    return {
        column["name"]: sorted(pc.unique(table.column(column["name"])).to_pylist())
        for column in columns
        if column["role"] == "series" and column["distinct"] <= FEW_KEYS
    }


def _moment(time: dict[str, Any], which: str) -> np.datetime64 | int:
    return int(time[which]) if time["format"] == "period" else np.datetime64(time[which], "s")


def _clock(time: dict[str, Any]) -> Clock:
    return Clock.starting(time["unit"], time["step"], _moment(time, "first"))


def _span(time: dict[str, Any]) -> int:
    """Periods from the first row to the last."""
    first, last = _clock(time).periods(np.array([_moment(time, "first"), _moment(time, "last")]))
    return int(last - first) + 1


def _recipe(time: dict[str, Any], lead: int, features: Features, periods: int, outcomes: tuple[str, ...]) -> Recipe:
    clock = _clock(time)
    origin = int(clock.periods(np.array([_moment(time, "first")]))[0])
    recipe = auto_recipe(clock.unit, clock.step, lead, periods, outcomes=outcomes, phase=clock.phase, origin=origin)
    if not isinstance(features, RecipeSpec):
        return recipe
    asked = features.model_dump(exclude_none=True)
    changes: dict[str, Any] = {
        name: tuple(sorted(set(value))) if isinstance(value, list) else value for name, value in asked.items()
    }
    try:
        return replace(recipe, **changes)
    except InvalidInput as error:
        raise of_core(error, "features") from None
