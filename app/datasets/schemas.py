"""Requests and answers of data sets, inspections and distributions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field

from app.http.schemas import Body, Name, Resource, StrictModel

Missing = Literal["reject", "drop", "impute"]
Unseen = Literal["reject", "other"]
Lead = Annotated[int, Field(ge=1, le=100_000)]

FILE = "CSV (UTF-8, one header line), Parquet or Excel (.xlsx)"
SHEET = "the sheet of an Excel workbook; empty for the first"
TIME = "the column of times: 2024-01-31, 2024-01-31T06:00, 31.01.2024 or whole numbers of periods"
SERIES = "key columns, such as store and item; each combination of their values is a series of its own"
LEAD = "number of periods that a decision is made ahead"
MISSING = "rows with missing values are refused or dropped, or gaps in context numbers are filled in (impute)"
DECISIONS = "columns with the decisions actually taken, for backtests; never contexts, and gaps are kept"
UNSEEN = 'categories that are rare, or first seen when deciding, are refused or become "other"'


class NewDataset(Body):
    """Rows as JSON. For files, see the upload address."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "three days at the bakery",
                    "outcomes": ["croissants", "loaves"],
                    "rows": [
                        {"weekday": "SAT", "temperature": 21.5, "promotion": True, "croissants": 131, "loaves": 88},
                        {"weekday": "SUN", "temperature": 24.0, "promotion": False, "croissants": 118, "loaves": 61},
                        {"weekday": "MON", "temperature": 17.2, "promotion": False, "croissants": 64, "loaves": 79},
                    ],
                },
                {
                    "name": "two shops, two days ahead",
                    "outcomes": ["sold"],
                    "time": "day",
                    "series": ["shop"],
                    "lead": 2,
                    "rows": [
                        {"day": "2024-01-01", "shop": "north", "promotion": True, "sold": 131},
                        {"day": "2024-01-01", "shop": "south", "promotion": False, "sold": 64},
                        {"day": "2024-01-02", "shop": "north", "promotion": False, "sold": 118},
                        {"day": "2024-01-02", "shop": "south", "promotion": True, "sold": 79},
                    ],
                },
            ]
        }
    )

    name: Name
    rows: list[dict[str, Any]] = Field(description="history, one object a row: column name to number, text or boolean")
    outcomes: list[str] = Field(min_length=1, description="columns that are unknown when deciding")
    contexts: list[str] | None = Field(None, description="columns known when deciding; by default all others")
    categorical: list[str] = Field([], description="contexts to treat as categories although they hold numbers")
    time: str | None = Field(None, description=TIME)
    series: list[str] = Field([], description=SERIES)
    lead: Lead = Field(1, description=LEAD)
    missing: Missing = Field("reject", description=MISSING)
    unseen: Unseen = Field("reject", description=UNSEEN)
    decisions: list[str] = Field([], description=DECISIONS)


class DatasetUpload(StrictModel):
    """A file of history and the roles of its columns: the fields of a multipart form."""

    file: UploadFile = Field(description=FILE)
    sheet: str = Field("", description=SHEET)
    name: Name = Field(examples=["bakery"])
    outcomes: str = Field(
        description="outcome columns, separated by commas; quote a name that holds a comma",
        examples=["croissants,loaves"],
    )
    contexts: str = Field("", description="context columns; empty for all others, [] for none")
    categorical: str = Field("", description="contexts to treat as categories although they hold numbers")
    time: str = Field("", description=TIME)
    series: str = Field("", description=SERIES + "; separated by commas")
    lead: Annotated[int, Field(ge=1, le=100_000, strict=False)] = Field(1, description=LEAD)
    missing: Missing = Field("reject", description=MISSING)
    unseen: Unseen = Field("reject", description=UNSEEN)
    decisions: str = Field("", description=DECISIONS + "; separated by commas")


class NewRows(Body):
    """Rows with the columns of the data set they are appended to."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "rows": [
                        {
                            "weekday": "SAT",
                            "temperature": 19.5,
                            "rain": 0,
                            "promotion": 0,
                            "holiday": 0,
                            "croissants": 112,
                            "loaves": 85,
                        }
                    ]
                }
            ]
        }
    )

    rows: list[dict[str, Any]] = Field(description="one object a row: column name to value, null where it is unknown")


class RowsUpload(StrictModel):
    """A file of rows with the columns of the data set they are appended to."""

    file: UploadFile = Field(description=FILE)
    sheet: str = Field("", description=SHEET)


RowLimit = Annotated[int, Field(ge=1, le=1_000)]
RevisionNumber = Annotated[int, Field(ge=1, lt=2**31)]


class RowsPage(BaseModel):
    """Rows in the order in which they are stored; pass ``next_cursor`` as ``cursor`` to go on in the same revision."""

    items: list[dict[str, Any]]
    next_cursor: str | None
    revision: int


class ColumnSchema(BaseModel):
    """Role and values of a column."""

    name: str
    role: Literal["time", "series", "context", "outcome", "decision"]
    kind: Literal["time", "key", "numeric", "categorical"]
    missing: int = Field(
        description="number of missing values; their rows were dropped, or they are filled in; decisions keep them"
    )
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    distinct: int | None = None
    categories: list[str] | None = None
    other: bool | None = Field(None, description='whether rare and unseen categories are "other", the last category')
    median: float | None = Field(None, description="replaces missing values")
    format: Literal["iso date", "iso datetime", "dd.mm.yyyy", "period"] | None = None
    unit: Literal["minute", "hour", "day", "week", "month", "period"] | None = None
    step: int | None = Field(None, description="spacing of the times, in units")
    first: str | None = Field(None, description="the earliest time")
    last: str | None = Field(None, description="the latest time")
    zone: str | None = Field(None, description="UTC if times were written with a zone; they are kept in UTC")


class DatasetSummary(Resource):
    """A data set in short; GET /v1/datasets/{id} describes its columns."""

    rows: int


class ListedDataset(DatasetSummary):
    revision: int = Field(description="1 at first; appended rows make the next one")
    warning_count: int = Field(description="number of warnings")


class Handling(BaseModel):
    """Handling of missing values, and of categories that are rare or new."""

    missing: Missing = "reject"
    unseen: Unseen = "reject"


class DatasetAnswer(DatasetSummary):
    lead: int = Field(description=LEAD)
    revision: int = Field(description="1 at first; appended rows make the next one")
    digest: str = Field(description="sha256 of this revision's content")
    handling: Handling
    columns: list[ColumnSchema]
    warnings: list[str]


Role = Literal["time", "series", "context", "outcome", "decision", "left out"]
Kind = Literal["time", "numeric", "categorical", "empty"]


class FileToInspect(StrictModel):
    """A file to inspect: the fields of a multipart form."""

    file: UploadFile = Field(description=FILE)
    sheet: str = Field("", description=SHEET)
    outcomes: str = Field("", description="outcome columns as far as they are known, separated by commas")


class InspectedColumn(BaseModel):
    """Values of a column, and its suggested role."""

    name: str
    kind: Kind = Field(description="kind of its values; empty if it has none")
    missing: int
    distinct: int = Field(description="number of distinct values")
    minimum: float | None = None
    maximum: float | None = None
    samples: list[str] = Field(description="some of its values; long ones are cut")
    role: Role = Field(description="suggested role")
    categorical: bool = Field(description="whether its numbers seem to be names of categories")
    reason: str = Field(description="reason for the suggestion")


class Inspection(BaseModel):
    """Content of a file, of which nothing was stored."""

    format: Literal["csv", "parquet", "xlsx"]
    sheets: list[str] = Field(description="of a workbook; the first hundred")
    rows: int
    column_count: int = Field(
        description="number of columns in the file; only the first are described, as many as a data set may have"
    )
    columns: list[InspectedColumn]
    missing: Missing = Field(description="suggested handling of missing values")
    first_rows: list[list[str | None]] = Field(description="first rows, in the order of the columns")
    odd: list[str] = Field(description="warnings, and reasons why the file cannot be used with these roles")


MOST_BINS, MOST_CATEGORIES, MOST_BUCKETS, MOST_GAPS, MOST_SHIFTS = 30, 20, 400, 50, 3
MOST_SERIES, MOST_OUTCOMES, MOST_NAME = 500, 10, 2_000

SeriesName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MOST_NAME,
        description='show one series over time: its keys, such as "north, bread"',
    ),
]
OutcomeName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MOST_NAME,
        description=f"show this outcome over time; by default the first {MOST_OUTCOMES}",
    ),
]

Only = Annotated[Literal["columns", "over_time"], Field(description="leave out the other part, which takes longer")]


class ColumnDistribution(BaseModel):
    """Frequencies of a column's values: numbers and times in bins, others by value."""

    name: str
    role: Literal["time", "series", "context", "outcome", "decision"]
    edges: list[float] | None = Field(
        None,
        description=f"edges of at most {MOST_BINS} bins; of times, in seconds since 1970 or periods",
    )
    categories: list[str] | None = Field(None, description=f"most frequent values, at most {MOST_CATEGORIES}")
    counts: list[int] = Field(description="rows in each bin or with each category")
    others: int = Field(description="rows with another category")
    missing: int = Field(description="rows without a value")


class HistoryGap(BaseModel):
    """A span of time in which more than half of the series that continue after it have no rows."""

    after: str = Field(description="last time before the gap")
    before: str = Field(description="first time after the gap")
    periods: int = Field(
        description="number of periods in between, without weekdays and times of day that never have rows"
    )
    series: int = Field(description="largest number of series that lack rows")


class LevelShift(BaseModel):
    """A time at which the level of an outcome has changed.

    Time is cut into 20 stretches. The level has changed where the mean of four stretches differs from the mean of all
    on the longer side of a cut by more than 3.3 standard errors and more than a fifth of the spread of all periods.
    """

    since: str
    before: float = Field(description="mean before")
    after: float = Field(description="mean after")


class OutcomeOverTime(BaseModel):
    name: str
    mean: list[float] = Field(description="mean of each bucket")
    minimum: list[float]
    maximum: list[float]
    shifts: list[LevelShift] = Field(description="changes of its level, clearest first")


class HistoryOverTime(BaseModel):
    """Outcomes over time, in buckets of equal length; buckets without rows are left out."""

    series: str | None = Field(description="series that is shown; null for all together")
    times: list[str] = Field(description="beginning of each bucket")
    rows: list[int] = Field(description="rows in each bucket")
    periods: int = Field(description="number of periods in a bucket")
    outcomes: list[OutcomeOverTime]
    gaps: list[HistoryGap] = Field(description=f"in order of time; the {MOST_GAPS} longest if there are more")


class SeriesRows(BaseModel):
    series: str = Field(description="values of its keys, as the parameter series takes them")
    rows: int


class DistributionAnswer(Resource):
    """Frequencies of a data set's columns, and its outcomes over time."""

    rows: int
    revision: int
    columns: list[ColumnDistribution]
    series_count: int = Field(description="number of series; 1 without keys")
    series: list[SeriesRows] = Field(description=f"series with the most rows, at most {MOST_SERIES}; none without keys")
    over_time: HistoryOverTime | None = Field(description="null without a time column")
