"""What a data set looks like, as answered: counts of values, and outcomes over time."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from app.http.schemas import Resource

MOST_BINS, MOST_CATEGORIES, MOST_BUCKETS, MOST_GAPS, MOST_SHIFTS = 30, 20, 400, 50, 3
MOST_SERIES, MOST_OUTCOMES, MOST_NAME = 500, 10, 2_000

SeriesName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MOST_NAME,
        description='over time, the rows of one series alone: its keys, such as "north, bread"',
    ),
]
OutcomeName = Annotated[
    str,
    Field(min_length=1, max_length=MOST_NAME, description=f"over time, this one; by default the first {MOST_OUTCOMES}"),
]

Only = Annotated[Literal["columns", "over_time"], Field(description="leave out the other part, which takes time")]


class ColumnDistribution(BaseModel):
    """How often a column has which values: numbers and times in bins, others by value."""

    name: str
    role: Literal["time", "series", "context", "outcome", "decision"]
    edges: list[float] | None = Field(
        None,
        description=f"of at most {MOST_BINS} bins, one more than there are; of times, in seconds since 1970 or periods",
    )
    categories: list[str] | None = Field(None, description=f"the {MOST_CATEGORIES} most frequent values")
    counts: list[int] = Field(description="rows in each bin or with each category")
    others: int = Field(description="rows with another category")
    missing: int = Field(description="rows without a value")


class HistoryGap(BaseModel):
    """A span of time in which more than half of the series that go on have no rows."""

    after: str = Field(description="the last time before it")
    before: str = Field(description="the first time behind it")
    periods: int = Field(description="how many periods lie between, without weekdays and times that never have rows")
    series: int = Field(description="how many series lack rows, at most")


class LevelShift(BaseModel):
    """A time at which the level of an outcome has changed.

    Time is cut into 20 stretches. Where the mean of four of them differs from all on the longer side, behind or before,
    by more than 3.3 standard errors and more than a fifth of the spread of all periods, the level has changed.
    """

    since: str
    before: float = Field(description="the mean before")
    after: float = Field(description="the mean after")


class OutcomeOverTime(BaseModel):
    name: str
    mean: list[float] = Field(description="of each bucket")
    minimum: list[float]
    maximum: list[float]
    shifts: list[LevelShift] = Field(description="where its level has changed, clearest first")


class HistoryOverTime(BaseModel):
    """Outcomes over time, in buckets of equally many periods; those without rows are left out."""

    series: str | None = Field(description="the series that is shown; null for all together")
    times: list[str] = Field(description="when each bucket begins")
    rows: list[int] = Field(description="rows in each bucket")
    periods: int = Field(description="how many periods of the data set a bucket spans")
    outcomes: list[OutcomeOverTime]
    gaps: list[HistoryGap] = Field(description=f"in order of time; the {MOST_GAPS} longest if there are more")


class SeriesRows(BaseModel):
    series: str = Field(description="the values of its keys, as series takes them")
    rows: int


class Distribution(Resource):
    """What the columns of a data set hold and how its outcomes went."""

    rows: int
    revision: int
    columns: list[ColumnDistribution]
    series_count: int = Field(description="how many series there are; 1 without keys")
    series: list[SeriesRows] = Field(description=f"those with the most rows, {MOST_SERIES} at most; none without keys")
    over_time: HistoryOverTime | None = Field(description="null without a time column")
