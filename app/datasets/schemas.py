"""Data sets as sent and as answered."""

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
LEAD = "how many periods ahead a decision is made"
MISSING = "rows with missing values are refused or dropped, or gaps in context numbers are filled in (impute)"
DECISIONS = "columns with the decisions that were really made, for backtests; never contexts, and gaps are kept"
UNSEEN = 'categories that are rare, or seen first when deciding, are refused or become "other"'


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
    """A file of history and what its columns are: the fields of a multipart form."""

    file: UploadFile = Field(description=FILE)
    sheet: str = Field("", description=SHEET)
    name: Name = Field(examples=["bakery"])
    outcomes: str = Field(
        description="outcome columns, separated by commas; a name that holds a comma stands in quotes",
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


class Column(BaseModel):
    """What a column is and what it holds."""

    name: str
    role: Literal["time", "series", "context", "outcome", "decision"]
    kind: Literal["time", "key", "numeric", "categorical"]
    missing: int = Field(
        description="missing values met here; their rows were dropped, or they are filled in; decisions keep them"
    )
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    distinct: int | None = None
    categories: list[str] | None = None
    other: bool | None = Field(None, description='whether rare and unseen categories are "other", the last category')
    median: float | None = Field(None, description="what fills in missing values")
    format: Literal["iso date", "iso datetime", "dd.mm.yyyy", "period"] | None = None
    unit: Literal["minute", "hour", "day", "week", "month", "period"] | None = None
    step: int | None = Field(None, description="times are so many units apart")
    first: str | None = Field(None, description="the earliest time")
    last: str | None = Field(None, description="the latest time")
    zone: str | None = Field(None, description="UTC if times were written with a zone; they are kept in UTC")


class DatasetSummary(Resource):
    """What identifies a data set; GET /v1/datasets/{id} describes its columns."""

    rows: int


class ListedDataset(DatasetSummary):
    revision: int = Field(description="1 at first; appended rows make the next one")
    warning_count: int = Field(description="how many things to look at before learning")


class Handling(BaseModel):
    """What becomes of missing values, and of categories that are rare or new."""

    missing: Missing = "reject"
    unseen: Unseen = "reject"


class DatasetAnswer(DatasetSummary):
    lead: int = Field(description=LEAD)
    revision: int = Field(description="1 at first; appended rows make the next one")
    digest: str = Field(description="sha256 of what this revision holds")
    handling: Handling
    columns: list[Column]
    warnings: list[str]
