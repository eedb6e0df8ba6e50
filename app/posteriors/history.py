"""Turn the rows of a data set into the sample to learn from: choose features of time, and encode the rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from pydantic import ConfigDict, Field

from app.datasets.encoding import ContextEncoding, key_columns
from app.datasets.lookback import HistoryGrid, Lookback
from app.datasets.times import TimeColumn
from app.db.tables import DatasetRow
from app.http.errors import InvalidRequest, of_core
from app.http.schemas import StrictModel
from bco_core.arrays import Floats, Integers
from bco_core.data import Sample
from bco_core.errors import InvalidInput
from bco_core.features.lags import TimeRecipe, auto_recipe
from bco_core.timeline import Clock, Timeline

# Keys with no more different values than this are categories too.
FEW_KEYS = 30

_Periods = Annotated[list[Annotated[int, Field(ge=1)]], Field(max_length=100)]


class RecipeSpec(StrictModel):
    """Features of time; omitted fields are as with ``auto``."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"lags": [7, 14], "windows": [28], "holidays": "DE"}]})

    calendar: list[Literal["weekday", "month", "year", "hour", "day"]] | None = Field(
        None,
        max_length=5,
        description="weekday, month and hour as categories; the time of the year and of the day as waves",
    )
    lags: _Periods | None = Field(
        None, description="features from outcomes this many periods ago, at least the data set's lead"
    )
    windows: _Periods | None = Field(
        None, description="features from mean and quantiles over this many periods up to the newest known one"
    )
    trend: bool | None = Field(None, description="whether the time since the start of the history is a feature")
    holidays: str | None = Field(
        None, description="mark public holidays of this country, by its ISO code of two letters"
    )


Features = Literal["auto", "none"] | RecipeSpec
DESCRIPTION = (
    "features of time, if the data set has a time column: auto chooses calendar parts, lags and windows by its "
    "spacing, none leaves time out, and an object changes the choice of auto. The level of a series is always one"
)


@dataclass(frozen=True)
class EncodedHistory:
    """A sample, and the state by which :class:`ContextEncoding` encodes new contexts in the same way.

    ``left_out`` is the number of rows without earlier rows that are known at their decision.
    """

    sample: Sample
    state: dict[str, Any] | None
    left_out: int = 0


def column_of(columns: list[dict[str, Any]], role: str) -> dict[str, Any] | None:
    return next((column for column in columns if column["role"] == role), None)


def planned_width(dataset: DatasetRow, features: Features, outcomes: list[str]) -> int:
    """Return the approximate width of an encoded context; refuse features that cannot be computed."""
    time = TimeColumn.of(dataset.columns)
    if time is None and features not in ("auto", "none"):
        raise InvalidRequest.at(("features",), "the data set has no time column, so there are no features of time")
    width: int = ContextEncoding.of(dataset.columns).width
    width += sum(c["distinct"] for c in dataset.columns if c["role"] == "series" and c["distinct"] <= FEW_KEYS)
    if time is not None and features != "none":
        width += _recipe(time, dataset.lead, features, time.span, tuple(outcomes)).width
    if not width and time is not None:
        raise InvalidRequest.at(
            ("features",), "without features of time there are no context columns to decide by; use auto"
        )
    return width


def encode(
    dataset: DatasetRow, table: pa.Table, features: Features, outcomes: list[str], revision: int
) -> EncodedHistory:
    """Encode the rows of a revision; the features of each come from rows known at its decision."""
    return encode_rows(dataset, table, table, features, outcomes, revision)[0]


def encode_rows(
    dataset: DatasetRow, known: pa.Table, table: pa.Table, features: Features, outcomes: list[str], revision: int
) -> tuple[EncodedHistory, Integers]:
    """Encode the rows of a table, and return the numbers of those in the sample.

    Features are chosen by the ``known`` rows and the data set's profile alone.
    """
    values = outcomes_of(table, outcomes)
    time = TimeColumn.of(dataset.columns)
    keys = key_columns(dataset.columns)
    if time is None and not keys:
        return _without_time(ContextEncoding.of(dataset.columns), table, values, None)
    key_values = _few_keys(dataset.columns, known)
    state: dict[str, Any] = {
        "recipe": None,
        "keys": key_values,
        "unseen": (dataset.handling or {}).get("unseen", "reject"),
        "revision": revision,
    }
    if time is None:
        return _without_time(ContextEncoding.build(dataset.columns, key_values, None), table, values, state)
    # Series have different lengths: the recipe is for the median length, known once rows are on the grid.
    plan = Lookback(time, keys, _recipe(time, dataset.lead, "auto", time.span, tuple(outcomes)))
    past = plan.past(known, revision)
    usual = int(np.median(np.diff(past.grid.starts)))
    lookback = None
    if features != "none":
        recipe = _recipe(time, dataset.lead, features, usual, tuple(outcomes))
        lookback = Lookback(time, keys, recipe, state["unseen"], past.last)
        state |= {"recipe": recipe.to_json(), "learned_until": past.last}
    encoding = ContextEncoding.build(dataset.columns, key_values, lookback)
    if table is not known:
        past = plan.past(table, revision)
    return in_time(encoding, plan, past, table, values, dataset.lead, time.clock.season(usual), state)


def _without_time(
    encoding: ContextEncoding, table: pa.Table, values: Floats, state: dict[str, Any] | None
) -> tuple[EncodedHistory, Integers]:
    encoded = encoding.encode_table(table)
    kept = encoded.usable
    sample = Sample(torch.from_numpy(encoded.matrix[kept]), torch.from_numpy(values[kept]))
    return EncodedHistory(sample, state, len(encoded.matrix) - len(kept)), kept


class RowPositions(NamedTuple):
    """Positions of rows in time: period and series (n,), the names of the series, the clock, the season."""

    periods: Integers
    series: Integers
    names: list[str]
    clock: Clock
    season: int


def row_positions(dataset: DatasetRow, table: pa.Table, outcomes: list[str]) -> RowPositions | None:
    """Return the positions of a data set's rows in time; None if it has no time column."""
    time = TimeColumn.of(dataset.columns)
    if time is None:
        return None
    recipe = _recipe(time, dataset.lead, "auto", time.span, tuple(outcomes))
    lookback = Lookback(time, key_columns(dataset.columns), recipe)
    past = lookback.past(table, dataset.revision)
    season = time.clock.season(int(np.median(np.diff(past.grid.starts))))
    names = [", ".join(str(part) for part in key) for key in past.numbers]
    return RowPositions(*lookback.places(past, table), names, time.clock, season)


def outcomes_of(table: pa.Table, names: list[str]) -> Floats:
    """Return the outcomes (n, d_y) of a table."""
    return np.stack([table.column(name).to_numpy() for name in names], axis=1)


def in_time(
    encoding: ContextEncoding,
    lookback: Lookback,
    past: HistoryGrid,
    table: pa.Table,
    values: Floats,
    lead: int,
    season: int,
    state: dict[str, Any],
) -> tuple[EncodedHistory, Integers]:
    """Encode the rows of a table with time, and return the numbers of those in the sample; complete the state."""
    encoded = encoding.encode_table(table, past, notes=False)
    kept = encoded.usable
    if not len(kept):
        raise InvalidInput(f"no row has another one {lead} period(s) before it; lower lead or send more rows")
    matrix = encoded.matrix[kept]
    if encoding.lookback is not None:
        state |= {"lowest": matrix.min(axis=0).tolist(), "highest": matrix.max(axis=0).tolist()}
    state |= {"rows": len(kept), "left_out": len(encoded.matrix) - len(kept)}
    periods, series = lookback.places(past, table)
    timeline = Timeline(torch.from_numpy(periods[kept]), torch.from_numpy(series[kept]), lead, season, encoding.levels)
    sample = Sample(torch.from_numpy(matrix), torch.from_numpy(values[kept]), timeline)
    return EncodedHistory(sample, state, state["left_out"]), kept


def _few_keys(columns: list[dict[str, Any]], table: pa.Table) -> dict[str, list[str]]:
    """Return the values of key columns with few different ones."""
    return {
        column["name"]: sorted(pc.unique(table.column(column["name"])).to_pylist())
        for column in columns
        if column["role"] == "series" and column["distinct"] <= FEW_KEYS
    }


def _recipe(time: TimeColumn, lead: int, features: Features, periods: int, outcomes: tuple[str, ...]) -> TimeRecipe:
    recipe = auto_recipe(time.clock, lead, periods, outcomes=outcomes, origin=time.origin)
    if not isinstance(features, RecipeSpec):
        return recipe
    changes: dict[str, Any] = {
        name: tuple(sorted(set(value))) if isinstance(value, list) else value
        for name, value in features.model_dump(exclude_none=True).items()
    }
    try:
        return replace(recipe, **changes)
    except InvalidInput as error:
        raise of_core(error, "features") from None
