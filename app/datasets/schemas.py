"""Data sets as sent and as answered."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field

from app.http.schemas import Body, Name, Request, Resource

Missing = Literal["reject", "drop"]


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
                }
            ]
        }
    )

    name: Name
    rows: list[dict[str, Any]] = Field(description="history, one object a row: column name to number, text or boolean")
    outcomes: list[str] = Field(min_length=1, description="columns that are unknown when deciding")
    contexts: list[str] | None = Field(None, description="columns known when deciding; by default all others")
    categorical: list[str] = Field([], description="contexts to treat as categories although they hold numbers")
    missing: Missing = Field("reject", description="what to do with rows that have missing values")


class DatasetUpload(Request):
    """A file of history and what its columns are: the fields of a multipart form."""

    file: UploadFile = Field(description="CSV (UTF-8, one header line) or Parquet")
    name: Name = Field(examples=["bakery"])
    outcomes: str = Field(description="outcome columns, separated by commas", examples=["croissants,loaves"])
    contexts: str = Field("", description="context columns; empty for all others")
    categorical: str = Field("", description="contexts to treat as categories although they hold numbers")
    missing: Missing = Field("reject", description="what to do with rows that have missing values")


class Column(BaseModel):
    """What a column is and what it holds."""

    name: str
    role: Literal["context", "outcome"]
    kind: Literal["numeric", "categorical"]
    missing: int = Field(description="missing values met in this column (their rows were dropped)")
    minimum: float | None = None
    maximum: float | None = None
    mean: float | None = None
    std: float | None = None
    distinct: int | None = None
    categories: list[str] | None = None


class DatasetSummary(Resource):
    """A data set in a list; GET /v1/datasets/{id} describes its columns."""

    rows: int


class DatasetAnswer(DatasetSummary):
    columns: list[Column]
    warnings: list[str]
